//! `signal_not_fatal`: somebody tried to end the owner, and the signal is handled, ignored, blocked or still pending.
//!
//! Seen: a signal whose default is to end the process was generated and the process lives; or such a signal is pending now.
//! Refuted by: an exit, a stop (`owner_stopped`). Confidence: exact. Remedy: a stronger signal.

use super::case::Case;
use super::{Verdict, remedies, words};
use crate::event::{Action, SignalResult};
use crate::explanation::CauseId;
use crate::world::process::{Process, SignalSent, kills_by_default, signal_name};

/// Signals that people and tools send to end a process.
const MEANT_TO_END: [i32; 6] = [1, 2, 3, 6, 9, 15];

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner_process().filter(|p| !p.is_dead() && p.exit.last.is_none())?;
    let world = case.world;
    let (what, facts) = pending(owner).or_else(|| sent(case, owner))?;
    let who = words::named(world, owner.id());
    let summary = format!("{} belongs to {who}, which is alive: {what}.", words::amount(case.bytes, case.gpu));
    Some(Verdict {
        cause: CauseId::SignalNotFatal,
        confidence: case.confidence(),
        summary,
        facts,
        remedy: remedies::end_process(world, owner.id(), case.bytes, ""),
    })
}

type Finding = (String, Vec<(Option<u64>, String)>);

/// A signal that waits because it is blocked.
fn pending(owner: &Process) -> Option<Finding> {
    let (seen, state) = owner.state.as_ref()?;
    let names: Vec<String> = (1..=31)
        .filter(|s| kills_by_default(*s) && state.pending & state.blocked & !state.ignored & (1 << (s - 1)) != 0)
        .map(signal_name)
        .collect();
    let list = names.join(", ");
    (!names.is_empty()).then(|| {
        (format!("{list} was sent to it, but it blocks that signal, so it is still pending"), vec![(Some(*seen), format!("{list} is pending and blocked"))])
    })
}

/// A signal that was seen and did not end it.
fn sent(case: &Case<'_>, owner: &Process) -> Option<Finding> {
    let signal = owner.signals.iter().rev().find(|s| MEANT_TO_END.contains(&s.sig))?;
    let became = became(signal, owner)?;
    let name = signal_name(signal.sig);
    let from = words::sender(case.world, signal);
    let when = words::at(case.world, Some(signal.at));
    Some((format!("{name} from {from}{when} {became}"), Vec::new()))
}

fn became(signal: &SignalSent, owner: &Process) -> Option<&'static str> {
    let bit = 1_u64 << (signal.sig - 1);
    let mask = |f: fn(&crate::event::ProcessState) -> u64| owner.state.as_ref().is_some_and(|(_, s)| f(s) & bit != 0);
    match (signal.delivered, signal.result) {
        (Some((_, Action::Handled)), _) => Some("was handled by the process, which did not end"),
        (Some((_, Action::Ignored)), _) | (None, SignalResult::Ignored) => Some("was ignored"),
        (Some((_, Action::Default)), _) => None,
        (None, _) if mask(|s| s.ignored) => Some("was ignored"),
        (None, _) if mask(|s| s.blocked) => Some("is blocked and still pending"),
        (None, _) if mask(|s| s.caught) => Some("is caught by a handler and did not end it"),
        (None, _) => Some("was not acted on yet"),
    }
}
