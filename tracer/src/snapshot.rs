//! What one scan of the host saw, and which events that makes of it given what is already known.
//!
//! Always true: plain data and a pure function. The I/O that fills a [`Snapshot`] (BPF iterators, /proc) is in
//! [`crate::source`]; turning it into events is [`Snapshot::events`], which emits only what the world does not
//! know yet, so a scan of an unchanged host costs one event.

mod looks;

use crate::event::{BootNs, Event, Hold, KernelThread, PidsLimit, ProcessId, ProcessInfo, ProcessState, StuckThread, Token, What};
use crate::world::World;
use crate::world::file::{Place, Slot};
use crate::world::process::{Process, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// EXIT_ZOMBIE (include/linux/sched.h).
const EXIT_ZOMBIE: u32 = 0x20;
/// EXIT_DEAD.
const EXIT_DEAD: u32 = 0x10;
/// PF_EXITING.
const PF_EXITING: u32 = 0x4;
/// PF_FORKNOEXEC.
const PF_FORKNOEXEC: u32 = 0x40;
/// PF_DUMPCORE.
const PF_DUMPCORE: u32 = 0x200;
/// Longest chain of ancestors that is followed.
const ANCESTORS_MAX: usize = 64;

/// One thread, from `iter/task`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskLine {
    /// Its process.
    pub id: ProcessId,
    /// Thread id.
    pub tid: u32,
    /// comm of this thread.
    pub comm: String,
    /// `real_parent`'s process.
    pub parent: ProcessId,
    /// ptracer, if any.
    pub tracer: Option<ProcessId>,
    /// Credentials token.
    pub cred: Token,
    /// Files table token; 0 when gone.
    pub files: Token,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// `__state` bits.
    pub state: u32,
    /// `exit_state` bits.
    pub exit_state: u32,
    /// `flags` bits (PF_*).
    pub flags: u32,
    /// wait status.
    pub exit_code: u32,
    /// `signal->live`.
    pub live: u32,
    /// `jobctl` bits.
    pub jobctl: u32,
    /// Uid.
    pub uid: u32,
    /// Innermost PID.
    pub ns_pid: u32,
    /// Namespace depth.
    pub ns_level: u32,
    /// Descriptor of the ioctl that it is in, or was in last if it runs its own program.
    pub ioctl: Option<i32>,
    /// Session.
    pub session: u32,
    /// Process group.
    pub pgrp: u32,
}

/// Everything that one scan saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// When the scan began, boottime ns.
    pub began: BootNs,
    /// When it ended.
    pub ended: BootNs,
    /// Every thread of the host.
    pub tasks: Vec<TaskLine>,
    /// Every holding of an NVIDIA file, in-flight and io_uring ones included (`via` set for these).
    pub holds: Vec<Hold>,
    /// Details of the processes that matter (read from /proc): cmdline, cgroup.
    pub infos: Vec<ProcessInfo>,
    /// How they stand.
    pub states: Vec<ProcessState>,
    /// Kernel threads inside the driver; absent when nobody looked.
    pub kernel_threads: Option<Vec<KernelThread>>,
    /// Users of the driver's modules; absent when nobody looked.
    pub modules: Option<BTreeMap<String, u32>>,
    /// Zombies, threads and tables could all be read.
    pub complete: bool,
}

impl TaskLine {
    fn is_leader(&self) -> bool {
        self.tid == self.id.tgid()
    }

    /// The leader has ended, and every other thread has at least begun to.
    fn ends(&self) -> bool {
        self.is_leader() && self.exit_state & EXIT_ZOMBIE != 0 && self.live == 0
    }

    fn info(&self) -> ProcessInfo {
        ProcessInfo {
            id: self.id,
            parent: (self.parent.tgid() != 0).then_some(self.parent),
            comm: Some(self.comm.clone()),
            uid: Some(self.uid),
            ns_pid: (self.ns_level > 0).then_some(self.ns_pid),
            pgrp: (self.pgrp != 0).then_some(self.pgrp),
            session: (self.session != 0).then_some(self.session),
            never_execed: Some(self.flags & PF_FORKNOEXEC != 0),
            cred: (self.cred != 0).then_some(self.cred),
            ..ProcessInfo::default()
        }
    }

