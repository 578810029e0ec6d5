//! `iter/task_file`: `int bpf_iter_task_file(struct bpf_iter_meta *meta, struct task_struct *task, u32 fd, struct file *file)`,
//! kernel/bpf/task_iter.c; since 5.8.
//!
//! Called for every descriptor of every thread that has a table of its own. Writes NVIDIA files, unix sockets with
//! NVIDIA files in flight, and io_uring instances.

use outlive_ebpf::record::Kind;

use super::iterator::{Meta, write};
use crate::{
    files::{Entry, File, Is, role},
    kernel::{self, Typed},
    scm,
    task::Task,
};

/// `struct bpf_iter__task_file`.
#[repr(C)]
pub(crate) struct Context {
    meta: *const Meta,
    task: *const u8,
    fd: u32,
    file: *const u8,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub(crate) extern "C" fn iter_task_file(ctx: *const Context) -> i32 {
    // SAFETY: the kernel passes its context; the verifier checks the reads.
    let (meta, task, fd, file) = unsafe { ((*ctx).meta, (*ctx).task, (*ctx).fd, (*ctx).file) };
    if task.is_null() || file.is_null() {
        return 0;
    }
    let task = Task(Typed::from_context(task));
    let file = File(Typed::from_context(file));
    let (kind, dev) = match file.is() {
        Is::Nvidia(dev) => (Kind::Held, dev),
        Is::Other if is_io_uring(file) => (Kind::IoUring, 0),
        Is::Other => return 0,
        Is::Socket => {
            scm::in_flight(Meta::seq(meta), task, fd, file);
            return 0;
        }
    };
    let (flags, pins) = if kind == Kind::Held { role(file, dev) } else { (0, 0) };
    let entry = Entry {
        kind,
        task,
        fd: fd as i32,
        file,
        dev,
        socket: 0,
        pins,
    };
    write(Meta::seq(meta), |place| entry.describe(place, flags, 0));
    0
}

#[inline(always)]
fn is_io_uring(file: File<Typed>) -> bool {
    let operations = kernel::io_uring_fops();
    operations != 0 && file.operations() == operations
}
