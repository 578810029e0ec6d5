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
    let parent = process.info.parent.map(|id| words::by_id(case.world, id));
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
    if let Some(launcher) = process.born_of {
        if !case.world.is_dead(launcher) {
            return None;
        }
        let launcher_name = words::by_id(case.world, launcher);
        notes.push(note(process.forked_at, format!("{launcher_name} forked {name}")));
        if let Some(launcher) = case.world.process(launcher) {
            end(case.world, launcher, notes);
        }
        return Some((launcher_name, true));
    }
    let gone = |pid: Option<u32>| pid.filter(|pid| *pid > 1 && owners::is_gone(case.world, *pid));
    let (pid, what) = match (gone(process.info.pgrp), gone(process.info.session)) {
        (Some(pid), _) => (pid, "process group"),
        (None, Some(pid)) => (pid, "session"),
        (None, None) => return None,
    };
    notes.push(note(None, format!("{name} is in the {what} of PID {pid}, which no longer exists: that it launched {name} is deduced")));
    Some((format!("PID {pid}"), false))
}
