//! ioctl(fd, request, argument): `syscalls:sys_enter_ioctl`, `unsigned int fd` at offset 16, `unsigned int cmd` at 24,
//! `unsigned long arg` at 32, and `syscalls:sys_exit_ioctl`; since 2.6. Or, where the driver's own functions can be probed:
//! `long nvidia_unlocked_ioctl(struct file *, unsigned int, unsigned long)` (kernel-open/nvidia/nv.c; 535: nvidia_frontend_unlocked_ioctl),
//! `long uvm_unlocked_ioctl_entry(struct file *, unsigned int, unsigned long)` (nvidia-uvm/uvm.c), which nobody else ever calls.
//!
//! Most ioctls of a host are not about NVIDIA files and cost one look at the request's number. Of those that are, only what changes
//! who owns or keeps memory goes on, and the first request that names a client which was there before. What is reported
//! was granted, and its arguments were the same at entry and after the return ([`outlive_ebpf::ioctl`]).

use core::ffi::c_long;

use aya_ebpf::{
    macros::{kprobe, kretprobe, map, tracepoint},
    maps::{HashMap, LruHashMap},
    programs::{ProbeContext, RetProbeContext, TracePointContext},
};
use outlive_ebpf::{
    ioctl::{self, Done, Pending, Refused, ask, missed, node, op},
    limits::{CLIENTS_MAX, GPUS_MAX, Lost, OBJECTS_MAX, PENDING_MAX},
    record::{DMA_BUF, Kind, Rm, flag},
};

use super::{argument, field, returned, thread};
use crate::{
    files::{Entry, File, nvidia_at, node_of},
    kernel::{self, Memory, Raw, Registers, Typed, UserReads, repeat},
    ring::{self, fill},
    task::Task,
    tracked,
};

/// By thread: the request that it is making.
#[map]
static PENDING: HashMap<u64, Pending> = HashMap::with_max_entries(PENDING_MAX, 0);

/// A client, as named through a description.
#[repr(C)]
#[derive(Clone, Copy)]
struct Named {
    file: u64,
    client: u64,
}

impl Named {
    #[inline(always)]
    fn new(file: u64, client: u32) -> Named {
        Named {
            file,
            client: u64::from(client),
        }
    }
}

/// Clients that have been told of.
#[map]
static CLIENTS: LruHashMap<Named, u32> = LruHashMap::with_max_entries(CLIENTS_MAX, 0);

/// GPU ids that have been told of, with their device instances.
#[map]
static GPUS: HashMap<u32, u32> = HashMap::with_max_entries(GPUS_MAX, 0);

#[tracepoint]
pub(crate) fn sys_enter_ioctl(ctx: TracePointContext) -> u32 {
    let request = field::<u64>(&ctx, 24) as u32;
    if !ioctl::may_matter(request, kernel::abi_xfer()) {
        return 0;
    }
    let Some(user) = tracked::current_gpu_user() else {
        return 0;
    };
    // What an earlier request left behind whose return was not seen.
    let _stale = PENDING.remove(thread());
    let fd = field::<u64>(&ctx, 16) as u32;
    let Some((file, dev)) = nvidia_at(user.task, fd) else {
        return 0;
    };
    enter(file.0.address(), dev, request, field(&ctx, 32));
    0
}

#[kprobe]
pub(crate) fn driver_ioctl(ctx: ProbeContext) -> u32 {
    // Whatever this request is: its return would be taken for that of an earlier one whose own was not seen.
    if PENDING.remove(thread()).is_ok() {
        ring::count(Lost::ReturnMissed);
    }
    let request = argument(&ctx, 1) as u32;
    if !ioctl::may_matter(request, kernel::abi_xfer()) {
        return 0;
    }
    let file = File(Raw(argument(&ctx, 0)));
    if let Some(dev) = file.nvidia() {
        // It may have come by the file in a way that no hook shows.
        tracked::adopt();
        enter(file.0.address(), dev, request, argument(&ctx, 2));
    }
    0
}

