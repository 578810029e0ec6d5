//! The driver's release of a description whose last reference has gone, by kprobe and kretprobe:
//! `int nvidia_close(struct inode *, struct file *)` (kernel-open/nvidia/nv.c; 535: nvidia_frontend_close) and
//! `int uvm_release_entry(struct inode *, struct file *)` (nvidia-uvm/uvm.c); and what these put off to a thread of the driver's:
//! `void nvidia_close_deferred(void *)`, whose argument is the file's private data, and `void uvm_release_deferred(void *)`, whose
//! argument is that without the type in its low bits.
//!
//! This is what no syscall shows: when the memory of a description is really freed, for how long, and by which thread.
#![expect(unsafe_code, reason = "map values are raw pointers")]

use aya_ebpf::{
    macros::{kprobe, kretprobe, map},
    maps::{HashMap, LruHashMap},
    programs::{ProbeContext, RetProbeContext},
};
use outlive_ebpf::{
    ioctl::node,
    limits::{DEFERRED_MAX, Lost, PENDING_MAX},
    record::{Kind, Release, step},
};

use super::{argument, thread};
use crate::{
    files::{File, node_of},
    kernel::{self, Memory, Raw, offset},
    ring::{self, fill},
    task::Task,
};

/// What is being released.
#[repr(C)]
#[derive(Clone, Copy)]
struct Releasing {
    /// `struct file` address.
    file: u64,
    /// Its device number.
    dev: u64,
}

const UNKNOWN: Releasing = Releasing { file: 0, dev: 0 };

/// By thread: the release that it is in.
#[map]
static RELEASING: HashMap<u64, Releasing> = HashMap::with_max_entries(PENDING_MAX, 0);
/// By private data: what the driver may put off.
#[map]
static DEFERRED: LruHashMap<u64, Releasing> = LruHashMap::with_max_entries(DEFERRED_MAX, 0);

#[kprobe]
pub(crate) fn driver_release(ctx: ProbeContext) -> u32 {
    let file = File(Raw(argument(&ctx, 1)));
    let Some(dev) = file.nvidia() else {
        return 0;
    };
    let mut private: u64 = file.0.get(offset!(file_private_data));
    if node_of(dev) == node::UVM {
        private &= !u64::from(kernel::abi().uvm_type_mask);
    }
    let releasing = Releasing {
        file: file.0.address(),
        dev: u64::from(dev),
    };
    let _replaced = DEFERRED.insert(private, releasing, 0);
    begin(releasing, step::BEGIN);
    0
}

#[kretprobe]
pub(crate) fn driver_released(_ctx: RetProbeContext) -> u32 {
    end(step::END);
    0
}

#[kprobe]
pub(crate) fn driver_deferred(ctx: ProbeContext) -> u32 {
    let private = argument(&ctx, 0);
    // SAFETY: the driver works on each put-off release once.
    let releasing = unsafe { DEFERRED.get(private) }
        .copied()
        .unwrap_or(UNKNOWN);
    let _removed = DEFERRED.remove(private);
    begin(releasing, step::DEFERRED_BEGIN);
    0
}

#[kretprobe]
pub(crate) fn driver_deferred_done(_ctx: RetProbeContext) -> u32 {
    end(step::DEFERRED_END);
    0
}

#[inline(always)]
fn begin(releasing: Releasing, step: u32) {
    let thread = thread();
    let stale = RELEASING.remove(thread).is_ok();
    let full = RELEASING.insert(thread, releasing, 0).is_err();
    if stale || full {
        ring::count(Lost::ReturnMissed);
    }
    send(releasing, step);
}

#[inline(always)]
fn end(step: u32) {
    let thread = thread();
    // SAFETY: only this thread adds and removes this entry.
    let Some(releasing) = (unsafe { RELEASING.get(thread) }).copied() else {
        return;
    };
    let _removed = RELEASING.remove(thread);
    send(releasing, step);
}

#[inline(always)]
fn send(releasing: Releasing, step: u32) {
    let task = Task::current();
    ring::send::<Release>(|place| {
        fill!(
            place,
            Release {
                header: ring::header::<Release>(Kind::Release, 0, task.thread(), task.comm()),
                file: releasing.file,
                dev: releasing.dev as u32,
                step: step,
            }
        );
    });
}
