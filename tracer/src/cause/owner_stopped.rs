//! `owner_stopped`: the owner is stopped and keeps everything.
//!
//! Ctrl+Z (SIGTSTP), SIGSTOP, a frozen cgroup (docker pause) and a debugger all stop a process without taking anything
//! from it. Signals other than SIGKILL and SIGCONT stay pending until it continues.
//!
//! * **Must be seen:** state T or t, or a frozen cgroup; or a stop signal whose default action was taken, without a
//!   later SIGCONT.
//! * **Would refute it:** SIGCONT since, or an exit that has begun.
//! * **Confidence:** exact.
//! * **Remedy:** continue, thaw or detach it; or end it (SIGKILL works on a stopped process, not on a frozen v1 cgroup).

use super::case::Case;
use super::evidence::{confidence, note, sender};
use super::{Note, Verdict, remedy, words};
use crate::event::Action;
use crate::explanation::Remedy;
use crate::world::process::{Process, Stage};
use crate::world::signal::{self, SIGCONT, SignalRecord};

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let process = case.living_owner().filter(|process| process.stage() == Stage::Alive)?;
    let (how, mut notes, first) = frozen(process).or_else(|| traced(case, process)).or_else(|| stopped(case, process))?;
    let name = words::process(process);
    if let Some(state) = process.state() {
        let waiting = (1..=31).filter(|sig| signal::asks_to_end(*sig) && state.pending >> (sig - 1) & 1 == 1);
        for sig in waiting {
            notes.push(note(None, format!("{} is pending and waits until {name} continues", signal::name(sig))));
        }
    }
    let mut remedies = vec![first];
    remedies.extend(remedy::end_all(case, &[process]).pop());
    let what = case.what();
    let summary = format!("{what} belongs to {name}{how}; a stopped process keeps its GPU memory.");
    Some(Verdict { confidence: confidence(case), summary, notes, remedies })
}

type Found = (String, Vec<Note>, Remedy);

fn frozen(process: &Process) -> Option<Found> {
    let (at, state) = process.state.as_ref().filter(|(_, state)| state.frozen)?;
    let group = process.info.cgroup.as_deref().map(words::plain).unwrap_or_default();
    let seen = note(Some(*at), format!("The cgroup of {} is frozen: {group}", words::process(process)));
    let effect = "lets it run again; it may then use or free the memory";
    let thaw = match state.freezer.as_deref().filter(|file| is_freezer(file)) {
        Some(file) => {
            let word = if file.ends_with("freezer.state") { "THAWED" } else { "0" };
            let command = format!("echo {word} > {file}   # or unpause its container");
            remedy::command(command, effect, None, "everything in that cgroup runs again")
        }
        None => remedy::wait("whoever froze its cgroup thaws it (unpause its container)", None),
    };
    Some((", which is frozen with its cgroup".to_owned(), vec![seen], thaw))
}

/// A trace is somebody's word: only a file that thaws a control group may stand behind `>`.
fn is_freezer(file: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | ':' | '@');
    let name = file.rsplit('/').next().unwrap_or_default();
    file.starts_with("/sys/fs/cgroup/")
        && matches!(name, "cgroup.freeze" | "freezer.state")
        && file.chars().all(safe)
        && file.split('/').all(|part| part != "..")
}

fn traced(case: &Case<'_>, process: &Process) -> Option<Found> {
    let (at, state) = process.state.as_ref().filter(|(_, state)| state.state == "t")?;
    let tracer = state.tracer.map(|id| words::by_id(case.world, id));
    let by = tracer.clone().unwrap_or_else(|| "a debugger".to_owned());
    let seen = note(Some(*at), format!("{} is in a ptrace stop; {by} traces it", words::process(process)));
    let target = state.tracer.and_then(|id| case.world.process(id)).filter(|p| p.id().tgid() > 1);
    let detach = match target {
        Some(tracer) => remedy::command(
            remedy::kill(case.world, "TERM", &[tracer]),
            "ends the tracer, which lets the process go on",
            None,
            "the debugging session is lost",
        ),
        None => remedy::wait("the tracer detaches or lets it go on", None),
    };
    Some((format!(", which {by} holds in a ptrace stop"), vec![seen], detach))
}

