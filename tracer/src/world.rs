//! The fold: everything that is known, as a pure function of the events so far.
//!
//! Always true: [`World::apply`] is the only way in, takes events in any order that sources can produce (several
//! CPUs' events may be slightly out of time order; a trace may begin anywhere), never fails, and keeps memory
//! bounded: the dead are forgotten once nothing that they held is still open (see [`retire`]).
//!
//! * [`process`]: who, how it stands, which signals, how it ended.
//! * [`file`]: open file descriptions and their holders.
//! * [`gpu`], [`host`]: NVML's view; clocks, limits, losses, Xids.
//! * [`books`]: who allocated which GPU memory, and what keeps it.
//! * `carry`: the living state as events again; `ask`: what the recorder asks.

mod ask;
pub mod books;
mod carry;
pub mod file;
pub mod gpu;
mod holding;
pub mod host;
pub mod process;
pub mod release;
mod retire;
pub mod signal;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use crate::event::rm::{Op, Rm};
use crate::event::{BootNs, Dev, DeviceNode, Event, Header, Node, ProcessId, ProcessState, Token, What};
use crate::explanation::LimitPart;
use books::Books;
use books::gap::RECORDING_ENDED;
use file::File;
use gpu::{Gpu, Health, Memory};
use host::{Host, LastScan, Xid};
use process::{Process, Stage, ThreadExit};
use signal::SignalRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A recording that says nothing for so long has ended: it samples at least once a minute.
const UNWATCHED_NS: u64 = 120_000_000_000;

/// Everything that is known.
#[derive(Debug, Default)]
pub struct World {
    /// The host.
    host: Host,
    /// GPUs by NVML index.
    gpus: BTreeMap<u32, Gpu>,
    /// Processes: the living, and the dead that still matter.
    processes: BTreeMap<ProcessId, Box<Process>>,
    /// Open file descriptions that something keeps open.
    files: BTreeMap<Token, Box<File>>,
    /// Clients of the driver and their memory.
    books: Books,
    /// What the driver releases, or has.
    releases: VecDeque<release::Release>,
    /// Processes and kernel threads in which a release began, until they are past their end.
    releasing: BTreeSet<ProcessId>,
    /// Whose credentials a token is.
    creds: BTreeMap<Token, ProcessId>,
    /// Descriptions whose opener is unknown, by its credentials.
    ownerless: BTreeMap<Token, BTreeSet<Token>>,
    /// Descriptors that were recently lost, so that an older scan does not bring them back.
    dropped: VecDeque<(BootNs, ProcessId, i32, Token)>,
    /// PIDs that a scan did not find, and when.
    absent: BTreeMap<u32, BootNs>,
    /// Zombies and just-reaped children by the parent that was told.
    unreaped: BTreeMap<ProcessId, BTreeSet<ProcessId>>,
    /// The dead, for timelines: oldest first.
    finished: VecDeque<Box<Process>>,
    /// Deaths since the last look for who can be forgotten.
    deaths: usize,
}

