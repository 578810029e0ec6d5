//! `int receive_fd(struct file *, int __user *, unsigned int)` (fs/file.c), return, by kretprobe: the one function through which a
//! process gets a descriptor from another: SCM_RIGHTS, pidfd_getfd, and a seccomp supervisor's gift. Before 6.8 SCM_RIGHTS comes through
//! `__receive_fd`, and `receive_fd(struct file *, unsigned int)` has a copy of it inside: so there is a program for each.
//!
//! Takes the place of the return of recvmsg, recvmmsg and pidfd_getfd, and costs only those who receive descriptors.

use aya_ebpf::{macros::kretprobe, programs::RetProbeContext};
use outlive_ebpf::record::Kind;

use crate::{
    files::{Entry, nvidia_at},
    kernel::{Registers, Typed},
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
    let registers = Registers::of(Typed::current());
    match registers.call() {
        PIDFD_GETFD => {}
        RECVMSG | RECVMMSG => got(&ctx, Kind::Received, Some(registers.first() as u32)),
        _ => got(&ctx, Kind::Received, None),
    }
    0
}

#[kretprobe]
pub(crate) fn stolen_fd(ctx: RetProbeContext) -> u32 {
    if Registers::of(Typed::current()).call() == PIDFD_GETFD {
        got(&ctx, Kind::Stolen, None);
    }
    0
}

/// Reports the new descriptor when it is an NVIDIA file, which came through the descriptor `socket`.
#[inline(always)]
fn got(ctx: &RetProbeContext, kind: Kind, socket: Option<u32>) {
    let fd = ctx.ret::<i32>();
    let task = Task::current();
    if fd >= 0
        && let Some((file, dev)) = nvidia_at(task, fd as u32)
    {
        tracked::adopt();
        Entry {
            kind,
            task,
            fd,
            file,
            dev,
            socket: socket.and_then(scm::unix_socket).unwrap_or(0),
            pins: 0,
        }
        .send();
    }
}
