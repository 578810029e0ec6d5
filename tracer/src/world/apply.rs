//! The fold, one event at a time.

use super::file::OpenFile;
use super::gpu::Memory;
use super::process::{Process, SignalSent, THREADS_MAX};
use super::{FINISHED_MAX, LIMITS_MAX, LOG_MAX, ScanDone, Sent, World, Xid};
use crate::event::{Action, BootNs, Event, Hold, ProcessId, ProcessInfo, ProcessState, SignalResult, Token, Via, What};
use std::collections::VecDeque;

fn push<T>(log: &mut VecDeque<T>, item: T) {
    if log.len() >= LOG_MAX {
        log.pop_front();
    }
    log.push_back(item);
}

impl World {
    /// Learns one event.
    pub fn apply(&mut self, event: &Event) {
        let at = event.at;
        self.now = self.now.max(at);
        match &event.what {
            What::Header(header) => {
                self.set_wall(at, header.real_ns);
                let since = self.header.watching_since;
                self.header = (**header).clone();
                self.header.watching_since = since.or(header.watching_since);
            }
            What::Clock { real_ns } => self.set_wall(at, *real_ns),
            What::Gpu { gpu, uuid, name, minor, pci } => {
                let g = self.gpus.entry(*gpu).or_default();
                g.uuid.clone_from(uuid);
                g.name.clone_from(name);
                g.minor = *minor;
                g.pci.clone_from(pci);
            }
            What::GpuMemory { gpu, total, used, reserved } => {
                let memory = Memory { at, total: *total, used: *used, reserved: *reserved };
                self.gpus.entry(*gpu).or_default().read(memory);
            }
            What::GpuProcesses { gpu, list } => self.apply_list(at, *gpu, list),
            What::Process(info) => self.apply_info(at, info),
            What::State(state) => self.apply_state(at, state),
            What::ProcessGone { id } => self.apply_gone(at, *id),
            What::Fork { parent, child, comm, cred } => self.apply_fork(at, *parent, *child, comm, *cred),
            What::Exec { id, comm, cred, .. } => self.apply_exec(at, *id, comm, *cred),
            What::Exit { .. } => self.apply_exit(at, &event.what),
            What::Zombie { id, parent } => {
                let process = self.meet(*id, at);
                process.exit.zombie.get_or_insert(at);
                process.exit.told = Some(*parent);
                process.info.parent = Some(*parent);
                self.release_all(*id);
            }
            What::Reap { by, comm, child } => self.apply_reap(at, *by, comm, *child),
            What::Free { id } => self.apply_gone(at, *id),
            What::Signal { .. } => self.apply_signal(at, &event.what),
            What::Deliver { id, sig, action, .. } => self.apply_deliver(at, *id, *sig, *action),
            What::OomVictim { pid } => {
                if let Some(process) = self.latest.get(pid).copied().and_then(|id| self.processes.get_mut(&id)) {
                    process.exit.oom = Some(at);
                }
            }
            What::Hold(hold) => self.apply_hold(at, hold),
            What::Drop { id, tid, fd, file } => self.apply_drop(*id, *tid, *fd, *file),
            What::Sent { id, file, .. } => push(&mut self.sent, Sent { at, by: *id, file: *file }),
            What::Scan { began, processes, zombies, complete } => {
                self.scan = Some(ScanDone { began: *began, processes: *processes, zombies: *zombies, complete: *complete });
            }
            What::Xid { pci, code, pid, message } => {
                push(&mut self.xids, Xid { at, pci: pci.clone(), code: *code, pid: *pid, message: message.clone() });
            }
            What::Lost { cause, count } => {
                *self.lost.entry(cause.clone()).or_default() += count;
                self.lost_at = Some(at);
            }
            What::Limit { missing, voids } => {
                if self.limits.len() < LIMITS_MAX {
                    self.limits.insert(missing.clone(), voids.clone());
                }
            }
            What::Stop { .. } => {}
        }
    }

    /// The process, known from now on.
    fn meet(&mut self, id: ProcessId, at: BootNs) -> &mut Process {
        let newest = self.latest.entry(id.tgid()).or_insert(id);
        if id.start() >= newest.start() {
            *newest = id;
        }
        let process = self.processes.entry(id).or_default();
        process.info.id = id;
        process.seen = process.seen.max(at);
        process
    }

