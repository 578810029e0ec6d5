//! `orphaned_process`: what launched the owner is gone; the owner, with a GPU context of its own, lives on under another parent.
//!
//! Seen: the launcher's exit while the owner lives; or, after the fact, a process group whose leader is gone and a parent that is
//! not that leader. Refuted by: a living launcher; a session leader of its own (a daemon). Confidence: exact when the launcher's
//! end was seen, else inferred. Remedy: end the owner, not its parent.

use super::case::Case;
use super::{Verdict, remedies, words};
use crate::event::ProcessId;
use crate::explanation::{CauseId, Confidence};
use crate::world::process::Process;

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner_process().filter(|p| !p.is_dead())?;
    let world = case.world;
    let (launcher, confidence, when, told) = seen(case, owner).or_else(|| deduced(case, owner))?;
    let parent = owner.info.parent.map_or_else(|| "nobody".to_owned(), |p| words::named(world, p));
    let summary = format!(
        "{} belongs to {}, which lives on although {told}; its parent is now {parent}.",
        words::amount(case.bytes, case.gpu),
        words::named(world, owner.id()),
    );
    let facts = vec![(when, format!("{} is gone and {} was not ended with it", words::named(world, launcher), words::named(world, owner.id())))];
    let remedy = remedies::end_process(world, owner.id(), case.bytes, "");
    Some(Verdict { cause: CauseId::OrphanedProcess, confidence, summary, facts, remedy })
}

type Found = (ProcessId, Confidence, Option<u64>, String);

/// An ancestor's end was seen while it was still the launcher.
fn seen(case: &Case<'_>, owner: &Process) -> Option<Found> {
    let world = case.world;
    let launcher = world.process(owner.launcher?)?;
    // A daemon leaves its launcher on purpose: it made a session of its own.
    let daemon = owner.info.session == Some(owner.id().tgid());
    let ended = launcher.exit.last.is_some() || launcher.is_dead();
    (ended && !daemon).then(|| {
        let told = format!("{}, which launched it, {}", words::named(world, launcher.id()), words::ended(world, Some(launcher)));
        (launcher.id(), case.confidence(), launcher.exit.last.or(launcher.exit.gone), told)
    })
}

/// The leader of its process group is gone, and its parent is somebody else.
fn deduced(case: &Case<'_>, owner: &Process) -> Option<Found> {
    let world = case.world;
    let pgrp = owner.info.pgrp.filter(|g| *g > 1 && *g != owner.id().tgid())?;
    let parent = owner.info.parent?;
    let leader_gone = world.by_tgid(pgrp).is_none_or(Process::is_dead);
    (leader_gone && parent.tgid() != pgrp).then(|| {
        let told = format!("PID {pgrp}, the leader of its process group, is gone");
        (ProcessId(pgrp, 0), Confidence::Inferred, None, told)
    })
}
