//! One process: who it is beyond what a scan knows, and how it stands.

use std::collections::{BTreeMap, BTreeSet};

use super::cgroup::Paths;
use super::status::Status;
use super::{Proc, TEXT_MAX, bounded, container, guard};
use crate::event::{ProcessId, ProcessInfo, ProcessState};
use crate::snapshot::{self, TaskLine};

// include/linux/sched.h
pub(super) const PF_EXITING: u32 = 0x4;
const PF_FORKNOEXEC: u32 = 0x40;
const TASK_UNINTERRUPTIBLE: u32 = 0x2;
const TASK_STOPPED: u32 = 0x4;
const TASK_TRACED: u32 = 0x8;
const EXIT_DEAD: u32 = 0x10;
const EXIT_ZOMBIE: u32 = 0x20;
const TASK_PARKED: u32 = 0x40;
const TASK_NOLOAD: u32 = 0x400;
const TASK_RTLOCK_WAIT: u32 = 0x1000;
const TASK_FROZEN: u32 = 0x8000;
/// Bit of SIGKILL in a signal mask.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

impl Proc {
    /// Details of some processes of a scan, and how they stand. Those that vanished are left out.
    #[must_use]
    pub fn describe(
        &self,
        tasks: &[TaskLine],
        some: &BTreeSet<ProcessId>,
    ) -> (Vec<ProcessInfo>, Vec<ProcessState>) {
        let mut processes: BTreeMap<ProcessId, Vec<&TaskLine>> = BTreeMap::new();
        for task in tasks.iter().filter(|task| some.contains(&task.id)) {
            processes.entry(task.id).or_default().push(task);
        }
        // How much room a cgroup has is asked only where zombies fill it.
        let zombies = snapshot::zombies(tasks);
        let must_wait: BTreeSet<ProcessId> = tasks.iter().filter(|task| zombies.contains(&task.id)).map(|task| task.parent).collect();
        let mut frozen = BTreeMap::new();
        let mut described = (Vec::new(), Vec::new());
        for (id, threads) in processes {
            let paths = self.cgroups(id.tgid()).unwrap_or_default();
            let freezer = frozen
                .entry(paths.clone())
                .or_insert_with(|| self.frozen(&paths))
                .clone();
            let mut info = self.info(id, &threads, &paths);
            if must_wait.contains(&id) {
                info.pids = self.pids_limit(id);
            }
            let state = self.state(id, &threads, freezer);
            // Read last: if the PID is still this process's now, it was while we read.
            if self.is(id) {
                described.0.push(info);
                described.1.push(state);
            }
        }
        self.add_lock_holders(tasks, &mut described.1);
        described
    }