    fn apply_list(&mut self, at: BootNs, gpu: u32, list: &[crate::event::GpuProcess]) {
        let gone: Vec<u32> = {
            let g = self.gpus.entry(gpu).or_default();
            let before: Vec<u32> = g.processes.iter().map(|p| p.pid).collect();
            g.list(at, list);
            before.into_iter().filter(|pid| !list.iter().any(|p| p.pid == *pid)).collect()
        };
        for pid in gone {
            if let Some(process) = self.latest.get(&pid).copied().and_then(|id| self.processes.get_mut(&id)) {
                process.exit.memory_back.get_or_insert(at);
            }
        }
        for line in list {
            if let Some(process) = self.latest.get(&line.pid).copied().and_then(|id| self.processes.get_mut(&id)) {
                process.used_gpu = true;
                process.exit.memory_back = None;
            }
        }
    }

    fn apply_info(&mut self, at: BootNs, info: &ProcessInfo) {
        let process = self.meet(info.id, at);
        process.learn(info);
        if process.launcher.is_none() {
            process.launcher = info.parent;
        }
    }

    fn apply_state(&mut self, at: BootNs, state: &ProcessState) {
        let process = self.meet(state.id, at);
        process.earlier_cpu = process.state.as_ref().map(|(then, s)| (*then, s.cpu_ns));
        if state.exiting {
            process.exiting_since.get_or_insert(at);
        }
        if let Some(code) = state.exit_code {
            process.exit.status.get_or_insert(code);
        }
        process.state = Some((at, state.clone()));
    }

    fn apply_gone(&mut self, at: BootNs, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.exit.gone.get_or_insert(at);
        self.release_all(id);
        self.finish(id);
    }

    fn apply_fork(&mut self, at: BootNs, parent: ProcessId, child: ProcessId, comm: &str, cred: Option<Token>) {
        let inherited = self.processes.get(&parent).map(|p| p.info.clone());
        let process = self.meet(child, at);
        process.forked_at = Some(at);
        process.launcher = Some(parent);
        if let Some(info) = inherited {
            // A fork copies what its parent is; exec and later readings replace it.
            process.info = ProcessInfo { id: child, ns_pid: None, ..info };
        }
        process.info.parent = Some(parent);
        process.info.comm = Some(comm.to_owned());
        process.info.never_execed = Some(true);
        process.info.cred = cred;
        let held = self.processes.get(&parent).map(|p| p.held.clone()).unwrap_or_default();
        for token in &held {
            if let Some(file) = self.files.get_mut(token) {
                file.fork(parent, child, at);
            }
        }
        if let Some(process) = self.processes.get_mut(&child) {
            process.held = held;
        }
    }

    fn apply_exec(&mut self, at: BootNs, id: ProcessId, comm: &str, cred: Option<Token>) {
        let process = self.meet(id, at);
        process.execed = true;
        process.info.comm = Some(comm.to_owned());
        process.info.cmdline = None;
        process.info.never_execed = Some(false);
        if cred.is_some() {
            process.info.cred = cred;
        }
        let tokens = self.processes.get(&id).map(|p| p.held.clone()).unwrap_or_default();
        for token in tokens {
            if self.files.get_mut(&token).is_some_and(|f| f.exec(id)) {
                self.let_go(id, token);
            }
        }
    }

    fn apply_exit(&mut self, at: BootNs, what: &What) {
        let What::Exit { id, tid, code, group_code, live, last, parent } = what else { return };
        let process = self.meet(*id, at);
        process.exit.began.get_or_insert(at);
        if *tid == id.tgid() {
            process.exit.leader = Some(at);
        }
        if process.exit.threads.len() < THREADS_MAX {
            process.exit.threads.push((*tid, at));
        }
        process.exit.live = Some(*live);
        if *tid == id.tgid() || process.exit.status.is_none() || group_code.is_some() {
            process.exit.status = Some(group_code.filter(|c| *c != 0).unwrap_or(*code));
        }
        if let Some(parent) = parent {
            process.info.parent = Some(*parent);
        }
        if *last {
            process.exit.last = Some(at);
        }
    }

    fn apply_reap(&mut self, at: BootNs, by: ProcessId, comm: &str, child: u32) {
        let waiting = |p: &Process| {
            (p.id().tgid() == child || p.info.ns_pid == Some(child)) && p.exit.reaped.is_none() && p.exit.last.is_some()
        };
        let direct = self.latest.get(&child).copied().filter(|id| self.processes.get(id).is_some_and(waiting));
        let found = direct.or_else(|| {
            self.processes.values().filter(|p| waiting(p) && p.info.parent == Some(by)).map(Process::id).min()
        });
        let Some(id) = found else { return };
        if let Some(process) = self.processes.get_mut(&id) {
            process.exit.reaped = Some((at, by, comm.to_owned()));
        }
        self.release_all(id);
        self.finish(id);
    }

