//! `iter/task`: `int bpf_iter_task(struct bpf_iter_meta *meta, struct task_struct *task)`, kernel/bpf/task_iter.c; since 5.8.
//!
//! Writes one [`record::Task`](outlive_ebpf::record::Task) for every thread of the host.

use outlive_ebpf::record::flag;

use super::iterator::{Meta, write};
use crate::{
    kernel::{Registers, Typed, Visited},
    task::{PF_KTHREAD, Task, describe},
    tracked,
};

/// `struct bpf_iter__task`.
#[repr(C)]
pub(crate) struct Context {
    meta: *const Meta,
    task: *const u8,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub(crate) extern "C" fn iter_task(ctx: *const Context) -> i32 {
    // SAFETY: the kernel passes its context; the verifier checks the reads.
    let (meta, task) = unsafe { ((*ctx).meta, (*ctx).task) };
    if task.is_null() {
        return 0;
    }
    let thread = Typed::from_context(task);
    let task = Task(Visited(thread));
    let known = tracked::flags_of(task).unwrap_or(0) & flag::GPU_USER;
    let ioctl = if task.flags() & PF_KTHREAD == 0 { Registers::of(thread).ioctl() } else { 0 };
    write(Meta::seq(meta), |place| describe(place, task, known, ioctl, 0));
    0
}