impl World {
    /// Folds one event in.
    pub fn apply(&mut self, event: &Event) {
        let at = event.at;
        let before = self.host.now;
        self.host.now = before.max(at);
        match &event.what {
            What::Header(header) => self.header(before, at, header),
            What::Gpu { .. } | What::GpuMemory { .. } | What::GpuProcesses { .. } | What::GpuHealth { .. } => self.gpu_event(at, &event.what),
            What::Process(info) => {
                self.process_mut(at, info.id).learn(info);
                if let Some(cred) = info.cred {
                    self.has_cred(info.id, cred);
                }
            }
            What::State(state) => self.stands(at, state),
            What::ProcessGone { id } => self.not_found(at, *id),
            What::Fork { parent, child, comm, cred } => {
                let process = self.process_mut(at, *child);
                process.forked_at = Some(at);
                process.born_of = Some(*parent);
                process.info.parent = process.info.parent.or(Some(*parent));
                process.first_parent = process.first_parent.or(Some(*parent));
                if process.info.comm.is_none() {
                    process.info.comm = Some(comm.clone());
                    process.info.never_execed = Some(true);
                }
                self.fork_files(at, *parent, *child);
                if let Some(cred) = cred {
                    self.has_cred(*child, *cred);
                }
            }
            What::Exec { id, comm, path, cred } => {
                self.process_mut(at, *id).executes(at, comm, path);
                self.exec_files(at, *id);
                if let Some(cred) = cred {
                    self.has_cred(*id, *cred);
                }
            }
            What::Exit { id, tid, code, group_code, live, last, parent } => {
                let process = self.process_mut(at, *id);
                process.info.parent = parent.or(process.info.parent);
                process.first_parent = process.first_parent.or(*parent);
                let thread = ThreadExit { at, tid: *tid, code: *code };
                process.thread_exits(at, thread, *live, *last, *group_code);
            }
            What::Zombie { id, parent } => self.zombie(at, *id, *parent),
            What::Reap { by, comm, child } => self.reap(at, *by, comm, *child),
            What::Free { id } => self.dies(at, *id, |exit| exit.freed = Some(at)),
            What::Signal { .. } | What::Deliver { .. } | What::OomVictim { .. } => self.signal_event(at, &event.what),
            What::Hold(hold) => self.hold(at, hold),
            What::Drop { id, fd, file, .. } => self.drop_slot(at, *id, *fd, *file),
            What::Sent { id, file, dev, socket } => self.sent(at, *id, *file, *dev, *socket),
            What::Rm(rm) => self.asked(at, rm),
            What::Release { by, tid, comm, file, dev, step } => {
                self.released(at, &release::StepOf { by: *by, tid: *tid, comm, file: *file, dev: *dev, step: *step });
            }
            _ => self.host_event(at, &event.what),
        }
    }

    /// The host: header, clocks, limits, losses, Xids, the last scan.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// What a device number is for, by the nodes in the header.
    #[must_use]
    pub fn node_of(&self, dev: Dev) -> Node {
        let nodes = self.host.header.iter().flat_map(|header| &header.devices);
        let known = nodes.into_iter().find(|node| node.dev == dev).map(DeviceNode::node);
        known.unwrap_or_else(|| dev.node())
    }

    /// GPUs by NVML index.
    #[must_use]
    pub fn gpus(&self) -> &BTreeMap<u32, Gpu> {
        &self.gpus
    }

    /// Processes that are alive or still matter, by id.
    pub fn processes(&self) -> impl DoubleEndedIterator<Item = &Process> {
        self.processes.values().map(|process| &**process)
    }

    /// The dead that only timelines ask for, oldest first.
    pub fn finished(&self) -> impl DoubleEndedIterator<Item = &Process> {
        self.finished.iter().map(|process| &**process)
    }

