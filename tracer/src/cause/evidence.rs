//! The facts of a case in order of time, each with when it was seen.
//!
//! Always true: only what is in the world; a standing fact has no time and comes last.

use super::Verdict;
use super::case::Case;
use super::words::{files, named, sender};
use crate::event::{Action, SignalResult, Via};
use crate::explanation::Evidence;
use crate::report::layout::size;
use crate::world::process::{Process, SignalSent, signal_name};

type Facts = Vec<(Option<u64>, String)>;

/// All evidence of a case.
#[must_use]
pub fn of(case: &Case<'_>, verdict: &Verdict) -> Vec<Evidence> {
    let mut facts: Facts = verdict.facts.clone();
    if let Some(owner) = case.owner_process() {
        facts.extend(opening(case, owner));
        facts.extend(owner.signals.iter().map(|s| (Some(s.at), signal(case, owner, s))));
        facts.extend(ending(case, owner));
    }
    facts.extend(keepers(case));
    facts.extend(figures(case));
    facts.extend(xids(case));
    facts.sort_by_key(|(at, _)| (at.is_none(), *at));
    facts.dedup();
    facts.into_iter().map(|(at, what)| Evidence { at: at.and_then(|t| case.world.wall(t)), what }).collect()
}

fn opening(case: &Case<'_>, owner: &Process) -> Facts {
    let world = case.world;
    let opened: Vec<u64> = world.files.values().filter(|f| f.opener == Some(owner.id())).map(|f| f.since).collect();
    let seen = opened.iter().min().filter(|_| world.header.watching_since.is_some());
    seen.map(|first| (Some(*first), format!("{} opened its GPU files ({} still open)", named(world, owner.id()), opened.len()))).into_iter().collect()
}

fn signal(case: &Case<'_>, owner: &Process, s: &SignalSent) -> String {
    let name = signal_name(s.sig);
    let from = sender(case.world, s);
    let fate = match (s.delivered, s.result) {
        (Some((_, Action::Default)), _) => "delivered, default action".to_owned(),
        (Some((_, Action::Handled)), _) => "delivered to its handler".to_owned(),
        (Some((_, Action::Ignored)), _) | (_, SignalResult::Ignored) => "ignored".to_owned(),
        (None, SignalResult::AlreadyPending) => "already pending".to_owned(),
        (None, _) => "not delivered yet".to_owned(),
    };
    format!("{name} from {from} to {}: {fate}", named(case.world, owner.id()))
}

fn ending(case: &Case<'_>, owner: &Process) -> Facts {
    let world = case.world;
    let who = named(world, owner.id());
    let exit = &owner.exit;
    let mut facts: Facts = Vec::new();
    if let Some(t) = exit.oom {
        facts.push((Some(t), format!("the OOM killer chose {who}")));
    }
    if let Some(t) = exit.last {
        let status = exit.status.map_or_else(String::new, |s| match s & 0x7f {
            0 => format!(", exit code {}", s >> 8 & 0xff),
            sig => format!(", killed by {}", signal_name(i32::try_from(sig).unwrap_or(0))),
        });
        facts.push((Some(t), format!("the last thread of {who} exited{status}")));
    }
    if let Some(t) = exit.zombie {
        facts.push((Some(t), format!("{who} was done with its files and became a zombie")));
    }
    if let Some((t, by, comm)) = &exit.reaped {
        facts.push((Some(*t), format!("{comm} (PID {}) reaped it", by.tgid())));
    }
    if exit.last.is_none() && owner.is_dead() {
        facts.push((None, format!("{who} is {}", if owner.is_zombie() { "a zombie" } else { "gone" })));
    }
    facts
}

fn keepers(case: &Case<'_>) -> Facts {
    let world = case.world;
    let mut facts: Facts = Vec::new();
    for keeper in &case.keepers {
        let who = named(world, keeper.id);
        let since = world.files.values().filter_map(|f| f.holders.get(&keeper.id)).filter_map(|h| h.since).min();
        let from = keeper.from.map_or_else(|| "its owner".to_owned(), |f| named(world, f));
        let n = files(keeper.slots.len());
        let text = match keeper.via {
            Via::Fork => format!("{who} was forked from {from} and inherited {n}"),
            Via::ScmRights => format!("{who} received {n} over a unix socket"),
            Via::PidfdGetfd => format!("{who} took {n} with pidfd_getfd"),
            Via::InFlight => format!("{n} {} unread in a unix socket of {who}", if keeper.slots.len() == 1 { "waits" } else { "wait" }),
            Via::IoUring => format!("{n} registered in an io_uring of {who}"),
            Via::Opened | Via::Thread | Via::Import | Via::ExportFd => format!("{who} has {n}"),
        };
        facts.push((since, text));
        if let Some(why) = &keeper.deduced {
            facts.push((None, format!("{who}: {why}")));
        }
        if let Some(container) = world.process(keeper.id).and_then(|p| p.info.container.as_ref()) {
            facts.push((None, format!("{who} runs in {} {}", container.runtime, container.id)));
        }
    }
    facts
}

fn figures(case: &Case<'_>) -> Facts {
    let mut facts: Facts = Vec::new();
    if let Some(why) = &case.owner.deduced {
        facts.push((None, format!("the owner is deduced: {why}")));
    }
    if let (Some(why), Some(bytes)) = (&case.bytes_deduced, case.bytes) {
        facts.push((None, format!("{}: {why}", size(bytes))));
    } else if let (Some(id), Some(gpu), Some(bytes)) = (case.owner.id, case.gpu, case.bytes) {
        facts.push((None, format!("NVML charges PID {} with {} on GPU {gpu}", id.tgid(), size(bytes))));
        let recycled = case.world.by_tgid(id.tgid()).filter(|p| p.id() != id && !p.is_dead());
        if let Some(other) = recycled {
            facts.push((None, format!("PID {} is now another process, {}: do not kill it", id.tgid(), named(case.world, other.id()))));
        }
    }
    facts
}

fn xids(case: &Case<'_>) -> Facts {
    let end = case.owner_process().and_then(|p| p.exit.began.or(p.exit.last));
    case.world
        .xids
        .iter()
        .filter(|x| x.pid.is_some() && x.pid == case.owner.id.map(crate::event::ProcessId::tgid) || end.is_some_and(|e| x.at.abs_diff(e) < 60_000_000_000))
        .map(|x| (Some(x.at), format!("Xid {} on {}: {}", x.code, x.pci, x.message)))
        .collect()
}
