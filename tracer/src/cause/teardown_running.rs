//! `teardown_running`: the owner is on its way out and the driver is releasing; this takes time and needs no help.
//!
//! Seen: a thread exits while the process is not yet a zombie; often memory falls (pinned host memory: 8 GiB took 1.1 s,
//! 32 GiB took 4.3 s on an H200). Or the owner is dead, nobody holds anything, and NVML has not yet followed.
//! Refuted by: a stack that does not move (`exit_blocked_*`). Confidence: exact. Remedy: wait.

use super::case::Case;
use super::exit_blocked::leaving_since;
use super::{Verdict, remedies, words};
use crate::explanation::CauseId;
use crate::report::layout::{duration, size};

/// NVML follows the last release within this time.
const SETTLE_NS: u64 = 1_000_000_000;

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner_process()?;
    let world = case.world;
    let settling = owner.is_dead()
        && case.keepers.is_empty()
        && owner.exit.zombie.or(owner.exit.gone).or(owner.exit.last).is_some_and(|t| world.now.saturating_sub(t) < SETTLE_NS);
    if !owner.is_exiting() && !settling {
        return None;
    }
    let since = leaving_since(owner);
    let fell = since.and_then(|s| case.gpu.and_then(|g| world.gpus.get(&g)).and_then(|g| g.fell_since(s)));
    let so_far = since.map(|s| format!(" for {}", duration(world.now.saturating_sub(s)))).unwrap_or_default();
    let moving = fell.map_or(String::new(), |b| format!("; {} is back already", size(b)));
    let summary = format!(
        "{} belongs to {}, which has been exiting{so_far}{moving}: the driver is still releasing it.",
        words::amount(case.bytes, case.gpu),
        words::named(world, owner.id())
    );
    let facts = vec![(since, "its exit began".to_owned())];
    let remedy = vec![remedies::wait("wait: pinned host memory and large mappings take seconds to release. Killing again changes nothing.", case.bytes)];
    Some(Verdict { cause: CauseId::TeardownRunning, confidence: case.confidence(), summary, facts, remedy })
}
