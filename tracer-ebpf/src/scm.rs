//! Files on their way through unix sockets: SCM_RIGHTS in a msghdr, and what waits in a receive queue.
//!
//! Always true: a walk takes one step per iteration of a loop of at most
//! [`WALK_STEPS_MAX`]; a walk that does not finish within it is counted as truncated.
#![expect(
    unsafe_code,
    reason = "loop callbacks get their state as a raw pointer"
)]

use core::ffi::c_long;

use aya_ebpf::cty::c_void;
use outlive_ebpf::{
    limits::{Lost, SCM_FDS_MAX, WALK_STEPS_MAX},
    record::Kind,
};

use crate::{
    files::{self, Entry, File},
    hook::iterator,
    kernel::{Memory, Raw, Typed, has, offset, opaque, repeat, user},
    ring,
    task::Task,
    tracked,
};

/// Members of `struct user_msghdr` (include/linux/socket.h); `struct mmsghdr` begins with one.
const MSG_CONTROL: u64 = 32;
const MSG_CONTROLLEN: u64 = 40;
/// Size of `struct mmsghdr`.
const MMSGHDR_SIZE: u64 = 64;
/// Size of `struct cmsghdr` (include/linux/socket.h): `size_t len; int level; int type`.
const CMSG_HEADER: u64 = 16;
/// `SOL_SOCKET` in the low half and `SCM_RIGHTS` in the high half, as the two ints lie in memory.
const SOCKET_RIGHTS: u64 = 1 | 1 << 32;
/// Shortest control data that carries a descriptor.
const SHORTEST: u64 = CMSG_HEADER + 4;

/// A walk over the control data of one or more messages in user memory.
#[derive(Clone, Copy)]
#[repr(C)]
struct Messages {
    /// Next message header, and how many are left.
    message: u64,
    messages: u64,
    /// Next control message, and bytes of control data left.
    control: u64,
    control_left: u64,
    /// Next descriptor number, and how many are left.
    descriptor: u64,
    descriptors: u64,
    /// Inode number of the socket.
    socket: u64,
    finished: u64,
}

/// Reports the NVIDIA files in the message header at `message`, which came or went (`RECEIVED`) through the descriptor
/// `socket`.
#[inline(always)]
pub(crate) fn walk_message<const RECEIVED: bool>(socket: u32, message: u64) {
    let length = user::<u64>(message.wrapping_add(MSG_CONTROLLEN)).unwrap_or(0);
    if length >= SHORTEST
        && let Some(socket) = unix_socket(socket)
    {
        walk::<RECEIVED>(socket, message, 1);
    }
}

/// The same for an array of `count` `struct mmsghdr`.
#[inline(always)]
pub(crate) fn walk_messages<const RECEIVED: bool>(socket: u32, messages: u64, count: u64) {
    if let Some(socket) = unix_socket(socket) {
        walk::<RECEIVED>(socket, messages, count);
    }
}

#[inline(always)]
fn walk<const RECEIVED: bool>(socket: u64, message: u64, count: u64) {
    let mut walk = Messages {
        message,
        messages: count,
        control: 0,
        control_left: 0,
        descriptor: 0,
        descriptors: 0,
        socket,
        finished: 0,
    };
    opaque(&mut walk);
    repeat(WALK_STEPS_MAX, message_step::<RECEIVED>, &mut walk);
    if walk.finished == 0 {
        ring::count(Lost::Truncated);
    }
}

/// Inode number of the unix socket at a descriptor of the running process that has just been used as a socket; None when
/// it is of another family.
#[inline(always)]
pub(crate) fn unix_socket(fd: u32) -> Option<u64> {
    if !has!(socket_sk) || !has!(sock_family) {
        return None;
    }
    let file = files::Table::of(Task::current())?.file(fd)?;
    file.unix_sock().map(|_| file.ino())
}

