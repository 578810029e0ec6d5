//! `inherited_descriptor`: the owner is dead; a child that it forked, and that executed nothing else, still has its GPU files open.
//!
//! Seen: the fork while the files were open; or, after the fact, the same description in a process that never executed a program of
//! its own. The commonest cause: a DataLoader or compile worker survives the trainer. Refuted by: a living owner. Confidence: exact when
//! the fork was seen. Remedy: end the child; one descriptor of nvidiactl, nvidiaN or nvidia-uvm is enough to keep everything.

use super::case::{Case, Keeper};
use super::{Verdict, remedies, words};
use crate::event::Via;
use crate::explanation::CauseId;

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    if case.owner_lives() {
        return None;
    }
    let heirs: Vec<&Keeper> = case.keepers.iter().filter(|k| k.via == Via::Fork).collect();
    let first = heirs.first()?;
    let world = case.world;
    let who = match heirs.len() {
        1 => format!("its forked child {}", words::named(world, first.id)),
        n => format!("{n} processes forked from it, first {},", words::named(world, first.id)),
    };
    let verb = if heirs.len() == 1 { "has" } else { "have" };
    let summary = format!("{} belonged to {}; {who} still {verb} its GPU files open.", words::amount(case.bytes, case.gpu), whose(case));
    let remedy = end_all(case);
    Some(Verdict { cause: CauseId::InheritedDescriptor, confidence: case.confidence(), summary, facts: Vec::new(), remedy })
}

/// "python3 (PID 574), which was killed by SIGKILL from bash (PID 12) at 12:03:55".
pub(super) fn whose(case: &Case<'_>) -> String {
    match case.owner.id {
        Some(id) => format!("{}, which {}", words::named(case.world, id), words::ended(case.world, case.owner_process())),
        None => "a process that is gone".to_owned(),
    }
}

/// Every holder must end before the memory is free; only the last one frees it.
fn end_all(case: &Case<'_>) -> Vec<crate::explanation::Remedy> {
    let world = case.world;
    if let [only] = &case.keepers[..] {
        return remedies::end_process(world, only.id, case.bytes, "");
    }
    let mut list: Vec<_> = case
        .keepers
        .iter()
        .flat_map(|k| remedies::end_process(world, k.id, None, "").into_iter().rev().nth(1))
        .collect();
    if let Some(last) = list.last_mut() {
        last.frees_bytes = case.bytes;
    }
    list.extend(case.keepers.iter().flat_map(|k| remedies::end_process(world, k.id, None, "").into_iter().next_back()));
    list
}