    /// As much of a state as a task line tells; used when nobody read /proc for it.
    fn state(&self) -> ProcessState {
        // TASK_REPORT bits (fs/proc/array.c, task_state_array) in the order of "RSDTtXZPI".
        let letter = match (self.exit_state, self.state) {
            (exit, _) if exit & EXIT_ZOMBIE != 0 => "Z",
            (exit, _) if exit & EXIT_DEAD != 0 => "X",
            (_, 0) => "R",
            (_, state) if state & 0x1 != 0 => "S",
            // TASK_UNINTERRUPTIBLE | TASK_NOLOAD
            (_, state) if state & 0x402 == 0x402 => "I",
            (_, state) if state & 0x2 != 0 => "D",
            (_, state) if state & 0x4 != 0 => "T",
            (_, state) if state & 0x8 != 0 => "t",
            _ => "S",
        };
        let gone = self.exit_state != 0;
        ProcessState {
            id: self.id,
            state: letter.to_owned(),
            live_threads: self.live,
            leader_exited: gone,
            exiting: self.flags & PF_EXITING != 0 && !gone,
            dumping_core: self.flags & PF_DUMPCORE != 0 && !gone,
            tracer: self.tracer,
            cpu_ns: self.cpu_ns,
            exit_code: (gone && self.live == 0).then_some(self.exit_code),
            ..ProcessState::default()
        }
    }
}

/// The zombies: processes whose leader has ended, and which have no other thread. (The last one may still be giving everything back when the kernel
/// counts no living thread any more: `signal->live` falls when an exit begins, kernel/exit.c, do_exit.)
#[must_use]
pub fn zombies(tasks: &[TaskLine]) -> BTreeSet<ProcessId> {
    let mut zombies: BTreeSet<ProcessId> = tasks.iter().filter(|task| task.ends()).map(|task| task.id).collect();
    for task in tasks.iter().filter(|task| !task.is_leader() && task.exit_state == 0) {
        zombies.remove(&task.id);
    }
    zombies
}

/// The processes of which no thread runs any more, and which are no zombies yet. An exit gives up the whole table of descriptors first and then
/// releases one description after the other (`exit_files` and `exit_task_work` in `do_exit`, kernel/exit.c): which of them it still
/// has, nobody can see.
fn releasing(tasks: &[TaskLine]) -> BTreeSet<ProcessId> {
    let zombies = zombies(tasks);
    tasks.iter().filter(|task| task.live == 0 && !zombies.contains(&task.id)).map(|task| task.id).collect()
}

/// The processes that matter: those that are [`worth_reading`], and all zombies.
#[must_use]
pub fn relevant(world: &World, tasks: &[TaskLine], holds: &[Hold]) -> BTreeSet<ProcessId> {
    let mut found = worth_reading(world, tasks, holds);
    found.extend(zombies(tasks));
    found
}

/// The processes whose details in /proc are worth reading.
///
/// Holders, their ancestors, group and session leaders and tracers; processes that NVML names; everything that the
/// world follows already; who must wait for zombies. Of the zombies themselves only those that have to do with a GPU: the others have no more
/// details than a task line tells, and there may be tens of thousands of them.
#[must_use]
pub fn worth_reading(world: &World, tasks: &[TaskLine], holds: &[Hold]) -> BTreeSet<ProcessId> {
    let leaders: BTreeMap<u32, &TaskLine> = tasks.iter().filter(|t| t.is_leader()).map(|t| (t.id.tgid(), t)).collect();
    let by_pid = |pid: u32| leaders.get(&pid).map(|task| task.id);
    let zombies = zombies(tasks);
    let openers: BTreeSet<Token> = holds.iter().filter_map(|hold| hold.cred).collect();
    let mut found: BTreeSet<ProcessId> = holds.iter().map(|hold| hold.id).collect();
    found.extend(world.gpus().values().flat_map(|gpu| gpu.lines.keys()).filter_map(|(pid, _)| by_pid(*pid)));
    let core: Vec<ProcessId> = found.iter().copied().collect();
    for id in core {
        let Some(task) = leaders.get(&id.tgid()) else { continue };
        found.extend([task.pgrp, task.session].into_iter().filter_map(by_pid));
        let mut parent = task.parent;
        for _ in 0..ANCESTORS_MAX {
            let Some(next) = leaders.get(&parent.tgid()) else { break };
            if !found.insert(next.id) {
                break;
            }
            parent = next.parent;
        }
    }
    for task in tasks {
        if zombies.contains(&task.id) {
            if openers.contains(&task.cred) || world.uses_gpu(task.id) {
                found.insert(task.id);
            }
            found.extend(by_pid(task.parent.tgid()));
        } else if world.process(task.id).is_some() {
            found.insert(task.id);
        }
        if let Some(tracer) = task.tracer.filter(|_| found.contains(&task.id)) {
            found.insert(tracer);
        }
    }
    found.retain(|id| leaders.contains_key(&id.tgid()));
    found
}

