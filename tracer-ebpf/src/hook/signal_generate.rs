//! `TP_PROTO(int sig, struct kernel_siginfo *info, struct task_struct *task, int group, int result)`,
//! include/trace/events/signal.h; since 2.6.
//!
//! SIGCHLD is only of interest when an exiting process tells its parent that it has become a zombie (kernel/signal.c,
//! do_notify_parent): then `current` is a thread of the dying process and `si_pid` is its own number.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use outlive_ebpf::record::{Kind, Proc, Signal, Tracked, flag};

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
    let tgid = target.tgid();
    let entry = if zombie {
        notice_of_death(info, target)
    } else {
        followed(tgid)
    };
    let Some(entry) = entry else {
        return 0;
    };
    let start = target.leader().started();
    if entry.is_stale(start) {
        return 0;
    }
    let mut flags = entry.flags;
    let mut tid = 0;
    if ctx.arg::<i32>(3) != 0 {
        flags |= flag::GROUP;
    } else {
        tid = target.tid();
    }
    let code = info.code();
    if code > 0 {
        flags |= flag::KERNEL;
    }
    let sender = Task::current();
    ring::send::<Signal>(|entry| {
        let who = Proc { tgid, tid, start };
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

/// The entry of a signalled process. PID 1 is only followed for what it reaps.
#[inline(always)]
fn followed(tgid: u32) -> Option<Tracked> {
    if tgid == tracked::INIT {
        None
    } else {
        tracked::get(tgid)
    }
}

/// If a SIGCHLD says that the running, followed process is now a zombie: an entry with its flags that matches any target.
#[inline(always)]
fn notice_of_death(info: Info, target: Task<Raw>) -> Option<Tracked> {
    let child = tracked::current()?;
    if child.task.flags() & PF_EXITING == 0 || !(CLD_EXITED..=CLD_DUMPED).contains(&info.code()) {
        return None;
    }
    // A dying process also tells its children's new parent about those that are zombies: not about itself.
    let number = child.task.leader().pid().number(target.pid().level());
    (info.pid() == number).then(|| Tracked {
        start: 0,
        flags: child.flags(),
        pad: 0,
    })
}
