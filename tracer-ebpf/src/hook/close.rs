//! Entry of close: `syscalls:sys_enter_close`, `unsigned int fd` at offset 16; since 2.6. At entry the file is still there.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::Kind;

use super::field;
use crate::{
    files::{Entry, nvidia_at},
    tracked,
};

#[tracepoint]
pub(crate) fn sys_enter_close(ctx: TracePointContext) -> u32 {
    let Some(user) = tracked::current_gpu_user() else {
        return 0;
    };
    let fd = field::<u64>(&ctx, 16) as u32;
    if let Some((file, dev)) = nvidia_at(user.task, fd) {
        Entry {
            kind: Kind::Close,
            task: user.task,
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
