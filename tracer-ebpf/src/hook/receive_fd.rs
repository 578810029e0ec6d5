//! `int receive_fd(struct file *, int __user *, unsigned int)` (fs/file.c; before 6.8: `__receive_fd`), return, by kretprobe: the one
//! function through which a process gets a descriptor from another: SCM_RIGHTS, pidfd_getfd, and a seccomp supervisor's gift.
//!
//! Takes the place of the return of recvmsg, recvmmsg and pidfd_getfd, and costs only those who receive descriptors.

use aya_ebpf::{macros::kretprobe, programs::RetProbeContext};
use outlive_ebpf::record::Kind;

use crate::{
    files::{Entry, nvidia_at},
    kernel::Registers,
    scm,
    task::Task,
    tracked,
};

/// arch/x86/entry/syscalls/syscall_64.tbl
const RECVMSG: u64 = 47;
const RECVMMSG: u64 = 299;
const PIDFD_GETFD: u64 = 438;

#[kretprobe]
pub(crate) fn received_fd(ctx: RetProbeContext) -> u32 {
    let fd = ctx.ret::<i32>();
    if fd < 0 {
        return 0;
    }
    let task = Task::current();
    let Some((file, dev)) = nvidia_at(task, fd as u32) else {
        return 0;
    };
    let registers = Registers::of(task.0);
    let (kind, socket) = match registers.call() {
        PIDFD_GETFD => (Kind::Stolen, 0),
        RECVMSG | RECVMMSG => (
            Kind::Received,
            scm::unix_socket(registers.first() as u32).unwrap_or(0),
        ),
        _ => (Kind::Received, 0),
    };
    tracked::adopt();
    Entry {
        kind,
        task,
        fd,
        file,
        dev,
        socket,
        pins: 0,
    }
    .send();
    0
}
