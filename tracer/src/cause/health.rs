//! The GPU's health beside a case: Xids that are near, and what NVML asks for.
//!
//! Which Xid is near: one that names the owner; one on the case's GPU from a minute before the owner's end began (a driver that
//! gives up on the GPU says so after at most 45 s of waiting for its firmware, and the kill follows) to a minute after it was
//! over. One that can stop memory from being freed is near from then until now, and if it came within the last day: a job that
//! hangs at night is killed in the morning, and such an error stays until somebody resets the GPU. Always true: pure; what
//! another GPU reports is told where it names the owner, and decides nothing.

use super::case::Case;
use super::evidence::note;
use super::xid::{self, Facts, Memory, WayOut};
use super::{Note, ending, words};
use crate::event::BootNs;
use crate::world::gpu::Health;
use crate::world::host::{Xid, same_gpu};
use crate::world::process::Process;
use std::collections::BTreeMap;

/// Before the end began, and after it was over.
const NEAR_NS: BootNs = 60_000_000_000;
/// When no end is known.
const DAY_NS: BootNs = 86_400_000_000_000;
/// Different Xids told of one case.
const TOLD_MAX: usize = 6;

/// The Xids that are near, oldest first.
pub fn near<'a>(case: &Case<'a>) -> impl Iterator<Item = (&'a Xid, Option<Facts>)> {
    let world = case.world;
    let pci = case.gpu().and_then(|gpu| gpu.pci.as_deref());
    let owner = case.owner.map(|owner| owner.id);
    let process = case.owner.and_then(|owner| owner.process);
    let (from, to) = span(process);
    let ended = process.and_then(Process::ended_at);
    let now = case.now();
    world.host().xids.iter().filter_map(move |xid| {
        let facts = xid::of(xid.code, &xid.message);
        let here = pci.is_some_and(|pci| same_gpu(pci, &xid.pci));
        // After its end the number may be another process's.
        let lived = owner.is_some_and(|id| xid.at >= id.start()) && ended.is_none_or(|ended| xid.at <= ended.saturating_add(NEAR_NS));
        let its = lived && owner.is_some_and(|id| xid.pid == Some(id.tgid()));
        let age = now.saturating_sub(xid.at);
        let blocks = facts.is_some_and(|facts| facts.memory == Memory::Stuck);
        let is_near = match (from, to) {
            _ if blocks => age <= DAY_NS || from.is_some_and(|from| xid.at >= from),
            (Some(from), Some(to)) => (from..=to).contains(&xid.at),
            (Some(from), None) => xid.at >= from,
            (None, _) => age <= if its { DAY_NS } else { NEAR_NS },
        };
        ((here || its) && is_near).then_some((xid, facts))
    })
}

/// From when to when an Xid may have to do with the end of a process.
fn span(process: Option<&Process>) -> (Option<BootNs>, Option<BootNs>) {
    let Some(process) = process else { return (None, None) };
    let sent = process.fatal_signal().and_then(|record| record.sent);
    let dying = ending::of_process(process).and_then(|ending| ending.since);
    let began = [sent, process.exit.began, process.ended_at(), dying].into_iter().flatten().min();
    (began.map(|at| at.saturating_sub(NEAR_NS)), process.ended_at().map(|at| at.saturating_add(NEAR_NS)))
}

/// The newest Xid near of the case's own GPU that can stop memory from being freed, unless NVML or the driver said after it that nothing is to
/// be done: then the GPU was reset meanwhile.
#[must_use]
pub fn blocking<'a>(case: &Case<'a>) -> Option<(&'a Xid, Facts)> {
    let well = well_since(case);
    let blocks = |xid: &Xid| well.is_none_or(|well| well <= xid.at) && all_clear(case, xid).is_none();
    stuck_here(case).filter(|(xid, _)| blocks(xid)).last()
}

/// The Xids near that can stop memory of the case's GPU from being freed: an owner's error on another GPU says nothing of this one. Where
/// the GPU's address is not known, one that names the owner is taken for its.
fn stuck_here<'a>(case: &Case<'a>) -> impl Iterator<Item = (&'a Xid, Facts)> {
    let pci = case.gpu().and_then(|gpu| gpu.pci.as_deref());
    let here = move |xid: &Xid| pci.is_none_or(|pci| same_gpu(pci, &xid.pci));
    near(case).filter_map(|(xid, facts)| Some((xid, facts?))).filter(move |(xid, facts)| facts.memory == Memory::Stuck && here(xid))
}