    /// Clients of the driver, GPU memory, and what keeps it.
    #[must_use]
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Open file descriptions, by token.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values().map(|file| &**file)
    }

    /// One description.
    #[must_use]
    pub fn file(&self, token: Token) -> Option<&File> {
        self.files.get(&token).map(|file| &**file)
    }

    /// One process that still matters.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(&id).map(|process| &**process)
    }

    /// The newest process with this number that started no later than `by`.
    #[must_use]
    pub fn process_at(&self, pid: u32, by: BootNs) -> Option<&Process> {
        self.processes.range(ProcessId(pid, 0)..=ProcessId(pid, by)).next_back().map(|(_, process)| &**process)
    }

    /// The living process with this number, if there is one.
    #[must_use]
    pub fn living(&self, pid: u32) -> Option<&Process> {
        self.process_at(pid, u64::MAX).filter(|process| process.stage() < Stage::Gone)
    }

    /// A dead process with this number that was alive at `at`; the finished are asked too.
    #[must_use]
    pub fn dead(&self, pid: u32, at: BootNs) -> Option<&Process> {
        let remembered = self.process_at(pid, at).filter(|process| process.stage() >= Stage::Zombie);
        let here = |p: &&Process| p.id().tgid() == pid && p.id().start() <= at;
        remembered.or_else(|| self.finished().rev().find(here))
    }

    /// A complete scan found no process with this number, and none was seen since.
    #[must_use]
    pub fn is_absent(&self, pid: u32) -> bool {
        self.absent.contains_key(&pid)
    }

    /// Whether the process is known to be dead.
    #[must_use]
    pub fn is_dead(&self, id: ProcessId) -> bool {
        match self.process(id) {
            Some(process) => process.stage() >= Stage::Zombie,
            None => {
                let finished = self.finished().any(|p| p.id() == id);
                finished || self.is_absent(id.tgid()) || self.living(id.tgid()).is_some_and(|p| p.id() != id)
            }
        }
    }

    /// Processes that were forked by, or are now children of, this one.
    pub fn children(&self, id: ProcessId) -> impl Iterator<Item = &Process> {
        self.processes().filter(move |p| p.born_of == Some(id) || p.info.parent == Some(id))
    }

    /// A descriptor was seen to be lost at or after `since`.
    #[must_use]
    pub fn was_dropped_since(&self, since: BootNs, id: ProcessId, fd: i32, file: Token) -> bool {
        self.dropped.iter().rev().any(|drop| drop.0 >= since && (drop.1, drop.2, drop.3) == (id, fd, file))
    }

    fn header(&mut self, last: BootNs, at: BootNs, header: &Header) {
        self.host.set_clock(at, header.real_ns);
        let is_recording = header.watching_since.is_some();
        let mut header = Box::new(header.clone());
        // A later file of one recording: what was watched before stays watched.
        if let Some(known) = &self.host.header
            && known.boot_id == header.boot_id
            && known.watching_since.is_some()
        {
            header.watching_since = known.watching_since.min(header.watching_since).or(known.watching_since);
        }
        // What follows the header of a recording tells the books anew.
        if is_recording {
            self.books.restart();
            self.files.values_mut().for_each(|file| file.pins = None);
        } else if self.host.header.is_some() && (self.host.stopped.is_some() || at.saturating_sub(last) > UNWATCHED_NS) {
            // A look long after the end of the recording that it goes by.
            self.books.loses(at, RECORDING_ENDED, 1);
        }
        self.host.header = Some(header);
    }

    fn gpu_event(&mut self, at: BootNs, what: &What) {
        match what {
            What::Gpu { gpu, uuid, name, minor, pci, settled_at } => {
                let known = self.gpus.entry(*gpu).or_default();
                known.uuid.clone_from(uuid);
                known.name.clone_from(name);
                known.minor = minor.or(known.minor);
                known.settled_at = known.settled_at.max(*settled_at);
                if pci.is_some() {
                    known.pci.clone_from(pci);
                }
            }
            What::GpuMemory { gpu, total, used, reserved } => {
                let memory = Memory { total: *total, used: *used, reserved: *reserved };
                self.gpus.entry(*gpu).or_default().sample(at, memory);
            }
            What::GpuHealth { gpu, recovery, lost, reset_required } => {
                let health = Health { recovery: *recovery, lost: *lost, reset_required: *reset_required };
                self.gpus.entry(*gpu).or_default().health = Some((at, health));
            }
            What::GpuProcesses { gpu, list } => {
                let gone = self.gpus.entry(*gpu).or_default().list(at, list);
                for line in list {
                    if let Some(process) = self.newest_mut(line.pid, at) {
                        process.charged = true;
                        process.uncharged_at = None;
                    }
                }
                for (pid, first_seen) in gone {
                    let elsewhere = self.gpus.values().any(|gpu| gpu.of_pid(pid).next().is_some());
                    if let Some(process) = self.newest_mut(pid, first_seen).filter(|_| !elsewhere) {
                        process.uncharged_at = Some(at);
                    }
                }
            }
            _ => {}
        }
    }

    fn signal_event(&mut self, at: BootNs, what: &What) {
        match what {
            What::Signal { to, tid, sig, from, comm, uid, code, result } => {
                self.process_mut(at, *to).signals.sent(SignalRecord {
                    sig: *sig,
                    sent: Some(at),
                    tid: *tid,
                    from: *from,
                    comm: comm.as_str().into(),
                    uid: *uid,
                    code: *code,
                    result: *result,
                    delivered: None,
                });
            }
            What::Deliver { id, sig, action, .. } => {
                self.process_mut(at, *id).signals.delivered(at, *sig, *action);
            }
            What::OomVictim { pid } => {
                if let Some(process) = self.newest_mut(*pid, u64::MAX) {
                    process.oom_at = process.oom_at.or(Some(at));
                }
            }
            _ => {}
        }
    }

    fn host_event(&mut self, at: BootNs, what: &What) {
        match what {
            What::Xid { pci, code, pid, message } => {
                let (pci, message) = (pci.clone(), message.clone());
                self.host.xid(Xid { at, pci, code: *code, pid: *pid, message });
            }
            What::Lost { cause, count } => {
                self.host.loses(at, cause, *count);
                self.books.loses(at, cause, *count);
            }
            What::Limit { missing, voids } => {
                self.host.limit(LimitPart { missing: missing.clone(), voids: voids.clone() });
            }
            What::KernelThreads { list } => self.host.sees_kernel_threads(at, list),
            What::Devices { list } => {
                if let Some(header) = &mut self.host.header {
                    header.devices.clone_from(list);
                }
            }
            What::Hooks { list } => {
                if let Some(header) = &mut self.host.header {
                    header.hooks.retain(|known| list.iter().all(|new| new.name != known.name));
                    header.hooks.extend(list.iter().cloned());
                }
            }
            What::Modules { users } => self.host.sees_modules(users),
            What::Clock { real_ns } => self.host.set_clock(at, *real_ns),
            What::Stop { reason } => self.host.stopped = Some((at, reason.clone())),
            What::Scan { began, processes, zombies, complete } => {
                let scan =
                    LastScan { began: *began, at, processes: *processes, zombies: *zombies, complete: *complete };
                self.host.scan = Some(scan);
                if *complete {
                    self.settle_transit(at, *began);
                    let processes = &self.processes;
                    let is_dead = |id| processes.get(&id).is_none_or(|p| p.stage() >= Stage::Zombie);
                    self.books.scanned(*began, &is_dead);
                }
            }
            _ => {}
        }
    }

    fn asked(&mut self, at: BootNs, rm: &Rm) {
        let files = &self.files;
        self.books.apply(at, rm, &|token| files.contains_key(&token));
        if let Op::Register { control: kept } | Op::SpaceMm { space: kept } = rm.op
            && let Some(file) = self.files.get_mut(&rm.file)
        {
            file.pins = Some(kept);
        }
    }

    /// The process, made when it is new. One number is one process at a time: the older one is gone.
    fn process_mut(&mut self, at: BootNs, id: ProcessId) -> &mut Process {
        let (mut outlived, mut charged) = (None, false);
        if !self.processes.contains_key(&id) {
            // NVML may have named it before anything else did, and repeats a list only when it changes.
            charged = self.gpus.values().any(|gpu| gpu.of_pid(id.tgid()).any(|line| id.start() <= line.first_seen));
            self.absent.remove(&id.tgid());
            if let Some(old) = self.processes.range(ProcessId(id.tgid(), 0)..id).next_back().map(|(old, _)| *old) {
                self.dies(at, old, |exit| exit.gone = exit.gone.or(Some(at)));
            }
            // A late word about a process whose number is used again by now.
            outlived = self.processes.range(id..=ProcessId(id.tgid(), BootNs::MAX)).next().map(|_| at);
        }
        self.processes.entry(id).or_insert_with(|| {
            let mut process = Box::new(Process { first_seen: at, ..Process::default() });
            process.info.id = id;
            process.exit.gone = outlived;
            process.charged = charged && outlived.is_none();
            process
        })
    }

    fn newest_mut(&mut self, pid: u32, by: BootNs) -> Option<&mut Process> {
        self.processes.range_mut(ProcessId(pid, 0)..=ProcessId(pid, by)).next_back().map(|(_, process)| &mut **process)
    }

    fn stands(&mut self, at: BootNs, state: &ProcessState) {
        let process = self.process_mut(at, state.id);
        let stale = process.state.as_ref().is_some_and(|(known, _)| *known > at);
        let is_zombie = state.live_threads == 0 && matches!(state.state.as_str(), "Z" | "X");
        let risen = process.stage() >= Stage::Zombie && !is_zombie;
        if stale || risen {
            return;
        }
        if let (Some((known_at, known)), true) = (&mut process.state, state.stuck.is_empty()) {
            // Most states repeat: keep the allocation.
            (**known).clone_from(state);
            *known_at = at;
        } else {
            process.state = Some((at, Box::new(state.clone())));
        }
        if is_zombie {
            let parent = process.info.parent;
            process.exit.code = process.exit.code.or(state.exit_code);
            process.exit.found_zombie = process.exit.found_zombie.or(Some(at));
            self.release_all(at, state.id);
            if let Some(parent) = parent {
                self.unreaped.entry(parent).or_default().insert(state.id);
            }
        }
    }

    fn zombie(&mut self, at: BootNs, id: ProcessId, parent: ProcessId) {
        let process = self.process_mut(at, id);
        process.exit.zombie = Some(at);
        process.exit.told = Some(parent);
        process.info.parent = Some(parent);
        self.release_all(at, id);
        self.unreaped.entry(parent).or_default().insert(id);
    }

    /// `child` is a number of `by`'s namespace: its zombies are asked first, by either number. It may have adopted the child since: a number
    /// of the initial namespace is one process.
    fn reap(&mut self, at: BootNs, by: ProcessId, comm: &str, child: u32) {
        let outside = self.process(by).is_none_or(|p| p.info.ns_pid.is_none());
        let is_it = |id: &ProcessId| {
            let ns_pid = self.process(*id).and_then(|p| p.info.ns_pid);
            if outside { id.tgid() == child } else { ns_pid == Some(child) }
        };
        let waiting = self.unreaped.get(&by);
        let found = waiting.and_then(|children| children.iter().copied().rfind(is_it)).or_else(|| {
            let process = self.process_at(child, u64::MAX)?;
            let ended = process.stage() >= Stage::Exiting && process.exit.reaped.is_none();
            (outside && ended).then(|| process.id())
        });
        let Some(id) = found else { return };
        if let Some(children) = self.unreaped.get_mut(&by) {
            children.remove(&id);
            if children.is_empty() {
                self.unreaped.remove(&by);
            }
        }
        self.dies(at, id, |exit| exit.reaped = exit.reaped.take().or_else(|| Some((at, by, comm.into()))));
    }

    fn not_found(&mut self, at: BootNs, id: ProcessId) {
        if id.start() != 0 {
            self.dies(at, id, |exit| exit.gone = Some(at));
            return;
        }
        self.absent.insert(id.tgid(), at);
        if let Some(known) = self.living(id.tgid()).map(Process::id) {
            self.dies(at, known, |exit| exit.gone = Some(at));
        }
    }

    /// The process is past its end; says so in its record and releases what it held.
    fn dies(&mut self, at: BootNs, id: ProcessId, how: impl FnOnce(&mut process::ExitRecord)) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let was = process.stage();
        how(&mut process.exit);
        if was < Stage::Gone {
            self.release_all(at, id);
            self.deaths += 1;
            self.retire_the_dead();
        }
    }
}
