//! `iter/task`: `int bpf_iter_task(struct bpf_iter_meta *meta, struct task_struct *task)`, kernel/bpf/task_iter.c; since 5.8.
//!
//! Writes one [`record::Task`](outlive_ebpf::record::Task) for every thread of the host.

use outlive_ebpf::record::flag;

use super::iterator::{Meta, write};
use crate::{
    kernel::{Typed, Visited},
    task::{Task, describe},
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
    let task = Task(Visited(Typed::from_context(task)));
    let known = tracked::flags_of(task).unwrap_or(0) & flag::GPU_USER;
    write(Meta::seq(meta), |place| describe(place, task, known, 0));
    0
}
