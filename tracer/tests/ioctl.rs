//! The decoder of requests, which the eBPF programs run, run here: on logs of a real H200, and on anything at all.
//!
//! Always true: the logs (tests/gpu/log.py) are what a preloaded library read after each ioctl of libcuda; sums are checked
//! against a plain reading of the same bytes that does not use the decoder, and against what NVML said on that host:
//! 518 MiB for a context.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test: what it needs is in the repository")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::PathBuf;

use outlive::event::rm::{Handle, Op};
use outlive::event::{Event, ProcessId, What};
use outlive::source::kernel::decode::{self, Decoded, Tokens};
use outlive::world::World;
use outlive_ebpf::abi::{Abi, class, for_driver, rm};
use outlive_ebpf::ioctl::{self, Done, Pending, UserMemory, node, op};
use outlive_ebpf::record::Kind;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
/// Where the arguments of a call are put.
const ARGUMENTS: u64 = 0x1000;

fn abi() -> Abi {
    for_driver("580.159.04").0.abi
}

/// Bytes by address; what is not there cannot be read.
#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, u8>);

impl Memory {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        self.0.extend(bytes.iter().enumerate().map(|(at, byte)| (address.wrapping_add(at as u64), *byte)));
    }
    fn get<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = *self.0.get(&address.wrapping_add(at as u64))?;
        }
        Some(bytes)
    }
}

impl UserMemory for Memory {
    fn u32(&self, address: u64) -> Option<u32> {
        self.get(address).map(u32::from_le_bytes)
    }
    fn u64(&self, address: u64) -> Option<u64> {
        self.get(address).map(u64::from_le_bytes)
    }
    fn two(&self, address: u64) -> Option<[u64; 2]> {
        Some([self.u64(address)?, self.u64(address.wrapping_add(8))?])
    }
    fn three(&self, address: u64) -> Option<[u64; 3]> {
        Some([self.u64(address)?, self.u64(address.wrapping_add(8))?, self.u64(address.wrapping_add(16))?])
    }
}

/// One line of a log.
struct Line {
    device: String,
    fd: i32,
    request: u32,
    granted: bool,
    memory: Memory,
    argument: Vec<u8>,
    allocation: Vec<u8>,
}

impl Line {
    fn parse(text: &str) -> Line {
        let mut words = text.split(' ').skip(2);
        let mut word = || words.next().unwrap();
        let (device, fd) = (word().to_owned(), word().parse().unwrap());
        let request = u32::from_str_radix(word().trim_start_matches("0x"), 16).unwrap();
        let granted = !word().starts_with('-');
        let fields: Vec<(&str, &str)> = words.filter_map(|field| field.split_once('=')).collect();
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
        };
        let whole = |name: &str| fields.iter().find(|(n, _)| *n == name).map(|(_, hex)| bytes(hex)).unwrap_or_default();
        let (argument, allocation) = (whole("arg"), whole("alloc"));
        let nested = argument.get(16..24).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()));
        let mut memory = Memory::default();
        for (name, hex) in &fields {
            let (name, offset) = name.split_once('+').map_or((*name, 0), |(name, offset)| (name, offset.parse().unwrap()));
            let base = match name {
                "arg" => ARGUMENTS,
                "alloc" | "params" => nested,
                _ => continue,
            };
            memory.put(base + offset, &bytes(hex));
        }
        Line { device, fd, request, granted, memory, argument, allocation }
    }

    fn node(&self) -> u32 {
        match self.device.as_str() {
            "/dev/nvidiactl" => node::CONTROL,
            "/dev/nvidia-uvm" => node::UVM,
            name if name.trim_start_matches("/dev/nvidia").parse::<u32>().is_ok() => node::GPU,
            _ => node::OTHER,
        }
    }

    fn word(&self, at: usize) -> u32 {
        self.argument.get(at..at + 4).map_or(0, |word| u32::from_le_bytes(word.try_into().unwrap()))
    }
}

fn log(name: &str) -> Vec<Line> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/fixtures/ioctl/{name}.log.zst"));
    let mut text = String::new();
    zstd::Decoder::new(std::fs::File::open(path).unwrap()).unwrap().read_to_string(&mut text).unwrap();
    text.lines().map(Line::parse).collect()
}

/// What the hook does between entry and return, without a kernel.
#[derive(Default)]
struct Hook {
    known: BTreeSet<(u64, u32)>,
    gpus: BTreeMap<u32, u32>,
    events: Vec<Event>,
}

