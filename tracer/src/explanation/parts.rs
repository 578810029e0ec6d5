//! From cases and the world to the parts of an explanation.
//!
//! Always true: times are RFC 3339 in UTC, or null; order is fixed.

use super::{
    AccountPart, BooksPart, CauseId, Descriptor, Evidence, ExitPart, GpuPart, HealthPart, HeldPart, HolderPart, Holding, ObjectPart, OwnerPart,
    ParentPart, PidsPart, ZombiePart,
};
use crate::cause::case::{Case, HolderView, Owner};
use crate::cause::evidence::{container, sender};
use crate::cause::health::recovery;
use crate::cause::shares::Share;
use crate::cause::{Verdict, words};
use crate::event::rm::ExportKind;
use crate::event::BootNs;
use crate::world::World;
use crate::world::books::memory::{Memory, Ref};
use crate::world::process::{Process, Stage};

/// Allocations told one by one.
const OBJECTS_MAX: usize = 32;
/// References told of each.
const KEPT_BY_MAX: usize = 8;

/// A time that is always written: the epoch when the wall clock is unknown.
pub(super) fn time(world: &World, at: BootNs) -> String {
    world.host().wall(at).unwrap_or_else(|| "1970-01-01T00:00:00.000Z".to_owned())
}

pub(super) fn holding(case: &Case<'_>, cause: CauseId, verdict: Verdict) -> Holding {
    let world = case.world;
    let evidence = verdict.notes.into_iter().map(|note| Evidence { at: note.at.and_then(|at| world.host().wall(at)), what: note.what });
    Holding {
        gpu: case.gpu,
        bytes: case.bytes,
        cause,
        confidence: verdict.confidence,
        owner: case.owner.map(|owner| owner_part(case, owner)),
        holders: case.holders.iter().map(|holder| holder_part(world, holder)).collect(),
        summary: verdict.summary,
        evidence: evidence.collect(),
        remedy: verdict.remedies,
        books: books(case),
        objects: objects(case),
    }
}

fn books(case: &Case<'_>) -> Option<BooksPart> {
    let sum = case.books()?;
    let missing = case.gap_words();
    let complete = missing.is_none() && case.share.as_ref().is_none_or(Share::is_sized);
    let (nvml_bytes, of_others_bytes) = (case.nvml, case.of_others);
    Some(BooksPart { bytes: sum.bytes, objects: sum.objects, complete, missing, nvml_bytes, of_others_bytes })
}

fn objects(case: &Case<'_>) -> Vec<ObjectPart> {
    let mut memories: Vec<&Memory> = case.share.iter().flat_map(|share| share.memories.iter().copied()).collect();
    memories.sort_by_key(|memory| (std::cmp::Reverse(memory.bytes), memory.id));
    memories.into_iter().take(OBJECTS_MAX).map(|memory| object(case.world, memory)).collect()
}

fn object(world: &World, memory: &Memory) -> ObjectPart {
    let hex = |handle: u32| format!("{handle:x}");
    ObjectPart {
        bytes: memory.bytes,
        client: memory.maker.client.map(hex),
        object: memory.maker.object.map(hex),
        since: world.host().wall(memory.at),
        kept_by: memory.refs().take(KEPT_BY_MAX).map(|taken| kept_by(world, &taken.what)).collect(),
    }
}

fn kept_by(world: &World, reference: &Ref) -> String {
    match reference {
        Ref::Object { client, .. } => {
            let of = world.books().client(*client).map(|client| format!(" of {}", words::by_id(world, client.process)));
            format!("client {client:x}{}", of.unwrap_or_default())
        }
        Ref::Space { .. } => "nvidia-uvm mapping".to_owned(),
        Ref::Export { kind: ExportKind::Fd, .. } => "exported handle".to_owned(),
        Ref::Export { kind: ExportKind::DmaBuf, .. } => "dma-buf".to_owned(),
    }
}

fn owner_part(case: &Case<'_>, owner: Owner<'_>) -> OwnerPart {
    let world = case.world;
    let pid = owner.id.tgid();
    let Some(process) = owner.process else {
        let lines = world.gpus().values().flat_map(|gpu| gpu.of_pid(pid));
        let name = lines.filter_map(|line| line.name.as_deref()).find(|name| !name.starts_with('['));
        let state = if case.owner_is_dead() { "gone" } else { "unknown" };
        return OwnerPart { pid, comm: name.map(str::to_owned), state: state.to_owned(), ..OwnerPart::default() };
    };
    OwnerPart {
        pid,
        start_time: start_time(world, process),
        comm: process.info.comm.clone(),
        cmdline: process.info.cmdline.clone(),
        uid: process.info.uid,
        state: state(process).to_owned(),
        exit: (process.stage() >= Stage::Zombie || process.exit.last_thread.is_some()).then(|| exit_part(world, process)),
        container: container(process),
    }
}

fn exit_part(world: &World, process: &Process) -> ExitPart {
    let exit = &process.exit;
    let signal = process.killed_by();
    let by = match process.fatal_signal() {
        _ if process.oom_at.is_some() => Some("OOM killer".to_owned()),
        Some(record) if record.from == Some(process.id()) => Some("itself".to_owned()),
        Some(record) if record.sent.is_some() => Some(sender(record)),
        _ => None,
    };
    ExitPart {
        at: process.ended_at().and_then(|at| world.host().wall(at)),
        code: exit.code.filter(|_| signal.is_none()).map(|code| (code >> 8 & 0xff).cast_signed()),
        signal,
        by,
        core_dumped: exit.code.is_some_and(|code| code & 0x80 != 0 && signal.is_some()),
        reaped_by: exit.reaped.as_ref().map(|(_, by, comm)| words::named(Some(comm), *by)),
    }
}

