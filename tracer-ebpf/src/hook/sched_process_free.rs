//! `TP_PROTO(struct task_struct *p)`, include/trace/events/sched.h; since 2.6.
//!
//! An RCU callback after the reap (kernel/exit.c, delayed_put_task_struct), so `current` is unrelated and the PID may
//! already be another process's.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use outlive_ebpf::record::{Free, Kind, Proc};

use crate::{
    kernel::Raw,
    ring::{self, fill},
    task::Task,
    tracked,
};

#[raw_tracepoint(tracepoint = "sched_process_free")]
pub(crate) fn sched_process_free(ctx: RawTracePointContext) -> i32 {
    let task = Task(Raw(ctx.arg(0)));
    let tgid = task.tgid();
    let Some(entry) = tracked::get(tgid) else {
        return 0;
    };
    let start = task.started();
    if task.tid() != tgid || entry.is_stale(start) {
        return 0;
    }
    tracked::forget(tgid);
    ring::send::<Free>(|slot| {
        let who = Proc {
            tgid,
            tid: tgid,
            start,
        };
        fill!(
            slot,
            Free {
                header: ring::header::<Free>(Kind::Free, entry.flags, who, task.comm())
            }
        );
    });
    0
}
