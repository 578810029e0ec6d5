//! `passed_descriptor`: the owner is dead; a process that received one of its GPU files (SCM_RIGHTS, pidfd_getfd) keeps it.
//!
//! Seen: the receipt; or, after the fact, a descriptor that cannot have been inherited. Refuted by: a holder that inherited the files,
//! which then is the simpler answer. Confidence: exact when the receipt was seen. Remedy: the receiver must close it, or end.

use super::case::{Case, Keeper};
use super::{Verdict, remedies, words};
use crate::event::Via;
use crate::explanation::CauseId;

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let received = |k: &&Keeper| matches!(k.via, Via::ScmRights | Via::PidfdGetfd);
    if case.owner_lives() || case.keepers.iter().any(|k| k.via == Via::Fork && !descends_from_receiver(case, k)) {
        return None;
    }
    let keeper = case.keepers.iter().find(received)?;
    let world = case.world;
    let how = if keeper.via == Via::PidfdGetfd { "took with pidfd_getfd" } else { "received over a unix socket" };
    let n = case.keepers.len() - 1;
    let others = if n == 0 { String::new() } else { format!(" (and {})", crate::report::layout::count(n, "other process").replace("processs", "processes")) };
    let summary = format!(
        "{} belonged to {}; {}{others} {how} one of its GPU files and still has it open.",
        words::amount(case.bytes, case.gpu),
        super::inherited_descriptor::whose(case),
        words::named(world, keeper.id),
    );
    let remedy = case.keepers.iter().flat_map(|k| remedies::end_process(world, k.id, case.bytes, "; closing that descriptor would do, too")).collect();
    Some(Verdict { cause: CauseId::PassedDescriptor, confidence: case.confidence(), summary, facts: Vec::new(), remedy })
}

/// It inherited from a process that itself had received.
fn descends_from_receiver(case: &Case<'_>, keeper: &Keeper) -> bool {
    let mut from = keeper.from;
    for _ in 0..64 {
        let Some(id) = from else { return false };
        if Some(id) == case.owner.id {
            return false;
        }
        match case.keepers.iter().find(|k| k.id == id) {
            Some(k) if matches!(k.via, Via::ScmRights | Via::PidfdGetfd) => return true,
            Some(k) => from = k.from,
            None => return false,
        }
    }
    false
}
