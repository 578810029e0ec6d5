//! The living state as events: what the next trace file opens with.
//!
//! Always true: folded into a fresh [`World`], the events explain the same holdings. Events keep the times at which
//! things happened, so they are not in order of time: processes first, then who holds what and what that keeps, then how
//! they ended.

use super::World;
use super::gpu::{Gpu, Health};
use super::host::Host;
use super::process::{ExitRecord, Process};
use crate::event::{
    BootNs, Event, GpuProcess, Hold, ProcessId, ProcessInfo, SignalResult, Via, What,
};

impl World {
    /// Events that rebuild what is known of the living, of the dead whose files are still held, and of the GPUs.
    #[must_use]
    pub fn carry_over(&self) -> Vec<Event> {
        let mut out = Vec::new();
        carry_host(&self.host, &mut out);
        for (index, gpu) in &self.gpus {
            // Who was charged before this file is known to the next one only where NVML still says so.
            let uncharged = |p: &Process, settled| p.left_since(settled) || p.uncharged_at.is_some_and(|at| at >= settled);
            let unknown = |settled| self.processes().chain(self.finished()).any(|p| uncharged(p, settled));
            let settled_at = gpu.settled_at.filter(|settled| !unknown(*settled));
            carry_gpu(*index, &Gpu { settled_at, ..gpu.clone() }, &mut out);
        }
        // Before the files: what is in transit now was not settled by it.
        if let Some(scan) = self.host.scan {
            let (began, processes, zombies, complete) = (scan.began, scan.processes, scan.zombies, scan.complete);
            out.push(event(scan.at, What::Scan { began, processes, zombies, complete }));
        }
        for process in self.processes() {
            carry_birth(process, &mut out);
        }
        self.carry_files(&mut out);
        self.carry_books(&mut out);
        for process in self.processes() {
            carry_life(process, &mut out);
            self.carry_end(process, &mut out);
        }
        self.carry_releases(&mut out);
        out.extend(self.absent.iter().map(|(pid, at)| event(*at, What::ProcessGone { id: ProcessId(*pid, 0) })));
        out
    }

    fn carry_files(&self, out: &mut Vec<Event>) {
        for file in self.files() {
            let opener = file.opener.map(|(id, _)| id);
            let whole = Hold {
                fd: -1,
                file: file.token,
                dev: file.dev,
                cred: file.cred,
                opened_cloexec: file.opened_cloexec,
                opener,
                role: file.role,
                pins: file.pins,
                bytes: file.bytes,
                ..Hold::default()
            };
            // The opener's own holding first: it says when the description was opened.
            let own = |id| opener != Some(id);
            let mut holders: Vec<_> = file.holders.iter().collect();
            holders.sort_by_key(|((id, place), _)| (own(*id), *id, *place));
            for ((id, _), holder) in holders {
                for slot in &holder.slots {
                    let since = if opener == Some(*id) { holder.since.or(file.opened_at) } else { holder.since };
                    let hold = Hold {
                        id: *id,
                        tid: slot.tid,
                        fd: slot.fd,
                        cloexec: slot.cloexec,
                        // Two opens would be two descriptions.
                        via: holder.via.filter(|via| *via != Via::Opened || opener == Some(*id)),
                        from: holder.from,
                        since,
                        ..whole.clone()
                    };
                    out.push(event(slot.changed, What::Hold(Box::new(hold))));
                }
            }
            let pending = file.sent.iter().rev().take(file.in_transit as usize).rev();
            for sent in pending {
                // The sending does not say who opened it: a holding of the sender, dropped at once, does.
                let hold = Hold { id: sent.by, ..whole.clone() };
                let (id, file, dev, socket) = (sent.by, file.token, file.dev, sent.socket);
                out.push(event(sent.at, What::Sent { id, file, dev, socket }));
                out.push(event(sent.at, What::Hold(Box::new(hold))));
                out.push(event(sent.at, What::Drop { id, tid: None, fd: -1, file }));
            }
        }
    }

    fn carry_end(&self, process: &Process, out: &mut Vec<Event>) {
        let id = process.id();
        let exit = &process.exit;
        carry_threads(process, exit, out);
        if let (Some(at), Some(parent)) = (exit.zombie, exit.told) {
            out.push(event(at, What::Zombie { id, parent }));
        }
        if let Some((at, by, comm)) = &exit.reaped {
            let inside = self.process(*by).is_some_and(|p| p.info.ns_pid.is_some());
            let child = if inside { process.info.ns_pid.unwrap_or(id.tgid()) } else { id.tgid() };
            out.push(event(*at, What::Reap { by: *by, comm: comm.to_string(), child }));
        }
        if let Some(at) = exit.freed {
            out.push(event(at, What::Free { id }));
        }
        // A reap finds its child by its parent, which may have changed since: this makes sure.
        let gone = exit.gone.or(exit.reaped.as_ref().map(|reaped| reaped.0)).filter(|_| exit.freed.is_none());
        if let Some(at) = exit.gone.or(gone) {
            out.push(event(at, What::ProcessGone { id }));
        }
    }
}

fn event(at: BootNs, what: What) -> Event {
    Event { at, what }
}

