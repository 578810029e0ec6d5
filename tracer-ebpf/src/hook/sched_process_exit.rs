//! `TP_PROTO(struct task_struct *p)`, include/trace/events/sched.h; since 2.6. `p` is the running thread.
//!
//! Newer kernels add `bool group_dead`, which must not be read: older ones refuse to attach a program that reads an
//! argument they do not have. `signal->live` is already decremented here on all of them (kernel/exit.c, do_exit).

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use outlive_ebpf::record::{Exit, Kind, flag};

use crate::{
    ring::{self, fill},
    tracked::{self, Current},
};

#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub(crate) fn sched_process_exit(_ctx: RawTracePointContext) -> i32 {
    let Some(Current {
        task,
        tgid,
        gpu_user,
    }) = tracked::current()
    else {
        return 0;
    };
    let signal = task.signal();
    let live = signal.live();
    // Of an ancestor only the end of its life and of its leader matter.
    if tgid == tracked::INIT || (!gpu_user && live != 0 && task.tid() != tgid) {
        return 0;
    }
    let parent = task.leader().parent();
    if live == 0 {
        tracked::ancestor_of_user(parent.leader());
    }
    let mut flags = signal.group_exit_flag();
    if live == 0 {
        flags |= flag::LAST_THREAD;
    }
    if gpu_user {
        flags |= flag::GPU_USER;
    }
    ring::send::<Exit>(|entry| {
        fill!(
            entry,
            Exit {
                header: ring::header::<Exit>(Kind::Exit, flags, task.thread(), task.comm()),
                parent: parent.process(),
                code: task.exit_code(),
                group_code: signal.group_exit_code(),
                live: live,
                task_flags: task.flags(),
            }
        );
    });
    0
}