    /// What a PID is, without a scan; `None` when it vanished or is another process than `id`.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> Option<ProcessInfo> {
        let paths = self.cgroups(id.tgid()).unwrap_or_default();
        let status = Status::parse(&self.text(format!("proc/{}/status", id.tgid()))?);
        let info = ProcessInfo {
            comm: self.line(format!("proc/{}/comm", id.tgid())),
            uid: status.uid,
            ns_pid: status.ns_pid.filter(|pid| *pid != id.tgid()),
            ..self.info(id, &[], &paths)
        };
        self.is(id).then_some(info)
    }

    fn info(&self, id: ProcessId, threads: &[&TaskLine], paths: &Paths) -> ProcessInfo {
        let cgroup = paths.shown().map(str::to_owned);
        let mut info = ProcessInfo {
            id,
            cmdline: self.cmdline(id.tgid(), may_be_stuck(threads)),
            container: [&paths.unified, &paths.pids, &paths.freezer]
                .into_iter()
                .flatten()
                .find_map(|path| container::of(path)),
            cgroup,
            ..ProcessInfo::default()
        };
        if let Some(leader) = leader(id, threads) {
            info.parent = (leader.parent.tgid() != 0).then_some(leader.parent);
            info.comm = (leader.tid == id.tgid()).then(|| leader.comm.clone());
            info.uid = Some(leader.uid);
            info.ns_pid = (leader.ns_level > 0 && leader.tid == id.tgid()).then_some(leader.ns_pid);
            info.pgrp = Some(leader.pgrp);
            info.session = Some(leader.session);
            info.never_execed = Some(leader.flags & PF_FORKNOEXEC != 0);
            info.cred = (leader.cred != 0).then_some(leader.cred);
        }
        info
    }

    /// Arguments joined by spaces. The process can write anything there. Reading them takes the lock of its memory map, which
    /// a thread may hold for ever: `guarded` when one may.
    fn cmdline(&self, pid: u32, guarded: bool) -> Option<String> {
        let path = format!("proc/{pid}/cmdline");
        let mut bytes = if guarded { guard::bytes(self.root.join(path), TEXT_MAX) } else { self.bytes(path) }?;
        bytes.truncate(TEXT_MAX);
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        for byte in &mut bytes {
            if *byte == 0 {
                *byte = b' ';
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        (!text.is_empty()).then(|| bounded(&text, TEXT_MAX).to_owned())
    }

    fn state(&self, id: ProcessId, threads: &[&TaskLine], freezer: Option<String>) -> ProcessState {
        let pid = id.tgid();
        let live: Vec<&&TaskLine> = threads.iter().filter(|task| task.exit_state == 0).collect();
        let leader = leader(id, threads);
        let leader_exited = leader.is_none_or(|task| task.tid != pid || task.exit_state != 0);
        let status = self.status(pid, pid);
        // A leader that is a zombie has no memory map, so only a live thread says whether core is being dumped.
        let living = match live.first() {
            Some(task) if leader_exited => self.status(pid, task.tid),
            _ => status.clone(),
        };
        // Without a scan's word only its number is known.
        let by_number = (status.tracer != 0).then_some(ProcessId(status.tracer, 0));
        let killed = (status.pending | living.pending) & KILL != 0;
        ProcessState {
            id,
            state: leader.map_or(status.state, |task| letter(task).to_owned()),
            live_threads: u32::try_from(live.len()).unwrap_or(u32::MAX),
            leader_exited,
            exiting: live.iter().any(|task| task.flags & PF_EXITING != 0),
            dumping_core: status.dumping_core || living.dumping_core,
            tracer: threads.iter().find_map(|task| task.tracer).or(by_number),
            frozen: freezer.is_some(),
            freezer,
            pending: status.pending | living.pending,
            blocked: if leader_exited {
                living.blocked
            } else {
                status.blocked
            },
            ignored: status.ignored,
            caught: status.caught,
            cpu_ns: threads
                .iter()
                .map(|task| task.cpu_ns)
                .fold(0, u64::saturating_add),
            exit_code: leader
                .filter(|_| live.is_empty())
                .map(|task| task.exit_code),
            stuck: self.stuck(pid, &live, killed),
        }
    }

    fn status(&self, pid: u32, tid: u32) -> Status {
        self.text(format!("proc/{pid}/task/{tid}/status"))
            .map(|text| Status::parse(&text))
            .unwrap_or_default()
    }
}

/// A thread of it may sit on the lock of its memory map: one that no scan tells of, or that does anything but sleep as a signal can
/// end it. Running ones too: `uvm_spin_loop` under munmap(2) spins with that lock.
fn may_be_stuck(threads: &[&TaskLine]) -> bool {
    let rests = |task: &&TaskLine| matches!(letter(task), "S" | "T" | "t") && task.flags & PF_EXITING == 0;
    threads.is_empty() || threads.iter().any(|task| task.exit_state == 0 && !rests(task))
}

/// The leader, or any thread when the scan did not see it.
fn leader<'a>(id: ProcessId, threads: &[&'a TaskLine]) -> Option<&'a TaskLine> {
    threads
        .iter()
        .find(|task| task.tid == id.tgid())
        .or_else(|| threads.first())
        .copied()
}

pub(super) const fn uninterruptible(task: &TaskLine) -> bool {
    task.state & TASK_UNINTERRUPTIBLE != 0 && task.state & TASK_NOLOAD == 0
}

/// The letter that /proc/PID/stat shows (task_state_index, include/linux/sched.h).
pub(super) fn letter(task: &TaskLine) -> &'static str {
    let state = task.state | task.exit_state;
    let is = |bit| state & bit != 0;
    // The kernel reports the highest bit.
    if task.state & TASK_UNINTERRUPTIBLE != 0 && is(TASK_NOLOAD) && task.exit_state == 0 {
        "I"
    } else if is(TASK_PARKED) {
        "P"
    } else if is(EXIT_ZOMBIE) {
        "Z"
    } else if is(EXIT_DEAD) {
        "X"
    } else if is(TASK_TRACED) {
        "t"
    } else if is(TASK_STOPPED) {
        "T"
    } else if is(TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT | TASK_FROZEN) {
        "D"
    } else if is(0x1) {
        "S"
    } else {
        "R"
    }
}