/// One step: a descriptor, else a control message, else a message. Returns 1 to stop.
unsafe extern "C" fn message_step<const RECEIVED: bool>(
    _index: u32,
    walk: *mut Messages,
) -> c_long {
    // SAFETY: the state that `walk_messages` passed, which outlives the loop.
    let walk = unsafe { &mut *walk };
    let alive = if walk.descriptors != 0 {
        next_descriptor::<RECEIVED>(walk)
    } else if walk.control_left >= CMSG_HEADER {
        next_control(walk)
    } else if walk.messages != 0 {
        next_message(walk)
    } else {
        None
    };
    if alive.is_none() {
        walk.finished = 1;
        return 1;
    }
    0
}

#[inline(always)]
fn next_message(walk: &mut Messages) -> Option<()> {
    walk.control = user(walk.message.wrapping_add(MSG_CONTROL))?;
    walk.control_left = user(walk.message.wrapping_add(MSG_CONTROLLEN))?;
    walk.message = walk.message.wrapping_add(MMSGHDR_SIZE);
    walk.messages = walk.messages.wrapping_sub(1);
    Some(())
}

/// The kernel's CMSG_OK and CMSG_NXTHDR (include/linux/socket.h).
#[inline(always)]
fn next_control(walk: &mut Messages) -> Option<()> {
    let length: u64 = user(walk.control)?;
    let kind: u64 = user(walk.control.wrapping_add(8))?;
    if length < CMSG_HEADER || length > walk.control_left {
        walk.control_left = 0;
        return Some(());
    }
    if kind == SOCKET_RIGHTS {
        walk.descriptor = walk.control.wrapping_add(CMSG_HEADER);
        walk.descriptors = (length - CMSG_HEADER) / 4;
    }
    let step = length.wrapping_add(7) & !7;
    walk.control = walk.control.wrapping_add(step);
    walk.control_left = walk.control_left.saturating_sub(step);
    Some(())
}

#[inline(always)]
fn next_descriptor<const RECEIVED: bool>(walk: &mut Messages) -> Option<()> {
    let fd: u32 = user(walk.descriptor)?;
    walk.descriptor = walk.descriptor.wrapping_add(4);
    walk.descriptors = walk.descriptors.wrapping_sub(1);
    let task = Task::current();
    if let Some((file, dev)) = files::nvidia_at(task, fd) {
        let mut entry = Entry {
            kind: Kind::Sent,
            task,
            fd: -1,
            file,
            dev,
            socket: walk.socket,
            pins: 0,
        };
        if RECEIVED {
            tracked::adopt();
            entry = Entry {
                kind: Kind::Received,
                fd: fd as i32,
                ..entry
            };
        }
        entry.send();
    }
    Some(())
}

/// The files of a message on its way.
#[derive(Clone, Copy)]
#[repr(C)]
struct Parcel {
    /// Next `struct file *`, and how many are left.
    slot: u64,
    slots: u64,
    /// Inode number of the socket.
    socket: u64,
}

/// Reports the NVIDIA files that the running process sends: those of a `struct scm_cookie`.
#[inline(always)]
pub(crate) fn sent(cookie: Raw, socket: u64) {
    if !has!(scm_cookie_fp) || !has!(scm_fp_count) || !has!(scm_fp_files) {
        return;
    }
    let list = cookie.follow(offset!(scm_cookie_fp));
    if list.address() == 0 {
        return;
    }
    let mut parcel = Parcel {
        slot: list.address().wrapping_add(offset!(scm_fp_files) as u64),
        slots: u64::from(list.get::<u16>(offset!(scm_fp_count))).min(SCM_FDS_MAX as u64),
        socket,
    };
    opaque(&mut parcel);
    repeat(SCM_FDS_MAX, parcel_step, &mut parcel);
}

/// One file. Returns 1 to stop.
unsafe extern "C" fn parcel_step(_index: u32, parcel: *mut Parcel) -> c_long {
    // SAFETY: the state that `sent` passed, which outlives the loop.
    let parcel = unsafe { &mut *parcel };
    if parcel.slots == 0 {
        return 1;
    }
    let file = File(Raw(Raw(parcel.slot).get(0)));
    parcel.slot = parcel.slot.wrapping_add(8);
    parcel.slots = parcel.slots.wrapping_sub(1);
    if let Some(dev) = file.nvidia() {
        Entry {
            kind: Kind::Sent,
            task: Task::current(),
            fd: -1,
            file,
            dev,
            socket: parcel.socket,
            pins: 0,
        }
        .send();
    }
    0
}