fn carry_host(host: &Host, out: &mut Vec<Event>) {
    if let Some(header) = &host.header {
        let mut header = header.clone();
        header.real_ns = host.real_ns(host.now).unwrap_or_default();
        out.push(event(host.now, What::Header(header)));
    }
    out.extend(host.clocks().map(|(at, real_ns)| event(at, What::Clock { real_ns })));
    for limit in &host.limits {
        let (missing, voids) = (limit.missing.clone(), limit.voids.clone());
        out.push(event(host.now, What::Limit { missing, voids }));
    }
    for (cause, (count, at)) in &host.lost {
        out.push(event(*at, What::Lost { cause: cause.clone(), count: *count }));
    }
    for xid in &host.xids {
        let (pci, message) = (xid.pci.clone(), xid.message.clone());
        out.push(event(xid.at, What::Xid { pci, code: xid.code, pid: xid.pid, message }));
    }
    if let Some((at, list)) = host.kernel_threads.as_ref().filter(|(_, list)| !list.is_empty()) {
        out.push(event(*at, What::KernelThreads { list: list.clone() }));
    }
    if !host.modules.is_empty() {
        out.push(event(host.now, What::Modules { users: host.modules.clone() }));
    }
}

fn carry_gpu(index: u32, gpu: &Gpu, out: &mut Vec<Event>) {
    let at = gpu.samples.front().map_or(gpu.sampled_at, |(at, _)| *at);
    let (uuid, name) = (gpu.uuid.clone(), gpu.name.clone());
    out.push(event(at, What::Gpu { gpu: index, uuid, name, minor: gpu.minor, pci: gpu.pci.clone(), settled_at: gpu.settled_at }));
    if let Some((at, Health { recovery, lost, reset_required })) = gpu.health {
        out.push(event(at, What::GpuHealth { gpu: index, recovery, lost, reset_required }));
    }
    if let Some(memory) = gpu.memory {
        let sample = |at, used| {
            event(at, What::GpuMemory { gpu: index, total: memory.total, used, reserved: memory.reserved })
        };
        out.extend(gpu.samples.iter().rev().take(2).rev().map(|(at, used)| sample(*at, *used)));
        out.push(sample(gpu.sampled_at, memory.used));
    }
    let mut times: Vec<BootNs> = gpu.lines.values().map(|line| line.first_seen).collect();
    times.extend(gpu.listed_at);
    times.sort_unstable();
    times.dedup();
    for at in times {
        let list = gpu.lines.iter().filter(|(_, line)| line.first_seen <= at).map(|((pid, usage), line)| GpuProcess {
            pid: *pid,
            bytes: line.bytes,
            usage: *usage,
            name: line.name.clone(),
        });
        out.push(event(at, What::GpuProcesses { gpu: index, list: list.collect() }));
    }
}

fn carry_birth(process: &Process, out: &mut Vec<Event>) {
    if let (Some(at), Some(parent)) = (process.forked_at, process.born_of) {
        let comm = process.comm().to_owned();
        out.push(event(at, What::Fork { parent, child: process.id(), comm, cred: None }));
    }
    let mut info: ProcessInfo = process.info.clone();
    if process.first_parent.is_some() && process.first_parent != info.parent {
        let before = ProcessInfo { id: process.id(), parent: process.first_parent, ..ProcessInfo::default() };
        out.push(event(process.first_seen, What::Process(Box::new(before))));
    }
    if process.held {
        info.gpu_user = Some(true);
    }
    out.push(event(process.first_seen, What::Process(Box::new(info))));
}

fn carry_life(process: &Process, out: &mut Vec<Event>) {
    if let Some((at, state)) = &process.state {
        out.push(event(*at, What::State(state.clone())));
    }
    if let Some(at) = process.oom_at {
        out.push(event(at, What::OomVictim { pid: process.id().tgid() }));
    }
    for record in process.signals.iter() {
        if let Some(at) = record.sent {
            out.push(event(
                at,
                What::Signal {
                    to: process.id(),
                    tid: record.tid,
                    sig: record.sig,
                    from: record.from,
                    comm: record.comm.to_string(),
                    uid: record.uid,
                    code: record.code,
                    result: record.result,
                },
            ));
        }
        if let (Some((at, action)), true) = (record.delivered, record.result != SignalResult::Ignored) {
            let tid = process.id().tgid();
            out.push(event(at, What::Deliver { id: process.id(), tid, sig: record.sig, action }));
        }
    }
}

fn carry_threads(process: &Process, exit: &ExitRecord, out: &mut Vec<Event>) {
    let leader = process.id().tgid();
    let live = exit.live.unwrap_or_default();
    let parent = process.info.parent;
    let push = |out: &mut Vec<Event>, at, tid, code| {
        let last = exit.last_thread == Some(at);
        let group_code = exit.code.filter(|_| exit.began.is_some_and(|began| began <= at));
        out.push(event(at, What::Exit { id: process.id(), tid, code, group_code, live, last, parent }));
    };
    if let Some(at) = exit.leader
        && exit.threads.iter().all(|thread| thread.tid != leader)
    {
        push(out, at, leader, exit.code.unwrap_or_default());
    }
    for thread in &exit.threads {
        push(out, thread.at, thread.tid, thread.code);
    }
}
