//! Return of open, openat, openat2 and creat: `syscalls:sys_exit_*`, `long ret` at offset 16; since 2.6 (openat2: 5.6).
//!
//! A failed open ends after one comparison; a file that is not a character device after three helper calls.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::Kind;

use super::returned;
use crate::{files, task::Task, tracked};

#[tracepoint]
pub(crate) fn sys_exit_open(ctx: TracePointContext) -> u32 {
    opened(&ctx)
}
#[tracepoint]
pub(crate) fn sys_exit_openat(ctx: TracePointContext) -> u32 {
    opened(&ctx)
}
#[tracepoint]
pub(crate) fn sys_exit_openat2(ctx: TracePointContext) -> u32 {
    opened(&ctx)
}
#[tracepoint]
pub(crate) fn sys_exit_creat(ctx: TracePointContext) -> u32 {
    opened(&ctx)
}

#[inline(always)]
fn opened(ctx: &TracePointContext) -> u32 {
    let fd = returned(ctx);
    if fd < 0 {
        return 0;
    }
    let task = Task::current();
    if let Some((file, dev)) = files::nvidia_at(task, fd as u32) {
        tracked::adopt(task);
        files::send(Kind::Open, task, fd as i32, file, dev, 0);
    }
    0
}
