//! `TP_PROTO(struct task_struct *parent, struct task_struct *child)`, include/trace/events/sched.h; since 2.6.
//!
//! Called for new threads too; those are not processes and share everything.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use outlive_ebpf::record::{Fork, Kind, Proc, flag};

use crate::{
    kernel::{Memory, Raw},
    ring::{self, fill},
    task::Task,
    tracked,
};

#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub(crate) fn sched_process_fork(ctx: RawTracePointContext) -> i32 {
    let Some(parent) = tracked::current_gpu_user() else {
        return 0;
    };
    let child = Task(Raw(ctx.arg(1)));
    let tgid = child.tgid();
    if tgid == parent.tgid {
        return 0;
    }
    let start = child.started();
    tracked::descend(tgid, start);
    ring::send::<Fork>(|entry| {
        let who = Proc {
            tgid,
            tid: tgid,
            start,
        };
        let pid = child.pid();
        let level = pid.level();
        let ns_pid = if level == 0 { tgid } else { pid.number(level) };
        fill!(
            entry,
            Fork {
                header: ring::header::<Fork>(Kind::Fork, flag::GPU_USER, who, child.comm()),
                parent: parent.task.thread(),
                cred: child.cred(),
                shares_files: u32::from(child.files().address() == parent.task.files().address()),
                ns_pid: ns_pid,
            }
        );
    });
    0
}
