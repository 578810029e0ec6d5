//! `int __scm_send(struct socket *, struct msghdr *, struct scm_cookie *)` (net/core/scm.c), entry and return, by kprobe and kretprobe:
//! called only for messages with control data. On success the cookie has the files that go with the message.
//!
//! Takes the place of the return of sendmsg and sendmmsg. The message may still fail to be queued; the next scan then says so.

use aya_ebpf::{
    macros::{kprobe, kretprobe, map},
    maps::HashMap,
    programs::{ProbeContext, RetProbeContext},
};
use outlive_ebpf::limits::PENDING_MAX;

use super::{argument, thread};
use crate::{
    kernel::{Raw, Registers},
    scm, tracked,
};

/// arch/x86/entry/syscalls/syscall_64.tbl
const SENDMSG: u64 = 46;
const SENDMMSG: u64 = 307;

/// By thread: the `struct scm_cookie` that is being filled.
#[map]
static SENDING: HashMap<u64, u64> = HashMap::with_max_entries(PENDING_MAX, 0);

#[kprobe]
pub(crate) fn scm_send(ctx: ProbeContext) -> u32 {
    if tracked::current_gpu_user().is_some() {
        // Full: then that it was sent is not known, and a scan shows where it is.
        let _full = SENDING.insert(thread(), argument(&ctx, 2), 0);
    }
    0
}

#[kretprobe]
pub(crate) fn scm_sent(ctx: RetProbeContext) -> u32 {
    let thread = thread();
    // SAFETY: only this thread adds and removes this entry.
    let Some(cookie) = (unsafe { SENDING.get(thread) }).copied() else {
        return 0;
    };
    let _removed = SENDING.remove(thread);
    if ctx.ret::<i32>() < 0 {
        return 0;
    }
    let Some(user) = tracked::current_gpu_user() else {
        return 0;
    };
    let registers = Registers::of(user.task.0);
    let socket = match registers.call() {
        SENDMSG | SENDMMSG => scm::unix_socket(registers.first() as u32).unwrap_or(0),
        _ => 0,
    };
    scm::sent(Raw(cookie), socket);
    0
}
