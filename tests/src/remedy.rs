//! Doing what outlive proposes, to see whether it helps.
//!
//! Always true: only `kill -SIGNAL PID` with a process of the part as target is obeyed; a command that would signal
//! anybody else is itself a difference.

#![expect(unsafe_code, reason = "std sends no signals")]

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use outlive::explanation::CauseId;

use crate::look::Look;
use crate::play::{Member, Play};

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
pub fn apply(play: &Play, look: &Look) -> io::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for holding in look.explanation.holdings.iter().filter(|holding| holding.cause != CauseId::OwnerAlive) {
        let holders: Vec<&Member> = play.report.cast.values()
            .filter(|member| holding.holders.iter().any(|holder| holder.pid == member.pid) && member.is_alive())
            .collect();
        let commands: Vec<&str> = holding.remedy.iter().filter_map(|remedy| remedy.command.as_deref()).collect();
        for command in &commands {
            if holders.iter().all(|holder| holder.has_ended()) {
                break;
            }
            wrong.extend(obey(play, command)?);
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline && !holders.iter().all(|holder| holder.has_ended()) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let left = holders.iter().filter(|holder| !holder.has_ended());
        wrong.extend(left.map(|holder| format!("PID {} still holds after {commands:?}", holder.pid)));
    }
    Ok(wrong)
}

/// Runs one proposal.
fn obey(play: &Play, command: &str) -> io::Result<Vec<String>> {
    let before_comment = command.split('#').next().unwrap_or_default();
    let words: Vec<&str> = before_comment.split_whitespace().collect();
    let ["kill", name, pids @ ..] = &words[..] else {
        return Ok(vec![format!("the proposal is no kill command: {command}")]);
    };
    let Some(number) = number(name) else {
        return Ok(vec![format!("the proposal's signal is unknown: {command}")]);
    };
    let mut wrong = Vec::new();
    for pid in pids {
        let target = play.report.cast.iter().find(|(_, member)| pid.parse() == Ok(member.pid) && member.is_alive());
        match target {
            Some((name, member)) if name != "stage" && !member.has_ended() => signal(member.pid, number)?,
            _ => wrong.push(format!("the proposal would signal a stranger, the dead or the innocent: {command}")),
        }
    }
    Ok(wrong)
}

fn number(name: &str) -> Option<i32> {
    match name.trim_start_matches('-').trim_start_matches("SIG") {
        "INT" => Some(libc::SIGINT),
        "TERM" => Some(libc::SIGTERM),
        "KILL" => Some(libc::SIGKILL),
        "CONT" => Some(libc::SIGCONT),
        _ => None,
    }
}
