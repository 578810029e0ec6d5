//! Small stories for tests: events written as what people do.
//!
//! Always true: time passes by itself (one millisecond per event), so that every event has its own time.

use crate::event::rm::{ExportKind, Handle, Op};
use crate::event::*;
use crate::explanation::{Explanation, Holding, explain};
use crate::world::World;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const CTL: Dev = Dev::new(195, 255);
pub(crate) const GPU0: Dev = Dev::new(195, 0);
pub(crate) const UVM: Dev = Dev::new(510, 0);
/// 2025-06-01 12:00:00 UTC at boottime 1,000 s.
const REAL: u64 = 1_748_779_200 * SECOND;
/// The device instance 0 of a client in a story.
pub(crate) const DEVICE: Handle = 0xd000;
const START: BootNs = 1_000 * SECOND;

pub(crate) struct Story {
    pub(crate) events: Vec<Event>,
    pub(crate) now: BootNs,
    files: Token,
    fds: i32,
    init: ProcessId,
}

impl Story {
    /// Recording since before everything.
    pub(crate) fn warm() -> Story {
        Story::begin(Some(START))
    }

    /// Nothing was watched: all comes from one look.
    pub(crate) fn cold() -> Story {
        Story::begin(None)
    }

    fn begin(watching_since: Option<BootNs>) -> Story {
        let mut story = Story { events: Vec::new(), now: START, files: 0x1000, fds: 3, init: ProcessId(1, 1) };
        let devices = [(CTL, "/dev/nvidiactl"), (GPU0, "/dev/nvidia0"), (UVM, "/dev/nvidia-uvm")];
        story.push(What::Header(Box::new(Header {
            schema: "outlive.trace/1".into(),
            version: "0.1.0".into(),
            hostname: "gpu-1".into(),
            kernel: "6.12.0".into(),
            boot_id: "boot".into(),
            real_ns: REAL,
            pid_max: Some(32_768),
            initial_pid_namespace: true,
            devices: devices.map(|(dev, path)| DeviceNode { dev, path: path.into() }).to_vec(),
            watching_since,
            ..Header::default()
        })));
        story.info(ProcessId(1, 1), "systemd", |_| {});
        story
    }

    pub(crate) fn push(&mut self, what: What) {
        self.now += 1_000_000;
        self.events.push(Event { at: self.now, what });
    }

    pub(crate) fn wait(&mut self, seconds: u64) -> &mut Story {
        self.now += seconds * SECOND;
        self
    }

    /// The process asks the driver through this description, and it is done.
    pub(crate) fn asks(&mut self, id: ProcessId, through: &Hold, op: Op) {
        self.push(What::Rm(Box::new(Rm { id, file: through.file, dev: through.dev, op })));
    }

    /// The process makes a client of the driver.
    pub(crate) fn client(&mut self, id: ProcessId, ctl: &Hold, client: Handle) {
        self.asks(id, ctl, Op::Client { client });
    }

    /// The client takes a GPU; memory that it allocates from now on is there when `device` is 0.
    pub(crate) fn device(&mut self, id: ProcessId, ctl: &Hold, client: Handle, device: u32) -> Handle {
        let object = DEVICE + device;
        self.asks(id, ctl, Op::Object { client, parent: client, object, class: 0x80, device: Some(device) });
        object
    }

    pub(crate) fn memory(&mut self, id: ProcessId, ctl: &Hold, client: Handle, object: Handle, mib: u64) {
        self.asks(id, ctl, Op::Memory { client, parent: DEVICE, object, class: 0x40, bytes: mib * MIB });
    }

    /// CUDA IPC: the second (client, object) becomes known as the first one too.
    pub(crate) fn dup(&mut self, id: ProcessId, ctl: &Hold, to: (Handle, Handle), from: (Handle, Handle)) {
        let ((client, object), (from_client, from_object)) = (to, from);
        self.asks(id, ctl, Op::Dup { client, parent: DEVICE, object, from_client, from_object });
    }

    /// The address space `uvm` maps an object.
    pub(crate) fn map(&mut self, id: ProcessId, uvm: &Hold, (client, object): (Handle, Handle), base: u64) {
        self.asks(id, uvm, Op::Map { client, object, base, length: 2 * MIB });
    }

    /// The object becomes a file descriptor of its own.
    pub(crate) fn export(&mut self, id: ProcessId, ctl: &Hold, (client, object): (Handle, Handle)) -> Hold {
        let to = self.opens(id, CTL);
        self.asks(id, ctl, Op::Export { client, object, to: to.file, kind: ExportKind::Fd });
        to
    }

    pub(crate) fn import(&mut self, id: ProcessId, ctl: &Hold, (client, object): (Handle, Handle), from: &Hold) {
        self.asks(id, ctl, Op::Import { client, parent: DEVICE, object, from: from.file });
    }

    pub(crate) fn frees(&mut self, id: ProcessId, ctl: &Hold, client: Handle, object: Handle) {
        self.asks(id, ctl, Op::Free { client, object });
    }

    /// /dev/nvidiaN keeps /dev/nvidiactl open.
    pub(crate) fn registers(&mut self, id: ProcessId, gpu: &Hold, ctl: &Hold) {
        self.asks(id, gpu, Op::Register { control: ctl.file });
    }

    pub(crate) fn closes(&mut self, hold: &Hold) {
        self.push(What::Drop { id: hold.id, tid: None, fd: hold.fd, file: hold.file });
    }

    /// A process that is simply there.
    pub(crate) fn process(&mut self, pid: u32, comm: &str) -> ProcessId {
        let id = ProcessId(pid, self.now);
        self.info(id, comm, |_| {});
        id
    }

