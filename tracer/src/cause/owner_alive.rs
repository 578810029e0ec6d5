//! `owner_alive`: the memory belongs to a living process. By itself this outlives nothing.
//!
//! Seen: the owner lives. What was killed instead, if anything, is said in the evidence: a child or wrapper that died while nothing was
//! sent to the owner. Confidence: exact. Remedy: end the owner, if it is not wanted.

use super::case::Case;
use super::{Verdict, remedies, words};
use crate::explanation::{CauseId, Remedy};

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner_process().filter(|p| !p.is_dead())?;
    let world = case.world;
    let who = words::named(world, owner.id());
    let summary = format!("{} belongs to {who}, which is alive ({}).", words::amount(case.bytes, case.gpu), words::state(Some(owner)));
    let mut facts = Vec::new();
    if let Some((seen, state)) = &owner.state {
        for (sig, name) in [(15_u64, "SIGTERM"), (2, "SIGINT")] {
            if state.ignored >> (sig - 1) & 1 == 1 {
                facts.push((Some(*seen), format!("it ignores {name}")));
            }
        }
        if state.caught >> 14 & 1 == 1 {
            facts.push((Some(*seen), "it handles SIGTERM itself".to_owned()));
        }
    }
    let remedy: Vec<Remedy> = remedies::end_process(world, owner.id(), case.bytes, ", if it is no longer wanted");
    Some(Verdict { cause: CauseId::OwnerAlive, confidence: case.confidence(), summary, facts, remedy })
}
