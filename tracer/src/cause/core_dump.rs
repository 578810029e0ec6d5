//! `core_dump`: the owner crashed and its core is still being written; memory is released only after that.
//!
//! Seen: `CoreDumping: 1` (since Linux 4.15, fs/proc/array.c), or a delivered core signal without an exit.
//! Refuted by: the exit having begun. Confidence: exact. Remedy: wait, or end the dump with SIGKILL and lose the core.

use super::case::Case;
use super::{Verdict, words};
use crate::event::Action;
use crate::explanation::{CauseId, Remedy};
use crate::world::process::signal_name;

/// Signals whose default action writes a core (signal(7)).
const CORE: [i32; 10] = [3, 4, 5, 6, 7, 8, 11, 24, 25, 31];

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner_process().filter(|p| !p.is_dead())?;
    let dumping = owner.state.as_ref().is_some_and(|(_, s)| s.dumping_core);
    if !dumping || owner.exit.last.is_some() {
        return None;
    }
    let world = case.world;
    let signal = owner.signals.iter().rev().find(|s| CORE.contains(&s.sig) && s.delivered.is_some_and(|(_, a)| a == Action::Default));
    let who = words::named(world, owner.id());
    let why = signal.map_or_else(
        || "crashed".to_owned(),
        |s| format!("got {}{}", signal_name(s.sig), words::at(world, s.delivered.map(|(t, _)| t))),
    );
    let summary = format!(
        "{} belongs to {who}, which {why} and is still writing its core dump; the memory is released when the dump is complete.",
        words::amount(case.bytes, case.gpu)
    );
    let mut remedy = vec![super::remedies::wait("wait until the core is written.", case.bytes)];
    remedy.extend(super::remedies::end_process(world, owner.id(), case.bytes, ", and the core stays incomplete").into_iter().rev().take(1).map(
        |r| Remedy { effect: format!("stops the dump of {who} and releases the memory."), risk: "the core file stays incomplete.".to_owned(), ..r },
    ));
    let since = signal.and_then(|s| s.delivered).map(|(t, _)| t);
    let facts = vec![(since.or(owner.state.as_ref().map(|(t, _)| *t)), "the kernel is writing its core dump (CoreDumping: 1)".to_owned())];
    Some(Verdict { cause: CauseId::CoreDump, confidence: case.confidence(), summary, facts, remedy })
}
