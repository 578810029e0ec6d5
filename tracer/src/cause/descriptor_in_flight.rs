//! `descriptor_in_flight`: the owner is dead; a description of its files sits unread in a unix socket, or is registered in an io_uring.
//!
//! Seen: the `struct file` in the socket's receive queue (or the ring's table) and in no descriptor table. Refuted by: any process
//! with a descriptor of it. Confidence: exact. Remedy: the process that has the socket must read or close it; ending it does.

use super::case::Case;
use super::{Verdict, remedies, words};
use crate::event::Via;
use crate::explanation::CauseId;

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let waiting = |via: Via| matches!(via, Via::InFlight | Via::IoUring);
    if case.owner_lives() || case.keepers.is_empty() || !case.keepers.iter().all(|k| waiting(k.via)) {
        return None;
    }
    let world = case.world;
    let keeper = case.keepers.first()?;
    let who = words::named(world, keeper.id);
    let place = if keeper.via == Via::InFlight { "waits unread in a unix socket of" } else { "is registered in an io_uring of" };
    let owner = super::inherited_descriptor::whose(case);
    let summary = format!("{} belonged to {owner}; one of its GPU files {place} {who}.", words::amount(case.bytes, case.gpu));
    let facts = vec![(None, format!("a GPU file {place} {who} (fd {}); no process has a descriptor of it", keeper.slots.first().map_or(-1, |s| s.0)))];
    let remedy = case
        .keepers
        .iter()
        .flat_map(|k| remedies::end_process(world, k.id, case.bytes, "; reading or closing that socket would do, too"))
        .collect();
    Some(Verdict { cause: CauseId::DescriptorInFlight, confidence: case.confidence(), summary, facts, remedy })
}
