//! What would free the memory, least harmful first.
//!
//! Always true: a command names its process by PID and start time, so that a reused number is noticed; PID 1 is never
//! a target; nothing here is ever executed.

use super::case::Case;
use super::words;
use crate::explanation::Remedy;
use crate::world::World;
use crate::world::process::Process;
use std::collections::BTreeSet;

/// More processes than this are not put into one command.
const TARGETS_MAX: usize = 256;

/// Up to this many processes, each has a check of its own; more are checked in a loop.
const CHECKED_MAX: usize = 3;
/// USER_HZ is 100 wherever NVIDIA drivers run.
const NS_PER_TICK: u64 = 10_000_000;

/// Only waiting helps.
#[must_use]
pub fn wait(effect: impl Into<String>, frees: Option<u64>) -> Remedy {
    Remedy { command: None, effect: effect.into(), frees_bytes: frees, risk: "none".to_owned() }
}

/// A command.
#[must_use]
pub fn command(command: String, effect: impl Into<String>, frees: Option<u64>, risk: impl Into<String>) -> Remedy {
    Remedy { command: Some(command), effect: effect.into(), frees_bytes: frees, risk: risk.into() }
}

/// SIGINT, SIGTERM, then SIGKILL to each of these once; nothing for PID 1.
#[must_use]
pub fn end_all(case: &Case<'_>, targets: &[&Process]) -> Vec<Remedy> {
    // One process may hold in several ways.
    let mut seen = BTreeSet::new();
    let once = targets.iter().copied().filter(|p| p.id().tgid() > 1 && seen.insert((p.id().tgid(), ticks(p))));
    let targets: Vec<&Process> = once.take(TARGETS_MAX).collect();
    if targets.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = targets.iter().map(|p| words::process(p)).collect();
    let names = words::list(&names, 3);
    let frees = case.bytes.filter(|bytes| *bytes > 0);
    vec![
        command(
            kill(case.world, "INT", &targets),
            format!("asks {names} to end, as Ctrl+C does"),
            frees,
            "the work of these processes ends, if they obey; they may clean up",
        ),
        command(
            kill(case.world, "TERM", &targets),
            format!("asks {names} to end"),
            frees,
            "the work of these processes ends; they may clean up",
        ),
        command(
            kill(case.world, "KILL", &targets),
            format!("ends {names} at once, when nothing else did after some 10 s"),
            frees,
            "unsaved work is lost; nothing is cleaned up",
        ),
    ]
}

/// `grep -qw 420928 /proc/580/stat && kill -TERM 580   # python3, started 2025-01-01 12:03:55 UTC`
#[must_use]
pub fn kill(world: &World, signal: &str, targets: &[&Process]) -> String {
    let who: Vec<String> = targets.iter().map(|p| identity(world, p)).collect();
    let who = words::list(&who, 3);
    if targets.len() > CHECKED_MAX {
        let each: Vec<String> = targets.iter().map(|p| format!("{}:{}", p.id().tgid(), ticks(p))).collect();
        let check = "grep -qw ${p#*:} /proc/${p%:*}/stat";
        return format!("for p in {}; do {check} && kill -{signal} ${{p%:*}}; done   # {who}", each.join(" "));
    }
    let each: Vec<String> = targets.iter().map(|p| checked_kill(signal, p)).collect();
    format!("{}   # {who}", each.join("; "))
}

/// Signals a process only while it is the one that was seen.
fn checked_kill(signal: &str, process: &Process) -> String {
    format!("{}kill -{signal} {}", only_if_same(process), process.id().tgid())
}

/// "grep -qw 420928 /proc/580/stat && ": what follows is done only while the process is the one that was seen, be it a zombie. Empty when
/// its start is not known.
#[must_use]
pub fn only_if_same(process: &Process) -> String {
    match ticks(process) {
        0 => String::new(),
        ticks => format!("grep -qw {ticks} /proc/{}/stat && ", process.id().tgid()),
    }
}

/// Field 22 of /proc/PID/stat: the start in clock ticks (proc(5)).
fn ticks(process: &Process) -> u64 {
    process.id().start() / NS_PER_TICK
}

/// A name for the comment behind a command: an interactive zsh takes `#` for a word and would run a `$(...)` after it.
fn inert(comm: &str) -> String {
    let harmless = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '+' | '-' | ':' | '/' | '@' | ' ');
    words::plain(comm).chars().map(|c| if harmless(c) { c } else { '?' }).collect()
}

fn identity(world: &World, process: &Process) -> String {
    let comm = inert(process.comm());
    let start = process.id().start();
    match world.host().wall(start).filter(|_| start != 0) {
        Some(wall) => format!("{comm}, started {} {} UTC", wall.get(..10).unwrap_or(""), wall.get(11..19).unwrap_or("")),
        None => comm,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::event::{ProcessId, ProcessInfo, What};
    use crate::story::Story;
    use std::process::{Child, Command};

    /// Whether a shell comes to what stands behind the checks of a command, when these files are like this.
    pub(in crate::cause) fn passes(command: &str, files: &[(&str, &str)]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let mut check = command.rsplit_once("&&").unwrap().0.to_owned();
        for (at, (name, text)) in files.iter().enumerate() {
            let file = folder.path().join(at.to_string());
            std::fs::write(&file, text).unwrap();
            check = check.replace(name, file.to_str().unwrap());
        }
        Command::new("sh").args(["-c", &check]).status().unwrap().success()
    }

    fn start(child: &Child) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap()
    }

    /// The command for `n` processes, of which the last one's number is somebody else's by now, run in a shell: whom it ended.
    fn ended(n: usize) -> Vec<bool> {
        let mut children: Vec<Child> = (0..n).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let mut story = Story::cold();
        let ids: Vec<ProcessId> = children.iter().map(|child| ProcessId(child.id(), start(child) * NS_PER_TICK)).collect();
        let seen = |at: usize, id: ProcessId| if at + 1 == n { ProcessId(id.tgid(), id.start() - 5 * NS_PER_TICK) } else { id };
        let seen: Vec<ProcessId> = ids.iter().enumerate().map(|(at, id)| seen(at, *id)).collect();
        for id in &seen {
            story.push(What::Process(Box::new(ProcessInfo { id: *id, comm: Some("$(sleep 9)".into()), ..ProcessInfo::default() })));
        }
        let world = story.world();
        let targets: Vec<&Process> = seen.iter().map(|id| world.process(*id).unwrap()).collect();
        Command::new("sh").args(["-c", &kill(&world, "KILL", &targets)]).status().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        let ended = children.iter_mut().map(|child| child.try_wait().unwrap().is_some()).collect();
        for child in &mut children {
            let _ = child.kill();
            child.wait().unwrap();
        }
        ended
    }

    #[test]
    fn a_number_that_is_somebody_elses_by_now_is_not_signalled_however_many_there_are() {
        assert_eq!(ended(1), [false]);
        assert_eq!(ended(CHECKED_MAX), [true, true, false]);
        assert_eq!(ended(CHECKED_MAX + 2), [true, true, true, true, false]);
    }
}
