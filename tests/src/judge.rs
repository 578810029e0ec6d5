//! Compares an explanation with the truth.
//!
//! Always true: everything that must be the same is compared, and every difference becomes one sentence; a holding
//! that nobody expects is a difference.

use std::collections::BTreeSet;
use std::time::SystemTime;

use outlive::explanation::{CauseId, Explanation, HolderPart, Holding, OwnerPart};

use crate::expect::{Expect, Owner, Scenario};
use crate::look::Look;
use crate::play::{Member, Play};

/// Whether outlive had history.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Warmth {
    /// Nothing ran before.
    Cold,
    /// A recorder ran since before the part began.
    Warm,
}

/// Every difference between a look and the truth.
#[must_use]
pub fn compare(scenario: &Scenario, play: &Play, look: &Look, warmth: Warmth) -> Vec<String> {
    let expected = if warmth == Warmth::Cold { &scenario.cold } else { &scenario.warm };
    let mut wrong = holdings(expected, play, &look.explanation, warmth);
    wrong.extend(zombies(scenario, play, &look.explanation, warmth));
    wrong.extend(account(play, &look.explanation));
    let code = exit_code(expected);
    if look.exit_code != Some(code) {
        wrong.push(format!("exit code {:?} instead of {code}", look.exit_code));
    }
    if !wrong.is_empty() {
        wrong.extend(look.explanation.holdings.iter().map(|found| format!("(it says: {})", found.summary)));
        wrong.extend(look.explanation.limits.iter().map(|limit| format!("(it lacks: {}; {})", limit.missing, limit.voids)));
    }
    wrong
}

/// 3 when anything outlives its owner, 4 when that cannot be told, else 0.
fn exit_code(expected: &[Expect]) -> i32 {
    let harmless = [CauseId::OwnerAlive, CauseId::DriverReserve];
    match expected.iter().flat_map(|expect| &expect.causes).find(|cause| !harmless.contains(cause)) {
        Some(CauseId::Unknown) => 4,
        Some(_) => 3,
        None => 0,
    }
}

/// Pairs every expected holding with the reported one that is least wrong.
fn holdings(expected: &[Expect], play: &Play, explanation: &Explanation, warmth: Warmth) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut left: Vec<&Holding> = explanation.holdings.iter()
        .filter(|holding| holding.cause != CauseId::DriverReserve)
        .collect();
    for expect in expected {
        let nearest = left.iter().enumerate()
            .map(|(at, holding)| (at, holding_differs(expect, play, holding, warmth)))
            .min_by_key(|(_, differences)| differences.len());
        match nearest {
            Some((at, differences)) => {
                left.remove(at);
                wrong.extend(differences);
            }
            None => wrong.push(format!("no holding with cause {:?}", expect.causes)),
        }
    }
    wrong.extend(left.iter().map(|holding| format!("a holding too many: {:?}: {}", holding.cause, holding.summary)));
    wrong
}

fn holding_differs(expect: &Expect, play: &Play, holding: &Holding, warmth: Warmth) -> Vec<String> {
    let mut wrong = Vec::new();
    if !expect.causes.contains(&holding.cause) {
        wrong.push(format!("cause {:?} instead of {:?}", holding.cause, expect.causes));
    }
    if !expect.confidence.contains(&holding.confidence) {
        wrong.push(format!("confidence {:?} instead of {:?}", holding.confidence, expect.confidence));
    }
    let (Owner::Is(owner) | Owner::IsOrUnknown(owner)) = expect.owner;
    let unknown_is_right = matches!(expect.owner, Owner::IsOrUnknown(_));
    match (&holding.owner, play.member(owner)) {
        (Some(part), Ok(member)) => wrong.extend(owner_differs(part, member, play, warmth)),
        (None, Ok(_)) if unknown_is_right => {}
        (None, Ok(_)) => wrong.push(format!("no owner instead of {owner}")),
        (_, Err(error)) => wrong.push(error.to_string()),
    }
    let bytes_unknown = unknown_is_right && holding.bytes.is_none();
    if !bytes_unknown && holding.bytes != play.report.bytes.get(owner).copied() {
        wrong.push(format!("{:?} bytes instead of {:?}", holding.bytes, play.report.bytes.get(owner)));
    }
    wrong.extend(holders_differ(expect, owner, play, &holding.holders));
    if holding.cause != CauseId::OwnerAlive && holding.remedy.is_empty() {
        wrong.push("no remedy".to_owned());
    }
    wrong
}

