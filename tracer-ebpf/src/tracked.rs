//! Which processes are followed: the filter that every hook asks first.
//!
//! Always true: an entry stands for one process, not for a PID: entries of an earlier process with the same PID are
//! recognised by their start time and dropped.
#![expect(unsafe_code, reason = "map values are raw pointers")]

use core::ffi::c_long;

use aya_ebpf::{
    helpers::generated::{bpf_get_current_pid_tgid, bpf_get_current_uid_gid},
    macros::map,
    maps::HashMap,
};
use aya_log_ebpf::warn;
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
    if entry.is_stale(task.leader().started()) {
        return None;
    }
    Some(Current {
        task,
        tgid,
        gpu_user: entry.flags & flag::GPU_USER != 0,
    })
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
    if entry.is_stale(task.leader().started()) {
        None
    } else {
        Some(entry.flags)
    }
}

/// Follows `tgid` as a user of GPU files because it was forked from one.
#[inline(always)]
pub(crate) fn descend(tgid: u32, start: u64) {
    put(
        tgid,
        Tracked {
            start,
            flags: flag::GPU_USER,
            pad: 0,
        },
    );
}

/// Follows the running process, which has just got an NVIDIA file, and its ancestors.
#[inline(always)]
pub(crate) fn adopt() {
    if current_gpu_user().is_none() {
        become_user();
    }
}

/// The rare part of [`adopt`]. A global function (exported, C ABI, returns a number): the verifier checks it once and
/// not at every call.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn become_user() -> u64 {
    let mut leader = Task::current().leader();
    repeat(1 + ANCESTORS_MAX, follow_step, &mut leader);
    0
}

/// Follows one process of the chain, the user first; its parent is next. Returns 1 to stop.
unsafe extern "C" fn follow_step(index: u32, leader: *mut Task<Typed>) -> c_long {
    // SAFETY: the state that `become_user` passed, which outlives the loop.
    let next = unsafe { &mut *leader };
    let leader = *next;
    let followed = follow(leader, if index == 0 { flag::GPU_USER } else { 0 });
    *next = leader.parent().leader();
    c_long::from(!followed)
}

/// Follows `leader`'s process as an ancestor of a user of GPU files.
#[inline(always)]
pub(crate) fn ancestor_of_user(leader: Task<Typed>) {
    follow(leader, 0);
}

/// Follows `leader`'s process, if it was not yet followed so; false when the chain ends here.
#[inline(always)]
fn follow(leader: Task<Typed>, flags: u32) -> bool {
    let tgid = leader.tgid();
    if tgid <= INIT || leader.flags() & PF_KTHREAD != 0 {
        return false;
    }
    let known = flags_of(leader).is_some_and(|known| known & flags == flags);
    if !known
        && put(
            tgid,
            Tracked {
                start: leader.started(),
                flags,
                pad: 0,
            },
        )
    {
        introduce(leader.0.pointer(), flags);
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
        report_full(tgid);
        return false;
    }
    true
}

/// Counts that a process is not followed, and says so once per CPU: a fork storm would say it for every child. Global, like
/// [`become_user`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn report_full(tgid: u32) -> u64 {
    if ring::count(Lost::TrackedFull) == 1 {
        warn!(&(), "TRACKED is full: process {} and perhaps others are not followed", tgid);
    }
    0
}