impl Snapshot {
    /// What the world does not know yet, ending with one [`What::Scan`].
    ///
    /// Never undoes what a hook saw while the scan ran: a descriptor that was closed since the scan began is not brought
    /// back, and one that came since is not dropped. An incomplete scan proves no absence.
    #[must_use]
    pub fn events(&self, world: &World) -> Vec<Event> {
        let mut out = Vec::new();
        let leaders: BTreeMap<ProcessId, &TaskLine> = self.tasks.iter().filter(|t| t.is_leader()).map(|t| (t.id, t)).collect();
        let relevant = relevant(world, &self.tasks, &self.holds);
        self.processes(world, &leaders, &relevant, &mut out);
        self.drops(world, &mut out);
        self.new_holds(world, &mut out);
        if self.complete && !leaders.is_empty() {
            self.gone(world, &leaders, &relevant, &mut out);
        }
        self.kernel(world, &mut out);
        let zombies = zombies(&self.tasks).len();
        out.push(self.event(What::Scan {
            began: self.began,
            processes: u32::try_from(leaders.len()).unwrap_or(u32::MAX),
            zombies: u32::try_from(zombies).unwrap_or(u32::MAX),
            complete: self.complete,
        }));
        out
    }

    /// The kernel's own threads, and the driver's modules.
    fn kernel(&self, world: &World, out: &mut Vec<Event>) {
        if let Some(list) = &self.kernel_threads {
            let known = world.host().kernel_threads.as_ref().map(|(at, list)| (*at, &list[..]));
            let list = looks::kernel_threads(known, list, self.ended);
            if looks::differ(known.map_or(&[], |(_, list)| list), &list) || looks::are_still_there(&list, self.ended) {
                out.push(self.event(What::KernelThreads { list }));
            }
        }
        if let Some(users) = self.modules.as_ref().filter(|users| **users != world.host().modules) {
            out.push(self.event(What::Modules { users: users.clone() }));
        }
    }

    fn event(&self, what: What) -> Event {
        Event { at: self.ended, what }
    }

    fn processes(
        &self,
        world: &World,
        leaders: &BTreeMap<ProcessId, &TaskLine>,
        relevant: &BTreeSet<ProcessId>,
        out: &mut Vec<Event>,
    ) {
        let infos: BTreeMap<ProcessId, &ProcessInfo> = self.infos.iter().map(|info| (info.id, info)).collect();
        let states: BTreeMap<ProcessId, &ProcessState> = self.states.iter().map(|state| (state.id, state)).collect();
        for id in relevant {
            let Some(task) = leaders.get(id) else { continue };
            let known = world.process(*id);
            // Seen to die while the scan ran: the hooks know better.
            if known.is_some_and(|process| process.stage() == Stage::Gone) {
                continue;
            }
            let info = merged(task.info(), infos.get(id).copied());
            if !known.is_some_and(|process| knows(process, &info)) {
                out.push(self.event(What::Process(Box::new(info))));
            }
            let old = known.and_then(|process| process.state.as_ref()).map(|(at, state)| (*at, &**state));
            let state = match states.get(id) {
                Some(state) => looks::compared(old, state, self.ended),
                None => task.state(),
            };
            if old.is_none_or(|(_, old)| differs(old, &state)) {
                out.push(self.event(What::State(Box::new(state))));
            }
        }
    }

    /// Credentials of threads other than the leader: capset and the like give new ones to the calling thread alone, and the others keep
    /// those that the process opened its files with.
    fn thread_creds(&self) -> BTreeMap<Token, ProcessId> {
        self.tasks.iter().filter(|task| !task.is_leader() && task.cred != 0).map(|task| (task.cred, task.id)).collect()
    }

    fn new_holds(&self, world: &World, out: &mut Vec<Event>) {
        let creds = self.thread_creds();
        for hold in &self.holds {
            let place = Place::of(hold.via);
            let dead = world.process(hold.id).is_some_and(|process| process.stage() >= Stage::Zombie);
            let known = world.file(hold.file).and_then(|file| {
                let same = file.slot(hold.id, hold.fd).filter(|(known, _)| *known == place);
                same.map(|(_, slot)| slot.cloexec == hold.cloexec.or(slot.cloexec) && (file.cred.is_some() || hold.cred.is_none()))
            });
            if !dead && known != Some(true) && !world.was_dropped_since(self.began, hold.id, hold.fd, hold.file) {
                let opener = hold.opener.or_else(|| hold.cred.and_then(|cred| creds.get(&cred)).copied());
                out.push(self.event(What::Hold(Box::new(Hold { opener, ..hold.clone() }))));
            }
        }
    }

