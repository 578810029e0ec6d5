//! Return of sendmsg(fd, msghdr, flags) and sendmmsg(fd, mmsghdr, vlen, flags): `syscalls:sys_exit_*`; since 2.6 and 3.0.
//!
//! Only a process that has an NVIDIA file can send one, so everybody else ends after one lookup.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};

use super::returned;
use crate::{kernel::Registers, scm, tracked};

#[tracepoint]
pub(crate) fn sys_exit_sendmsg(ctx: TracePointContext) -> u32 {
    if returned(&ctx) < 0 {
        return 0;
    }
    if let Some(user) = tracked::current_gpu_user() {
        let registers = Registers::of(user.task.0);
        scm::walk_message::<false>(registers.first() as u32, registers.second());
    }
    0
}

#[tracepoint]
pub(crate) fn sys_exit_sendmmsg(ctx: TracePointContext) -> u32 {
    let sent = returned(&ctx);
    if sent <= 0 {
        return 0;
    }
    if let Some(user) = tracked::current_gpu_user() {
        let registers = Registers::of(user.task.0);
        scm::walk_messages::<false>(registers.first() as u32, registers.second(), sent as u64);
    }
    0
}
