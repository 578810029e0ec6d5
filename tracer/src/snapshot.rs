//! What one scan of the host saw, and which events that makes of it given what is already known.
//!
//! Always true: plain data and a pure function. The I/O that fills a [`Snapshot`] (BPF iterators, /proc) is in
//! [`crate::source`]; turning it into events is [`Snapshot::events`], which emits only what the world does not
//! know yet, so a scan of an unchanged host costs one event.

use crate::event::{BootNs, Event, Hold, ProcessId, ProcessInfo, ProcessState, Token, What};
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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
    /// Zombies, threads and tables could all be read.
    pub complete: bool,
}


/// EXIT_ZOMBIE (include/linux/sched.h).
const EXIT_ZOMBIE: u32 = 0x20;

/// Processes that a scan must look at more closely: those that hold, their ancestors, those that NVML names or the world follows,
/// zombies and their parents, tracers.
#[must_use]
pub fn relevant(world: &World, tasks: &[TaskLine], holds: &[Hold]) -> BTreeSet<ProcessId> {
    let leaders: HashMap<ProcessId, &TaskLine> = tasks.iter().filter(|t| t.tid == t.id.tgid()).map(|t| (t.id, t)).collect();
    let charged: HashSet<u32> = world.gpus.values().flat_map(|g| g.processes.iter().map(|p| p.pid)).collect();
    let mut wanted: BTreeSet<ProcessId> = holds.iter().map(|h| h.id).collect();
    for (id, task) in &leaders {
        if charged.contains(&id.tgid()) || world.uses_gpu(*id) || task.exit_state & EXIT_ZOMBIE != 0 && task.live == 0 {
            wanted.insert(*id);
        }
    }
    let mut queue: Vec<ProcessId> = wanted.iter().copied().collect();
    while let Some(id) = queue.pop() {
        let Some(task) = leaders.get(&id) else { continue };
        for kin in [Some(task.parent), task.tracer].into_iter().flatten() {
            if kin.tgid() > 0 && wanted.insert(kin) {
                queue.push(kin);
            }
        }
    }
    wanted
}

impl Snapshot {
    /// What the world does not know yet, and that it was looked at.
    #[must_use]
    pub fn events(&self, world: &World) -> Vec<Event> {
        let mut list = Vec::new();
        let at = self.ended;
        let mut add = |what: What| list.push(Event { at, what });
        for info in &self.infos {
            if world.process(info.id).is_none_or(|p| adds(&p.info, info)) {
                add(What::Process(Box::new(info.clone())));
            }
        }
        for state in &self.states {
            if world.process(state.id).and_then(|p| p.state.as_ref()).is_none_or(|(_, known)| differs(known, state)) {
                add(What::State(Box::new(state.clone())));
            }
        }
        let creds: HashMap<Token, ProcessId> = self.tasks.iter().map(|t| (t.cred, t.id)).collect();
        self.new_holds(world, &creds).into_iter().for_each(|h| add(What::Hold(Box::new(h))));
        if self.complete {
            self.drops(world).into_iter().for_each(&mut add);
            self.gone(world).into_iter().for_each(|id| add(What::ProcessGone { id }));
        }
        let processes: BTreeSet<ProcessId> = self.tasks.iter().map(|t| t.id).collect();
        let zombies = self.tasks.iter().filter(|t| t.tid == t.id.tgid() && t.exit_state & EXIT_ZOMBIE != 0 && t.live == 0).count();
        add(What::Scan {
            began: self.began,
            processes: u32::try_from(processes.len()).unwrap_or(u32::MAX),
            zombies: u32::try_from(zombies).unwrap_or(u32::MAX),
            complete: self.complete,
        });
        list
    }

    fn new_holds(&self, world: &World, creds: &HashMap<Token, ProcessId>) -> Vec<Hold> {
        let known = |h: &Hold| {
            world.files.get(&h.file).and_then(|f| f.holders.get(&h.id)).is_some_and(|x| x.slots.iter().any(|s| s.fd == h.fd && s.tid == h.tid))
        };
        let fresh = self.holds.iter().filter(|h| !known(h));
        fresh
            .map(|h| {
                // Equal credentials prove the opener.
                let opener = h.cred.and_then(|c| creds.get(&c)).copied();
                let mut hold = h.clone();
                hold.opener = hold.opener.or(opener);
                if hold.via.is_none() && opener == Some(h.id) {
                    hold.via = Some(crate::event::Via::Opened);
                    hold.since = Some(0);
                }
                hold
            })
            .collect()
    }

    fn drops(&self, world: &World) -> Vec<What> {
        let seen: HashSet<(ProcessId, Option<u32>, i32, Token)> = self.holds.iter().map(|h| (h.id, h.tid, h.fd, h.file)).collect();
        let mut drops: BTreeMap<(ProcessId, Option<u32>, i32, Token), ()> = BTreeMap::new();
        for (token, file) in &world.files {
            for (id, holder) in &file.holders {
                for slot in holder.slots.iter().filter(|s| s.since < self.began) {
                    let key = (*id, slot.tid, slot.fd, *token);
                    if !seen.contains(&key) {
                        drops.insert(key, ());
                    }
                }
            }
        }
        drops.into_keys().map(|(id, tid, fd, file)| What::Drop { id, tid, fd, file }).collect()
    }

    fn gone(&self, world: &World) -> BTreeSet<ProcessId> {
        let there: HashSet<ProcessId> = self.tasks.iter().map(|t| t.id).collect();
        world.processes.values().filter(|p| !p.is_gone() && p.seen < self.began && p.id().start() != 0).map(|p| p.id()).filter(|id| !there.contains(id)).collect()
    }
}

fn adds(known: &ProcessInfo, new: &ProcessInfo) -> bool {
    let mut merged = crate::world::process::Process { info: known.clone(), ..Default::default() };
    merged.learn(new);
    merged.info != *known
}

/// CPU time alone is no news, unless something is stuck.
fn differs(known: &ProcessState, new: &ProcessState) -> bool {
    let same_but_time = ProcessState { cpu_ns: new.cpu_ns, ..known.clone() } == *new;
    !same_but_time || !new.stuck.is_empty() && known.cpu_ns != new.cpu_ns
}
