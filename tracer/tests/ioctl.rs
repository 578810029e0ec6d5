//! The decoder of requests to the driver, which the eBPF programs run, run here: on logs of a real H200 (driver 580.159.04), and on
//! anything that a process could pass.
//!
//! Always true: what the decoder finds in a log is compared with a plain reading of the same bytes that shares no code with it, and
//! with what NVML said on that host: 518 MiB for a context, and what was allocated. The logs (tests/fixtures/ioctl) are made by
//! tests/gpu/log.py; each is of a part of tests/gpu/scenarios.cu with 512 MiB.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test: what it needs is in the repository")]

#[path = "ioctl/properties.rs"]
mod properties;
#[path = "ioctl/replay.rs"]
mod replay;

use std::collections::{BTreeMap, BTreeSet};

use outlive::event::rm::{Handle, Op};
use outlive::world::World;
use outlive::world::books::memory::{MemoryId, Ref};
use replay::{Host, Line, log, merged, process};

const MIB: u64 = 1 << 20;
/// What NVML says of a process with a context and nothing else.
const CONTEXT: u64 = 518 * MIB;

/// All logs. `mps.control` is the MPS daemon's own process, which only asks what GPUs there are.
const LOGS: [&str; 10] = [
    "async-trim.owner", "hold.owner", "ipc.other", "ipc.owner", "managed.owner", "mps.control", "mps.owner", "mps.server", "vmm.other",
    "vmm.owner",
];

/// Bytes of every client that has any, as the raw bytes say: allocations of class 0x40 that were granted and not freed again.
fn plain_bytes(lines: &[Line]) -> BTreeMap<Handle, u64> {
    let mut clients: BTreeMap<Handle, BTreeMap<Handle, u64>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.granted()) {
        let client = line.word(0);
        match line.what() {
            Some(("memory", _)) => {
                let bytes = u64::from(line.nested(64)) | u64::from(line.nested(68)) << 32;
                clients.entry(client).or_default().insert(line.word(8), bytes);
            }
            Some(("free", _)) if client == line.word(8) => _ = clients.remove(&client),
            Some(("free", _)) => _ = clients.entry(client).or_default().remove(&line.word(8)),
            _ => {}
        }
    }
    clients.into_iter().map(|(client, objects)| (client, objects.values().sum())).filter(|(_, bytes)| *bytes > 0).collect()
}

/// The same from the books: of what each client is the first to refer to.
fn books_bytes(world: &World) -> BTreeMap<Handle, u64> {
    let mut clients = BTreeMap::new();
    for memory in world.books().memories() {
        // Without its exporter's log the size of what a process imported is not known.
        if let (Some(Ref::Object { client, .. }), Some(bytes)) = (memory.first().map(|taken| taken.what), memory.bytes) {
            *clients.entry(client).or_default() += bytes;
        }
    }
    clients
}

/// How many events of each kind there must be, as the raw bytes say.
fn plain_kinds(lines: &[Line]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let mut gpus = BTreeSet::new();
    for line in lines.iter().filter(|line| line.granted()) {
        let (name, _) = line.what().unwrap();
        // A GPU is told of once.
        if name != "gpu" || gpus.insert((line.nested(0), line.nested(8))) {
            *kinds.entry(name.to_owned()).or_default() += 1;
        }
    }
    kinds
}

/// Replays these calls, and checks what is so for all of them.
fn replayed(lines: &[Line]) -> Host {
    let host = Host::replay(lines);
    agrees(lines, &host);
    host
}

fn agrees(lines: &[Line], host: &Host) {
    let world = host.world();
    assert_eq!(books_bytes(&world), plain_bytes(lines));
    assert_eq!(host.kinds(), plain_kinds(lines));
    assert_eq!(world.books().inconsistent(), 0);
    assert!(host.events.len() * 3 < lines.len(), "{} of {} calls are told of", host.events.len(), lines.len());
}

fn charged(host: &Host, pid: u32) -> u64 {
    host.world().books().charged(process(pid), None)
}

/// The memory that an object of a client is a reference to.
fn memory_of(world: &World, client: Handle, object: Handle) -> MemoryId {
    world.books().client(client).unwrap().objects[&object].memory.unwrap()
}

#[test]
fn of_every_log_only_what_changes_the_books_is_told_of_and_the_bytes_are_those_of_a_plain_reading() {
    for name in LOGS {
        let lines = log(1, name);
        let host = Host::replay(&lines);
        agrees(&lines, &host);
        assert!(!host.kinds().contains_key("missed") && !host.kinds().contains_key("known"), "{name}: {:?}", host.kinds());
    }
}

