//! Logs of a real host, replayed: the memory of the process that called, and what the hooks do with it, without a kernel.
//!
//! Always true: between the call and the [`World`] there is only the program's own code (`outlive_ebpf::ioctl`, `decode`, the fold); what is
//! repeated here of `hook/ioctl.rs` is the glue that needs a kernel: maps, descriptors, and sending.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;

use outlive::event::rm::{Op, Rm as RmEvent};
use outlive::event::{Dev, Event, Hold, ProcessId, What};
use outlive::source::kernel::decode::{self, Decoded, Tokens};
use outlive::world::World;
use outlive_ebpf::abi::{Abi, for_driver, rm, uvm};
use outlive_ebpf::ioctl::{self, Done, Pending, Refused, UserMemory, missed, node, op};
use outlive_ebpf::record::{Header, Kind, Proc, Rm};

/// Where the arguments of every call are put; no log has anything else there.
pub(crate) const ARGUMENTS: u64 = 0x1000;

pub(crate) fn abi() -> Abi {
    for_driver("580.159.04").0.abi
}

/// Ranges of bytes, the latest on top. What is in none of them cannot be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Vec<(u64, Vec<u8>)>);

impl Memory {
    pub(crate) fn put(&mut self, address: u64, bytes: &[u8]) {
        self.0.push((address, bytes.to_vec()));
    }
    pub(crate) fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(address.wrapping_add(place as u64))?;
        }
        Some(bytes)
    }
    fn byte(&self, address: u64) -> Option<u8> {
        let within = |(base, bytes): &(u64, Vec<u8>)| bytes.get(usize::try_from(address.checked_sub(*base)?).ok()?).copied();
        self.0.iter().rev().find_map(within)
    }
    /// This word is another one afterwards.
    pub(crate) fn differ(&mut self, address: u64) {
        let word = u32::from_le_bytes(self.array(address).unwrap());
        self.put(address, &(!word).to_le_bytes());
    }
}

impl UserMemory for Memory {
    fn u32(&self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }
    fn u64(&self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_le_bytes)
    }
}

/// One call: a line of a log (format: tests/gpu/ioctl-log.c).
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Who: a number of the test's own.
    pub(crate) pid: u32,
    /// When it returned.
    pub(crate) at: u64,
    pub(crate) device: String,
    pub(crate) fd: i32,
    pub(crate) request: u32,
    /// `ioctl` did not return an error.
    pub(crate) returned: bool,
    /// Memory after the call, arguments at [`ARGUMENTS`].
    pub(crate) after: Memory,
    /// The descriptor that the arguments name, and the path of its file.
    link: Option<(i32, String)>,
}

impl Line {
    fn parse(pid: u32, text: &str) -> Line {
        let words: Vec<&str> = text.split(' ').collect();
        let (seconds, nanoseconds) = words[0].split_once('.').unwrap();
        let at = seconds.parse::<u64>().unwrap() * 1_000_000_000 + nanoseconds.parse::<u64>().unwrap();
        let request = u32::from_str_radix(words[4].trim_start_matches("0x"), 16).unwrap();
        let (mut after, mut link) = (Memory::default(), None);
        for (name, value) in words[6..].iter().filter_map(|field| field.split_once('=')) {
            let (name, offset) = name.split_once('+').map_or((name, 0), |(name, offset)| (name, offset.parse().unwrap()));
            // The parameters of RM_ALLOC and of RM_CONTROL are where the arguments say at 16.
            match name {
                "arg" => after.put(ARGUMENTS + offset, &hex(value)),
                "alloc" | "params" => after.put(after.u64(ARGUMENTS + 16).unwrap() + offset, &hex(value)),
                "link" => link = value.split_once(':').map(|(fd, path)| (fd.parse().unwrap(), path.to_owned())),
                other => panic!("{other}: these logs have no wrapped requests"),
            }
        }
        let (device, fd) = (words[2].to_owned(), words[3].parse().unwrap());
        Line { pid, at, device, fd, request, returned: !words[5].starts_with('-'), after, link }
    }

