//! `owner_alive`: the process that owns the memory is alive.
//!
//! Most often what was killed was not the owner, or nothing was. By itself this is no leak: an idle worker, a
//! notebook kernel and an allocator that keeps its memory all look like this, and the exit code stays 0.
//!
//! * **Must be seen:** the owner is alive, and nothing else here explains it (not stopped, not exiting, no signal that
//!   it survived lately, its launcher not dead).
//! * **Would refute it:** the owner's exit.
//! * **Confidence:** exact when the owner is proven; inferred when only NVML names it.
//! * **Remedy:** ask its user, or end it.

use super::case::{Case, Kind, OwnerFrom};
use super::evidence::{confidence, fate, note, sender};
use super::threads::{self, Place};
use super::{Note, Verdict, remedy, words};
use crate::explanation::Confidence;
use crate::world::World;
use crate::world::process::{Process, Stage};
use crate::world::signal;

/// Threads inside the driver that are told.
const THREADS_TOLD: usize = 2;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let process = case.living_owner().filter(|process| process.stage() == Stage::Alive)?;
    if super::ending::of(case).is_some() {
        return None;
    }
    let own = case.holders.iter().any(|holder| holder.process.id() == process.id());
    let others = case.others().count();
    let shared = match others {
        0 => String::new(),
        n => format!("; {} its GPU files too", words::count(n, "other process has", "other processes have")),
    };
    let doing = state_words(process);
    let summary = if own || case.kind == Kind::Listed {
        format!("{} belongs to {}, which is alive ({doing}){shared}.", case.what(), words::process(process))
    } else {
        let names: Vec<String> = case.others().map(|h| words::process(h.process)).collect();
        let name = words::process(process);
        format!("{} belongs to {name}, which is alive ({doing}) and has closed its own copies; still open in {}.", case.what(), words::list(&names, 3))
    };
    let certain = case.kind == Kind::Files && case.owner.is_some_and(|o| o.from != OwnerFrom::NvmlOnly);
    Some(Verdict {
        confidence: if certain { confidence(case) } else { Confidence::Inferred },
        summary,
        notes: remarks(case.world, process),
        remedies: remedy::end_all(case, &[process]),
    })
}

fn state_words(process: &Process) -> &'static str {
    match process.state().map(|state| state.state.as_str()) {
        Some("R") => "running",
        Some("D") => "in uninterruptible sleep",
        Some("T" | "t") => "stopped",
        Some(_) => "sleeping",
        None => "its state was not looked at",
    }
}

/// Signals that did not end it, and those that would not.
fn remarks(world: &World, process: &Process) -> Vec<Note> {
    let name = words::process(process);
    let mut notes = Vec::new();
    for record in process.signals.iter().filter(|r| signal::asks_to_end(r.sig)) {
        let what = format!("{} sent {} to {name}, which {}", sender(record), signal::name(record.sig), fate(record));
        notes.push(note(record.sent.or(record.delivered.map(|d| d.0)), what));
    }
    if notes.is_empty() {
        notes.push(note(None, format!("No signal that ends a process was seen sent to {name}")));
    }
    let Some(state) = process.state() else { return notes };
    for sig in [2, 15] {
        let bit = 1 << (sig - 1);
        let how = match () {
            () if state.ignored & bit != 0 => "ignores",
            () if state.blocked & bit != 0 => "blocks",
            () if state.caught & bit != 0 => "catches",
            () => continue,
        };
        notes.push(note(None, format!("{name} {how} {}", signal::name(sig))));
    }
    if state.state == "D" {
        notes.push(note(None, format!("{name} is in uninterruptible sleep: no signal reaches it before that ends")));
    }
    let at = process.state.as_ref().map(|(at, _)| *at);
    let in_driver = state.stuck.iter().filter(|thread| threads::locate(thread).place == Place::Driver);
    for thread in in_driver.take(THREADS_TOLD) {
        let what = threads::name(process, thread).replacen('t', "T", 1);
        notes.push(note(at, format!("{what} of {name} is inside the NVIDIA driver: it {}", threads::seen(world, thread))));
    }
    notes
}

#[cfg(test)]
mod tests {
    use crate::event::{Action, ProcessId};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{CTL, Story, bare};

    #[test]
    fn a_living_owner_is_listed_and_is_no_alarm() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.stands(trainer, "S", |_| {});
        story.nvml(2_560, &[(574, 2_560)]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::OwnerAlive, Confidence::Exact));
        assert_eq!(holding.summary, "2.5 GiB on GPU 0 belongs to python3 (PID 574), which is alive (sleeping).");
        assert_eq!(story.told().exit_code(), 0);
    }

    #[test]
    fn an_old_sigint_of_a_notebook_is_a_remark() {
        let mut story = Story::warm();
        let kernel = story.process(574, "ipykernel");
        story.uses_cuda(kernel);
        story.signals(Some((ProcessId(12, 5), "jupyter")), kernel, 2);
        story.delivered(kernel, 2, Action::Handled);
        story.wait(3_600);
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::OwnerAlive);
        let said = "jupyter (PID 12) sent SIGINT to ipykernel (PID 574), which was caught by a handler";
        assert!(holding.evidence.iter().any(|e| e.what == said), "{:#?}", holding.evidence);
    }

    #[test]
    fn cold_equal_credentials_prove_the_owner() {
        let mut story = Story::cold();
        let trainer = ProcessId(574, 900);
        story.info(trainer, "python3", |info| info.cred = Some(66));
        let mut hold = bare(trainer, 5, 5, CTL);
        hold.cred = Some(66);
        story.found(&hold);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::OwnerAlive, Confidence::Exact));
    }

    #[test]
    fn cold_a_daemon_that_changed_its_user_is_still_its_own_owner() {
        let mut story = Story::cold();
        let daemon = ProcessId(400, 900);
        story.info(daemon, "nvidia-persiste", |info| {
            (info.cred, info.never_execed) = (Some(77), Some(false));
            (info.pgrp, info.session) = (Some(400), Some(400));
        });
        let mut hold = bare(daemon, 5, 5, CTL);
        (hold.cred, hold.cloexec) = (Some(66), Some(true));
        story.found(&hold);
        story.nvml(0, &[]);
        story.scanned();
        let told = story.told();
        assert_eq!(told.holdings[0].cause, CauseId::OwnerAlive);
        assert_eq!(told.holdings[0].confidence, Confidence::Inferred);
        assert_eq!(told.exit_code(), 0);
    }

    #[test]
    fn a_recycled_pid_is_not_blamed_for_what_nvml_charged_before_it_started() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_560, &[(574, 2_560)]);
        let worker = story.forks(trainer, 580, "python3");
        story.killed((ProcessId(12, 5), "bash"), trainer);
        story.wait(60);
        story.process(574, "vim");
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::InheritedDescriptor);
        assert_eq!(holding.owner.unwrap().comm.as_deref(), Some("python3"));
        assert_eq!(holding.holders[0].pid, worker.tgid());
        let said = "NVML's PID 574 is vim (PID 574) by now, which has nothing to do with it: the number was used again";
        assert!(holding.evidence.iter().any(|e| e.what == said), "{:#?}", holding.evidence);
    }
}