fn holder_part(world: &World, holder: &HolderView<'_>) -> HolderPart {
    let mut descriptors: Vec<Descriptor> =
        holder.descriptors.iter().map(|(fd, dev, _)| Descriptor { fd: *fd, device: words::device(world, *dev) }).collect();
    descriptors.dedup();
    HolderPart {
        pid: holder.process.id().tgid(),
        start_time: start_time(world, holder.process),
        comm: holder.process.info.comm.clone(),
        state: state(holder.process).to_owned(),
        via: holder.via,
        descriptors,
    }
}

fn start_time(world: &World, process: &Process) -> Option<String> {
    let start = process.id().start();
    if start == 0 { None } else { world.host().wall(start) }
}

fn state(process: &Process) -> &'static str {
    match process.stage() {
        Stage::Gone => "gone",
        Stage::Zombie => "zombie",
        Stage::Exiting => "exiting",
        Stage::Alive => match process.state().map(|state| (state.frozen, state.state.as_str())) {
            Some((true, _) | (_, "T" | "t")) => "stopped",
            Some((_, "R")) => "running",
            Some((_, "S" | "D" | "I")) => "sleeping",
            // The letter is the leader's: the process lives in its threads.
            Some((_, "Z" | "X")) => "running",
            _ => "unknown",
        },
    }
}

pub(super) fn gpus(world: &World, holdings: &[Holding]) -> Vec<GpuPart> {
    let part = |(&index, gpu): (&u32, &crate::world::gpu::Gpu)| {
        let memory = gpu.memory;
        // What nobody owns or holds is explained by nothing.
        let of_somebody = |h: &&Holding| h.cause != CauseId::DriverReserve && (h.owner.is_some() || !h.holders.is_empty());
        let of_it: Vec<&Holding> = holdings.iter().filter(|h| h.gpu == Some(index)).filter(of_somebody).collect();
        let account = memory.map(|memory| account(memory.used, &of_it));
        GpuPart {
            index,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            total_bytes: memory.map(|m| m.total),
            used_bytes: memory.map(|m| m.used),
            reserved_bytes: memory.and_then(|m| m.reserved),
            attributed_bytes: memory.map(|_| of_it.iter().filter_map(|h| h.bytes).fold(0, u64::saturating_add)),
            unexplained_bytes: account.as_ref().map(|account| account.unexplained_bytes),
            account,
            health: gpu.health.map(|(_, health)| HealthPart {
                recovery_action: health.recovery,
                asks_for: health.recovery.map(|action| recovery(action).to_owned()),
                lost: health.lost,
                reset_required: health.reset_required,
            }),
        }
    };
    world.gpus().iter().map(part).collect()
}

fn account(used: u64, holdings: &[&Holding]) -> AccountPart {
    let mut account = AccountPart::default();
    let mut rest = used;
    for holding in holdings {
        let bytes = holding.bytes.unwrap_or_default();
        if holding.cause == CauseId::Unknown {
            continue;
        }
        rest = rest.saturating_sub(bytes);
        if holding.is_ordinary() {
            account.owners_bytes = account.owners_bytes.saturating_add(bytes);
        } else if let Some(held) = account.held.iter_mut().find(|held| held.cause == holding.cause) {
            held.bytes = held.bytes.saturating_add(bytes);
        } else if bytes > 0 {
            account.held.push(HeldPart { cause: holding.cause, bytes });
        }
    }
    account.unexplained_bytes = rest;
    account
}

pub(super) fn zombies(world: &World) -> Vec<ZombiePart> {
    let dead = world.processes().filter(|process| process.stage() == Stage::Zombie);
    let part = |process: &Process| ZombiePart {
        pid: process.id().tgid(),
        comm: process.comm().to_owned(),
        since: process.exit.zombie.and_then(|at| world.host().wall(at)),
        parent: process.info.parent.map(|id| {
            let parent = world.process(id);
            ParentPart {
                pid: id.tgid(),
                comm: parent.and_then(|p| p.info.comm.clone()),
                state: parent.map_or("unknown", state).to_owned(),
            }
        }),
        used_gpu: process.held || process.info.gpu_user == Some(true),
    };
    dead.map(part).collect()
}

pub(super) fn pids(world: &World) -> Option<PidsPart> {
    let scan = world.host().scan?;
    let pid_max = world.host().header.as_ref().and_then(|header| header.pid_max);
    let zombies = world.processes().filter(|process| process.stage() == Stage::Zombie);
    let must_wait = zombies.filter_map(|zombie| zombie.info.parent);
    let limits = must_wait.filter_map(|parent| world.process(parent)?.info.pids.as_ref());
    let tightest = limits.min_by_key(|limit| limit.room());
    let cgroup = tightest.map(|limit| format!("{}: {} of {}", limit.cgroup, limit.current, limit.max));
    Some(PidsPart { zombies: scan.zombies, processes: scan.processes, pid_max, cgroup })
}