    pub(crate) fn node(&self) -> u32 {
        device(&self.device).0
    }

    /// Four bytes of the arguments.
    pub(crate) fn word(&self, offset: u64) -> u32 {
        self.after.u32(ARGUMENTS + offset).unwrap()
    }

    /// Four bytes of the nested parameters.
    pub(crate) fn nested(&self, offset: u64) -> u32 {
        self.after.u32(self.after.u64(ARGUMENTS + 16).unwrap() + offset).unwrap()
    }

    /// Which request, and where its status is, by a table of this test's own: names are those of the events' operations as far as there
    /// are any. None: a request that does not matter.
    pub(crate) fn what(&self) -> Option<(&'static str, Option<u64>)> {
        let named = |name: &'static str, status: u64| Some((name, Some(status)));
        match (self.node(), self.request) {
            (node::UVM, uvm::INITIALIZE) => named("space", 8),
            (node::UVM, 33) => named("map", 9_260),
            (node::UVM, 37) => named("space_gpu", 36),
            (node::UVM, 66) => named("unmap", 32),
            (node::UVM, 75) => named("space_mm", 4),
            (node::UVM, _) => None,
            (_, 0xc030_462b) => match self.word(12) {
                0x41 => named("client", 40),
                0x40 => named("memory", 40),
                0x80 | 0x2080 => named("object", 40),
                _ => None,
            },
            (_, 0xc010_4629) => named("free", 12),
            (_, 0xc020_462a) => match self.word(8) {
                0x202 | 0x205 => named("gpu", 28),
                0x3d05 | 0x3d0b => named("export", 28),
                0x3d06 | 0x3d0c => named("import", 28),
                _ => None,
            },
            (_, 0xc01c_4634) => named("dup", 24),
            (_, 0xc018_4635) => named("share", 20),
            (_, 0xc004_46c9) => Some(("register", None)),
            _ => None,
        }
    }

    /// The driver did it, by a plain look at the status.
    pub(crate) fn granted(&self) -> bool {
        self.returned && self.what().is_some_and(|(_, status)| status.is_none_or(|status| self.word(status) == rm::OK))
    }

    /// The driver refused it: its status says so, and nothing else is different.
    pub(crate) fn refuse(&mut self) {
        if let Some((_, Some(status))) = self.what() {
            // NV_ERR_NO_MEMORY.
            self.after.put(ARGUMENTS + status, &0x51_u32.to_le_bytes());
        }
    }

    /// Memory at entry, as far as it can be known: the status is another one than after the return, so that nothing can depend on it,
    /// and a client has no handle yet.
    fn entry(&self) -> Memory {
        let mut entry = self.after.clone();
        if let Some((name, status)) = self.what() {
            status.into_iter().for_each(|status| entry.differ(ARGUMENTS + status));
            if name == "client" {
                entry.put(ARGUMENTS + 8, &[0; 4]);
            }
        }
        entry
    }
}

/// What the path of a device stands for; the major number of nvidia-uvm is one that a host can have.
fn device(path: &str) -> (u32, Dev) {
    match path {
        "/dev/nvidiactl" => (node::CONTROL, Dev::new(195, 255)),
        "/dev/nvidia-uvm" => (node::UVM, Dev::new(510, 0)),
        "/dev/nvidia0" => (node::GPU, Dev::new(195, 0)),
        other => panic!("{other} is in no log"),
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|place| u8::from_str_radix(&text[2 * place..2 * place + 2], 16).unwrap()).collect()
}

/// A log of tests/fixtures/ioctl, as that of this process.
pub(crate) fn log(pid: u32, name: &str) -> Vec<Line> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/fixtures/ioctl/{name}.log.zst"));
    let mut text = String::new();
    zstd::Decoder::new(std::fs::File::open(path).unwrap()).unwrap().read_to_string(&mut text).unwrap();
    text.lines().map(|line| Line::parse(pid, line)).collect()
}

