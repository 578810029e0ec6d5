//! `leader_exited`: the main thread is gone, other threads live and hold everything.
//!
//! `ps` shows the process as a zombie (`Zl`, `<defunct>`), /proc/PID/fd is empty, fuser and lsof find nothing and
//! nvidia-smi cannot name it; yet it is a living process: its threads have its memory and its descriptors.
//!
//! * **Must be seen:** the leader exited and the group has live threads.
//! * **Would refute it:** no live thread (then it is a real zombie and holds nothing); all that is left sits in the driver, or was killed
//!   and does not end (`exit_blocked_in_driver`).
//! * **Confidence:** exact.
//! * **Remedy:** signal the PID as usual: signals go to the whole group.

use super::case::Case;
use super::evidence::{confidence, note};
use super::{Verdict, remedy, words};
use crate::world::process::Stage;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let process = case.living_owner().filter(|process| process.stage() == Stage::Alive)?;
    let state = process.state();
    if process.exit.leader.is_none() && !state.is_some_and(|state| state.leader_exited) {
        return None;
    }
    let looked = process.state.as_ref().filter(|(at, _)| Some(*at) > process.exit.leader);
    let live = looked.map(|(_, state)| state.live_threads).or(process.exit.live).filter(|live| *live > 0)?;
    let name = words::process(process);
    let threads = words::count(live as usize, "thread lives on and holds", "threads live on and hold");
    let at = words::at(case.world, process.exit.leader);
    let mut notes = vec![note(process.exit.leader, format!("The main thread of {name} exited; {threads} what it had"))];
    let mut tids: Vec<u32> = case.holders.iter().flat_map(|h| h.descriptors.iter().filter_map(|d| d.2)).collect();
    tids.sort_unstable();
    tids.dedup();
    if !tids.is_empty() {
        let tids: Vec<String> = tids.iter().map(ToString::to_string).collect();
        let tids = words::list(&tids, 8);
        let pid = process.id().tgid();
        notes.push(note(None, format!("The descriptors are in /proc/{pid}/task/TID/fd of thread {tids}, not in /proc/{pid}/fd")));
    }
    Some(Verdict {
        confidence: confidence(case),
        summary: format!("{} belongs to {name}: its main thread exited{at}, so it looks like a zombie, but {threads} everything.", case.what()),
        notes,
        remedies: remedy::end_all(case, &[process]),
    })
}

#[cfg(test)]
mod tests {
    use crate::event::{Hold, ProcessId, Via};
    use crate::explanation::CauseId;
    use crate::story::{CTL, Story, bare};

    #[test]
    fn an_exec_by_another_thread_makes_that_one_the_main_thread() {
        let mut story = Story::warm();
        let launcher = story.process(574, "launcher");
        story.thread_exits(launcher, 574, 0, None, 1);
        story.execs(launcher, "python3");
        story.uses_cuda(launcher);
        story.nvml(2_566, &[(574, 2_566)]);
        story.scanned();
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    #[test]
    fn a_dead_main_thread_with_a_live_one_is_a_living_owner() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_566, &[(574, 2_566)]);
        story.thread_exits(trainer, 574, 0, None, 3);
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::LeaderExited);
        assert_eq!(
            holding.summary,
            "2.5 GiB on GPU 0 belongs to python3 (PID 574): its main thread exited at 12:00:00 UTC, so it looks like a zombie, \
             but 3 threads live on and hold everything."
        );
        assert_eq!(holding.holders[0].via, Via::Thread);
        assert_eq!(story.told().exit_code(), 3);
    }

    #[test]
    fn when_the_last_thread_left_too_it_is_an_ordinary_exit() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.thread_exits(trainer, 574, 0, None, 1);
        story.thread_exits(trainer, 575, 0, None, 0);
        assert_eq!(story.holding().cause, CauseId::TeardownRunning);
    }

    #[test]
    fn a_worker_thread_that_ends_is_nothing() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.thread_exits(trainer, 575, 0, None, 3);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    #[test]
    fn cold_the_descriptors_are_found_in_the_thread() {
        let mut story = Story::cold();
        let trainer = ProcessId(574, 900);
        story.info(trainer, "python3", |info| info.cred = Some(66));
        story.found(&Hold { tid: Some(577), cred: Some(66), ..bare(trainer, 5, 5, CTL) });
        story.stands(trainer, "Z", |s| (s.leader_exited, s.live_threads) = (true, 1));
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::LeaderExited);
        assert!(holding.evidence.iter().any(|e| e.what.contains("/proc/574/task/TID/fd of thread 577")), "{:#?}", holding.evidence);
    }
}