/// The driver's word after this Xid that its GPU needs no recovery any more.
fn all_clear<'a>(case: &Case<'a>, after: &Xid) -> Option<&'a Xid> {
    let clears = |xid: &&Xid| xid.at >= after.at && xid::is_all_clear(xid.code, &xid.message) && same_gpu(&xid.pci, &after.pci);
    case.world.host().xids.iter().find(clears)
}

/// When NVML said that nothing is to be done for the GPU, where that is its last word.
fn well_since(case: &Case<'_>) -> Option<BootNs> {
    let (at, health) = case.gpu()?.health?;
    (health.recovery == Some(0) && !health.lost && !health.reset_required).then_some(at)
}

/// What ends the GPU's trouble, and who says so; nothing when nobody says anything of it.
#[must_use]
pub fn way_out(case: &Case<'_>) -> Option<(WayOut, String)> {
    let by_xid = blocking(case).map(|(xid, facts)| (facts.way_out, format!("Xid {}", xid.code)));
    let by_nvml = case.gpu().and_then(|gpu| gpu.health).and_then(|(_, health)| asked(&health)).map(|way| (way, "NVML".to_owned()));
    [by_xid, by_nvml].into_iter().flatten().max_by_key(|(way, _)| *way)
}

/// `nvmlDeviceGpuRecoveryAction_t` (nvml.h).
fn asked(health: &Health) -> Option<WayOut> {
    match health.recovery {
        _ if health.lost => Some(WayOut::Reboot),
        Some(2 | 7) => Some(WayOut::Reboot),
        Some(1 | 4 | 6) => Some(WayOut::Reset),
        _ if health.reset_required => Some(WayOut::Reset),
        _ => None,
    }
}

/// "a reset of the GPU": what NVML asks for.
#[must_use]
pub const fn recovery(action: u32) -> &'static str {
    match action {
        0 => "nothing",
        1 => "a reset of the GPU",
        2 => "a reboot of the host",
        3 => "an end of all use of the GPU by other GPUs (drain P2P)",
        4 => "an end of all use of the GPU by other GPUs (drain P2P), and a reset",
        5 => "a recovery of its IMEX domain",
        6 => "a reset of its PCIe bus",
        7 => "a reboot of the system",
        _ => "something that this version does not know",
    }
}

/// The evidence lines.
pub(super) fn notes(case: &Case<'_>, notes: &mut Vec<Note>) {
    // One number may come a thousand times: the first one is told, and how many there were.
    let mut numbers: BTreeMap<u32, (&Xid, Option<Facts>, usize)> = BTreeMap::new();
    for (xid, facts) in near(case) {
        numbers.entry(xid.code).and_modify(|known| known.2 += 1).or_insert((xid, facts, 1));
    }
    for (xid, facts, times) in numbers.into_values().take(TOLD_MAX) {
        notes.push(note(Some(xid.at), sentence(case, xid, facts, times)));
    }
    if let Some(clear) = stuck_here(case).filter_map(|(xid, _)| all_clear(case, xid)).last() {
        let pci = words::plain(&clear.pci);
        notes.push(note(Some(clear.at), format!("The driver asks for nothing for the GPU at {pci} after that: it may have been reset meanwhile")));
    }
    let (Some(index), Some((at, health))) = (case.gpu, case.gpu().and_then(|gpu| gpu.health)) else { return };
    if health.lost {
        notes.push(note(Some(at), format!("NVML says that GPU {index} is lost: it has fallen off the bus")));
    }
    if health.reset_required {
        notes.push(note(Some(at), format!("NVML says that GPU {index} must be reset")));
    }
    let outdated = stuck_here(case).any(|(xid, _)| xid.at < at);
    if outdated && well_since(case).is_some() {
        notes.push(note(Some(at), format!("NVML asks for nothing for GPU {index} after that: it may have been reset meanwhile")));
    }
    if let Some(action) = health.recovery.filter(|action| *action != 0) {
        notes.push(note(Some(at), format!("NVML asks for {} (GPU {index})", recovery(action))));
    }
}

