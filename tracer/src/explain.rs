//! From the world to the answer.
//!
//! Always true: pure, deterministic, and complete: every held description and every byte that NVML reports is in some holding or in
//! `unexplained_bytes`.

use crate::cause::case::{Case, Keeper};
use crate::cause::{self, accounts, evidence, gpu_level, words};
use crate::event::ProcessId;
use crate::explanation::{
    CauseId, Covers, Descriptor, ExitPart, Explanation, GpuPart, HolderPart, Holding, HostPart, LimitPart, OwnerPart, ParentPart, PidsPart,
    SCHEMA, ZombiePart,
};
use crate::world::World;
use crate::world::process::Process;

/// Says why memory is held.
#[must_use]
pub fn explain(world: &World) -> Explanation {
    let cases = accounts::cases(world);
    let mut holdings: Vec<Holding> = cases.iter().map(|c| holding(world, c)).collect();
    holdings.extend(gpu_level::holdings(world, &cases));
    holdings.sort_by_key(|h| (!h.cause.outlives() && h.cause != CauseId::Unknown, std::cmp::Reverse(h.bytes)));
    let now = world.wall(world.now).unwrap_or_default();
    Explanation {
        schema: SCHEMA.to_owned(),
        taken_at: now.clone(),
        host: HostPart {
            name: world.header.hostname.clone(),
            kernel: world.header.kernel.clone(),
            driver: world.header.driver.clone(),
            outlive: world.header.version.clone(),
        },
        covers: Covers {
            from: world.header.watching_since.and_then(|t| world.wall(t)),
            to: now,
            complete: world.header.watching_since.is_some() && !world.has_holes(),
        },
        gpus: gpus(world, &holdings),
        zombies: zombies(world),
        pids: pids(world),
        limits: limits(world),
        holdings,
    }
}

impl Explanation {
    /// 3 when something outlives its owner, 4 when it cannot be told, else 0.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.holdings.iter().any(|h| h.cause.outlives()) {
            3
        } else if self.holdings.iter().any(|h| h.cause == CauseId::Unknown) {
            4
        } else {
            0
        }
    }
}

fn holding(world: &World, case: &Case<'_>) -> Holding {
    let verdict = cause::verdict(case);
    let mut people: Vec<&Keeper> = case.keepers.iter().collect();
    if case.owner_lives() {
        people.extend(case.own.iter());
    }
    people.sort_by_key(|k| k.id);
    Holding {
        gpu: case.gpu,
        bytes: case.bytes,
        cause: verdict.cause,
        confidence: verdict.confidence,
        owner: case.owner.id.map(|id| owner(world, id)),
        holders: people.into_iter().map(|k| holder(world, k)).collect(),
        evidence: evidence::of(case, &verdict),
        summary: verdict.summary,
        remedy: verdict.remedy,
    }
}

fn owner(world: &World, id: ProcessId) -> OwnerPart {
    let process = world.process(id);
    OwnerPart {
        pid: id.tgid(),
        start_time: world.wall(id.start()),
        comm: process.and_then(|p| p.info.comm.clone()),
        cmdline: process.and_then(|p| p.info.cmdline.clone()),
        uid: process.and_then(|p| p.info.uid),
        state: words::state(process),
        exit: process.filter(|p| p.is_dead() || p.is_exiting()).map(|p| exit(world, p)),
        container: process.and_then(|p| p.info.container.as_ref()).map(|c| format!("{} {}", c.runtime, c.id)),
    }
}

fn exit(world: &World, p: &Process) -> ExitPart {
    let signal = p.exit.status.map(|s| i32::try_from(s & 0x7f).unwrap_or(0)).filter(|s| *s != 0);
    ExitPart {
        at: p.exit.last.or(p.exit.began).and_then(|t| world.wall(t)),
        code: p.exit.status.filter(|s| s & 0x7f == 0).map(|s| i32::try_from(s >> 8 & 0xff).unwrap_or(0)),
        signal,
        by: match (p.exit.oom, signal) {
            (Some(_), _) => Some("OOM killer".to_owned()),
            (None, Some(sig)) => words::killer(p, sig).map(|s| words::sender(world, s)),
            (None, None) => None,
        },
        core_dumped: p.exit.status.is_some_and(|s| s & 0x80 != 0),
        reaped_by: p.exit.reaped.as_ref().map(|(_, by, comm)| format!("{comm} (PID {})", by.tgid())),
    }
}