#[kretprobe]
pub(crate) fn driver_ioctl_done(ctx: RetProbeContext) -> u32 {
    let thread = thread();
    // SAFETY: only this thread adds and removes this entry.
    let Some(pending) = (unsafe { PENDING.get(thread) }).copied() else {
        return 0;
    };
    let _removed = PENDING.remove(thread);
    if ctx.ret::<i64>() >= 0 {
        granted(pending);
    }
    0
}

#[inline(always)]
fn enter(file: u64, dev: u32, request: u32, argument: u64) {
    let node = node_of(dev);
    if node == node::OTHER {
        return;
    }
    if Registers::of(Typed::current()).is_32_bit() {
        miss(file, dev, missed::COMPAT);
        return;
    }
    let mut pending = Pending::default();
    if understand(node, request, argument, &mut pending).is_none() {
        (pending.ask, pending.client, pending.matters) = (ask::UNREAD, 0, 1);
    }
    // A client can only be used through the description that owns it, so whatever names it there proves that it is there.
    if node == node::CONTROL && pending.client != 0 {
        pending.names = u32::from(!is_known(&Named::new(file, pending.client)));
    }
    if pending.matters | pending.names == 0 {
        return;
    }
    (pending.file, pending.dev) = (file, dev);
    (pending.request, pending.argument) = (request, argument);
    if PENDING.insert(thread(), pending, 0).is_err() {
        miss(file, dev, missed::TOO_MANY);
    }
}

/// None: it cannot be read.
#[inline(always)]
fn understand(node: u32, request: u32, argument: u64, pending: &mut Pending) -> Option<()> {
    let abi = kernel::abi();
    let call = ioctl::unwrap(&UserReads, &abi, node, request, argument)?;
    ioctl::begin(&UserReads, &abi, node, call, pending)
}

#[tracepoint]
pub(crate) fn sys_exit_ioctl(ctx: TracePointContext) -> u32 {
    let registers = Registers::of(Typed::current());
    let request = registers.second() as u32;
    if !ioctl::may_matter(request, kernel::abi_xfer()) {
        return 0;
    }
    let thread = thread();
    // SAFETY: only this thread adds and removes this entry.
    let Some(pending) = (unsafe { PENDING.get(thread) }).copied() else {
        return 0;
    };
    let _removed = PENDING.remove(thread);
    if returned(&ctx) >= 0 && pending.request == request && pending.argument == registers.third() {
        granted(pending);
    }
    0
}

#[inline(always)]
fn granted(pending: Pending) {
    if pending.ask == ask::UNREAD {
        unread(&pending);
        return;
    }
    let mut state = State {
        pending,
        done: Done::default(),
        other: 0,
    };
    leave(&mut state);
}

/// A granted request that could not be read at entry: if it turns out to be one that matters, it was missed.
#[inline(always)]
fn unread(pending: &Pending) {
    let mut now = Pending::default();
    let readable = understand(node_of(pending.dev), pending.request, pending.argument, &mut now).is_some();
    if !readable || now.matters != 0 {
        miss(pending.file, pending.dev, missed::UNREADABLE);
    }
}

/// A granted request, for the loop over its objects.
struct State {
    pending: Pending,
    done: Done,
    other: u64,
}

