//! What would free the memory, least harmful first.
//!
//! Always true: a command names its process by PID and start time, so that a reused number is noticed; PID 1 is never
//! a target; nothing here is ever executed.

use super::case::Case;
use super::words;
use crate::explanation::Remedy;
use crate::world::World;
use crate::world::process::Process;

/// More processes than this are not put into one command.
const TARGETS_MAX: usize = 256;

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

/// SIGINT, SIGTERM, then SIGKILL to all of these; nothing for PID 1.
#[must_use]
pub fn end_all(case: &Case<'_>, targets: &[&Process]) -> Vec<Remedy> {
    let targets: Vec<&Process> = targets.iter().copied().filter(|p| p.id().tgid() > 1).take(TARGETS_MAX).collect();
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

/// `kill -TERM 580   # python3, started 2025-01-01 12:03:55 UTC`
#[must_use]
pub fn kill(world: &World, signal: &str, targets: &[&Process]) -> String {
    let pids: Vec<String> = targets.iter().map(|p| p.id().tgid().to_string()).collect();
    let who: Vec<String> = targets.iter().map(|p| identity(world, p)).collect();
    format!("kill -{signal} {}   # {}", pids.join(" "), words::list(&who, 3))
}

fn identity(world: &World, process: &Process) -> String {
    let comm = words::plain(process.comm());
    let start = process.id().start();
    match world.host().wall(start).filter(|_| start != 0) {
        Some(wall) => format!("{comm}, started {} {} UTC", wall.get(..10).unwrap_or(""), wall.get(11..19).unwrap_or("")),
        None => comm,
    }
}
