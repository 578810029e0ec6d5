//! Return of dup, dup2, dup3, and fcntl(fd, F_DUPFD..., arg): `syscalls:sys_exit_*`; since 2.6. The new descriptor is what they
//! return. fcntl(fd, F_SETFD, flags) makes no descriptor but changes whether exec closes it, which is reported the same way.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::Kind;

use super::returned;
use crate::{
    files::{Entry, nvidia_at},
    kernel::{Registers, Typed},
    tracked,
};

/// F_DUPFD, F_SETFD and F_DUPFD_CLOEXEC (include/uapi/asm-generic/fcntl.h, include/uapi/linux/fcntl.h).
const F_DUPFD: u64 = 0;
const F_SETFD: u64 = 2;
const F_DUPFD_CLOEXEC: u64 = 1030;

#[tracepoint]
pub(crate) fn sys_exit_dup(ctx: TracePointContext) -> u32 {
    duplicated(&ctx)
}
#[tracepoint]
pub(crate) fn sys_exit_dup2(ctx: TracePointContext) -> u32 {
    duplicated(&ctx)
}
#[tracepoint]
pub(crate) fn sys_exit_dup3(ctx: TracePointContext) -> u32 {
    duplicated(&ctx)
}

#[tracepoint]
pub(crate) fn sys_exit_fcntl(ctx: TracePointContext) -> u32 {
    let registers = Registers::of(Typed::current());
    match registers.second() {
        F_DUPFD | F_DUPFD_CLOEXEC => report(returned(&ctx)),
        F_SETFD if returned(&ctx) == 0 => report(i64::from(registers.first() as u32)),
        _ => 0,
    }
}

#[inline(always)]
fn duplicated(ctx: &TracePointContext) -> u32 {
    report(returned(ctx))
}

#[inline(always)]
fn report(fd: i64) -> u32 {
    if fd < 0 {
        return 0;
    }
    let Some(user) = tracked::current_gpu_user() else {
        return 0;
    };
    if let Some((file, dev)) = nvidia_at(user.task, fd as u32) {
        Entry {
            kind: Kind::Dup,
            task: user.task,
            fd: fd as i32,
            file,
            dev,
            socket: 0,
        }
        .send();
    }
    0
}