/// A file of a process: nothing closes in these logs what is used afterwards under the same number.
fn file(pid: u32, fd: i32, device: &str) -> u64 {
    let kind = device.bytes().map(u64::from).sum::<u64>();
    u64::from(pid) << 32 | kind << 16 | u64::from(fd.unsigned_abs())
}

impl Hook {
    fn replay(&mut self, pid: u32, lines: &[Line]) {
        for line in lines.iter().filter(|line| line.granted && line.node() != node::OTHER) {
            assert!(self.one(pid, line).is_some(), "a call that the driver granted can be read");
        }
    }

    fn one(&mut self, pid: u32, line: &Line) -> Option<()> {
        let (abi, through) = (abi(), file(pid, line.fd, &line.device));
        let call = ioctl::unwrap(&line.memory, &abi, line.node(), line.request, ARGUMENTS)?;
        if !ioctl::may_matter(line.request, abi.xfer) {
            return Some(());
        }
        let mut pending = Pending::default();
        ioctl::begin(&line.memory, &abi, line.node(), call, &mut pending)?;
        let names = line.node() == node::CONTROL && pending.client != 0 && !self.known.contains(&(through, pending.client));
        if pending.matters == 0 && !names {
            return Some(());
        }
        let mut done = Done::default();
        if ioctl::finish(&line.memory, &abi, &pending, &mut done).is_err() {
            return Some(());
        }
        if names {
            self.known.insert((through, pending.client));
            self.tell(pid, through, &Done { op: op::KNOWN, client: pending.client, ..Done::default() }, 0);
        }
        let other = if done.fd >= 0 { file(pid, done.fd, "/dev/nvidiactl") } else { 0 };
        match done.op {
            0 => return Some(()),
            op::CLIENT => _ = self.known.insert((through, done.client)),
            op::GPU if self.gpus.insert(done.object, done.detail) == Some(done.detail) => return Some(()),
            _ => {}
        }
        if done.list == 0 {
            self.tell(pid, through, &done, other);
        }
        for at in (0..done.count).filter(|_| done.list != 0) {
            done.object = line.memory.u32(done.list + 4 * u64::from(at))?;
            if done.object != 0 {
                self.tell(pid, through, &done, other);
            }
        }
        Some(())
    }

