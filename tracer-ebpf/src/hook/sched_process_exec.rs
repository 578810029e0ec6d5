//! `TP_PROTO(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)`, include/trace/events/sched.h; since 3.4.
//!
//! `p` is the running thread, already the leader of its group, with its new name and credentials; close-on-exec
//! descriptors are closed (fs/exec.c, begin_new_exec).

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use outlive_ebpf::{
    limits::{Lost, PATH_LEN},
    record::{Exec, Kind, flag},
};

use crate::{
    kernel::{Memory, Raw, Registers, offset, string},
    ring,
    tracked::{self, Current},
};

#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub(crate) fn sched_process_exec(ctx: RawTracePointContext) -> i32 {
    let Some(Current { task, gpu_user, .. }) = tracked::current() else {
        return 0;
    };
    // Per-call syscall tracepoints do not fire for 32-bit programs (perf_syscall_exit, kernel/trace/trace_syscalls.c):
    // what this one does with its descriptors is only seen by scans.
    if gpu_user && Registers::of(task.0).is_32_bit() {
        ring::count(Lost::Compat);
    }
    let filename = Raw(ctx.arg(2)).get(offset!(bprm_filename));
    ring::send::<Exec>(|entry| {
        let flags = if gpu_user { flag::GPU_USER } else { 0 };
        let header = ring::header::<Exec>(Kind::Exec, flags, task.thread(), task.comm());
        let record = entry.write(Exec {
            header,
            cred: task.cred(),
            path: [0; PATH_LEN],
        });
        string(&mut record.path, filename);
    });
    0
}
