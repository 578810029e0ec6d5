//! The hooks, one file each. A file opens with the kernel's prototype and the oldest kernel that has it.
#![expect(
    unsafe_code,
    reason = "program entry points are exported symbols that take a raw context"
)]

mod close;
mod close_range;
mod driver_open;
mod driver_release;
mod dup;
mod ioctl;
mod iter_task;
mod iter_task_file;
pub(crate) mod iterator;
mod mark_victim;
mod nvidia_dev_xid;
mod open;
mod pidfd_getfd;
mod receive_fd;
mod recvmsg;
mod release_task;
mod sched_process_exec;
mod sched_process_exit;
mod sched_process_fork;
mod sched_process_free;
mod scm_send;
mod sendmsg;
mod siginfo;
mod signal_deliver;
mod signal_generate;
mod wait;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::bpf_get_current_pid_tgid,
    programs::{ProbeContext, TracePointContext},
};
use outlive_ebpf::record::{Header, Kind, flag};

use crate::{
    files::{Entry, nvidia_at},
    ring,
    task::Task,
    tracked::{self, Current},
};

/// What the system call returns: `long ret` of `syscalls:sys_exit_*`.
#[inline(always)]
fn returned(ctx: &TracePointContext) -> i64 {
    field(ctx, 16)
}

/// A field of a tracepoint's record, read in place.
#[inline(always)]
fn field<T: Copy>(ctx: &TracePointContext, offset: usize) -> T {
    // SAFETY: the kernel checks, when the program is attached, that the record is long enough.
    unsafe { core::ptr::read_volatile(ctx.as_ptr().cast::<u8>().wrapping_add(offset).cast()) }
}

/// An argument of a probed function; 0 when the function has not so many.
#[inline(always)]
fn argument(ctx: &ProbeContext, index: usize) -> u64 {
    ctx.arg(index).unwrap_or(0)
}

/// The running thread: both of its ids.
#[inline(always)]
fn thread() -> u64 {
    // SAFETY: takes nothing, always answers.
    unsafe { bpf_get_current_pid_tgid() }
}

/// The system call has returned a new descriptor: reports it when it is an NVIDIA file, and follows the process.
#[inline(always)]
fn acquired(ctx: &TracePointContext, kind: Kind) -> u32 {
    let fd = returned(ctx);
    if fd < 0 {
        return 0;
    }
    let task = Task::current();
    if let Some((file, dev)) = nvidia_at(task, fd as u32) {
        tracked::adopt();
        Entry {
            kind,
            task,
            fd: fd as i32,
            file,
            dev,
            socket: 0,
            pins: 0,
        }
        .send();
    }
    0
}

/// Reports that a process may have lost descriptors in a way that only a scan can follow.
#[inline(always)]
fn files_changed(user: Current) {
    ring::send::<Header>(|entry| {
        let (who, comm) = (user.task.thread(), user.task.comm());
        entry.write(ring::header::<Header>(
            Kind::FilesChanged,
            flag::GPU_USER,
            who,
            comm,
        ));
    });
}
