//! Return of dup, dup2, dup3, and fcntl(fd, F_DUPFD..., arg): `syscalls:sys_exit_*`; since 2.6. The new descriptor is what they
//! return. fcntl(fd, F_SETFD, flags) makes no descriptor but changes whether exec closes it, which is reported the same way.
//!
//! Where kprobes are used: return of the functions of these calls alone, `__x64_sys_dup`, `__x64_sys_dup2`, `__x64_sys_dup3`,
//! `int f_dupfd(unsigned int, struct file *, unsigned int)` and `void set_close_on_exec(unsigned int, int)` (fs/file.c).
//!
//! dup2 and dup3 close what the new descriptor was before, which cannot be seen any more: the next scan says. Standard
//! input, output and error are let be: every shell replaces them, and they are not where NVIDIA files lie.

use aya_ebpf::{
    macros::{kretprobe, tracepoint},
    programs::{RetProbeContext, TracePointContext},
};
use outlive_ebpf::record::Kind;

use super::{files_changed, returned};
use crate::{
    files::{Entry, nvidia_at},
    kernel::{Registers, Typed},
    tracked,
};

/// F_DUPFD, F_SETFD and F_DUPFD_CLOEXEC (include/uapi/asm-generic/fcntl.h, include/uapi/linux/fcntl.h).
const F_DUPFD: u64 = 0;
const F_SETFD: u64 = 2;
const F_DUPFD_CLOEXEC: u64 = 1030;
const STDERR: i64 = 2;

#[tracepoint]
pub(crate) fn sys_exit_dup(ctx: TracePointContext) -> u32 {
    report(returned(&ctx), false)
}
#[tracepoint]
pub(crate) fn sys_exit_dup2(ctx: TracePointContext) -> u32 {
    report(returned(&ctx), true)
}
#[tracepoint]
pub(crate) fn sys_exit_dup3(ctx: TracePointContext) -> u32 {
    report(returned(&ctx), true)
}

#[tracepoint]
pub(crate) fn sys_exit_fcntl(ctx: TracePointContext) -> u32 {
    let registers = Registers::of(Typed::current());
    match registers.second() {
        F_DUPFD | F_DUPFD_CLOEXEC => report(returned(&ctx), false),
        F_SETFD if returned(&ctx) == 0 => report(i64::from(registers.first() as u32), false),
        _ => 0,
    }
}

#[kretprobe]
pub(crate) fn duplicated(ctx: RetProbeContext) -> u32 {
    report(i64::from(ctx.ret::<i32>()), false)
}
#[kretprobe]
pub(crate) fn replaced(ctx: RetProbeContext) -> u32 {
    report(i64::from(ctx.ret::<i32>()), true)
}
#[kretprobe]
pub(crate) fn exec_flag_set(_ctx: RetProbeContext) -> u32 {
    // fcntl(fd, F_SETFD, flags) and ioctl(fd, FIOCLEX) both have the descriptor first.
    report(i64::from(Registers::of(Typed::current()).first() as u32), false)
}

/// Reports the NVIDIA file at `fd`; of another file, only that it may have `replaced` one.
#[inline(always)]
fn report(fd: i64, replaced: bool) -> u32 {
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
            pins: 0,
        }
        .send();
    } else if replaced && fd > STDERR {
        files_changed(user);
    }
    0
}