/// "The GPU at 0000:0b:00 reported Xid 79 (the GPU has fallen off the bus), naming python3 (PID 574); memory on it ...: <message>".
fn sentence(case: &Case<'_>, xid: &Xid, facts: Option<Facts>, times: usize) -> String {
    let meaning = facts.map(|facts| format!(" ({})", facts.meaning)).unwrap_or_default();
    let named = xid.pid.map(|pid| format!(", naming {}", at_that_time(case, pid, xid.at))).unwrap_or_default();
    let implies = facts.map(|facts| format!("; {}", facts.implies())).unwrap_or_default();
    let more = if times > 1 { format!(" ({times} times)") } else { String::new() };
    format!("The GPU at {} reported Xid {}{meaning}{more}{named}{implies}: {}", words::plain(&xid.pci), xid.code, words::plain(&xid.message))
}

/// Whose number it was then.
fn at_that_time(case: &Case<'_>, pid: u32, at: BootNs) -> String {
    let owner = case.owner.filter(|owner| owner.id.tgid() == pid && owner.id.start() <= at).and_then(|owner| owner.process);
    let process = owner.or_else(|| case.world.process_at(pid, at)).or_else(|| case.world.dead(pid, at));
    process.map_or_else(|| format!("PID {pid}"), words::process)
}

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, What};
    use crate::explanation::Holding;
    use crate::story::Story;

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    fn xid(code: u32, pid: Option<u32>) -> What {
        What::Xid { pci: "0000:0b:00".into(), code, pid, message: "the driver's words".into() }
    }

    /// The Xids told of the one holding.
    fn told(holding: &Holding) -> Vec<&str> {
        holding.evidence.iter().map(|e| e.what.as_str()).filter(|what| what.contains("reported Xid")).collect()
    }

    fn inherited(before: &[What], after: &[What]) -> Holding {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_560, &[(574, 2_560)]);
        story.forks(trainer, 580, "python3");
        // The same number within a second is one Xid that two sources report.
        before.iter().for_each(|what| story.wait(2).push(what.clone()));
        story.killed(BASH, trainer);
        story.wait(7_200);
        after.iter().for_each(|what| story.push(what.clone()));
        story.holding()
    }

    #[test]
    fn an_xid_is_told_with_its_number_meaning_process_and_what_follows() {
        let holding = inherited(&[xid(119, Some(574)), xid(119, Some(574))], &[]);
        assert_eq!(
            told(&holding),
            ["The GPU at 0000:0b:00 reported Xid 119 (the GPU's firmware (GSP) did not answer a request of the driver in time) (2 times), \
              naming python3 (PID 574); memory on it may not be freed before the GPU is reset, and that can fail too: the driver's words"]
        );
    }

    #[test]
    fn what_can_block_memory_is_near_until_now_and_what_cannot_is_not() {
        let holding = inherited(&[], &[xid(13, None), xid(79, None)]);
        let lines = told(&holding);
        assert!(lines.len() == 1 && lines[0].contains("Xid 79 (the GPU has fallen off the bus)"), "{lines:?}");
        assert!(lines[0].contains("cannot be freed before the host is rebooted"));
    }

    #[test]
    fn an_unknown_number_is_told_without_a_meaning() {
        assert_eq!(told(&inherited(&[xid(9_999, None)], &[])), ["The GPU at 0000:0b:00 reported Xid 9999: the driver's words"]);
    }

    #[test]
    fn an_error_of_another_gpu_or_of_a_later_process_blocks_nothing_here() {
        let blocked = |events: &[What]| {
            let mut story = Story::warm();
            let trainer = story.process(574, "python3");
            story.uses_cuda(trainer);
            story.nvml(2_560, &[(574, 2_560)]);
            story.killed(BASH, trainer);
            story.wait(600);
            events.iter().for_each(|what| story.push(what.clone()));
            story.used(2_560);
            story.scanned();
            story.holding().remedy.iter().all(|r| r.command.as_deref().is_none_or(|c| !c.contains("gpu-reset")))
        };
        let elsewhere = What::Xid { pci: "0000:0c:00".into(), code: 79, pid: Some(574), message: "GPU has fallen off the bus.".into() };
        assert!(!blocked(&[elsewhere]), "GPU 0 can be reset");
        assert!(blocked(&[xid(79, None)]));
        let well = What::Xid { pci: "0000:0b:00".into(), code: 154, pid: None, message: "GPU recovery action changed from 0x2 (Reboot) to 0x0 (None)".into() };
        assert!(!blocked(&[xid(79, None), well]), "the driver said since that nothing is to be done");
    }

    #[test]
    fn a_gpu_that_was_reset_since_blocks_nothing() {
        let told = |recovery| {
            let mut story = Story::cold();
            story.nvml(700, &[]);
            story.push(xid(79, None));
            story.push(What::GpuHealth { gpu: 0, recovery, lost: false, reset_required: false });
            story.scanned();
            let holding = story.holding();
            let offers = holding.remedy.iter().any(|r| r.command.as_deref().is_some_and(|c| c.contains("gpu-reset")));
            (offers, holding.evidence.iter().any(|e| e.what.contains("it may have been reset meanwhile")))
        };
        assert_eq!((told(Some(0)), told(Some(2)), told(None)), ((true, true), (false, false), (false, false)));
    }

    #[test]
    fn nvmls_wish_and_a_lost_gpu_are_told() {
        let health = What::GpuHealth { gpu: 0, recovery: Some(1), lost: true, reset_required: false };
        let holding = inherited(&[], &[health]);
        let says = |text: &str| holding.evidence.iter().any(|e| e.what == text);
        assert!(says("NVML asks for a reset of the GPU (GPU 0)"), "{:#?}", holding.evidence);
        assert!(says("NVML says that GPU 0 is lost: it has fallen off the bus"));
    }

    #[test]
    fn what_clears_an_error_is_told_and_only_of_its_own_gpu() {
        let lost = |nvml: bool, events: &[What]| {
            let mut story = Story::warm();
            let trainer = story.process(574, "python3");
            story.uses_cuda(trainer);
            if nvml {
                story.nvml(2_560, &[(574, 2_560)]);
            }
            story.signals(Some(BASH), trainer, 9);
            events.iter().for_each(|what| story.wait(2).push(what.clone()));
            story.wait(20);
            // Whether the GPU blocks it decides this cause.
            let ran = Some(crate::event::Ran { cpu_ns: 1, over_ns: 1 });
            let thread = crate::event::StuckThread { tid: 574, state: "R".into(), ran, ..Default::default() };
            story.stands(trainer, "R", |s| (s.pending, s.stuck) = (1 << 8, vec![thread]));
            story.holding()
        };
        let clear = What::Xid { pci: "0000:0b:00".into(), code: 154, pid: None, message: "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)".into() };
        let blocked = |holding: &Holding| holding.cause == crate::explanation::CauseId::ExitBlockedInDriver;
        let says = |holding: &Holding, text: &str| holding.evidence.iter().any(|e| e.what.contains(text));
        for nvml in [true, false] {
            assert!(blocked(&lost(nvml, &[xid(119, Some(574))])));
            let holding = lost(nvml, &[xid(119, Some(574)), clear.clone()]);
            assert!(!blocked(&holding), "with NVML: {nvml}");
            assert!(says(&holding, "The driver asks for nothing for the GPU at 0000:0b:00 after that: it may have been reset meanwhile"), "{:#?}", holding.evidence);
            assert!(blocked(&lost(nvml, &[clear.clone(), xid(119, Some(574))])), "the error is newer");
        }
        let other = What::Xid { pci: "0000:0c:00".into(), code: 79, pid: Some(574), message: "of GPU 1".into() };
        let well = What::GpuHealth { gpu: 0, recovery: Some(0), lost: false, reset_required: false };
        let holding = lost(true, &[other, well]);
        assert!(says(&holding, "The GPU at 0000:0c:00 reported Xid 79") && !says(&holding, "NVML asks for nothing"), "{:#?}", holding.evidence);
    }
}
