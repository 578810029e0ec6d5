//! `TP_PROTO(int sig, struct kernel_siginfo *info, struct task_struct *task, int group, int result)`,
//! include/trace/events/signal.h; since 2.6.
//!
//! SIGCHLD is only of interest when an exiting process tells its parent that it has become a zombie (kernel/signal.c,
//! do_notify_parent): then `current` is a thread of the dying process and `si_pid` is its own number.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use outlive_ebpf::record::{Kind, Signal, flag};

use super::siginfo::Info;
use crate::{
    kernel::{self, Raw},
    ring::{self, fill},
    task::{PF_EXITING, Task},
    tracked,
};

/// `SIGCHLD` (include/uapi/asm-generic/signal.h).
const SIGCHLD: u32 = 17;
/// `CLD_EXITED`, `CLD_KILLED`, `CLD_DUMPED` (include/uapi/asm-generic/siginfo.h).
const CLD_EXITED: i32 = 1;
const CLD_DUMPED: i32 = 3;

#[raw_tracepoint(tracepoint = "signal_generate")]
pub(crate) fn signal_generate(ctx: RawTracePointContext) -> i32 {
    let signal: u32 = ctx.arg(0);
    let zombie = signal == SIGCHLD;
    if !zombie && kernel::is_noise(signal) {
        return 0;
    }
    let target = Task(Raw(ctx.arg(2)));
    let info = Info(ctx.arg(1));
    let mut flags = if zombie {
        zombie_flags(info, target)
    } else {
        target_flags(target)
    };
    if flags == NOT_WANTED {
        return 0;
    }
    if ctx.arg::<i32>(3) != 0 {
        flags |= flag::GROUP;
    }
    let code = info.code();
    if code > 0 {
        flags |= flag::KERNEL;
    }
    let sender = Task::current();
    ring::send::<Signal>(|entry| {
        let mut who = target.thread();
        if flags & flag::GROUP != 0 {
            who.tid = 0;
        }
        fill!(
            entry,
            Signal {
                header: ring::header::<Signal>(Kind::SignalGenerate, flags, who, target.comm()),
                sender: sender.thread(),
                sender_comm: sender.comm(),
                number: signal as i32,
                code: code,
                result: ctx.arg(4),
                sender_uid: tracked::current_uid(),
            }
        );
    });
    0
}

/// No flags of a record are ever all set.
const NOT_WANTED: u32 = u32::MAX;

/// Flags for a signal to a followed process other than PID 1.
#[inline(always)]
fn target_flags(target: Task<Raw>) -> u32 {
    let tgid = target.tgid();
    if tgid == tracked::INIT {
        return NOT_WANTED;
    }
    match tracked::get(tgid) {
        Some(entry) if entry.start == 0 || entry.start == target.leader().started() => entry.flags,
        _ => NOT_WANTED,
    }
}

/// Flags for a SIGCHLD that says that the running, followed process is now a zombie.
#[inline(always)]
fn zombie_flags(info: Info, target: Task<Raw>) -> u32 {
    let Some(child) = tracked::current() else {
        return NOT_WANTED;
    };
    if child.task.flags() & PF_EXITING == 0 || !(CLD_EXITED..=CLD_DUMPED).contains(&info.code()) {
        return NOT_WANTED;
    }
    // A dying process also tells its children's new parent about those that are zombies: not about itself.
    let number = child.task.leader().pid().number(target.pid().level());
    if info.pid() != number {
        NOT_WANTED
    } else {
        child.flags()
    }
}