/// The logs of several processes of one host, in the order in which the calls returned.
pub(crate) fn merged(logs: impl IntoIterator<Item = Vec<Line>>) -> Vec<Line> {
    let mut lines: Vec<Line> = logs.into_iter().flatten().collect();
    lines.sort_by_key(|line| line.at);
    lines
}

pub(crate) fn process(pid: u32) -> ProcessId {
    ProcessId(pid, u64::from(pid) * 1_000)
}

/// A host whose processes make these calls.
#[derive(Default)]
pub(crate) struct Host {
    /// The description that a descriptor names now, and its path. A log has no opens: a new path is a new description.
    descriptors: BTreeMap<(u32, i32), (u64, String)>,
    opened: u64,
    known: BTreeSet<(u64, u32)>,
    gpus: BTreeMap<u32, u32>,
    pub(crate) events: Vec<Event>,
}

impl Host {
    pub(crate) fn replay(lines: &[Line]) -> Host {
        let mut host = Host::default();
        lines.iter().for_each(|line| host.call(line));
        host
    }

    /// The descriptor that the first process named in its export is the one that the second got over a socket.
    pub(crate) fn passes(&mut self, from: (u32, i32), to: (u32, i32)) {
        let passed = self.descriptors[&from].clone();
        self.descriptors.insert(to, passed);
    }

    /// The `struct file`'s address.
    pub(crate) fn description(&mut self, pid: u32, fd: i32, path: &str) -> u64 {
        if let Some((address, known)) = self.descriptors.get(&(pid, fd)) && known == path {
            return *address;
        }
        self.opened += 1;
        let address = 0xffff_8881_0000_0000 + self.opened * 0x100;
        self.descriptors.insert((pid, fd), (address, path.to_owned()));
        address
    }

    /// A scan finds everything that this process holds, and then it dies.
    pub(crate) fn dies(&mut self, pid: u32) {
        let held: Vec<i32> = self.descriptors.keys().filter(|(holder, _)| *holder == pid).map(|(_, fd)| *fd).collect();
        held.into_iter().for_each(|fd| self.closes(pid, fd));
    }

    /// A scan finds this descriptor everywhere, and then it is closed.
    pub(crate) fn closes(&mut self, pid: u32, fd: i32) {
        let (address, path) = self.descriptors[&(pid, fd)].clone();
        let token = Tokens::with_key(0).of(address);
        let holders: Vec<(u32, i32)> = self.descriptors.iter().filter(|(_, (known, _))| *known == address).map(|(held, _)| *held).collect();
        for (holder, fd) in holders {
            let hold = Hold { id: process(holder), fd, file: token, dev: device(&path).1, ..Hold::default() };
            self.push(What::Hold(Box::new(hold)));
        }
        self.push(What::Drop { id: process(pid), tid: None, fd, file: token });
        self.descriptors.remove(&(pid, fd));
    }

    fn push(&mut self, what: What) {
        let at = self.events.last().map_or(1, |event| event.at + 1);
        self.events.push(Event { at, what });
    }

    /// `sys_enter_ioctl`, the driver, `sys_exit_ioctl`.
    pub(crate) fn call(&mut self, line: &Line) {
        let file = self.description(line.pid, line.fd, &line.device);
        if !ioctl::may_matter(line.request, abi().xfer) {
            return;
        }
        let (mut pending, mut done) = (Pending::default(), Done::default());
        let entry = line.entry();
        let begun = ioctl::unwrap(&entry, &abi(), line.node(), line.request, ARGUMENTS)
            .and_then(|call| ioctl::begin(&entry, &abi(), line.node(), call, &mut pending));
        assert_eq!(begun, Some(()), "what a log has of a request can be read: {line:?}");
        let names = line.node() == node::CONTROL && pending.client != 0 && !self.known.contains(&(file, pending.client));
        if !line.returned || (pending.matters == 0 && !names) {
            return;
        }
        match ioctl::finish(&line.after, &abi(), &pending, &mut done) {
            Ok(()) => self.granted(line, file, names, done),
            Err(Refused::Failed) => {}
            Err(why) => self.miss(line, file, why as u32),
        }
    }

