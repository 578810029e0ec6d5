//! `signal_not_fatal`: the owner got a signal that was meant to end it, and lives.
//!
//! A process can catch SIGTERM, SIGINT, SIGHUP and SIGQUIT and go on, ignore them, or block them so that they stay
//! pending. SIGKILL that comes from inside a PID namespace does not reach that namespace's init.
//!
//! * **Must be seen:** the owner is alive and not exiting, and such a signal is pending and blocked, or was sent within
//!   the last ten minutes and was caught, ignored, lost or is still undelivered.
//! * **Would refute it:** the signal's default action was taken (then the process is exiting, dumping core or dead).
//!   Older signals are no cause: servers and notebooks live on after SIGINT and SIGHUP by design.
//! * **Confidence:** exact: the signal and its fate were seen, or it is in the pending and blocked masks.
//! * **Remedy:** wait for a handler that cleans up; else SIGKILL, which cannot be caught, ignored or blocked.

use super::case::Case;
use super::evidence::{confidence, fate, note, sender};
use super::{Note, Verdict, remedy, words};
use crate::event::{BootNs, ProcessState};
use crate::world::process::{Process, Stage};
use crate::world::signal::{self, SIGKILL, SignalRecord};

/// A signal that is older than this is not what the reader has in mind.
const RECENT_NS: BootNs = 600_000_000_000;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let process = case.living_owner().filter(|process| process.stage() == Stage::Alive)?;
    if super::ending::of(case).is_some() {
        return None;
    }
    let (sig, what, note) = survived(case, process).or_else(|| blocked(process))?;
    let sig = signal::name(sig);
    Some(Verdict {
        confidence: confidence(case),
        summary: format!("{} belongs to {}, which is alive: {sig} {what}.", case.what(), words::process(process)),
        notes: vec![note],
        // SIGINT asks for less than what it survived.
        remedies: remedy::end_all(case, &[process]).into_iter().skip(1).collect(),
    })
}

/// The newest signal that asked it to end and did not.
fn survived(case: &Case<'_>, process: &Process) -> Option<(i32, String, Note)> {
    let recent = |r: &&SignalRecord| {
        let at = r.sent.or(r.delivered.map(|d| d.0)).unwrap_or_default();
        signal::asks_to_end(r.sig) && case.now().saturating_sub(at) <= RECENT_NS
    };
    let record = process.signals.iter().rev().find(recent)?;
    if record.delivered.is_some_and(|(_, action)| action == crate::event::Action::Default) {
        return None;
    }
    let from = sender(record);
    let at = record.sent.or(record.delivered.map(|d| d.0));
    let when = words::at(case.world, at);
    let blocked = process.state().is_some_and(|state| state.blocked >> (record.sig - 1) & 1 == 1);
    let how = match fate(record) {
        _ if record.sig == SIGKILL => "did not reach it (it is the init of its PID namespace)",
        "was not delivered yet" if blocked => "is blocked and stays pending",
        "was not delivered yet" => "is not delivered yet",
        fate => fate,
    };
    let name = words::process(process);
    let seen = note(at, format!("{from} sent {} to {name}; it {how}", signal::name(record.sig)));
    let from = if record.from.is_some() { format!("from {from}{when} ") } else { String::new() };
    Some((record.sig, format!("{from}{how}"), seen))
}

/// A signal that waits behind a mask, however old.
fn blocked(process: &Process) -> Option<(i32, String, Note)> {
    let (at, state) = process.state.as_ref().map(|(at, state)| (*at, state))?;
    let waits = |sig: i32, state: &ProcessState| state.pending & state.blocked & (1 << (sig - 1)) != 0;
    let sig = [15, 2, 1, 3].into_iter().find(|sig| waits(*sig, state))?;
    let what = "was sent to it, is blocked and stays pending".to_owned();
    let seen = format!("{} is pending and blocked in {}", signal::name(sig), words::process(process));
    Some((sig, what, note(Some(at), seen)))
}

#[cfg(test)]
mod tests {
    use crate::event::{Action, ProcessId, SignalResult};
    use crate::explanation::CauseId;
    use crate::story::Story;

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");
    const TERM: u64 = 1 << 14;

    fn trainer(story: &mut Story) -> ProcessId {
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        trainer
    }

    #[test]
    fn a_caught_sigterm_did_not_end_it() {
        let mut story = Story::warm();
        let trainer = trainer(&mut story);
        story.signals(Some(BASH), trainer, 15);
        story.delivered(trainer, 15, Action::Handled);
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::SignalNotFatal);
        assert!(holding.summary.ends_with("is alive: SIGTERM from bash (PID 12) at 12:00:00 UTC was caught by a handler."), "{}", holding.summary);
        assert!(holding.remedy.iter().all(|r| r.command.as_deref().is_some_and(|c| !c.starts_with("kill -INT"))));
    }

    #[test]
    fn an_ignored_sigint_did_not_end_it() {
        let mut story = Story::warm();
        let trainer = trainer(&mut story);
        story.signal_with(Some(BASH), trainer, 2, SignalResult::Ignored);
        assert!(story.holding().summary.contains("SIGINT from bash (PID 12) at 12:00:00 UTC was ignored"));
    }

    #[test]
    fn cold_a_blocked_pending_signal_is_in_the_masks() {
        let mut story = Story::cold();
        let trainer = trainer(&mut story);
        story.stands(trainer, "S", |s| (s.pending, s.blocked) = (TERM, TERM));
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::SignalNotFatal);
        assert!(holding.summary.contains("SIGTERM was sent to it, is blocked and stays pending"), "{}", holding.summary);
    }

    #[test]
    fn a_signal_that_is_only_blocked_was_not_sent() {
        let mut story = Story::cold();
        let trainer = trainer(&mut story);
        story.stands(trainer, "S", |s| (s.blocked, s.ignored, s.caught) = (TERM, 2, 1));
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    #[test]
    fn a_user_signal_is_not_meant_to_end_anything() {
        let mut story = Story::warm();
        let trainer = trainer(&mut story);
        story.signals(Some(BASH), trainer, 10);
        story.delivered(trainer, 10, Action::Handled);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    #[test]
    fn a_fatal_signal_is_not_a_survived_one() {
        let mut story = Story::warm();
        let trainer = trainer(&mut story);
        story.signals(Some(BASH), trainer, 15);
        story.delivered(trainer, 9, Action::Default);
        story.thread_exits(trainer, 575, 15, Some(15), 1);
        assert_eq!(story.holding().cause, CauseId::TeardownRunning);
    }
}
