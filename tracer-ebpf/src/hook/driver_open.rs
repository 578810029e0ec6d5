//! `int nvidia_open(struct inode *, struct file *)` (kernel-open/nvidia/nv.c; 535: nvidia_frontend_open, nv-frontend.c) and
//! `int uvm_open_entry(struct inode *, struct file *)` (kernel-open/nvidia-uvm/uvm.c): entry and return, by kprobe.
//!
//! The descriptor is chosen before the driver is asked and filled in after it has answered (do_sys_openat2, fs/open.c), so at the
//! return it is the one that is taken and still empty. Where several threads open files at once that may be another's:
//! then a scan is asked for, which tells. No other open is touched: a program that does not use the GPU pays nothing.

use aya_ebpf::{
    macros::{kprobe, kretprobe, map},
    maps::HashMap,
    programs::{ProbeContext, RetProbeContext},
};
use outlive_ebpf::{
    limits::{Lost, PENDING_MAX},
    record::Kind,
};

use super::{argument, files_changed, thread};
use crate::{
    files::{Entry, File, Table},
    kernel::Raw,
    ring,
    task::Task,
    tracked,
};

/// By thread: the `struct file` that the driver is asked to open.
#[map]
static OPENING: HashMap<u64, u64> = HashMap::with_max_entries(PENDING_MAX, 0);

#[kprobe]
pub(crate) fn driver_open(ctx: ProbeContext) -> u32 {
    let thread = thread();
    if OPENING.remove(thread).is_ok() {
        ring::count(Lost::ReturnMissed);
    }
    if OPENING.insert(thread, argument(&ctx, 1), 0).is_err() {
        ring::count(Lost::ReturnMissed);
    }
    0
}

#[kretprobe]
pub(crate) fn driver_opened(ctx: RetProbeContext) -> u32 {
    let thread = thread();
    // SAFETY: only this thread adds and removes this entry.
    let Some(file) = (unsafe { OPENING.get(thread) }).copied() else {
        return 0;
    };
    let _removed = OPENING.remove(thread);
    let file = File(Raw(file));
    if ctx.ret::<i32>() != 0 {
        return 0;
    }
    let Some(dev) = file.nvidia() else {
        return 0;
    };
    tracked::adopt();
    let task = Task::current();
    let fd = Table::of(task).and_then(|table| table.reserved(task));
    if let Some(fd) = fd {
        Entry {
            kind: Kind::Open,
            task,
            fd: fd as i32,
            file,
            dev,
            socket: 0,
            pins: 0,
        }
        .send();
    }
    if (fd.is_none() || task.signal().live() > 1)
        && let Some(user) = tracked::current_gpu_user()
    {
        files_changed(user);
    }
    0
}
