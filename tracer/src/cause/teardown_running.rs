//! `teardown_running`: the exit is under way and the memory is on its way back.
//!
//! The kernel unpins host memory and the driver tears contexts down while the process exits, and partly after it: 32
//! GiB of pinned memory took 4.3 s, 243 GB took 26 s. Nobody has to do anything.
//!
//! The last reference may also go on a thread of the kernel itself (a kworker in `delayed_fput`, the driver's "nv_queue" or "UVM
//! deferred release queue"): then no process is left, and that thread is named.
//!
//! * **Must be seen:** the owner is exiting, or is dead and nobody holds its files; and the GPU's used memory is
//!   falling, or the exit is younger than five seconds, or a thread of the exit is at work: it uses a CPU, for at most
//!   five minutes, and unmaps host memory or shows no stack.
//! * **Would refute it:** memory that does not fall while a thread sits in the kernel (`exit_blocked_*`), or that
//!   stays after the last holder is gone (`no_holder`).
//! * **Confidence:** exact while memory is falling; inferred from the exit's age or from what a thread does.
//! * **Remedy:** wait; look again, where one look found a thread of the kernel at it.

use super::case::{Case, Kind, PATIENCE_NS};
use super::evidence::note;
use super::{Note, Verdict, deferred, ending, health, remedy, words};
use crate::event::{BootNs, StuckThread};
use crate::explanation::Confidence;
use crate::world::process::Process;

/// Work that is older than this is not simply slow: 243 GB of pinned memory took 26 s, and 2 TB would take four minutes.
const WORK_MAX_NS: BootNs = 300_000_000_000;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let falling = case.falling();
    let ending = ending::of(case);
    let deferred = deferred::of(case);
    let work = ending.as_ref().and_then(|ending| at_work(case, ending));
    let (subject, young, mut notes) = match (&ending, &deferred) {
        (Some(ending), _) => (exiting(case, ending.process), is_early(case, ending) || work.is_some(), ending.notes(case.world)),
        (None, Some(deferred)) => (deferred.subject(case), deferred.is_young(case), vec![deferred.note(case.world)]),
        (None, None) if case.kind != Kind::Files && case.living_owner().is_none() => {
            let ended = case.owner.and_then(|owner| owner.process).and_then(Process::ended_at);
            // In a recording time goes on between two scans, and only a scan says that nobody releases it.
            let looked = case.world.host().scan.map_or(case.now(), |scan| scan.at);
            let of_another = case.kind == Kind::Leftover && somebody_is_taken_down(case);
            let young = of_another || ended.is_some_and(|at| looked.saturating_sub(at) < PATIENCE_NS);
            (after_the_end(case), young, Vec::new())
        }
        (None, None) => return None,
    };
    if falling.is_none() && !young {
        return None;
    }
    let how = match (falling, work) {
        (Some((since, from)), _) => {
            notes.push(fall(case, since, from));
            "and the GPU's used memory is falling".to_owned()
        }
        (None, Some(thread)) if thread.stack.is_empty() => {
            format!("and thread {} is busy in the kernel, as while host memory is unpinned", thread.tid)
        }
        (None, Some(thread)) => format!("and thread {} unmaps its host memory", thread.tid),
        (None, None) if deferred.is_some_and(|deferred| deferred.is_recent(case)) => "and that has not lasted long".to_owned(),
        (None, None) if deferred.is_some() => "and for how long it has done that is not known".to_owned(),
        (None, None) => "and the driver may still be taking its context apart".to_owned(),
    };
    let unproven = deferred.is_some_and(|deferred| falling.is_none() && !deferred.is_recent(case));
    let effect = match unproven {
        true => "look again in ten seconds: if the thread is in the same place then, it is stuck; else the memory comes back by itself",
        false => "the memory comes back by itself; look again in some seconds",
    };
    Some(Verdict {
        confidence: if falling.is_some() { Confidence::Exact } else { Confidence::Inferred },
        summary: format!("{subject} {how}."),
        notes,
        remedies: vec![remedy::wait(effect, case.bytes.filter(|_| !unproven))],
    })
}

/// While somebody's memory is taken down, what NVML no longer charges to it is in use a moment longer: this lasts as long as that.
fn somebody_is_taken_down(case: &Case<'_>) -> bool {
    let ending = case.world.processes().filter(|process| case.world.uses_gpu(process.id())).filter_map(ending::of_process);
    ending.into_iter().any(|ending| is_early(case, &ending) || at_work(case, &ending).is_some())
}

/// A thread that takes the process apart: its GPU memory follows when that is done. A busy thread that cannot be seen may as well
/// spin, where the GPU is known to be in trouble.
fn at_work<'a>(case: &Case<'_>, ending: &ending::Ending<'a>) -> Option<&'a StuckThread> {
    // A thread that two looks found in the driver, in the same place, says more than a busy one.
    let thread = ending.at_work().filter(|thread| !ending.is_stuck_beside(thread))?;
    let since = ending.since.or(thread.same_since);
    let old = since.is_some_and(|since| case.now().saturating_sub(since) > WORK_MAX_NS);
    let doubtful = thread.stack.is_empty() && health::blocking(case).is_some();
    (!old && !doubtful).then_some(thread)
}

