//! `owner_stopped`: the owner is stopped by a signal (Ctrl-Z), a frozen cgroup or a tracer, and keeps everything.
//!
//! Seen: state T or t, or its cgroup frozen. Refuted by: any running state. Confidence: exact. Remedy: SIGCONT, thaw, or
//! detach the tracer; a pending SIGTERM acts only then.

use super::case::Case;
use super::{Verdict, remedies, words};
use crate::explanation::{CauseId, Remedy};
use crate::world::process::{Process, kills_by_default, signal_name};

/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU.
const STOPS: [i32; 4] = [19, 20, 21, 22];

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner_process().filter(|p| !p.is_dead())?;
    let (seen, state) = owner.state.as_ref()?;
    let world = case.world;
    let who = words::named(world, owner.id());
    let (how, mut remedy, fact) = if state.frozen {
        let cgroup = owner.info.cgroup.clone().unwrap_or_else(|| "its cgroup".to_owned());
        ("whose cgroup is frozen".to_owned(), vec![thaw(&cgroup)], format!("its cgroup {cgroup} is frozen"))
    } else if state.state == "t" {
        let tracer = state.tracer.map_or_else(|| "a tracer".to_owned(), |t| words::named(world, t));
        let text = format!("end or detach {tracer}, which has stopped {who}.");
        (format!("which {tracer} has stopped with ptrace"), vec![remedies::wait(&text, None)], format!("{tracer} traces it and has stopped it (state t)"))
    } else if state.state == "T" {
        let how = format!("which is stopped{}", stopper(case, owner));
        (how, vec![remedies::go_on(world, owner.id())], "it is stopped (state T)".to_owned())
    } else {
        return None;
    };
    let pending: Vec<String> = (1..=31).filter(|s| kills_by_default(*s) && state.pending >> (s - 1) & 1 == 1).map(signal_name).collect();
    let waiting = if pending.is_empty() { String::new() } else { format!("; {} waits until it goes on", pending.join(", ")) };
    let summary = format!("{} belongs to {who}, {how}{waiting}.", words::amount(case.bytes, case.gpu));
    let mut facts = vec![(Some(*seen), fact)];
    if !pending.is_empty() {
        facts.push((Some(*seen), format!("{} is pending", pending.join(", "))));
    }
    if !state.frozen {
        remedy.extend(remedies::end_process(world, owner.id(), case.bytes, "").into_iter().rev().take(1).map(|r| Remedy {
            effect: format!("ends {who} although it is stopped."),
            ..r
        }));
    }
    Some(Verdict { cause: CauseId::OwnerStopped, confidence: case.confidence(), summary, facts, remedy })
}

/// " by SIGTSTP from the kernel at 12:03:55", or nothing.
fn stopper(case: &Case<'_>, owner: &Process) -> String {
    owner.signals.iter().rev().find(|s| STOPS.contains(&s.sig)).map_or_else(String::new, |s| {
        format!(" by {} from {}{}", signal_name(s.sig), words::sender(case.world, s), words::at(case.world, Some(s.at)))
    })
}

fn thaw(cgroup: &str) -> Remedy {
    let safe = cgroup.chars().all(|c| c.is_ascii_alphanumeric() || "/._-:@".contains(c));
    Remedy {
        command: safe.then(|| {
            format!("echo 0 > /sys/fs/cgroup{cgroup}/cgroup.freeze || echo THAWED > /sys/fs/cgroup/freezer{cgroup}/freezer.state")
        }),
        effect: format!("thaws {cgroup}; signals act only then."),
        frees_bytes: None,
        risk: "whatever froze it may count on that.".to_owned(),
    }
}