#[test]
fn a_request_that_the_driver_refused_gives_nothing() {
    for name in LOGS {
        let mut lines = log(1, name);
        lines.iter_mut().for_each(Line::refuse);
        let kinds = Host::replay(&lines).kinds();
        // REGISTER_FD has no status: only its return says whether it was done. And what does not matter was not refused here: it
        // names a client whose making was not seen.
        assert!(kinds.keys().all(|kind| kind == "register" || kind == "known"), "{name}: {kinds:?}");
        lines.iter_mut().for_each(|line| line.returned = false);
        assert!(Host::replay(&lines).events.is_empty(), "{name}");
    }
}

#[test]
fn the_one_refusal_of_the_logs_is_an_mps_server_s_and_it_keeps_no_address_space() {
    let refused = |line: &&Line| line.what().is_some() && !line.granted();
    let all: Vec<Line> = LOGS.iter().flat_map(|name| log(1, name)).collect();
    let refused: Vec<(Option<&str>, u32)> = all.iter().filter(refused).map(|line| (line.what().map(|w| w.0), line.word(4))).collect();
    // NV_WARN_NOTHING_TO_DO: an address space that is shared between processes keeps no process's memory map.
    assert_eq!(refused, [(Some("space_mm"), 0x1_0006)]);
    let server = Host::replay(&log(1, "mps.server"));
    assert!(server.ops().contains(&Op::Space { flags: 2 }), "UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE");
    assert!(!server.kinds().contains_key("space_mm"));
}

#[test]
fn a_context_with_512_mib_is_1030_mib() {
    let host = replayed(&log(1, "hold.owner"));
    assert_eq!(charged(&host, 1), CONTEXT + 512 * MIB);
    let world = host.world();
    // libcuda makes a client to ask whether there is a driver, and frees it.
    assert_eq!((world.books().clients().count(), host.kinds()["client"]), (1, 2));
    assert!(world.books().memories().all(|memory| memory.device == Some(0)));
    assert_eq!(world.books().gpu_id(0), Some(6), "0000:00:06.0");
    // Most of a context is one piece, and most pieces are as small as memory can be.
    let sizes: Vec<u64> = world.books().memories().map(|memory| memory.bytes.unwrap() / MIB).collect();
    assert_eq!((sizes.len(), sizes.iter().filter(|size| **size == 2).count()), (18, 14));
    assert_eq!(sizes.iter().copied().filter(|size| *size > 2).collect::<Vec<u64>>(), [6, 70, 414, 512]);
}

#[test]
fn every_file_that_keeps_the_client_or_the_address_space_is_known() {
    let mut host = replayed(&log(1, "hold.owner"));
    let world = host.world();
    let token = |file: u64| outlive::source::kernel::decode::Tokens::with_key(0).of(file);
    let [control, space, keeper, gpu] =
        [(8, "/dev/nvidiactl"), (9, "/dev/nvidia-uvm"), (10, "/dev/nvidia-uvm"), (12, "/dev/nvidia0")]
            .map(|(fd, path)| token(host.description(1, fd, path)));
    assert_eq!(world.books().pins(gpu), Some(control));
    assert_eq!(world.books().pins(keeper), Some(space));
    assert_eq!(world.books().kept_by(control).len(), 18);
    // Every piece is mapped, so the address space keeps all by itself.
    assert_eq!(world.books().kept_by(space), world.books().kept_by(control));
    let uuid = host.ops().into_iter().find_map(|op| if let Op::SpaceGpu { uuid } = op { Some(uuid) } else { None });
    assert_eq!(uuid, Some((0x6590_3f18_7676_854f, 0xbc5c_cb11_3f72_6371)));
}

#[test]
fn managed_memory_is_not_in_the_books() {
    // 512 MiB of it were on the GPU. NVML did not count them for the process either: UVM allocates by itself.
    assert_eq!(charged(&replayed(&log(1, "managed.owner")), 1), CONTEXT);
}

#[test]
fn a_pool_that_was_trimmed_has_given_everything_back() {
    // The log: the pool allocates 16 pieces of 32 MiB and maps each; the trim unmaps and frees all 16, last first. Nothing is freed
    // between: cudaFreeAsync is no request.
    let lines = log(1, "async-trim.owner");
    let first_of_trim = lines.len() - 2 * 16;
    let unmaps = |line: &Line| line.granted() && line.what().is_some_and(|(name, _)| name == "unmap");
    assert_eq!(lines.iter().position(unmaps), Some(first_of_trim));
    let host = replayed(&lines[..first_of_trim]);
    assert_eq!(charged(&host, 1), CONTEXT + 512 * MIB);
    assert_eq!(charged(&replayed(&lines), 1), CONTEXT);
}