fn owner_differs(part: &OwnerPart, owner: &Member, play: &Play, warmth: Warmth) -> Vec<String> {
    let mut wrong = Vec::new();
    if part.pid != owner.pid {
        wrong.push(format!("owner {} instead of {}", part.pid, owner.pid));
    }
    wrong.extend(start_differs("owner", part.start_time.as_deref(), owner, warmth == Warmth::Warm || owner.is_alive()));
    let stage = play.report.cast.get("stage").map_or(0, |stage| stage.pid);
    let state = match owner.state() {
        None => "gone",
        Some('Z') if owner.has_ended() => "zombie",
        Some(_) => return wrong,
    };
    if part.state != state {
        wrong.push(format!("owner's state {:?} instead of {state:?}", part.state));
    }
    if warmth == Warmth::Warm {
        // Every owner that is dead was killed by the stage, and reaped by it if it is gone.
        let exit = part.exit.clone().unwrap_or_default();
        let names_stage = |text: &Option<String>| text.as_deref().is_some_and(|text| text.contains(&stage.to_string()));
        if exit.signal != Some(libc::SIGKILL) || !names_stage(&exit.by) {
            wrong.push(format!("owner ended by {:?} from {:?}, not by SIGKILL from PID {stage}", exit.signal, exit.by));
        }
        if state == "gone" && !names_stage(&exit.reaped_by) {
            wrong.push(format!("owner reaped by {:?}, not by PID {stage}", exit.reaped_by));
        }
    }
    wrong
}

fn start_differs(who: &str, told: Option<&str>, member: &Member, must_tell: bool) -> Option<String> {
    match told.map(humantime::parse_rfc3339) {
        None => must_tell.then(|| format!("{who} has no start time")),
        Some(Ok(time)) => (!member.started_at(time)).then(|| format!("{who}'s start time is wrong: {told:?}")),
        Some(Err(error)) => Some(format!("{who}'s start time {told:?}: {error}")),
    }
}

fn holders_differ(expect: &Expect, owner: &str, play: &Play, found: &[HolderPart]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut known = BTreeSet::new();
    for (name, via) in &expect.holders {
        let member = match play.member(name) {
            Ok(member) => member,
            Err(error) => return vec![error.to_string()],
        };
        known.insert(member.pid);
        let Some(holder) = found.iter().find(|holder| holder.pid == member.pid) else {
            wrong.push(format!("holder {name} (PID {}) is missing", member.pid));
            continue;
        };
        if !via.contains(&holder.via) {
            wrong.push(format!("holder {name} via {:?} instead of {via:?}", holder.via));
        }
        wrong.extend(start_differs(name, holder.start_time.as_deref(), member, true));
        let fds: BTreeSet<i32> = holder.descriptors.iter().map(|descriptor| descriptor.fd).collect();
        let truth = member.held.get(owner).cloned().unwrap_or_default();
        if fds != truth && !expect.no_descriptors {
            wrong.push(format!("holder {name} has descriptors {fds:?} instead of {truth:?}"));
        }
        let devices = ["nvidiactl", "nvidia-uvm", "nvidia0"];
        for descriptor in &holder.descriptors {
            if !devices.iter().any(|device| descriptor.device.ends_with(device)) {
                wrong.push(format!("holder {name}'s descriptor {} is called {:?}", descriptor.fd, descriptor.device));
            }
        }
    }
    let strangers = found.iter().filter(|holder| !known.contains(&holder.pid));
    wrong.extend(strangers.map(|holder| format!("PID {} ({:?}) is called a holder", holder.pid, holder.comm)));
    wrong
}

fn zombies(scenario: &Scenario, play: &Play, explanation: &Explanation, warmth: Warmth) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, parent, used_gpu) in &scenario.zombies {
        let (Ok(zombie), Ok(parent)) = (play.member(name), play.member(parent)) else {
            wrong.push(format!("the part has no {name} or {parent}"));
            continue;
        };
        let Some(found) = explanation.zombies.iter().find(|found| found.pid == zombie.pid) else {
            wrong.push(format!("zombie {name} (PID {}) is missing", zombie.pid));
            continue;
        };
        if found.parent.as_ref().is_none_or(|found| found.pid != parent.pid) {
            wrong.push(format!("zombie {name}'s parent is {:?} instead of PID {}", found.parent, parent.pid));
        }
        if warmth == Warmth::Warm && found.used_gpu != *used_gpu {
            wrong.push(format!("zombie {name} used_gpu: {} instead of {used_gpu}", found.used_gpu));
        }
        // Only the ends of GPU users are watched.
        if warmth == Warmth::Warm && *used_gpu && found.since.as_deref().is_none_or(|since| !is_time(since)) {
            wrong.push(format!("zombie {name} since {:?}", found.since));
        }
    }
    wrong
}

fn is_time(text: &str) -> bool {
    humantime::parse_rfc3339(text).is_ok_and(|time| time <= SystemTime::now())
}

/// The GPU's account must balance: everything in use is somebody's.
fn account(play: &Play, explanation: &Explanation) -> Vec<String> {
    if explanation.holdings.iter().any(|holding| holding.bytes.is_none()) {
        return Vec::new(); // Then it cannot.
    }
    let used: u64 = play.report.bytes.values().sum();
    let [gpu] = &explanation.gpus[..] else {
        return vec![format!("{} GPUs instead of 1", explanation.gpus.len())];
    };
    let told = (gpu.used_bytes, gpu.attributed_bytes, gpu.unexplained_bytes);
    if told == (Some(used), Some(used), Some(0)) {
        Vec::new()
    } else {
        vec![format!("used, attributed, unexplained: {told:?} instead of {used}, {used}, 0")]
    }
}
