//! Return of pidfd_getfd(pidfd, targetfd, flags): `syscalls:sys_exit_pidfd_getfd`; since 5.6.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::Kind;

use super::acquired;

#[tracepoint]
pub(crate) fn sys_exit_pidfd_getfd(ctx: TracePointContext) -> u32 {
    acquired(&ctx, Kind::Stolen)
}
