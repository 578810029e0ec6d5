//! Which processes are followed: the filter that every hook asks first.
//!
//! Always true: an entry stands for one process, not for a PID: entries of an earlier process with the same PID are
//! recognised by their start time and dropped.
#![expect(unsafe_code, reason = "map values are raw pointers")]

use core::ffi::c_long;

use aya_ebpf::{helpers::generated::{bpf_get_current_pid_tgid, bpf_get_current_uid_gid}, macros::map, maps::HashMap};
use outlive_ebpf::{
    limits::{ANCESTORS_MAX, Lost, TRACKED_MAX},
    record::{Tracked, flag},
};

use crate::{
    kernel::{Memory, Typed, repeat},
    ring,
    task::{PF_KTHREAD, Task, introduce},
};

#[map]
static TRACKED: HashMap<u32, Tracked> = HashMap::with_max_entries(TRACKED_MAX, 0);

/// PID 1 adopts everybody's orphans; its own life is of no interest.
pub(crate) const INIT: u32 = 1;

/// The running process, when it is followed.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    /// The running thread.
    pub(crate) task: Task<Typed>,
    /// Its process.
    pub(crate) tgid: u32,
    /// It uses GPU files or descends from a process that does.
    pub(crate) gpu_user: bool,
}

impl Current {
    /// [`flag::GPU_USER`] or 0.
    #[inline(always)]
    pub(crate) const fn flags(self) -> u32 {
        if self.gpu_user { flag::GPU_USER } else { 0 }
    }
}

/// The running process, if it is followed. Costs one lookup when it is not.
#[inline(always)]
pub(crate) fn current() -> Option<Current> {
    let tgid = current_tgid();
    let entry = get(tgid)?;
    let task = Task::current();
    if is_stale(entry, task.leader().started()) {
        return None;
    }
    Some(Current { task, tgid, gpu_user: entry.flags & flag::GPU_USER != 0 })
}

/// The running process, if it is followed as a user of GPU files.
#[inline(always)]
pub(crate) fn current_gpu_user() -> Option<Current> {
    current().filter(|current| current.gpu_user)
}

/// Flags of the entry of `task`'s process, if it is followed.
#[inline(always)]
pub(crate) fn flags_of<M: Memory>(task: Task<M>) -> Option<u32> {
    let entry = get(task.tgid())?;
    if is_stale(entry, task.leader().started()) { None } else { Some(entry.flags) }
}

/// Follows `tgid` as a user of GPU files because it was forked from one.
#[inline(always)]
pub(crate) fn descend(tgid: u32, start: u64) {
    put(tgid, Tracked { start, flags: flag::GPU_USER, pad: 0 });
}

/// Follows the process of `task`, which has just got an NVIDIA file, and its ancestors.
#[inline(always)]
pub(crate) fn adopt(task: Task<Typed>) {
    if flags_of(task).is_some_and(|flags| flags & flag::GPU_USER != 0) {
        return;
    }
    become_user(task.0.pointer());
}

/// The rare part of [`adopt`]. Never inlined: every hook that meets files needs it.
#[inline(never)]
fn become_user(task: *const u8) {
    let task = Task(Typed::from_context(task));
    let leader = task.leader();
    if !put(task.tgid(), Tracked { start: leader.started(), flags: flag::GPU_USER, pad: 0 }) {
        return;
    }
    introduce(leader.0.pointer(), flag::GPU_USER);
    let mut ancestor = leader.parent().leader();
    repeat(ANCESTORS_MAX, ancestor_step, &mut ancestor);
}

/// Follows one ancestor; its parent is next. Returns 1 to stop.
unsafe extern "C" fn ancestor_step(_index: u32, ancestor: *mut Task<Typed>) -> c_long {
    // SAFETY: the state that `become_user` passed, which outlives the loop.
    let ancestor = unsafe { &mut *ancestor };
    let leader = *ancestor;
    if !ancestor_of_user(leader) {
        return 1;
    }
    *ancestor = leader.parent().leader();
    0
}

/// Follows `leader`'s process as an ancestor; false when the chain ends with it.
#[inline(always)]
pub(crate) fn ancestor_of_user(leader: Task<Typed>) -> bool {
    let tgid = leader.tgid();
    if tgid <= INIT || leader.flags() & PF_KTHREAD != 0 {
        return false;
    }
    if flags_of(leader).is_none() && put(tgid, Tracked { start: leader.started(), flags: 0, pad: 0 }) {
        introduce(leader.0.pointer(), 0);
    }
    true
}

/// Forgets the process with this number.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    let _absent = TRACKED.remove(tgid);
}

/// Process id of the running thread.
#[inline(always)]
pub(crate) fn current_tgid() -> u32 {
    // SAFETY: takes nothing, always answers.
    (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32
}

/// Real user id of the running thread, in the initial user namespace.
#[inline(always)]
pub(crate) fn current_uid() -> u32 {
    // SAFETY: takes nothing, always answers.
    (unsafe { bpf_get_current_uid_gid() }) as u32
}

/// The entry of whatever process has, or had, this number. Compare its start time.
#[inline(always)]
pub(crate) fn get(tgid: u32) -> Option<Tracked> {
    // SAFETY: the slot stays mapped while the program runs; a concurrent removal can at worst leave another process's
    // entry in it, which its start time tells.
    unsafe { TRACKED.get(tgid) }.copied()
}

#[inline(always)]
fn put(tgid: u32, entry: Tracked) -> bool {
    if TRACKED.insert(tgid, entry, 0).is_err() {
        ring::count(Lost::TrackedFull);
        return false;
    }
    true
}

#[inline(always)]
const fn is_stale(entry: Tracked, start: u64) -> bool {
    entry.start != 0 && entry.start != start
}