#[inline(always)]
fn leave(state: &mut State) {
    let task = Task::current();
    let (file, dev) = (state.pending.file, state.pending.dev);
    let abi = kernel::abi();
    match ioctl::finish(&UserReads, &abi, &state.pending, &mut state.done) {
        Ok(()) => {}
        Err(Refused::Failed) => return,
        Err(why) => {
            miss(file, dev, why as u32);
            return;
        }
    }
    if state.pending.names != 0 {
        let known = Done {
            op: op::KNOWN,
            client: state.pending.client,
            ..Done::default()
        };
        if send(file, dev, &known, 0) {
            remember(&Named::new(file, state.pending.client));
        }
    }
    match state.done.op {
        0 => return,
        op::CLIENT => remember(&Named::new(file, state.done.client)),
        op::FREE if state.done.object == state.done.client => {
            forget(&Named::new(file, state.done.client));
        }
        op::GPU if is_told(state.done.object, state.done.detail) => return,
        op::REGISTER | op::EXPORT | op::IMPORT | op::SPACE_MM => {
            // Another thread may have put something else there meanwhile.
            let wanted = if state.done.op == op::SPACE_MM { node::UVM } else { node::CONTROL };
            if let Some((file, dev)) = nvidia_at(task, state.done.fd as u32)
                && node_of(dev) == wanted
            {
                state.other = file.0.address();
            }
        }
        op::EXPORT_DMA_BUF => {
            if let Some((file, DMA_BUF)) = nvidia_at(task, state.done.fd as u32) {
                state.other = file.0.address();
                if state.done.detail != 0 {
                    made(task, state.done.fd, file);
                }
            }
        }
        _ => {}
    }
    if state.done.fd >= 0 && state.other == 0 {
        miss(file, dev, missed::NO_FILE);
        return;
    }
    if state.done.list == 0 {
        if send(file, dev, &state.done, state.other) && state.done.op == op::GPU {
            let _full = GPUS.insert(state.done.object, state.done.detail, 0);
        }
        return;
    }
    if state.done.count > OBJECTS_MAX {
        miss(file, dev, missed::TOO_LONG);
    }
    repeat(OBJECTS_MAX, each_object, state);
}

/// A dma-buf is made by the request itself: that is its open.
#[inline(always)]
fn made(task: Task<Typed>, fd: i32, file: File<Raw>) {
    Entry {
        kind: Kind::Open,
        task,
        fd,
        file,
        dev: DMA_BUF,
        socket: 0,
        pins: 0,
    }
    .send();
}

/// Reports one object of a list. Returns 1 to stop.
unsafe extern "C" fn each_object(index: u32, state: *mut State) -> c_long {
    // SAFETY: the state that `leave` passed, which outlives the loop.
    let state = unsafe { &mut *state };
    if index >= state.done.count {
        return 1;
    }
    let place = state.done.list.wrapping_add(u64::from(index) * 4);
    let Some(object) = ioctl::UserMemory::u32(&UserReads, place) else {
        miss(state.pending.file, state.pending.dev, missed::UNREADABLE);
        return 1;
    };
    // 0 leaves the place in the list as it was.
    if object != 0 {
        state.done.object = object;
        let _counted = send(state.pending.file, state.pending.dev, &state.done, state.other);
    }
    0
}

/// Reports a granted request that is not believed.
#[inline(always)]
fn miss(file: u64, dev: u32, why: u32) {
    let done = Done {
        op: op::MISSED,
        detail: why,
        ..Done::default()
    };
    let _counted = send(file, dev, &done, 0);
}

/// False when the ring was full.
#[inline(always)]
fn send(file: u64, dev: u32, done: &Done, other: u64) -> bool {
    let task = Task::current();
    ring::try_send::<Rm>(|place| {
        fill!(
            place,
            Rm {
                header: ring::header::<Rm>(Kind::Rm, flag::GPU_USER, task.thread(), task.comm()),
                file: file,
                other: other,
                bytes: done.bytes,
                base: done.base,
                dev: dev,
                op: done.op,
                client: done.client,
                parent: done.parent,
                object: done.object,
                class: done.class,
                from_client: done.from_client,
                from_object: done.from_object,
                detail: done.detail,
                pad: 0,
            }
        );
    })
}

#[inline(always)]
fn is_known(named: &Named) -> bool {
    // SAFETY: only the presence of the key is used.
    unsafe { CLIENTS.get(named) }.is_some()
}

#[inline(always)]
fn remember(named: &Named) {
    let _full = CLIENTS.insert(named, 1, 0);
}

#[inline(always)]
fn forget(named: &Named) {
    let _absent = CLIENTS.remove(named);
}

/// This GPU's instance has been told.
#[inline(always)]
fn is_told(gpu: u32, device: u32) -> bool {
    // SAFETY: entries are never removed.
    unsafe { GPUS.get(gpu) }.copied() == Some(device)
}