/// A walk over the receive queue of a unix socket, and for whom.
#[repr(C)]
struct Queue {
    /// The iterator's output.
    seq: *mut c_void,
    /// The thread that has the socket.
    task: *const u8,
    walk: Buffers,
}

/// The part of [`Queue`] that is only numbers.
#[derive(Clone, Copy)]
#[repr(C)]
struct Buffers {
    /// The descriptor of the socket.
    fd: u64,
    /// Inode number of the socket.
    socket: u64,
    /// The queue's head, where the walk ends, and the next `sk_buff`.
    head: u64,
    buffer: u64,
    /// Next `struct file *`, and how many are left.
    slot: u64,
    slots: u64,
    finished: u64,
}

/// Writes the NVIDIA files that wait unread in the unix socket `file`, which `task` has at `fd`.
#[inline(always)]
pub(crate) fn in_flight(seq: *mut c_void, task: Task<Typed>, fd: u32, file: File<Typed>) {
    if !knows_queues() {
        return;
    }
    let Some(sock) = file.unix_sock() else {
        return;
    };
    if sock.get::<u32>(offset!(unix_inflight_fds)) == 0 {
        return;
    }
    let head = sock
        .address()
        .wrapping_add(offset!(sock_receive_queue) as u64);
    let mut walk = Buffers {
        fd: u64::from(fd),
        socket: file.ino(),
        head,
        buffer: Raw(head).get(0),
        slot: 0,
        slots: 0,
        finished: 0,
    };
    opaque(&mut walk);
    let mut queue = Queue {
        seq,
        task: task.0.pointer(),
        walk,
    };
    repeat(WALK_STEPS_MAX, queue_step, &mut queue);
    if queue.walk.finished == 0 {
        ring::count(Lost::Truncated);
    }
}

/// Does this kernel have all the members that lead to a file in flight? A constant to the verifier.
#[inline(always)]
fn knows_queues() -> bool {
    has!(socket_sk)
        && has!(sock_family)
        && has!(sock_receive_queue)
        && has!(unix_inflight_fds)
        && has!(skb_cb)
        && has!(unix_parms_fp)
        && has!(scm_fp_count)
        && has!(scm_fp_files)
}

/// One step: a file, else a message. Returns 1 to stop. The queue is not locked: what changes meanwhile may be missed.
unsafe extern "C" fn queue_step(_index: u32, queue: *mut Queue) -> c_long {
    // SAFETY: the state that `in_flight` passed, which outlives the loop.
    let queue = unsafe { &mut *queue };
    let walk = &mut queue.walk;
    if walk.slots != 0 {
        let file = File(Raw(Raw(walk.slot).get(0)));
        walk.slot = walk.slot.wrapping_add(8);
        walk.slots = walk.slots.wrapping_sub(1);
        if let Some(dev) = file.nvidia() {
            let task = Task(Typed::from_context(queue.task));
            let (flags, pins) = files::role(file, dev);
            let entry = Entry {
                kind: Kind::InFlight,
                task,
                fd: walk.fd as i32,
                file,
                dev,
                socket: walk.socket,
                pins,
            };
            iterator::write(queue.seq, |place| entry.describe(place, flags, 0));
        }
        return 0;
    }
    if walk.buffer == walk.head || walk.buffer == 0 {
        walk.finished = 1;
        return 1;
    }
    let buffer = Raw(walk.buffer);
    let list = buffer.follow(offset!(skb_cb) + offset!(unix_parms_fp));
    if list.address() != 0 {
        walk.slot = list.address().wrapping_add(offset!(scm_fp_files) as u64);
        walk.slots = u64::from(list.get::<u16>(offset!(scm_fp_count))).min(SCM_FDS_MAX as u64);
    }
    walk.buffer = buffer.get(0);
    0
}
