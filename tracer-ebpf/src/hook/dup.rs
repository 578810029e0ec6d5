//! Return of dup, dup2 and dup3: `syscalls:sys_exit_*`; since 2.6. The new descriptor is what they return.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::Kind;

use super::returned;
use crate::{
    files::{Entry, nvidia_at},
    tracked,
};

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

#[inline(always)]
fn duplicated(ctx: &TracePointContext) -> u32 {
    let fd = returned(ctx);
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
