//! Return of close_range: `syscalls:sys_exit_close_range`; since 5.9. What it closed is for the next scan to say.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::{Header, Kind, flag};

use super::returned;
use crate::{ring, tracked};

#[tracepoint]
pub(crate) fn sys_exit_close_range(ctx: TracePointContext) -> u32 {
    if returned(&ctx) < 0 {
        return 0;
    }
    if let Some(user) = tracked::current_gpu_user() {
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
    0
}
