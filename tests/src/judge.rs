//! Compares an explanation with the truth.
//!
//! Always true: everything that must be the same is compared, and every difference becomes one sentence; a holding
//! that nobody expects is a difference.

use std::collections::BTreeSet;
use std::time::SystemTime;

use outlive::explanation::{CauseId, Confidence, Explanation, HolderPart, Holding, OwnerPart};

use crate::look::Look;
use crate::play::{Member, Play};
use crate::scenario::{Memory, Place, Scenario};

/// Whether outlive had history.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Warmth {
    /// Nothing ran before.
    Cold,
    /// A recorder ran since before the part began.
    Warm,
}

/// Which part of an answer is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The cause, its confidence, or that there is anything to explain.
    Cause,
    /// Whose memory it is, and how it ended.
    Owner,
    /// Who holds it, and how that came.
    Holders,
    /// How much it is.
    Bytes,
    /// Anything else.
    Rest,
}

/// One thing that is wrong, as a sentence.
#[derive(Debug)]
pub struct Difference {
    /// In what.
    pub part: Part,
    /// What.
    pub what: String,
}

fn differs(part: Part, what: impl Into<String>) -> Difference {
    Difference { part, what: what.into() }
}

/// Every difference between a look and the truth.
#[must_use]
pub fn compare(scenario: &Scenario, play: &Play, place: Place, look: &Look, warmth: Warmth) -> Vec<Difference> {
    let expected = scenario.expected(place, warmth == Warmth::Cold);
    let judge = Judge { play, place, warmth, brief: scenario.brief };
    let mut wrong = judge.holdings(&expected, &look.explanation);
    wrong.extend(judge.zombies(scenario, &look.explanation));
    if place == Place::StandIn && !expected.iter().any(|memory| memory.any_bytes) {
        wrong.extend(account(play, &look.explanation));
    }
    let codes = exit_codes(&expected);
    if !look.exit_code.is_some_and(|code| codes.contains(&code)) {
        wrong.push(differs(Part::Rest, format!("exit code {:?} instead of {codes:?}", look.exit_code)));
    }
    let limits = |words: &str| look.explanation.limits.iter().any(|limit| limit.missing.contains(words) || limit.voids.contains(words));
    let unsaid = scenario.limits.iter().filter(|words| warmth == Warmth::Warm && !limits(words));
    wrong.extend(unsaid.map(|words| differs(Part::Rest, format!("no limit says {words:?}"))));
    if !wrong.is_empty() {
        let said = look.explanation.holdings.iter().map(|found| format!("(it says: {})", found.summary));
        let lacks = look.explanation.limits.iter().map(|limit| format!("(it lacks: {}; {})", limit.missing, limit.voids));
        let told: Vec<Difference> = said.chain(lacks).map(|what| differs(Part::Rest, what)).collect();
        wrong.extend(told);
    }
    wrong
}

/// 3 when anything outlives its owner, 4 when that cannot be told, else 0; one for each way in which the causes can be true.
fn exit_codes(expected: &[Memory]) -> BTreeSet<i32> {
    let code = |cause: &CauseId| match cause {
        CauseId::OwnerAlive | CauseId::DriverReserve | CauseId::MpsServer => 0,
        CauseId::Unknown => 4,
        _ => 3,
    };
    // Several pieces: what outlives its owner goes before what is not known.
    let mut codes = BTreeSet::from([0]);
    for memory in expected {
        let of_this: BTreeSet<i32> = memory.cause.all().iter().map(code).collect();
        let worst = |a: i32, b: i32| if a == 3 || b == 3 { 3 } else { a.max(b) };
        let without = if memory.perhaps { codes.clone() } else { BTreeSet::new() };
        codes = codes.iter().flat_map(|&a| of_this.iter().map(move |&b| worst(a, b))).chain(without).collect();
    }
    codes
}

/// What looks at several recordings say differently of one moment.
#[must_use]
pub fn disagreement(looks: &[Look]) -> Option<String> {
    let verdicts: Vec<BTreeSet<String>> = looks.iter().map(|look| look.explanation.holdings.iter().map(verdict).collect()).collect();
    let (first, rest) = verdicts.split_first()?;
    let other = rest.iter().find(|other| *other != first)?;
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>().join("; ");
    Some(format!("recordings disagree: [{}] and [{}]", only(first, other), only(other, first)))
}