    fn granted(&mut self, line: &Line, file: u64, names: bool, mut done: Done) {
        if names {
            self.known.insert((file, done.client));
            self.send(line, file, &Done { op: op::KNOWN, client: done.client, ..Done::default() }, 0);
        }
        match done.op {
            0 => return,
            op::CLIENT => _ = self.known.insert((file, done.client)),
            op::FREE if done.object == done.client => _ = self.known.remove(&(file, done.client)),
            op::GPU if self.gpus.insert(done.object, done.detail) == Some(done.detail) => return,
            _ => {}
        }
        let mut other = 0;
        if done.fd >= 0 {
            let Some((_, path)) = line.link.as_ref().filter(|(fd, _)| *fd == done.fd) else {
                return self.miss(line, file, missed::NO_FILE);
            };
            other = self.description(line.pid, done.fd, path);
        }
        if done.list == 0 {
            return self.send(line, file, &done, other);
        }
        for index in 0..done.count {
            done.object = line.after.u32(done.list + u64::from(index) * 4).unwrap();
            if done.object != 0 {
                self.send(line, file, &done, other);
            }
        }
    }

    fn miss(&mut self, line: &Line, file: u64, why: u32) {
        self.send(line, file, &Done { op: op::MISSED, detail: why, ..Done::default() }, 0);
    }

    /// The record's bytes, as they come out of the ring, and what the decoder makes of them.
    fn send(&mut self, line: &Line, file: u64, done: &Done, other: u64) {
        let mut record = [0; size_of::<Rm>()];
        let mut put = |offset: usize, bytes: &[u8]| record[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(Header, kind), &(Kind::Rm as u16).to_ne_bytes());
        put(offset_of!(Header, size), &(size_of::<Rm>() as u16).to_ne_bytes());
        put(offset_of!(Header, at), &line.at.to_ne_bytes());
        put(offset_of!(Header, who) + offset_of!(Proc, tgid), &line.pid.to_ne_bytes());
        put(offset_of!(Header, who) + offset_of!(Proc, start), &process(line.pid).1.to_ne_bytes());
        let long = [
            (offset_of!(Rm, file), file),
            (offset_of!(Rm, other), other),
            (offset_of!(Rm, bytes), done.bytes),
            (offset_of!(Rm, base), done.base),
        ];
        let short = [
            (offset_of!(Rm, dev), device(&line.device).1.0),
            (offset_of!(Rm, op), done.op),
            (offset_of!(Rm, client), done.client),
            (offset_of!(Rm, parent), done.parent),
            (offset_of!(Rm, object), done.object),
            (offset_of!(Rm, class), done.class),
            (offset_of!(Rm, from_client), done.from_client),
            (offset_of!(Rm, from_object), done.from_object),
            (offset_of!(Rm, detail), done.detail),
        ];
        long.iter().for_each(|(offset, value)| put(*offset, &value.to_ne_bytes()));
        short.iter().for_each(|(offset, value)| put(*offset, &value.to_ne_bytes()));
        match decode::ring(&record, Tokens::with_key(0)) {
            Decoded::Event(event) => self.events.push(event),
            other => panic!("{other:?} of {line:?}"),
        }
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = &RmEvent> {
        self.events.iter().filter_map(|event| if let What::Rm(rm) = &event.what { Some(&**rm) } else { None })
    }

    pub(crate) fn ops(&self) -> Vec<Op> {
        self.requests().map(|rm| rm.op).collect()
    }

    /// How many of each kind, by the name that the trace has for it.
    pub(crate) fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for op in self.ops() {
            let name = serde_json::to_value(op).unwrap().as_object().unwrap().keys().next().unwrap().clone();
            *kinds.entry(name).or_default() += 1;
        }
        kinds
    }

    pub(crate) fn world(&self) -> World {
        let mut world = World::default();
        self.events.iter().for_each(|event| world.apply(event));
        world
    }
}