    /// As the record that the program would send.
    fn tell(&mut self, pid: u32, through: u64, done: &Done, other: u64) {
        let mut bytes = Vec::new();
        let at = self.events.len() as u64 + 1;
        bytes.extend((Kind::Rm as u16).to_ne_bytes());
        bytes.extend(120_u16.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(at.to_ne_bytes());
        bytes.extend([pid, pid].map(u32::to_ne_bytes).concat());
        bytes.extend(u64::from(pid).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend([through, other, done.bytes, done.base].map(u64::to_ne_bytes).concat());
        let words = [0, done.op, done.client, done.parent, done.object, done.class, done.from_client, done.from_object, done.detail, 0];
        bytes.extend(words.map(u32::to_ne_bytes).concat());
        match decode::ring(&bytes, Tokens::with_key(0)) {
            Decoded::Event(event) => self.events.push(event),
            other => panic!("{other:?}"),
        }
    }

    fn ops(&self) -> Vec<Op> {
        self.events.iter().filter_map(|event| if let What::Rm(rm) = &event.what { Some(rm.op) } else { None }).collect()
    }

    fn world(&self) -> World {
        let mut world = World::default();
        self.events.iter().for_each(|event| world.apply(event));
        world
    }
}

/// Bytes by client, read from the raw structures: allocations of class 0x40 less what was freed.
fn plain_sum(lines: &[Line]) -> BTreeMap<Handle, u64> {
    let mut clients: BTreeMap<Handle, BTreeMap<Handle, u64>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.granted && line.device == "/dev/nvidiactl") {
        match (line.request & 0xff, line.request >> 16 & 0x3fff) {
            (rm::ALLOC, 48) if line.word(40) == 0 && line.word(12) == class::MEMORY_LOCAL_USER => {
                let size = u64::from_le_bytes(line.allocation[64..72].try_into().unwrap());
                clients.entry(line.word(0)).or_default().insert(line.word(8), size);
            }
            (rm::FREE, 16) if line.word(12) == 0 && line.word(0) == line.word(8) => _ = clients.remove(&line.word(0)),
            (rm::FREE, 16) if line.word(12) == 0 => _ = clients.entry(line.word(0)).or_default().remove(&line.word(8)),
            _ => {}
        }
    }
    let sum = |(client, objects): (Handle, BTreeMap<Handle, u64>)| (client, objects.values().sum());
    clients.into_iter().map(sum).filter(|(_, bytes)| *bytes > 0).collect()
}

/// Replays one process; its bytes, which the plain reading must confirm.
fn charged(name: &str) -> (u64, Hook) {
    let lines = log(name);
    let mut hook = Hook::default();
    hook.replay(1, &lines);
    let world = hook.world();
    let bytes = world.books().charged(ProcessId(1, 1), None);
    assert_eq!(bytes, plain_sum(&lines).values().sum::<u64>(), "{name}");
    assert!(hook.events.len() * 3 < lines.len(), "{name}: {} of {} are told", hook.events.len(), lines.len());
    let expected = |op: &Op| !matches!(op, Op::Missed { .. });
    assert!(hook.ops().iter().all(expected), "{name}: {:#?}", hook.ops());
    (bytes, hook)
}

#[test]
fn a_context_with_512_mib_is_1030_mib_as_nvml_says() {
    let (bytes, hook) = charged("hold.owner");
    assert_eq!(bytes, 1_030 * MIB);
    let world = hook.world();
    assert_eq!(world.books().clients().count(), 1, "the client that libcuda makes first and frees is gone");
    assert!(world.books().memories().all(|memory| memory.device == Some(0)));
    // The H200 of that host is at 0000:00:06.0.
    assert_eq!(world.books().gpu_id(0), Some(6));
}

#[test]
fn managed_memory_is_not_in_the_books() {
    assert_eq!(charged("managed.owner").0, 518 * MIB);
}

#[test]
fn a_pool_gives_memory_back_when_it_is_trimmed() {
    let (bytes, hook) = charged("async-trim.owner");
    let allocated: u64 = hook.ops().iter().map(|op| if let Op::Memory { bytes, .. } = op { *bytes } else { 0 }).sum();
    assert!(allocated >= bytes + 512 * MIB, "{allocated} bytes were allocated, {bytes} are left");
}

#[test]
fn an_import_by_cuda_ipc_is_a_duplicate_that_names_exporter_and_memory() {
    let (exporter, importer) = (log("ipc.owner"), log("ipc.other"));
    let mut hook = Hook::default();
    hook.replay(1, &exporter);
    hook.replay(2, &importer);
    let world = hook.world();
    let dups: Vec<Op> = hook.ops().into_iter().filter(|op| matches!(op, Op::Dup { .. })).collect();
    let [Op::Dup { client, object, from_client, from_object, .. }] = dups[..] else { panic!("{dups:#?}") };
    let memory = |client: Handle, object: Handle| world.books().client(client).unwrap().objects[&object].memory.unwrap();
    assert_eq!(memory(client, object), memory(from_client, from_object));
    assert_eq!(world.books().memory(memory(client, object)).unwrap().bytes, Some(512 * MIB));
    assert_eq!(world.books().charged(ProcessId(1, 1), None), 1_030 * MIB);
    assert_eq!(world.books().charged(ProcessId(2, 2), None), 518 * MIB, "the exporter lives: the importer is not charged");
}

#[test]
fn an_exported_handle_and_its_import_are_seen() {
    let mut hook = Hook::default();
    hook.replay(1, &log("vmm.owner"));
    let exports = hook.ops().iter().filter(|op| matches!(op, Op::Export { .. })).count();
    hook.replay(2, &log("vmm.other"));
    let imports = hook.ops().iter().filter(|op| matches!(op, Op::Import { .. })).count();
    assert_eq!((exports, imports), (1, 1), "{:#?}", hook.ops());
    assert_eq!(hook.world().books().charged(ProcessId(1, 1), None), 1_030 * MIB);
}

#[test]
fn an_mps_client_refers_to_objects_of_its_server() {
    let (server, client) = (log("mps.server"), log("mps.owner"));
    let mut hook = Hook::default();
    hook.replay(2, &server);
    let servers: BTreeSet<Handle> = hook.world().books().of_process(ProcessId(2, 2)).map(|client| client.handle).collect();
    hook.replay(1, &client);
    let from: BTreeSet<Handle> =
        hook.ops().iter().filter_map(|op| if let Op::Dup { from_client, .. } = op { Some(*from_client) } else { None }).collect();
    assert!(!from.is_empty() && from.is_subset(&servers), "{from:?} of {servers:?}");
}

/// Memory that answers every address with bytes of its own, some of them not at all.
struct Noise(u64);

impl Noise {
    fn word(&self, address: u64) -> Option<u64> {
        let mixed = (address ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // Small numbers are what handles, classes and statuses are made of.
        let word = if mixed & 0x30 == 0 { mixed >> 60 } else { mixed & 0x41_0000_0041 };
        (!mixed.is_multiple_of(13)).then_some(word)
    }
}

impl UserMemory for Noise {
    fn u32(&self, address: u64) -> Option<u32> {
        self.word(address).map(|word| word as u32)
    }
    fn u64(&self, address: u64) -> Option<u64> {
        self.word(address)
    }
    fn two(&self, address: u64) -> Option<[u64; 2]> {
        Some([self.word(address)?, self.word(address.wrapping_add(8))?])
    }
    fn three(&self, address: u64) -> Option<[u64; 3]> {
        Some([self.word(address)?, self.word(address.wrapping_add(8))?, self.word(address.wrapping_add(16))?])
    }
}

fn request() -> impl Strategy<Value = u32> {
    let numbers = prop::sample::select(vec![rm::ALLOC, rm::FREE, rm::CONTROL, rm::DUP_OBJECT, rm::SHARE, rm::VID_HEAP_CONTROL, rm::REGISTER_FD, rm::XFER, 217]);
    let sizes = prop::sample::select(vec![4_u32, 16, 24, 28, 32, 48, 184, 2_608, 9]);
    prop_oneof![
        (numbers, sizes).prop_map(|(number, size)| 0xc000_4600 | size << 16 | number),
        prop::sample::select(vec![0x3000_0001_u32, 33, 34, 37, 66, 75]),
        any::<u32>(),
    ]
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), (0..64_u64).prop_map(|back| u64::MAX - back), Just(0)]
}