/// What a holding concludes: cause, owner, who holds and how. (How sure that is grows with each sample, which every recorder takes at moments of
/// its own; the scenario says how sure it must be.)
fn verdict(holding: &Holding) -> String {
    let owner = holding.owner.as_ref().map(|owner| owner.pid);
    let holders: BTreeSet<(u32, String)> = holding.holders.iter().map(|holder| (holder.pid, format!("{:?}", holder.via))).collect();
    format!("{:?} of {owner:?}, held by {holders:?}", holding.cause)
}

/// One comparison.
struct Judge<'a> {
    play: &'a Play,
    place: Place,
    warmth: Warmth,
    /// It may have gone on since the look.
    brief: bool,
}

impl Judge<'_> {
    /// Pairs every expected holding with the reported one that is least wrong.
    fn holdings(&self, expected: &[Memory], explanation: &Explanation) -> Vec<Difference> {
        let mut wrong = Vec::new();
        let reserve_is_wanted = expected.iter().any(|memory| memory.cause.all().contains(&CauseId::DriverReserve));
        let mut left: Vec<&Holding> = explanation.holdings.iter()
            .filter(|holding| holding.cause != CauseId::DriverReserve || reserve_is_wanted)
            .filter(|holding| !self.is_our_own(holding))
            .collect();
        let (perhaps, surely): (Vec<&Memory>, Vec<&Memory>) = expected.iter().partition(|memory| memory.perhaps);
        for expect in surely {
            let nearest = left.iter().enumerate()
                .map(|(at, holding)| (at, self.holding(expect, holding)))
                .min_by_key(|(_, differences)| differences.len());
            match nearest {
                Some((at, differences)) => {
                    left.remove(at);
                    wrong.extend(differences);
                }
                None => wrong.push(differs(Part::Cause, format!("no holding with cause {:?}", expect.cause.all()))),
            }
        }
        for expect in perhaps {
            if let Some(at) = left.iter().position(|holding| self.holding(expect, holding).is_empty()) {
                left.remove(at);
            }
        }
        wrong.extend(left.iter().map(|holding| {
            differs(Part::Cause, format!("a holding too many: {:?}: {}", holding.cause, holding.summary))
        }));
        wrong
    }

    /// Contexts without memory that stand beside the play: NVML's own in the recorder and in a look, and what an MPS daemon inherited.
    fn is_our_own(&self, holding: &Holding) -> bool {
        let comm = holding.owner.as_ref().and_then(|owner| owner.comm.as_deref());
        let daemons = |daemon: &Member| !holding.holders.is_empty() && holding.holders.iter().all(|holder| holder.pid == daemon.pid);
        let daemon = self.play.member("daemon").is_ok_and(daemons);
        self.place == Place::Gpu && holding.bytes.is_none_or(|bytes| bytes == 0) && (comm == Some("outlive") || daemon)
    }

    fn holding(&self, expect: &Memory, holding: &Holding) -> Vec<Difference> {
        let mut wrong = Vec::new();
        if !expect.cause.all().contains(&holding.cause) {
            wrong.push(differs(Part::Cause, format!("cause {:?} instead of {:?}", holding.cause, expect.cause.all())));
        }
        if !expect.confidence.all().contains(&holding.confidence) {
            let what = format!("confidence {:?} instead of {:?}", holding.confidence, expect.confidence.all());
            wrong.push(differs(Part::Cause, what));
        }
        let owner = expect.owner.as_deref().map(|name| (name, self.play.member(name)));
        match (&holding.owner, &owner) {
            (Some(part), Some((_, Ok(member)))) => wrong.extend(self.owner(expect, part, member)),
            (None, Some((name, Ok(_)))) if !expect.owner_perhaps_unknown => wrong.push(differs(Part::Owner, format!("no owner instead of {name}"))),
            (None, _) => {}
            (_, Some((_, Err(error)))) => wrong.push(differs(Part::Owner, error.to_string())),
            (Some(part), None) => wrong.push(differs(Part::Owner, format!("PID {} is called the owner of what nobody owns", part.pid))),
        }
        let truth = expect.owner.as_ref().and_then(|owner| self.play.report.bytes.get(owner)).map(|bytes| bytes + (expect.more_mib << 20));
        let unknown_is_right = expect.any_bytes || (expect.owner_perhaps_unknown && holding.bytes.is_none());
        if !unknown_is_right && !self.is_near(expect, holding.bytes, truth) {
            wrong.push(differs(Part::Bytes, format!("{:?} bytes instead of {truth:?}", holding.bytes)));
        }
        let said = |words: &&String| holding.summary.contains(words.as_str()) || holding.evidence.iter().any(|evidence| evidence.what.contains(words.as_str()));
        wrong.extend(expect.says.iter().filter(|words| !said(words)).map(|words| differs(Part::Cause, format!("nothing says {words:?}"))));
        wrong.extend(self.holders(expect, &holding.holders));
        let harmless = [CauseId::OwnerAlive, CauseId::DriverReserve, CauseId::MpsServer];
        if !harmless.contains(&holding.cause) && holding.remedy.is_empty() {
            wrong.push(differs(Part::Rest, "no remedy"));
        }
        wrong
    }

    fn is_near(&self, expect: &Memory, told: Option<u64>, truth: Option<u64>) -> bool {
        match (told, truth) {
            (Some(told), Some(truth)) if self.place != Place::StandIn => told.abs_diff(truth) <= expect.near_mib << 20,
            _ => told == truth,
        }
    }

    fn owner(&self, expect: &Memory, part: &OwnerPart, owner: &Member) -> Vec<Difference> {
        let mut wrong = Vec::new();
        if part.pid != owner.pid {
            wrong.push(format!("owner {} instead of {}", part.pid, owner.pid));
        }
        wrong.extend(start_differs("owner", part.start_time.as_deref(), owner, self.warmth == Warmth::Warm || owner.is_alive()));
        let state = match owner.state() {
            None => Some("gone"),
            Some('Z') if owner.has_ended() => Some("zombie"),
            Some(_) => None,
        };
        if let Some(state) = state {
            let before = self.brief && part.state == "exiting";
            if part.state != state && !before {
                wrong.push(format!("owner's state {:?} instead of {state:?}", part.state));
            }
            if self.warmth == Warmth::Warm && !expect.end_unseen {
                wrong.extend(self.end(expect, part, state));
            }
        }
        // Cold, a dead owner's control group is gone with it.
        let knows = self.warmth == Warmth::Warm || owner.is_alive();
        if let Some(container) = &expect.container
            && knows
            && !part.container.as_deref().is_some_and(|told| told.contains(container.as_str()))
        {
            wrong.push(format!("owner's container {:?} instead of {container:?}", part.container));
        }
        wrong.into_iter().map(|what| differs(Part::Owner, what)).collect()
    }

    /// Every owner that is dead was killed by the stage, and reaped by it if it is gone, unless the data says otherwise.
    fn end(&self, expect: &Memory, part: &OwnerPart, state: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let pid_of = |name: &str| self.play.report.cast.get(name).map_or(0, |member| member.pid);
        let names = |text: &Option<String>, pid: u32| text.as_deref().is_some_and(|text| text.contains(&pid.to_string()));
        let exit = part.exit.clone().unwrap_or_default();
        let signal = expect.ended_by.unwrap_or(libc::SIGKILL);
        if exit.signal != Some(signal) || (expect.ended_by.is_none() && !names(&exit.by, pid_of("stage"))) {
            wrong.push(format!("owner ended by {:?} from {:?}, not by signal {signal} from the stage", exit.signal, exit.by));
        }
        let reaper = expect.reaper.as_deref().unwrap_or("stage");
        if reaper == "nobody" {
            wrong.extend(exit.reaped_by.as_ref().map(|by| format!("owner reaped by {by}, not by nobody")));
        } else if state == "gone" && !names(&exit.reaped_by, pid_of(reaper)) {
            wrong.push(format!("owner reaped by {:?}, not by {reaper} (PID {})", exit.reaped_by, pid_of(reaper)));
        }
        wrong
    }

    fn holders(&self, expect: &Memory, found: &[HolderPart]) -> Vec<Difference> {
        let owner = expect.owner.as_deref().unwrap_or_default();
        let mut wrong = Vec::new();
        let mut known = BTreeSet::new();
        for (name, via) in &expect.holders {
            let names: Vec<&str> = if name == "others" { self.play.others().collect() } else { vec![name] };
            for name in names {
                let member = match self.play.member(name) {
                    Ok(member) => member,
                    Err(error) => return vec![differs(Part::Holders, error.to_string())],
                };
                known.insert(member.pid);
                let Some(holder) = found.iter().find(|holder| holder.pid == member.pid) else {
                    // Where the kernel takes the table away before it closes the files, nobody can see them any more.
                    if member.is_exiting() && member.open_files().is_empty() {
                        continue;
                    }
                    wrong.push(format!("holder {name} (PID {}) is missing", member.pid));
                    continue;
                };
                if !via.all().contains(&holder.via) {
                    wrong.push(format!("holder {name} via {:?} instead of {:?}", holder.via, via.all()));
                }
                wrong.extend(start_differs(name, holder.start_time.as_deref(), member, true));
                if !member.silent {
                    wrong.extend(descriptors_differ(name, owner, member, holder));
                }
            }
        }
        let strangers = found.iter().filter(|holder| !known.contains(&holder.pid));
        wrong.extend(strangers.map(|holder| format!("PID {} ({:?}) is called a holder", holder.pid, holder.comm)));
        wrong.into_iter().map(|what| differs(Part::Holders, what)).collect()
    }

    fn zombies(&self, scenario: &Scenario, explanation: &Explanation) -> Vec<Difference> {
        let mut wrong = Vec::new();
        for expect in &scenario.zombies {
            let name = &expect.who;
            let (Ok(zombie), Ok(parent)) = (self.play.member(name), self.play.member(&expect.parent)) else {
                wrong.push(format!("the part has no {name} or {}", expect.parent));
                continue;
            };
            let Some(found) = explanation.zombies.iter().find(|found| found.pid == zombie.pid) else {
                wrong.push(format!("zombie {name} (PID {}) is missing", zombie.pid));
                continue;
            };
            if found.parent.as_ref().is_none_or(|found| found.pid != parent.pid) {
                wrong.push(format!("zombie {name}'s parent is {:?} instead of PID {}", found.parent, parent.pid));
            }
            if self.warmth == Warmth::Warm && found.used_gpu != expect.used_gpu {
                wrong.push(format!("zombie {name} used_gpu: {} instead of {}", found.used_gpu, expect.used_gpu));
            }
            // Only the ends of GPU users are watched.
            if self.warmth == Warmth::Warm && expect.used_gpu && found.since.as_deref().is_none_or(|since| !is_time(since)) {
                wrong.push(format!("zombie {name} since {:?}", found.since));
            }
        }
        let listed = |name: &str| scenario.zombies.iter().any(|expect| expect.who == name);
        for found in &explanation.zombies {
            // Strangers may be what they like.
            if let Some(name) = self.play.name(found.pid).filter(|name| !listed(name)) {
                wrong.push(format!("{name} (PID {}) is called a zombie that nobody waits for", found.pid));
            }
        }
        wrong.into_iter().map(|what| differs(Part::Rest, what)).collect()
    }
}