fn holder(world: &World, keeper: &Keeper) -> HolderPart {
    let process = world.process(keeper.id);
    let mut descriptors: Vec<Descriptor> = keeper
        .slots
        .iter()
        .map(|(fd, token)| Descriptor { fd: *fd, device: world.files.get(token).map_or_else(String::new, |f| world.device(f.dev)) })
        .collect();
    descriptors.sort();
    HolderPart {
        pid: keeper.id.tgid(),
        start_time: world.wall(keeper.id.start()),
        comm: process.and_then(|p| p.info.comm.clone()),
        state: words::state(process),
        via: keeper.via,
        descriptors,
    }
}

fn gpus(world: &World, holdings: &[Holding]) -> Vec<GpuPart> {
    let part = |(index, gpu): (&u32, &crate::world::gpu::Gpu)| {
        let memory = gpu.now();
        let attributed: u64 =
            holdings.iter().filter(|h| h.gpu == Some(*index) && h.cause != CauseId::DriverReserve).filter_map(|h| h.bytes).sum();
        GpuPart {
            index: *index,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            total_bytes: memory.map(|m| m.total),
            used_bytes: memory.map(|m| m.used),
            reserved_bytes: memory.and_then(|m| m.reserved),
            attributed_bytes: memory.map(|_| attributed),
            unexplained_bytes: memory.map(|m| m.used.saturating_sub(attributed)),
        }
    };
    world.gpus.iter().map(part).collect()
}

fn zombies(world: &World) -> Vec<ZombiePart> {
    let mut list: Vec<&Process> = world.processes.values().filter(|p| p.is_zombie()).collect();
    list.sort_by_key(|p| p.id());
    list.into_iter()
        .map(|p| ZombiePart {
            pid: p.id().tgid(),
            comm: p.info.comm.clone().unwrap_or_default(),
            since: p.exit.zombie.and_then(|t| world.wall(t)),
            parent: p.info.parent.filter(|id| id.tgid() > 0).map(|id| ParentPart {
                pid: id.tgid(),
                comm: world.process(id).and_then(|q| q.info.comm.clone()),
                state: words::state(world.process(id)),
            }),
            used_gpu: p.used_gpu || p.info.gpu_user == Some(true),
        })
        .collect()
}

fn pids(world: &World) -> Option<PidsPart> {
    world.scan.map(|s| PidsPart { zombies: s.zombies, processes: s.processes, pid_max: world.header.pid_max, cgroup: None })
}

fn limits(world: &World) -> Vec<LimitPart> {
    let mut list: Vec<LimitPart> = world.limits.iter().map(|(m, v)| LimitPart { missing: m.clone(), voids: v.clone() }).collect();
    for (cause, count) in &world.lost {
        list.push(LimitPart { missing: format!("{count} events ({cause})"), voids: "how descriptors travelled, and the times of exits, around then".to_owned() });
    }
    match world.header.watching_since.and_then(|t| world.wall(t)) {
        Some(from) => list.push(LimitPart { missing: format!("everything before {from}"), voids: "who sent which signal, and how descriptors travelled, before then".to_owned() }),
        None => list.push(LimitPart {
            missing: "everything before this moment: no recording".to_owned(),
            voids: "who sent which signal, when processes ended, and how descriptors travelled".to_owned(),
        }),
    }
    if world.gpus.is_empty() {
        list.push(LimitPart { missing: "NVML's figures".to_owned(), voids: "how many bytes are held".to_owned() });
    }
    list.sort();
    list
}
