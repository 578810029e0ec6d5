//! Return of open, openat, openat2 and creat: `syscalls:sys_exit_*`, `long ret` at offset 16; since 2.6 (openat2: 5.6).
//!
//! A failed open ends after one comparison; a file that is not a character device after three helper calls.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::Kind;

use super::acquired;

#[tracepoint]
pub(crate) fn sys_exit_open(ctx: TracePointContext) -> u32 {
    acquired(&ctx, Kind::Open)
}
#[tracepoint]
pub(crate) fn sys_exit_openat(ctx: TracePointContext) -> u32 {
    acquired(&ctx, Kind::Open)
}
#[tracepoint]
pub(crate) fn sys_exit_openat2(ctx: TracePointContext) -> u32 {
    acquired(&ctx, Kind::Open)
}
#[tracepoint]
pub(crate) fn sys_exit_creat(ctx: TracePointContext) -> u32 {
    acquired(&ctx, Kind::Open)
}