#[test]
fn an_import_by_cuda_ipc_refers_to_the_exporter_s_memory_and_outlives_it() {
    let lines = merged([log(1, "ipc.owner"), log(2, "ipc.other")]);
    let mut host = replayed(&lines);
    let shares: Vec<Op> = host.ops().into_iter().filter(|op| matches!(op, Op::Share { .. })).collect();
    let dups: Vec<Op> = host.ops().into_iter().filter(|op| matches!(op, Op::Dup { .. })).collect();
    let [Op::Share { client: exporter, object: shared, with: 1 }] = shares[..] else { panic!("{shares:?}") };
    let [Op::Dup { client: importer, object, from_client, from_object, .. }] = dups[..] else { panic!("{dups:?}") };
    assert_eq!((from_client, from_object), (exporter, shared));
    let world = host.world();
    let memory = memory_of(&world, exporter, shared);
    assert_eq!(memory_of(&world, importer, object), memory);
    let known = world.books().memory(memory).unwrap();
    assert_eq!((known.bytes, known.maker.process, known.maker.client), (Some(512 * MIB), Some(process(1)), Some(exporter)));
    // NVML's figures, before and after the exporter died.
    assert_eq!((charged(&host, 1), charged(&host, 2)), (CONTEXT + 512 * MIB, CONTEXT));
    host.dies(1);
    assert_eq!((charged(&host, 1), charged(&host, 2)), (0, CONTEXT + 512 * MIB));
}

#[test]
fn an_imported_handle_is_a_reference_to_the_memory_that_was_exported_to_it() {
    let (exporter, importer) = (log(1, "vmm.owner"), log(2, "vmm.other"));
    let mut host = Host::replay(&exporter);
    // Over a socket, while the importer had not called CUDA yet.
    host.passes((1, 38), (2, 3));
    importer.iter().for_each(|line| host.call(line));
    agrees(&[exporter, importer].concat(), &host);
    let exports: Vec<Op> = host.ops().into_iter().filter(|op| matches!(op, Op::Export { .. })).collect();
    let imports: Vec<Op> = host.ops().into_iter().filter(|op| matches!(op, Op::Import { .. })).collect();
    let [Op::Export { client: exporter, object: exported, to, .. }] = exports[..] else { panic!("{exports:?}") };
    let [Op::Import { client: importer, object, from, .. }] = imports[..] else { panic!("{imports:?}") };
    let world = host.world();
    assert!(from == to && world.books().is_export(to));
    let memory = memory_of(&world, exporter, exported);
    assert_eq!(memory_of(&world, importer, object), memory);
    assert_eq!(world.books().memory(memory).unwrap().bytes, Some(512 * MIB));
    assert_eq!((charged(&host, 1), charged(&host, 2)), (CONTEXT + 512 * MIB, CONTEXT));
    // The handle itself is closed on both sides as soon as it was imported.
    host.closes(2, 3);
    host.dies(1);
    assert_eq!((charged(&host, 1), charged(&host, 2)), (0, CONTEXT + 512 * MIB));
}

#[test]
fn an_mps_client_refers_to_memory_of_the_server() {
    // Merged by time: the server gets ready while its client waits for it.
    let host = replayed(&merged([log(1, "mps.owner"), log(2, "mps.server"), log(3, "mps.control")]));
    let world = host.world();
    let servers: Vec<Handle> = world.books().of_process(process(2)).map(|client| client.handle).collect();
    let [server] = servers[..] else { panic!("{servers:?}") };
    let dups: Vec<Op> = host.ops().into_iter().filter(|op| matches!(op, Op::Dup { .. })).collect();
    assert_eq!(dups.len(), 3);
    // The first is an object of the server that holds no memory; the server offered the other two to everyone.
    let mut shared = BTreeSet::new();
    for dup in dups {
        let Op::Dup { client, object, from_client, from_object, .. } = dup else { panic!("{dup:?}") };
        assert_eq!(from_client, server);
        if let Some(memory) = world.books().client(server).unwrap().objects.get(&from_object).and_then(|object| object.memory) {
            assert_eq!(memory_of(&world, client, object), memory);
            shared.insert(from_object);
        }
    }
    let offered = host.ops().into_iter().filter_map(|op| if let Op::Share { object, .. } = op { Some(object) } else { None });
    assert_eq!(shared, offered.collect());
    // NVML's figures on that host: 66 MiB for a server, and 2 MiB less than without MPS for its client.
    assert_eq!((charged(&host, 2), charged(&host, 1)), (66 * MIB, CONTEXT + 510 * MIB));
    assert_eq!(charged(&host, 3), 0);
}

#[test]
fn a_client_that_was_there_before_is_named_once_and_what_it_allocates_from_then_on_is_known() {
    let lines = log(1, "hold.owner");
    // From the last context memory on.
    let late = &lines[lines.len() - 12..];
    let host = Host::replay(late);
    assert!(matches!(host.ops()[0], Op::Known { .. }), "{:?}", host.ops());
    assert_eq!(host.kinds().get("known"), Some(&1));
    assert_eq!(host.kinds()["memory"], plain_kinds(late)["memory"]);
    assert_eq!(charged(&host, 1), plain_bytes(late).values().sum::<u64>());
}