/// The exit may not be over: it is young, or nothing of it was seen and no thread is known to be stuck. An ordinary exit sleeps
/// inside the driver too (`rcu_barrier` below uvm_va_space_destroy), for a tenth of a second.
fn is_early(case: &Case<'_>, ending: &ending::Ending<'_>) -> bool {
    let flat = case.gpu().is_some_and(|gpu| gpu.flat_for() >= PATIENCE_NS);
    // Recordings of before have no CPU times, nor what two looks say.
    let stays = |thread: &StuckThread| thread.same_since.is_some() || thread.cpu_ns.is_none();
    let stuck = ending.stuck.iter().any(|thread| stays(thread) && (thread.state == "D" || !thread.stack.is_empty()));
    ending.is_young(case.now()) || (ending.since.is_none() && ending.exiting && !stuck && !flat)
}

fn exiting(case: &Case<'_>, process: &Process) -> String {
    let going = match words::at(case.world, process.exit.began) {
        at if at.is_empty() => "is under way".to_owned(),
        at => format!("has been under way{}", at.replace(" at ", " since ")),
    };
    format!("{} belongs to {}, whose exit {going},", case.what(), words::process(process))
}

fn after_the_end(case: &Case<'_>) -> String {
    match case.owner {
        Some(_) => format!("{} belonged to {}{},", case.what(), case.owner_name(), super::evidence::ended(case)),
        None => format!("{} belongs to nobody that holds it,", case.what()),
    }
}

fn fall(case: &Case<'_>, since: u64, from: u64) -> Note {
    let now = case.gpu().and_then(|gpu| gpu.memory).map_or(0, |memory| memory.used);
    let gpu = case.gpu.unwrap_or_default();
    note(Some(since), format!("Used memory of GPU {gpu} fell from {} to {}", words::size(from), words::size(now)))
}

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, Ran, StuckThread};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::Story;

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    #[test]
    fn falling_memory_of_an_exiting_owner_needs_patience_only() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(40_000, &[(574, 40_000)]);
        story.thread_exits(trainer, 575, 9, Some(9), 1);
        story.wait(20);
        story.used(30_000);
        story.used(20_000);
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::TeardownRunning, Confidence::Exact));
        assert!(holding.evidence.iter().any(|e| e.what == "Used memory of GPU 0 fell from 39.1 GiB to 19.5 GiB"), "{:#?}", holding.evidence);
    }

    #[test]
    fn memory_may_come_back_shortly_after_the_end() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_560, &[(574, 2_560)]);
        story.killed(BASH, trainer);
        story.scanned();
        assert_eq!(story.holding().cause, CauseId::TeardownRunning);
        story.wait(30);
        story.used(2_560);
        story.scanned();
        assert_eq!(story.holding().cause, CauseId::NoHolder);
    }

    #[test]
    fn what_is_charged_to_nobody_while_somebody_dies_is_not_called_lost() {
        let mut story = Story::cold();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(1_000, &[(574, 900)]);
        story.stands(trainer, "R", |s| s.exiting = true);
        story.scanned();
        let told = story.told();
        assert!(told.holdings.iter().all(|holding| holding.cause != CauseId::NoHolder), "{:#?}", told.holdings);
        assert!(told.holdings.iter().any(|holding| holding.cause == CauseId::TeardownRunning && holding.owner.is_none()), "{:#?}", told.holdings);
    }

    /// A killed process whose files are gone already is at work in the kernel; NVML named it before the scan did, and counts less to it than
    /// is in use. What is said of the rest after `seconds`.
    fn rest_beside(cpu: u64, seconds: u64) -> CauseId {
        let mut story = Story::cold();
        story.nvml(1_000, &[(574, 900)]);
        let trainer = story.process(574, "python3");
        let ran = Some(Ran { cpu_ns: cpu, over_ns: 1_000_000_000 });
        let thread = StuckThread { tid: 574, state: "R".into(), exiting: true, cpu_ns: Some(cpu), ran, ..StuckThread::default() };
        story.stands(trainer, "R", |s| (s.exiting, s.stuck) = (true, vec![thread]));
        story.wait(seconds);
        story.used(1_000);
        story.scanned();
        story.told().holdings.iter().find(|holding| holding.owner.is_none()).unwrap().cause
    }

    #[test]
    fn what_is_charged_to_nobody_stays_as_long_as_somebody_is_taken_down() {
        assert_eq!(rest_beside(900_000_000, 0), CauseId::TeardownRunning);
        assert_eq!(rest_beside(900_000_000, 30), CauseId::TeardownRunning, "a large program takes half a minute, and its memory stays until the end");
        assert_eq!(rest_beside(0, 30), CauseId::Unknown, "nobody works at it, and who does not end may have it");
    }

    #[test]
    fn an_old_exit_with_flat_memory_is_not_running() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(40_000, &[(574, 40_000)]);
        story.thread_exits(trainer, 575, 9, Some(9), 1);
        story.wait(20);
        story.used(40_000);
        assert_ne!(story.holding().cause, CauseId::TeardownRunning);
    }
}
