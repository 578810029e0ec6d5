//! `unknown`: not enough evidence, and which evidence is missing.
//!
//! * **Must be seen:** nothing; this is what is left when no other cause can be told.
//! * **Would refute it:** the evidence that it names.
//! * **Confidence:** unknown.
//! * **Remedy:** get the evidence (as root, in the initial PID namespace, with `outlive record` running beforehand).

use super::case::{Case, Kind};
use super::evidence::{ended, note};
use super::{Verdict, ending, remedy, words};
use crate::explanation::Confidence;

/// Always answers.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    Some(verdict(case))
}

/// What is known, and what is missing.
#[must_use]
pub fn verdict(case: &Case<'_>) -> Verdict {
    let mut missing = missing(case);
    let mut notes = Vec::new();
    if let Some(ending) = ending::of(case) {
        notes.extend(ending.notes(case.world));
        missing.push(ending.missing());
    }
    if missing.is_empty() {
        missing.push("how its files are kept open (run outlive record before it happens again)".to_owned());
    }
    notes.extend(missing.iter().map(|what| note(None, format!("Missing: {what}"))));
    let belongs = match case.owner {
        Some(_) if case.owner_is_dead() => format!(" belonged to {}{}", case.owner_name(), ended(case)),
        Some(_) => format!(" belongs to {}", case.owner_name()),
        None => " is in use".to_owned(),
    };
    let subject = case.what();
    Verdict {
        confidence: Confidence::Unknown,
        summary: format!("{subject}{belongs}; why it is still held cannot be told without {}.", words::list(&missing, 2)),
        notes,
        remedies: vec![remedy::command(
            "outlive doctor".to_owned(),
            "lists what can be seen on this host, and what cannot",
            None,
            "none",
        )],
    }
}

/// Evidence without which "nobody holds it" cannot be said.
#[must_use]
pub fn missing(case: &Case<'_>) -> Vec<String> {
    let host = case.world.host();
    let mut missing = Vec::new();
    match host.scan {
        None => missing.push("a scan of all processes for open GPU files (run as root)".to_owned()),
        Some(scan) if !scan.complete => {
            missing.push("a complete scan: some processes' files could not be read (run as root)".to_owned());
        }
        Some(_) => {}
    }
    if host.header.as_ref().is_some_and(|header| !header.initial_pid_namespace) {
        missing.push("the processes outside this PID namespace (run on the host)".to_owned());
    }
    if case.kind == Kind::Leftover && !case.candidates.is_empty() {
        let ends = |pid: &u32| case.world.living(*pid).is_some_and(|process| ending::of_process(process).is_some());
        let pids: Vec<String> = case.candidates.iter().map(|pid| words::by_pid(case.world, *pid)).collect();
        let pids = words::list(&pids, 3);
        missing.push(if case.candidates.iter().all(ends) {
            format!("proof of whose it is: NVML charges it to nobody, {pids} may have it until the exit is over, or the driver lost it")
        } else if case.gpu().is_some_and(|gpu| gpu.listed_at.is_some()) {
            format!(
                "proof of whose it is: NVML charges it to nobody, {pids} may have it as managed memory, or the driver lost it (a recording \
                 that began before would tell)"
            )
        } else {
            format!("proof of whose it is: NVML gives no lists of processes here; {pids} may have it")
        });
    }
    if case.kind == Kind::Listed && !case.candidates.is_empty() {
        missing.push("which of the open GPU files are its: several dead processes fit".to_owned());
    }
    let owner_known = case.owner.is_none_or(|owner| owner.process.is_some() || case.owner_is_dead());
    if case.kind == Kind::Listed && !owner_known && missing.is_empty() {
        missing.push("whether that process still exists".to_owned());
    }
    missing
}
