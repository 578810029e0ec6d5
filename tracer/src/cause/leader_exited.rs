//! `leader_exited`: the main thread is gone (the process shows as a zombie), but other threads live and hold everything.
//!
//! Seen: the leader has exited while `signal->live` > 0. fuser and lsof find nothing, because /proc/PID/fd of an exited leader is
//! empty. Refuted by: no live thread (then it is a zombie and holds nothing). Confidence: exact. Remedy: end the process.

use super::case::Case;
use super::{Verdict, remedies, words};
use crate::explanation::CauseId;
use crate::report::layout::count;

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner_process().filter(|p| p.leader_exited())?;
    let world = case.world;
    let live = owner.state.as_ref().map(|(_, s)| s.live_threads).filter(|n| *n > 0).or(owner.exit.live).unwrap_or(1);
    let verb = if live == 1 { "lives" } else { "live" };
    let summary = format!(
        "{} belongs to {}, whose main thread has exited, so that it looks like a zombie; {} still {verb} and hold{} everything.",
        words::amount(case.bytes, case.gpu),
        words::named(world, owner.id()),
        count(live as usize, "thread"),
        if live == 1 { "s" } else { "" }
    );
    let facts = vec![(owner.exit.leader, format!("its main thread exited; {} left", count(live as usize, "live thread")))];
    let remedy = remedies::end_process(world, owner.id(), case.bytes, "");
    Some(Verdict { cause: CauseId::LeaderExited, confidence: case.confidence(), summary, facts, remedy })
}
