//! `driver_reserve` and `no_holder`: memory of a GPU that no process accounts for.
//!
//! `driver_reserve`: what NVML itself calls reserved (615 MiB on an H200): not a leak. `no_holder`: used memory beyond the reserve while
//! no process holds a GPU file: ruled out are descriptors, sockets' queues, io_urings and NVML's lists.

use super::accounts::NOISE;
use super::case::Case;
use super::remedies;
use crate::explanation::{CauseId, Confidence, Evidence, Holding};
use crate::report::layout::size;
use crate::world::World;

/// Holdings of GPUs rather than of processes.
#[must_use]
pub fn holdings(world: &World, cases: &[Case<'_>]) -> Vec<Holding> {
    let mut list = Vec::new();
    for (index, gpu) in &world.gpus {
        let Some(memory) = gpu.now() else { continue };
        let attributed: u64 = cases.iter().filter(|c| c.gpu == Some(*index)).filter_map(|c| c.bytes).sum();
        let rest = memory.used.saturating_sub(attributed);
        let nobody = world.files.is_empty() && cases.iter().all(|c| c.gpu != Some(*index));
        if nobody && rest >= NOISE {
            list.push(no_holder(world, *index, rest));
        }
        if let Some(reserved) = memory.reserved.filter(|r| *r > 0 && nobody && rest < NOISE) {
            list.push(reserve(*index, reserved));
        }
    }
    list
}

fn no_holder(world: &World, gpu: u32, bytes: u64) -> Holding {
    let scanned = world.scan.is_some_and(|s| s.complete);
    let settling = world.gpus.get(&gpu).is_some_and(|g| g.fell_since(world.now.saturating_sub(1_000_000_000)).is_some());
    let sure = scanned && !world.has_holes();
    let evidence = [
        (scanned, "no process has a GPU file open (every descriptor table, socket queue and io_uring was looked at)"),
        (true, "NVML charges no process with it"),
        (settling, "it is falling right now"),
    ];
    Holding {
        gpu: Some(gpu),
        bytes: Some(bytes),
        cause: CauseId::NoHolder,
        confidence: if sure { Confidence::Exact } else { Confidence::Inferred },
        owner: None,
        holders: Vec::new(),
        summary: format!("{} on GPU {gpu} is used although no process holds a GPU file: only the driver still has it.", size(bytes)),
        evidence: evidence.into_iter().filter(|(on, _)| *on).map(|(_, what)| Evidence { at: None, what: what.to_owned() }).collect(),
        remedy: vec![remedies::wait("no signal can help. Look again in a few seconds; if it stays, a GPU reset with nothing using it, or reloading the driver, returns it.", Some(bytes))],
    }
}

fn reserve(gpu: u32, bytes: u64) -> Holding {
    Holding {
        gpu: Some(gpu),
        bytes: Some(bytes),
        cause: CauseId::DriverReserve,
        confidence: Confidence::Exact,
        owner: None,
        holders: Vec::new(),
        summary: format!("{} on GPU {gpu} is the driver's and firmware's own reserve: not a leak.", size(bytes)),
        evidence: vec![Evidence { at: None, what: "NVML reports it as reserved, and no process uses the GPU".to_owned() }],
        remedy: Vec::new(),
    }
}
