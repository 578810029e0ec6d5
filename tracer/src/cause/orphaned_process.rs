//! `orphaned_process`: the launcher died; a worker with its own GPU context lives on, re-parented.
//!
//! Killing a server, launcher or front end does not kill its workers. They are adopted by PID 1, a shell or a
//! subreaper and keep their memory.
//!
//! * **Must be seen:** the owner is alive, is not the leader of its own process group or session, and its launcher is
//!   dead: the process that forked it (when that was watched), or the leader of its process group or session.
//! * **Would refute it:** a living launcher; a daemon or a shell job, which lead a group of their own.
//! * **Confidence:** exact when the fork and the launcher's end were seen; inferred from the dead group leader.
//! * **Remedy:** end the worker. To prevent it: PR_SET_PDEATHSIG, a death pipe, or a cgroup that is killed as a whole.

use super::case::Case;
use super::evidence::{confidence, end, note};
use super::{Note, Verdict, owners, remedy, words};
use crate::explanation::Confidence;
use crate::world::process::{Process, Stage};

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let process = case.living_owner().filter(|process| process.stage() == Stage::Alive)?;
    let tgid = process.id().tgid();
    if super::ending::of(case).is_some() || process.info.pgrp == Some(tgid) || process.info.session == Some(tgid) {
        return None;
    }
    let mut notes = Vec::new();
    let (launcher, seen) = dead_launcher(case, process, &mut notes)?;
    let name = words::process(process);
    // Until somebody looks again, the parent that is known may be the dead one.
    let adopter = process.info.parent.filter(|id| !case.world.is_dead(*id));
    let parent = adopter.map(|id| words::by_id(case.world, id));
    if let Some(parent) = &parent {
        notes.push(note(None, format!("Its parent is {parent} now")));
    }
    let now = parent.map(|parent| format!(", now a child of {parent},")).unwrap_or_default();
    let confidence = if seen { confidence(case) } else { Confidence::Inferred };
    Some(Verdict {
        confidence,
        summary: format!("{} belongs to {name}, which{now} is alive although its launcher {launcher} is gone.", case.what()),
        notes,
        remedies: remedy::end_all(case, &[process]),
    })
}

/// The dead launcher's name, and whether its end was seen.
fn dead_launcher(case: &Case<'_>, process: &Process, notes: &mut Vec<Note>) -> Option<(String, bool)> {
    let name = words::process(process);
    let known = process.born_of.or(process.first_parent.filter(|id| id.tgid() > 1));
    if let Some(launcher) = known.filter(|id| case.world.is_dead(*id)) {
        let launcher_name = words::by_id(case.world, launcher);
        match process.forked_at {
            Some(at) => notes.push(note(Some(at), format!("{launcher_name} forked {name}"))),
            None => notes.push(note(Some(process.first_seen), format!("{name} was a child of {launcher_name}"))),
        }
        let ended = case.world.process(launcher).map(|launcher| {
            end(case.world, launcher, notes);
            launcher.ended_at().is_some()
        });
        return Some((launcher_name, ended == Some(true)));
    }
    if process.born_of.is_some() {
        return None;
    }
    let gone = |pid: Option<u32>| pid.filter(|pid| *pid > 1 && owners::is_gone(case.world, *pid));
    // A parent of the same group (a script that a gone shell started, torchrun under nohup) never lost it: it launched it.
    let parent = process.info.parent.and_then(|id| case.world.process(id)).filter(|parent| parent.is_alive());
    let group = gone(process.info.pgrp).filter(|pgrp| parent.is_none_or(|parent| parent.info.pgrp != Some(*pgrp)));
    let session = gone(process.info.session).filter(|session| parent.is_none_or(|parent| parent.info.session != Some(*session)));
    let (pid, what) = match (group, session) {
        (Some(pid), _) => (pid, "process group"),
        (None, Some(pid)) => (pid, "session"),
        (None, None) => return None,
    };
    notes.push(note(None, format!("{name} is in the {what} of PID {pid}, which no longer exists: that it launched {name} is deduced")));
    Some((format!("PID {pid}"), false))
}

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, What};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{CTL, Story, bare};

    fn served(story: &mut Story) -> (ProcessId, ProcessId) {
        let server = story.process(500, "api_server");
        let worker = story.forks(server, 574, "EngineCore");
        story.uses_cuda(worker);
        (server, worker)
    }

    #[test]
    fn a_worker_whose_launcher_was_killed_is_an_orphan() {
        let mut story = Story::warm();
        let (server, _) = served(&mut story);
        story.killed((ProcessId(12, 5), "bash"), server);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::OrphanedProcess, Confidence::Exact));
        assert!(holding.summary.contains("although its launcher api_server (PID 500) is gone"), "{}", holding.summary);
        assert!(holding.evidence.iter().any(|e| e.what == "bash (PID 12) sent SIGKILL to api_server (PID 500)"));
    }

    #[test]
    fn a_living_parent_of_the_same_group_is_the_launcher_though_their_shell_is_gone() {
        let mut story = Story::cold();
        let runner = story.process(573, "torchrun");
        story.info(runner, "torchrun", |info| (info.pgrp, info.session) = (Some(400), Some(400)));
        let worker = story.process(574, "worker");
        story.info(worker, "worker", |info| {
            (info.pgrp, info.session, info.parent) = (Some(400), Some(400), Some(runner));
        });
        story.uses_cuda(worker);
        story.scanned();
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    #[test]
    fn a_launcher_whose_fork_was_not_seen_is_known_as_the_first_parent() {
        let mut story = Story::warm();
        let server = story.process(500, "api_server");
        let worker = ProcessId(574, story.now);
        story.info(worker, "EngineCore", |info| info.parent = Some(server));
        story.uses_cuda(worker);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
        story.killed((ProcessId(12, 5), "bash"), server);
        let before = story.holding();
        assert!(before.summary.ends_with("which is alive although its launcher api_server (PID 500) is gone."), "{}", before.summary);
        story.info(worker, "EngineCore", |_| {});
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::OrphanedProcess, Confidence::Exact));
        assert!(holding.summary.contains("which, now a child of systemd (PID 1), is alive"), "{}", holding.summary);
    }

    #[test]
    fn a_worker_of_a_living_launcher_is_not() {
        let mut story = Story::warm();
        served(&mut story);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    #[test]
    fn a_shell_job_that_leads_its_group_outlives_the_shell_on_purpose() {
        let mut story = Story::warm();
        let (server, worker) = served(&mut story);
        story.info(worker, "EngineCore", |info| info.pgrp = Some(574));
        story.killed((ProcessId(12, 5), "bash"), server);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    fn cold(story: &mut Story, pgrp: u32, session: u32) -> CauseId {
        let worker = ProcessId(574, 900);
        story.info(worker, "EngineCore", |info| {
            (info.cred, info.pgrp, info.session) = (Some(66), Some(pgrp), Some(session));
        });
        let mut hold = bare(worker, 5, 5, CTL);
        hold.cred = Some(66);
        story.found(&hold);
        story.push(What::ProcessGone { id: ProcessId(500, 0) });
        story.scanned();
        story.holding().cause
    }

    #[test]
    fn cold_a_dead_group_leader_tells_it() {
        assert_eq!(cold(&mut Story::cold(), 500, 1), CauseId::OrphanedProcess);
    }

    #[test]
    fn cold_a_session_leader_is_a_daemon() {
        assert_eq!(cold(&mut Story::cold(), 500, 574), CauseId::OwnerAlive);
        assert_eq!(cold(&mut Story::cold(), 1, 1), CauseId::OwnerAlive);
    }
}
