//! Return of wait4(pid, status, options, rusage) and waitid(which, id, info, options, rusage): `syscalls:sys_exit_*`;
//! since 2.6.
//!
//! Only a child that exited was reaped: a stopped or continued one, or one that was left to wait for again
//! (WNOWAIT), was not. When that cannot be told nothing is reported; the freed task_struct tells it later.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::{Kind, Reap};

use super::returned;
use crate::{
    kernel::{Registers, user},
    ring::{self, fill},
    tracked::{self, Current},
};

/// `WUNTRACED | WCONTINUED` and `WNOWAIT` (include/uapi/linux/wait.h).
const STOPS: u64 = 2 | 8;
const WNOWAIT: u64 = 0x0100_0000;
/// Low byte of the wait status of a stopped child; whole status of a continued one.
const STOPPED: u32 = 0x7f;
const CONTINUED: u32 = 0xffff;
/// Members of the user's `siginfo_t` (include/uapi/asm-generic/siginfo.h).
const SI_CODE: u64 = 8;
const SI_PID: u64 = 16;
/// `CLD_EXITED` to `CLD_DUMPED`.
const EXITED: core::ops::RangeInclusive<u32> = 1..=3;

#[tracepoint]
pub(crate) fn sys_exit_wait4(ctx: TracePointContext) -> u32 {
    let child = returned(&ctx);
    if child <= 0 {
        return 0;
    }
    let Some(parent) = tracked::current() else {
        return 0;
    };
    let registers = Registers::of(parent.task.0);
    if registers.third() & STOPS != 0 && !exited(registers.second()) {
        return 0;
    }
    reaped(parent, child as u32);
    0
}

/// Does the wait status at this user address say that the child exited?
#[inline(always)]
fn exited(status: u64) -> bool {
    if status == 0 {
        return false;
    }
    user::<u32>(status).is_some_and(|status| status & 0xff != STOPPED && status != CONTINUED)
}

#[tracepoint]
pub(crate) fn sys_exit_waitid(ctx: TracePointContext) -> u32 {
    if returned(&ctx) < 0 {
        return 0;
    }
    let Some(parent) = tracked::current() else {
        return 0;
    };
    let registers = Registers::of(parent.task.0);
    let info = registers.third();
    if registers.fourth() & WNOWAIT != 0 || info == 0 {
        return 0;
    }
    let (Some(code), Some(child)) = (user::<u32>(info + SI_CODE), user::<u32>(info + SI_PID))
    else {
        return 0;
    };
    if child != 0 && EXITED.contains(&code) {
        reaped(parent, child);
    }
    0
}

/// Reports that `parent` collected `child`, a number in its own PID namespace, unless it is known not to be followed.
#[inline(always)]
pub(super) fn reaped(parent: Current, child: u32) {
    let level = parent.task.pid().level();
    if level == 0 && tracked::get(child).is_none() {
        return;
    }
    ring::send::<Reap>(|entry| {
        let (who, comm) = (parent.task.thread(), parent.task.comm());
        let header = ring::header::<Reap>(Kind::Reap, parent.flags(), who, comm);
        fill!(
            entry,
            Reap {
                header: header,
                child: child,
                ns_level: level
            }
        );
    });
}
