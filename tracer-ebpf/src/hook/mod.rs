//! The hooks, one file each. A file opens with the kernel's prototype and the oldest kernel that has it.
#![expect(unsafe_code, reason = "program entry points are exported symbols that take a raw context")]

mod iterator;
pub(crate) mod iter_task;
pub(crate) mod iter_task_file;
pub(crate) mod open;
pub(crate) mod sched_process_exit;
pub(crate) mod sched_process_fork;

use aya_ebpf::{EbpfContext, programs::TracePointContext};

/// What the system call returns: `long ret` of `syscalls:sys_exit_*`.
#[inline(always)]
pub(crate) fn returned(ctx: &TracePointContext) -> i64 {
    field(ctx, 16)
}

/// An 8-byte field of a tracepoint's record, read in place.
#[inline(always)]
pub(crate) fn field(ctx: &TracePointContext, offset: usize) -> i64 {
    // SAFETY: the kernel checks, when the program is attached, that the record is long enough.
    unsafe { core::ptr::read_volatile(ctx.as_ptr().cast::<u8>().wrapping_add(offset).cast()) }
}
