//! `core_dump`: the owner is dying, and its core dump is still being written.
//!
//! The kernel writes the dump before it takes the process apart: memory and descriptors stay until the last byte is
//! written. 12 GiB took 7.5 s on an H200 host; a piped core_pattern runs its handler even with `ulimit -c 0`.
//!
//! * **Must be seen:** `CoreDumping: 1`; or the default action of a dumping signal was taken and no thread has exited.
//! * **Would refute it:** the exit has begun.
//! * **Confidence:** exact when the kernel says that it dumps; inferred from the signal alone.
//! * **Remedy:** wait; SIGKILL ends the dump (and spoils it).

use super::case::Case;
use super::evidence::{confidence, note, sender};
use super::{Verdict, remedy, words};
use crate::event::Action;
use crate::explanation::Confidence;
use crate::world::process::{Process, Stage};
use crate::world::signal::{self, SignalRecord};

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let process = case.living_owner()?;
    let (at, dumping) = process.state.as_ref().map_or((None, false), |(at, state)| (Some(*at), state.dumping_core));
    let record = fatal(process);
    let alive = process.stage() == Stage::Alive;
    let exit_began_since = process.exit.began.is_some() && process.exit.began > at;
    if exit_began_since || !(dumping || alive && record.is_some()) {
        return None;
    }
    let name = words::process(process);
    let mut notes = Vec::new();
    if dumping {
        notes.push(note(at, format!("The kernel is writing a core dump of {name} (CoreDumping: 1)")));
    }
    let mut by = String::new();
    if let Some(record) = record {
        let sig = signal::name(record.sig);
        let when = record.delivered.map(|(at, _)| at);
        notes.push(note(record.sent, format!("{} sent {sig} to {name}", sender(record))));
        notes.push(note(when, format!("{name} took {sig}, whose default action dumps core")));
        by = format!(" of {sig}{}", words::at(case.world, when));
    }
    let kill = remedy::end_all(case, &[process]).pop().map(|kill| crate::explanation::Remedy {
        effect: "ends the dump and then the process".to_owned(),
        risk: "the core file is incomplete".to_owned(),
        ..kill
    });
    let mut remedies = vec![remedy::wait("the dump ends by itself, then the memory is freed", case.bytes)];
    remedies.extend(kill);
    Some(Verdict {
        confidence: if dumping { confidence(case) } else { Confidence::Inferred },
        summary: format!("{} belongs to {name}, which is dying{by}: its core dump is still being written.", case.what()),
        notes,
        remedies,
    })
}

fn fatal(process: &Process) -> Option<&SignalRecord> {
    let taken = |r: &&SignalRecord| r.delivered.is_some_and(|(_, action)| action == Action::Default);
    process.signals.iter().rev().filter(taken).find(|r| signal::dumps_core(r.sig))
}

#[cfg(test)]
mod tests {
    use crate::event::Action;
    use crate::explanation::{CauseId, Confidence};
    use crate::story::Story;

    #[test]
    fn a_dump_in_progress_is_the_reason_although_the_signal_was_fatal() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.signals(Some((trainer, "python3")), trainer, 6);
        story.delivered(trainer, 6, Action::Default);
        assert_eq!((story.holding().cause, story.holding().confidence), (CauseId::CoreDump, Confidence::Inferred));
        story.stands(trainer, "D", |s| s.dumping_core = true);
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::CoreDump, Confidence::Exact));
        assert!(holding.summary.contains("which is dying of SIGABRT at 12:00:00 UTC: its core dump is still being written"), "{}", holding.summary);
        assert_eq!(holding.remedy[0].command, None);
    }

    #[test]
    fn once_threads_leave_the_dump_is_over() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.delivered(trainer, 6, Action::Default);
        story.stands(trainer, "D", |s| s.dumping_core = true);
        story.thread_exits(trainer, 574, 0x86, Some(0x86), 1);
        assert_eq!(story.holding().cause, CauseId::TeardownRunning);
    }

    #[test]
    fn a_caught_sigabrt_dumps_nothing() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.delivered(trainer, 6, Action::Handled);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }
}
