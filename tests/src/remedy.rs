//! Doing what outlive proposes, to see whether it helps.
//!
//! Always true: only a signal to a process of the part (after a check of its start time), thawing its control group, and aborting or
//! removing its mount are obeyed; a command that would concern anybody else is itself a difference.

#![expect(unsafe_code, reason = "std sends no signals")]

use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use outlive::explanation::CauseId;
use serde::{Deserialize, Serialize};

use crate::look::Look;
use crate::play::{Member, Play};

/// What came of following the proposals.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tried {
    /// What was done, in order.
    pub commands: Vec<String>,
    /// What they did not achieve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
}

/// How long a holder may take to end after a signal.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends a signal to a single process other than init.
///
/// # Errors
/// When the kernel refuses, or the PID is not one process's.
pub fn signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    if pid <= 1 {
        return Err(io::Error::other(format!("PID {pid} must not be signalled")));
    }
    // SAFETY: kill takes any pid and signal.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Obeys the proposals for everything that outlives its owner, mildest first; says what they did not achieve.
///
/// # Errors
/// When a signal cannot be sent.
pub fn apply(play: &Play, look: &Look) -> io::Result<Tried> {
    let mut tried = Tried::default();
    for holding in look.explanation.holdings.iter().filter(|holding| holding.cause != CauseId::OwnerAlive) {
        let holders: Vec<&Member> = play.report.cast.values()
            .filter(|member| holding.holders.iter().any(|holder| holder.pid == member.pid) && member.is_alive())
            .collect();
        let commands: Vec<&str> = holding.remedy.iter().filter_map(|remedy| remedy.command.as_deref()).collect();
        for command in &commands {
            if holders.iter().all(|holder| holder.has_ended()) {
                break;
            }
            tried.commands.push((*command).to_owned());
            tried.wrong.extend(obey(play, command)?);
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline && !holders.iter().all(|holder| holder.has_ended()) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let left = holders.iter().filter(|holder| !holder.has_ended());
        tried.wrong.extend(left.map(|holder| format!("PID {} still holds after {commands:?}", holder.pid)));
    }
    Ok(tried)
}

/// Runs one proposal in a shell, as a user would, when it concerns nobody but the part: a signal to a living process of it, its
/// control group, its mount.
fn obey(play: &Play, command: &str) -> io::Result<Option<String>> {
    let command = command.split(" #").next().unwrap_or_default().trim();
    match refusal(play, command) {
        Some(why) => Ok(Some(format!("{why}: {command}"))),
        None => {
            let status = Command::new("sh").args(["-c", command]).status()?;
            Ok((!status.success()).then(|| format!("the proposal fails ({status}): {command}")))
        }
    }
}

/// Why a proposal must not be obeyed; nothing when it may.
fn refusal(play: &Play, command: &str) -> Option<String> {
    // The identity check comes first: `grep -qw TICKS /proc/PID/stat && kill ... # comment`.
    let (check, deed) = command.rsplit_once("&&").map_or((None, command), |(check, deed)| (Some(check), deed));
    let words: Vec<&str> = deed.split_whitespace().collect();
    match words[..] {
        ["kill", "-INT" | "-TERM" | "-KILL" | "-CONT", pid] => wrong_target(play, check, pid),
        ["echo", "0" | "THAWED", ">", file] => {
            let ours = play.fact("cgroup").is_some_and(|group| Path::new(file).parent() == Some(Path::new(group)));
            (!ours).then(|| "the proposal thaws a group that is not the part's".to_owned())
        }
        ["echo", "1", ">", file] if file.starts_with("/sys/fs/fuse/connections/") => {
            let number = file.split('/').nth(5).and_then(|number| number.parse().ok());
            let ours = number.is_some() && number == play.fuse_connection();
            (!ours).then(|| "the proposal aborts a connection that is not the part's".to_owned())
        }
        ["umount", "-f", "-l", path] => {
            let ours = play.fact("mount").is_some_and(|mount| mount == path);
            (!ours).then(|| "the proposal removes a mount that is not the part's".to_owned())
        }
        _ => Some("the proposal is none that the harness knows".to_owned()),
    }
}

fn wrong_target(play: &Play, check: Option<&str>, pid: &str) -> Option<String> {
    let target = play.report.cast.iter().find(|(_, member)| pid.parse() == Ok(member.pid) && member.is_alive());
    match target {
        Some((name, member)) if name != "stage" && !member.has_ended() => {
            let (ticks, stat) = (member.start_ticks.to_string(), format!("/proc/{pid}/stat"));
            let checks = |check: &str| check.contains(&stat) && check.split_whitespace().any(|word| word == ticks);
            (!check.is_some_and(checks)).then(|| format!("the proposal does not check that PID {pid} started at tick {ticks}"))
        }
        _ => Some("the proposal would signal a stranger, the dead or the innocent".to_owned()),
    }
}