/// A look that is sure of a cause that is wrong. Not of the exit that is under way, which everything that gets stuck is at first.
pub(crate) fn misleads(look: &Look, wrong: &[Difference]) -> bool {
    let holdings = &look.explanation.holdings;
    let sure = |holding: &Holding| holding.confidence == Confidence::Exact && holding.cause != CauseId::TeardownRunning;
    !holdings.is_empty() && holdings.iter().all(sure) && wrong.iter().any(|difference| difference.part == Part::Cause)
}

fn descriptors_differ(name: &str, owner: &str, member: &Member, holder: &HolderPart) -> Vec<String> {
    let mut wrong = Vec::new();
    let fds: BTreeSet<i32> = holder.descriptors.iter().map(|descriptor| descriptor.fd).collect();
    let truth = member.held.get(owner).cloned().unwrap_or_default();
    // Which descriptors an exit has released, driver hooks tell.
    let some = member.is_exiting() && member.open_files().is_empty() && !fds.is_empty() && fds.is_subset(&truth);
    if fds != truth && !some {
        wrong.push(format!("holder {name} has descriptors {fds:?} instead of {truth:?}"));
    }
    let devices = ["nvidiactl", "nvidia-uvm", "nvidia0"];
    for descriptor in &holder.descriptors {
        if !devices.iter().any(|device| descriptor.device.ends_with(device)) {
            wrong.push(format!("holder {name}'s descriptor {} is called {:?}", descriptor.fd, descriptor.device));
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

fn is_time(text: &str) -> bool {
    humantime::parse_rfc3339(text).is_ok_and(|time| time <= SystemTime::now())
}

/// The GPU's account must balance: everything in use is somebody's.
fn account(play: &Play, explanation: &Explanation) -> Vec<Difference> {
    if explanation.holdings.iter().any(|holding| holding.bytes.is_none()) {
        return Vec::new(); // Then it cannot.
    }
    let used: u64 = play.report.bytes.values().sum();
    let [gpu] = &explanation.gpus[..] else {
        return vec![differs(Part::Bytes, format!("{} GPUs instead of 1", explanation.gpus.len()))];
    };
    let told = (gpu.used_bytes, gpu.attributed_bytes, gpu.unexplained_bytes);
    if told == (Some(used), Some(used), Some(0)) {
        Vec::new()
    } else {
        vec![differs(Part::Bytes, format!("used, attributed, unexplained: {told:?} instead of {used}, {used}, 0"))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::told;
    use crate::play::Report;

    fn play(name: &str) -> Play {
        // No process has such a PID.
        let cast = format!(r#"{{"cast": {{"{name}": {{"pid": 4194305, "start_ticks": 1, "held": {{}}}}}}, "bytes": {{}}}}"#);
        let report: Report = serde_json::from_str(&cast).unwrap();
        Play::of(report).unwrap()
    }

    fn claim(holders: &str, confidence: &str) -> Look {
        told(&format!(
            r#"{{"cause": "no_holder", "confidence": "{confidence}", "holders": [{holders}], "summary": "", "evidence": [], "remedy": []}}"#
        ))
    }

    #[test]
    fn what_nobody_holds_is_not_an_mps_daemons_own() {
        let play = play("daemon");
        let judge = Judge { play: &play, place: Place::Gpu, warmth: Warmth::Cold, brief: false };
        let daemon = r#"{"pid": 4194305, "state": "S", "via": "opened", "descriptors": []}"#;
        assert!(judge.holdings(&[], &claim(daemon, "exact").explanation).is_empty());
        assert_eq!(judge.holdings(&[], &claim("", "exact").explanation).len(), 1);
    }

    #[test]
    fn the_living_are_no_zombies() {
        let scenario: Scenario = toml::from_str("claim = \"\"\nplaces = []\n[[zombies]]\nwho = \"dead\"\nparent = \"dead\"\nused_gpu = false").unwrap();
        let mut look = claim("", "exact");
        let zombie = r#"[{"pid": 4194305, "comm": "", "used_gpu": false, "parent": {"pid": 4194305, "state": "S"}}]"#;
        look.explanation.zombies = serde_json::from_str(zombie).unwrap();
        for (name, differences) in [("dead", 0), ("child", 2)] {
            let play = play(name);
            let judge = Judge { play: &play, place: Place::StandIn, warmth: Warmth::Cold, brief: false };
            let wrong = judge.zombies(&scenario, &look.explanation);
            assert_eq!(wrong.len(), differences, "{wrong:?}");
        }
    }

    #[test]
    fn only_who_is_sure_misleads() {
        let wrong = [differs(Part::Cause, "")];
        assert!(misleads(&claim("", "exact"), &wrong));
        assert!(!misleads(&claim("", "inferred"), &wrong));
        assert!(!misleads(&claim("", "exact"), &[differs(Part::Holders, "")]));
    }
}