fn stopped(case: &Case<'_>, process: &Process) -> Option<Found> {
    let continued = process.signals.last_of(SIGCONT).and_then(|r| r.sent.or(r.delivered.map(|d| d.0)));
    let looked = process.state.as_ref().filter(|(at, _)| continued.is_none_or(|cont| cont < *at));
    let state_says = looked.is_some_and(|(_, state)| state.state == "T");
    let signal = process.stop_signal();
    let taken = |r: &&SignalRecord| {
        let later = |at| process.state.as_ref().is_none_or(|(looked, _)| *looked < at);
        r.delivered.is_some_and(|(at, action)| action == Action::Default && later(at))
    };
    if !state_says && signal.filter(taken).is_none() {
        return None;
    }
    let name = words::process(process);
    let mut notes = Vec::new();
    if let Some((at, _)) = looked.filter(|_| state_says) {
        notes.push(note(Some(*at), format!("{name} is in state T (stopped)")));
    }
    let how = match signal {
        Some(record) => {
            let at = record.sent.or(record.delivered.map(|d| d.0));
            let (from, sig) = (sender(record), signal::name(record.sig));
            notes.push(note(at, format!("{from} sent {sig} to {name}")));
            let by = if record.from.is_some() { format!(" from {from}") } else { String::new() };
            format!(", stopped by {sig}{by}{}", words::at(case.world, at))
        }
        None => ", which is stopped (by which signal was not seen)".to_owned(),
    };
    let go_on = match process.id().tgid() {
        1 => remedy::wait("whoever stopped PID 1 lets it go on", None),
        _ => remedy::command(
            remedy::kill(case.world, "CONT", &[process]),
            "lets it run again; a pending SIGTERM then takes effect",
            None,
            "it goes on with its work",
        ),
    };
    Some((how, notes, go_on))
}

#[cfg(test)]
mod tests {
    use crate::event::{Action, ProcessId};
    use crate::explanation::CauseId;
    use crate::story::Story;

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    fn trainer(story: &mut Story) -> ProcessId {
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        trainer
    }

    #[test]
    fn ctrl_z_is_named_with_its_sender_and_a_pending_sigterm() {
        let mut story = Story::warm();
        let trainer = trainer(&mut story);
        story.signals(None, trainer, 20);
        story.delivered(trainer, 20, Action::Default);
        story.stands(trainer, "T", |s| s.pending = 1 << 14);
        story.signals(Some(BASH), trainer, 15);
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::OwnerStopped);
        assert!(holding.summary.contains("stopped by SIGTSTP at 12:00:00 UTC; a stopped process keeps its GPU memory."), "{}", holding.summary);
        assert!(holding.evidence.iter().any(|e| e.what == "SIGTERM is pending and waits until python3 (PID 574) continues"));
        assert!(holding.remedy[0].command.as_deref().unwrap().contains("kill -CONT 574   # python3"));
    }

    #[test]
    fn the_signal_alone_tells_it_before_any_scan() {
        let mut story = Story::warm();
        let trainer = trainer(&mut story);
        story.signals(Some(BASH), trainer, 19);
        story.delivered(trainer, 19, Action::Default);
        assert!(story.holding().summary.contains("stopped by SIGSTOP from bash (PID 12)"));
    }

    #[test]
    fn a_continued_process_is_not_stopped() {
        let mut story = Story::warm();
        let trainer = trainer(&mut story);
        story.signals(Some(BASH), trainer, 19);
        story.delivered(trainer, 19, Action::Default);
        story.stands(trainer, "T", |_| {});
        story.signals(Some(BASH), trainer, 18);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    #[test]
    fn a_caught_sigtstp_stops_nothing() {
        let mut story = Story::warm();
        let trainer = trainer(&mut story);
        story.signals(None, trainer, 20);
        story.delivered(trainer, 20, Action::Handled);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    #[test]
    fn cold_a_debugger_is_named() {
        let mut story = Story::cold();
        let gdb = story.process(700, "gdb");
        let trainer = trainer(&mut story);
        story.stands(trainer, "t", |s| s.tracer = Some(gdb));
        let holding = story.holding();
        assert!(holding.summary.contains("which gdb (PID 700) holds in a ptrace stop"), "{}", holding.summary);
        assert!(holding.remedy[0].command.as_deref().unwrap().contains("kill -TERM 700   # gdb"));
    }

    #[test]
    fn a_frozen_cgroup_is_thawed_not_killed() {
        let mut story = Story::cold();
        let trainer = trainer(&mut story);
        story.info(trainer, "python3", |info| info.cgroup = Some("/docker/3f2a".into()));
        story.stands(trainer, "S", |s| (s.frozen, s.freezer) = (true, Some("/sys/fs/cgroup/freezer/docker/x/freezer.state".into())));
        let holding = story.holding();
        assert!(holding.summary.contains("which is frozen with its cgroup"));
        assert!(holding.remedy[0].command.as_deref().unwrap().starts_with("echo THAWED > /sys/fs/cgroup/freezer/docker/x/freezer.state"));
    }

    #[test]
    fn a_trace_cannot_say_which_file_is_written_to() {
        for file in ["/etc/passwd", "/sys/fs/cgroup/../../../etc/cgroup.freeze", "/sys/fs/cgroup/x/cgroup.procs", "/sys/fs/cgroup/$(x)/cgroup.freeze"] {
            let mut story = Story::cold();
            let trainer = trainer(&mut story);
            story.stands(trainer, "S", |s| (s.frozen, s.freezer) = (true, Some(file.into())));
            let holding = story.holding();
            assert!(holding.remedy.iter().all(|r| r.command.as_deref().is_none_or(|c| !c.contains("echo"))), "{:#?}", holding.remedy);
        }
    }
}
