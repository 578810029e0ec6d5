//! Return of close_range: `syscalls:sys_exit_close_range`, or by kretprobe `__x64_sys_close_range`; since 5.9. What it closed is for the next scan to say.

use aya_ebpf::{
    macros::{kretprobe, tracepoint},
    programs::{RetProbeContext, TracePointContext},
};

use super::{files_changed, returned};
use crate::tracked;

#[tracepoint]
pub(crate) fn sys_exit_close_range(ctx: TracePointContext) -> u32 {
    closed(returned(&ctx))
}

#[kretprobe]
pub(crate) fn range_closed(ctx: RetProbeContext) -> u32 {
    closed(ctx.ret())
}

#[inline(always)]
fn closed(result: i64) -> u32 {
    if result >= 0
        && let Some(user) = tracked::current_gpu_user()
    {
        files_changed(user);
    }
    0
}