    fn apply_signal(&mut self, at: BootNs, what: &What) {
        let What::Signal { to, sig, from, comm, code, result, .. } = what else { return };
        let process = self.meet(*to, at);
        process.signalled(SignalSent {
            at,
            sig: *sig,
            from: *from,
            comm: comm.clone(),
            code: *code,
            result: *result,
            delivered: None,
        });
    }

    fn apply_deliver(&mut self, at: BootNs, id: ProcessId, sig: i32, action: Action) {
        let process = self.meet(id, at);
        let known = process.signals.iter().any(|s| s.sig == sig && s.delivered.is_none());
        if !known && action == Action::Default {
            // Its generation was not seen (sent before we watched): keep the delivery at least.
            process.signalled(SignalSent {
                at,
                sig,
                from: None,
                comm: String::new(),
                code: 0,
                result: SignalResult::LostInfo,
                delivered: None,
            });
        }
        process.delivered(at, sig, action);
    }

    fn apply_hold(&mut self, at: BootNs, hold: &Hold) {
        if hold.via == Some(Via::Opened) && hold.since.is_none() {
            // An open returns a new description: if the address is known, the old one is gone.
            self.archive(hold.file);
        }
        let fresh = !self.files.contains_key(&hold.file);
        let file = self.files.entry(hold.file).or_insert_with(|| OpenFile::new(hold, at));
        let new_holder = !file.holders.contains_key(&hold.id);
        file.add(hold, at);
        let opener = file.opener;
        let process = self.meet(hold.id, at);
        if new_holder {
            process.held.push(hold.file);
        }
        if fresh && let Some(opener) = opener {
            let opener = self.meet(opener, 0);
            opener.opened += 1;
            opener.used_gpu = true;
        }
    }

    fn apply_drop(&mut self, id: ProcessId, tid: Option<u32>, fd: i32, file: Token) {
        if self.files.get_mut(&file).is_some_and(|f| f.remove(id, tid, fd)) {
            self.let_go(id, file);
        }
    }

    /// `id` no longer holds `token`; a description that nobody holds is closed.
    fn let_go(&mut self, id: ProcessId, token: Token) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.held.retain(|t| *t != token);
        }
        if self.files.get(&token).is_some_and(|f| f.holders.is_empty()) {
            self.close(token);
        }
    }

    fn close(&mut self, token: Token) {
        let Some(file) = self.files.remove(&token) else { return };
        self.archived += 1;
        if let Some(opener) = file.opener {
            if let Some(process) = self.processes.get_mut(&opener) {
                process.opened = process.opened.saturating_sub(1);
            }
            self.finish(opener);
        }
    }

    fn archive(&mut self, token: Token) {
        let Some(file) = self.files.get(&token) else { return };
        let holders: Vec<ProcessId> = file.holders.keys().copied().collect();
        for id in holders {
            if let Some(process) = self.processes.get_mut(&id) {
                process.held.retain(|t| *t != token);
            }
        }
        self.close(token);
    }

    /// A process has no files any more.
    fn release_all(&mut self, id: ProcessId) {
        let tokens = self.processes.get_mut(&id).map(|p| std::mem::take(&mut p.held)).unwrap_or_default();
        for token in tokens {
            if let Some(file) = self.files.get_mut(&token) {
                file.holders.remove(&id);
            }
            self.let_go(id, token);
        }
    }

    /// A dead, collected process is kept for timelines for a while, and then forgotten unless it still matters.
    fn finish(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else { return };
        if !process.is_gone() {
            return;
        }
        if self.finished.back() != Some(&id) {
            self.finished.push_back(id);
        }
        while self.finished.len() > FINISHED_MAX {
            let Some(old) = self.finished.pop_front() else { break };
            let forget = self.processes.get(&old).is_some_and(|p| p.is_gone() && p.held.is_empty() && p.opened == 0 && !self.charged(old.tgid()));
            if forget {
                self.processes.remove(&old);
                if self.latest.get(&old.tgid()) == Some(&old) {
                    self.latest.remove(&old.tgid());
                }
            }
        }
    }
}
