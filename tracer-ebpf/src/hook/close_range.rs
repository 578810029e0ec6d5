//! Return of close_range: `syscalls:sys_exit_close_range`; since 5.9. What it closed is for the next scan to say.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};

use super::{files_changed, returned};
use crate::tracked;

#[tracepoint]
pub(crate) fn sys_exit_close_range(ctx: TracePointContext) -> u32 {
    if returned(&ctx) < 0 {
        return 0;
    }
    if let Some(user) = tracked::current_gpu_user() {
        files_changed(user);
    }
    0
}
