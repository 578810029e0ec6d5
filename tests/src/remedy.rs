//! Doing what outlive proposes, to see whether it helps.
//!
//! Always true: only a signal to a process of the part (after a check of its start time), thawing its control group, and aborting or
//! removing its mount are obeyed; a command that would concern anybody else is itself a difference; so is that nothing was done. Who must
//! have ended is told by the scenario, not only by outlive, and nobody of the part has the owner's files any more.

#![expect(unsafe_code, reason = "std sends no signals")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use outlive::explanation::{CauseId, Holding};
use serde::{Deserialize, Serialize};

use crate::look::Look;
use crate::play::{Member, Play};
use crate::scenario::{Memory, Place, Scenario};

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

/// Sends a signal to a process group that we have made.
///
/// # Errors
/// As [`signal`].
pub fn signal_group(leader: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(leader).map_err(io::Error::other)?;
    if pid <= 1 {
        return Err(io::Error::other(format!("process group {pid} must not be signalled")));
    }
    // SAFETY: killpg takes any group and signal.
    if unsafe { libc::killpg(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Obeys the proposals for everything that outlives its owner, mildest first; says what they did not achieve.
///
/// # Errors
/// When a signal cannot be sent.
pub fn apply(scenario: &Scenario, play: &Play, place: Place, look: &Look) -> io::Result<Tried> {
    let mut tried = Tried::default();
    let expected: Vec<Memory> = scenario.expected(place, false).into_iter().filter(outlives).collect();
    for holding in look.explanation.holdings.iter().filter(|holding| holding.cause != CauseId::OwnerAlive) {
        let holders = involved(play, &expected, holding);
        let commands: Vec<&str> = holding.remedy.iter().filter_map(|remedy| remedy.command.as_deref()).collect();
        for command in &commands {
            if holders.values().all(|holder| holder.has_ended()) {
                break;
            }
            tried.commands.push((*command).to_owned());
            tried.wrong.extend(obey(play, command)?);
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline && !holders.values().all(|holder| holder.has_ended()) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let left = holders.values().filter(|holder| !holder.has_ended());
        tried.wrong.extend(left.map(|holder| format!("PID {} still holds after {commands:?}", holder.pid)));
    }
    if tried.commands.is_empty() {
        tried.wrong.push("nothing was done: no command was proposed, or nobody was there whom it would have ended".to_owned());
    }
    tried.wrong.extend(expected.iter().filter_map(|memory| memory.owner.as_deref()).flat_map(|owner| kept(play, owner)));
    Ok(tried)
}

/// It must go when the proposals are followed.
fn outlives(memory: &Memory) -> bool {
    let stays = [CauseId::OwnerAlive, CauseId::DriverReserve, CauseId::MpsServer];
    !memory.perhaps && !memory.cause.all().iter().all(|cause| stays.contains(cause))
}

/// The living whose end frees a holding, by PID: its holders as outlive names them, and, whoever it names, those that the scenario does.
fn involved<'a>(play: &'a Play, expected: &[Memory], holding: &Holding) -> BTreeMap<u32, &'a Member> {
    let owner = holding.owner.as_ref().map(|owner| owner.pid);
    let is_of = |memory: &&Memory| match (owner, memory.owner.as_deref().map(|name| play.member(name))) {
        (Some(pid), Some(Ok(member))) => member.pid == pid,
        _ => true,
    };
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for memory in expected.iter().filter(is_of) {
        names.extend(memory.owner.iter().chain(memory.holders.keys()).map(String::as_str));
        if memory.holders.contains_key("others") {
            names.extend(play.others());
        }
    }
    let named = |pid: u32| holding.holders.iter().any(|holder| holder.pid == pid);
    // By name: somebody else may have the PID of a dead owner.
    let living = play.report.cast.iter().filter(|(name, member)| (names.contains(name.as_str()) || named(member.pid)) && member.is_alive());
    living.map(|(_, member)| (member.pid, member)).collect()
}

/// Whoever of the part still has files that keep the owner's memory: the stand-ins' books are the part's word, and do not change by
/// themselves.
fn kept(play: &Play, owner: &str) -> Vec<String> {
    let others = play.report.cast.iter().filter(|(name, member)| *name != "stage" && !member.has_ended());
    let still = |member: &Member| {
        let open = member.open_files();
        member.held.get(owner).is_some_and(|held| held.iter().any(|fd| open.contains(fd)))
    };
    others.filter(|(_, member)| still(member)).map(|(name, member)| format!("{name} (PID {}) still has files of {owner}", member.pid)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::play::Report;

    /// A part of one process that lives, and what `outlive` says of it.
    fn applied(holders: &str, remedy: &str) -> Tried {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().to_owned();
        let of = |text: &str| text.replace("PID", &child.id().to_string()).replace("TICKS", &ticks);
        let report: Report = serde_json::from_str(&of(r#"{"cast": {"owner": {"pid": PID, "start_ticks": TICKS, "held": {}}}, "bytes": {}}"#)).unwrap();
        let play = Play::of(report).unwrap();
        let scenario: Scenario = toml::from_str(
            "claim = \"\"\nplaces = [\"driver\"]\nremedied = true\n[[memory]]\ncause = \"exit_blocked_elsewhere\"\nowner = \"owner\"\n",
        )
        .unwrap();
        let look = crate::look::told(&of(&format!(
            r#"{{"cause": "exit_blocked_elsewhere", "confidence": "exact", "owner": {{"pid": PID, "state": "", "exit": null}}, "holders": [{holders}], "summary": "",
                "evidence": [], "remedy": [{remedy}]}}"#
        )));
        let tried = apply(&scenario, &play, Place::Driver, &look).unwrap();
        // Kills what is left of it.
        drop(play);
        child.wait().unwrap();
        tried
    }

    #[test]
    fn where_nothing_is_done_nothing_is_remedied() {
        let tried = applied("", "");
        assert_eq!(tried.commands, [""; 0]);
        assert_eq!(tried.wrong.len(), 2, "the owner lives, and nothing was done: {:?}", tried.wrong);
    }

    #[test]
    fn an_owner_that_nobody_calls_a_holder_must_end_all_the_same() {
        let tried = applied("", r#"{"command": "grep -qw TICKS /proc/PID/stat && kill -INT PID", "effect": "", "risk": ""}"#);
        assert_eq!((tried.commands.len(), tried.wrong), (1, vec![]));
    }
}