    fn drops(&self, world: &World, out: &mut Vec<Event>) {
        if !self.complete {
            return;
        }
        let found: BTreeSet<(ProcessId, i32, Token, Place)> =
            self.holds.iter().map(|hold| (hold.id, hold.fd, hold.file, Place::of(hold.via))).collect();
        let releasing = releasing(&self.tasks);
        // Threads and files are read at the same time: an exit that began in between is known from its event.
        let releases = |id: ProcessId| {
            releasing.contains(&id) || world.process(id).is_some_and(|p| p.stage() == Stage::Exiting && p.exit.began.is_some())
        };
        for file in world.files() {
            let gone = |id: ProcessId, place: Place, slot: &Slot| {
                slot.changed < self.began && !found.contains(&(id, slot.fd, file.token, place))
            };
            let all = || file.holders.iter().flat_map(|((id, place), holder)| holder.slots.iter().map(|slot| (*id, *place, slot)));
            if all().all(|(id, place, slot)| gone(id, place, slot) && releases(id)) {
                continue;
            }
            for (id, _, slot) in all().filter(|(id, place, slot)| gone(*id, *place, slot)) {
                out.push(self.event(What::Drop { id, tid: slot.tid, fd: slot.fd, file: file.token }));
            }
        }
    }

    /// Processes that the world believes in and the host does not have, and numbers that nobody has.
    fn gone(
        &self,
        world: &World,
        leaders: &BTreeMap<ProcessId, &TaskLine>,
        relevant: &BTreeSet<ProcessId>,
        out: &mut Vec<Event>,
    ) {
        for process in world.processes() {
            let id = process.id();
            let here = if id.start() == 0 { leaders.keys().any(|l| l.tgid() == id.tgid()) } else { leaders.contains_key(&id) };
            if !here && process.stage() < Stage::Gone && process.first_seen < self.began && id.start() < self.began {
                out.push(self.event(What::ProcessGone { id }));
            }
        }
        let pids: BTreeSet<u32> = leaders.keys().map(|id| id.tgid()).collect();
        let mut named: BTreeSet<u32> = world.gpus().values().flat_map(|gpu| gpu.lines.keys().map(|(pid, _)| *pid)).collect();
        for task in relevant.iter().filter_map(|id| leaders.get(id)) {
            named.extend([task.pgrp, task.session].into_iter().filter(|pid| *pid != 0));
        }
        // While there are processes there is a PID 1, also where a hardened kernel does not show it.
        for pid in named.difference(&pids).filter(|pid| **pid != 1) {
            let since = world.process_at(*pid, u64::MAX).is_some_and(|process| process.first_seen >= self.began);
            if !world.is_absent(*pid) && !since {
                out.push(self.event(What::ProcessGone { id: ProcessId(*pid, 0) }));
            }
        }
    }
}

/// The task line's facts, and what /proc adds.
fn merged(mut line: ProcessInfo, read: Option<&ProcessInfo>) -> ProcessInfo {
    let Some(read) = read else { return line };
    macro_rules! add {
        ($($field:ident),*) => { $( if line.$field.is_none() { line.$field.clone_from(&read.$field); } )* };
    }
    add!(parent, comm, cmdline, uid, ns_pid, pgrp, session, cgroup, container, never_execed, cred, gpu_user, pids);
    line
}

/// The world has all of this already.
fn knows(process: &Process, info: &ProcessInfo) -> bool {
    let known = &process.info;
    macro_rules! same {
        ($($field:ident),*) => { true $( && (info.$field.is_none() || info.$field == known.$field) )* };
    }
    let pids = || info.pids.as_ref().is_none_or(|new| known.pids.as_ref().is_some_and(|old| about_the_same(old, new)));
    same!(parent, comm, cmdline, uid, ns_pid, pgrp, session, cgroup, container, never_execed, cred, gpu_user) && pids()
}

/// The number of tasks in a cgroup changes all the time; it matters when a good part of the room is gone or has come back.
fn about_the_same(old: &PidsLimit, new: &PidsLimit) -> bool {
    let step = old.room().min(new.room()) / 8;
    (&old.cgroup, old.max) == (&new.cgroup, new.max) && old.current.abs_diff(new.current) <= step
}

/// A difference that matters: running and sleeping alternate all the time, and CPU time grows by itself; it matters
/// only of a thread that is stuck (it spins or it sleeps).
fn differs(old: &ProcessState, new: &ProcessState) -> bool {
    let class = |state: &ProcessState| match state.state.as_str() {
        "R" | "S" | "I" => "S".to_owned(),
        other => other.to_owned(),
    };
    let plain = |state: &ProcessState| ProcessState {
        state: class(state),
        cpu_ns: if state.stuck.is_empty() { 0 } else { state.cpu_ns },
        stuck: state.stuck.iter().map(looks::shape).collect::<Vec<StuckThread>>(),
        ..state.clone()
    };
    plain(old) != plain(new)
}

#[cfg(test)]
mod tests;