    pub(crate) fn info(&mut self, id: ProcessId, comm: &str, more: impl FnOnce(&mut ProcessInfo)) {
        let mut info = ProcessInfo { id, comm: Some(comm.into()), uid: Some(1000), ..ProcessInfo::default() };
        if id != self.init {
            info.parent = Some(self.init);
        }
        more(&mut info);
        self.push(What::Process(Box::new(info)));
    }

    pub(crate) fn opens(&mut self, id: ProcessId, dev: Dev) -> Hold {
        self.files += 1;
        self.fds += 1;
        let hold = Hold {
            cloexec: Some(true),
            opened_cloexec: Some(true),
            via: Some(Via::Opened),
            opener: Some(id),
            ..bare(id, self.fds, self.files, dev)
        };
        self.push(What::Hold(Box::new(hold.clone())));
        hold
    }

    /// What CUDA opens, in short.
    pub(crate) fn uses_cuda(&mut self, id: ProcessId) -> Vec<Hold> {
        [CTL, UVM, GPU0].into_iter().map(|dev| self.opens(id, dev)).collect()
    }

    /// A scan finds this holding.
    pub(crate) fn found(&mut self, hold: &Hold) {
        self.push(What::Hold(Box::new(hold.clone())));
    }

    pub(crate) fn forks(&mut self, parent: ProcessId, pid: u32, comm: &str) -> ProcessId {
        let child = ProcessId(pid, self.now);
        self.push(What::Fork { parent, child, comm: comm.into(), cred: None });
        child
    }

    pub(crate) fn execs(&mut self, id: ProcessId, comm: &str) {
        self.push(What::Exec { id, comm: comm.into(), path: format!("/usr/bin/{comm}"), cred: None });
    }

    pub(crate) fn signals(&mut self, from: Option<(ProcessId, &str)>, to: ProcessId, sig: i32) {
        self.signal_with(from, to, sig, SignalResult::Queued);
    }

    pub(crate) fn signal_with(&mut self, from: Option<(ProcessId, &str)>, to: ProcessId, sig: i32, result: SignalResult) {
        let comm = from.map_or("", |(_, comm)| comm).to_owned();
        let code = if from.is_some() { 0 } else { 0x80 };
        let from = from.map(|(id, _)| id);
        self.push(What::Signal { to, tid: None, sig, from, comm, uid: Some(1000), code, result });
    }

    pub(crate) fn delivered(&mut self, id: ProcessId, sig: i32, action: Action) {
        self.push(What::Deliver { id, tid: id.tgid(), sig, action });
    }

    /// Exit of one thread.
    pub(crate) fn thread_exits(&mut self, id: ProcessId, tid: u32, status: u32, group: Option<u32>, live: u32) {
        let parent = Some(self.init);
        self.push(What::Exit { id, tid, code: status, group_code: group, live, last: live == 0, parent });
    }

    /// The single thread exits and the process becomes a zombie. `status` is a wait status.
    pub(crate) fn dies(&mut self, id: ProcessId, status: u32) {
        self.thread_exits(id, id.tgid(), status, Some(status), 0);
        let parent = self.init;
        self.push(What::Zombie { id, parent });
    }

    pub(crate) fn reaped(&mut self, id: ProcessId) {
        self.push(What::Reap { by: self.init, comm: "systemd".into(), child: id.tgid() });
        self.push(What::Free { id });
    }

    /// `kill -9`, death and reap.
    pub(crate) fn killed(&mut self, from: (ProcessId, &str), id: ProcessId) {
        self.signals(Some(from), id, 9);
        self.delivered(id, 9, Action::Default);
        self.dies(id, 9);
        self.reaped(id);
    }

    pub(crate) fn stands(&mut self, id: ProcessId, letter: &str, more: impl FnOnce(&mut ProcessState)) {
        let mut state = ProcessState { id, state: letter.into(), live_threads: 1, ..ProcessState::default() };
        more(&mut state);
        self.push(What::State(Box::new(state)));
    }

    /// GPU 0 with these lines (PID, MiB) and this much used.
    pub(crate) fn nvml(&mut self, used_mib: u64, lines: &[(u32, u64)]) {
        let pci = Some("00000000:0B:00.0".to_owned());
        self.push(What::Gpu { gpu: 0, uuid: "GPU-0".into(), name: "H200".into(), minor: Some(0), pci, settled_at: None });
        self.used(used_mib);
        let line = |&(pid, mib): &(u32, u64)| GpuProcess { pid, bytes: Some(mib * MIB), usage: GpuUse::Compute, name: None };
        self.push(What::GpuProcesses { gpu: 0, list: lines.iter().map(line).collect() });
    }

    pub(crate) fn used(&mut self, mib: u64) {
        let reserved = Some(615 * MIB);
        self.push(What::GpuMemory { gpu: 0, total: 143_771 * MIB, used: mib * MIB, reserved });
    }

    pub(crate) fn scanned(&mut self) {
        let began = self.now;
        self.push(What::Scan { began, processes: 300, zombies: 0, complete: true });
    }

    pub(crate) fn world(&self) -> World {
        fold(&self.events)
    }

    pub(crate) fn told(&self) -> Explanation {
        explain(&self.world())
    }

    /// The one holding that there must be.
    pub(crate) fn holding(&self) -> Holding {
        let told = self.told();
        assert_eq!(told.holdings.len(), 1, "{:#?}", told.holdings);
        told.holdings.into_iter().next().unwrap()
    }
}

pub(crate) fn fold(events: &[Event]) -> World {
    let mut world = World::default();
    events.iter().for_each(|event| world.apply(event));
    world
}

pub(crate) fn bare(id: ProcessId, fd: i32, file: Token, dev: Dev) -> Hold {
    Hold { id, fd, file, dev, ..Hold::default() }
}