proptest! {
    #[test]
    fn nothing_that_a_process_passes_can_make_the_decoder_panic(
        request in request(), node in 0..6_u32, address in address(), entry in any::<u64>(), exit in any::<u64>(), branch in 500..600_u32,
    ) {
        let abi = for_driver(&branch.to_string()).0.abi;
        let (before, after) = (Noise(entry), Noise(exit));
        if let Some(call) = ioctl::unwrap(&before, &abi, node, request, address) {
            let mut pending = Pending::default();
            if ioctl::begin(&before, &abi, node, call, &mut pending).is_some() {
                let reached = call.address == address;
                prop_assert!(pending.matters == 0 || !reached || node == 0 || ioctl::may_matter(request, abi.xfer));
                let _ = ioctl::finish(&after, &abi, &pending, &mut Done::default());
                let _ = ioctl::finish(&before, &abi, &pending, &mut Done::default());
            }
        }
    }

    #[test]
    fn a_request_of_a_log_with_a_changed_word_or_a_status_is_not_believed(pick in any::<prop::sample::Index>(), at in 0..4_usize, bit in 0..8_u8) {
        let lines = log("hold.owner");
        let of_interest = |line: &&Line| line.granted && line.device == "/dev/nvidiactl" && matches!(line.request & 0xff, rm::FREE | rm::ALLOC);
        let candidates: Vec<&Line> = lines.iter().filter(of_interest).filter(|line| line.word(0) != 0).collect();
        let line = pick.get(&candidates);
        let call = ioctl::unwrap(&line.memory, &abi(), node::CONTROL, line.request, ARGUMENTS).unwrap();
        let mut pending = Pending::default();
        ioctl::begin(&line.memory, &abi(), node::CONTROL, call, &mut pending).unwrap();
        let told = |memory: &Memory| {
            let mut done = Done::default();
            ioctl::finish(memory, &abi(), &pending, &mut done).is_ok() && done.op != 0
        };
        // The client's handle.
        let mut changed = line.memory.clone();
        let place = ARGUMENTS + at as u64;
        changed.put(place, &[changed.0[&place] ^ 1 << bit]);
        prop_assert!(!told(&changed));
        let mut refused = line.memory.clone();
        refused.put(ARGUMENTS + if line.request & 0xff == rm::FREE { 12 } else { 40 }, &[0x51]);
        prop_assert!(!told(&refused));
    }

    #[test]
    fn any_bytes_are_a_record_or_none(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for (place, byte) in bytes.iter_mut().zip((Kind::Rm as u16).to_ne_bytes()) {
            *place = byte;
        }
        let _ = decode::ring(&bytes, Tokens::with_key(7));
    }
}
