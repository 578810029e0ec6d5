//! Exit timelines: the steps from the signal to the memory being back, each with its time or the reason why it has
//! none.
//!
//! Always true: the steps are in the order in which the kernel takes them; the first that did not happen is the
//! answer to "what is it waiting for?". Releasing the memory map and the files has no hook of its own: do_exit does
//! both between the last thread's `sched_process_exit` and the zombie notice (kernel/exit.c), so they are bounded by
//! these two and marked as inferred.

use crate::cause::evidence::{sender, status};
use crate::cause::words;
use crate::event::{Action, BootNs, ProcessId};
use crate::world::World;
use crate::world::process::{Process, Stage};
use crate::world::release::Released;
use crate::world::signal::{self, SignalRecord};
use serde::{Deserialize, Serialize};

/// What happens on the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepId {
    /// The signal that ended it was sent.
    SignalSent,
    /// It was delivered.
    SignalDelivered,
    /// A core dump was written.
    CoreDump,
    /// The first thread left.
    ExitBegins,
    /// The last thread left.
    LastThread,
    /// Its memory map was released.
    MemoryMapGone,
    /// Its files were released: the driver takes the context apart here.
    FilesGone,
    /// Its parent was told.
    Zombie,
    /// Its parent collected it.
    Reaped,
    /// NVML no longer charges memory to it.
    MemoryBack,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Which.
    pub step: StepId,
    /// When, ns of boottime.
    pub at_ns: Option<BootNs>,
    /// When, RFC 3339.
    pub at: Option<String>,
    /// The time is a bound, deduced from its neighbours.
    pub inferred: bool,
    /// It did not happen so far, although the process is that far: it is being waited for.
    pub awaited: bool,
    /// Since the step before it that has a time, ns.
    pub after_ns: Option<u64>,
    /// What was seen, or why there is no time.
    pub what: String,
}

/// The way out of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// PID.
    pub pid: u32,
    /// Start time, ns of boottime.
    pub start_ns: BootNs,
    /// Start time, RFC 3339.
    pub start_time: Option<String>,
    /// comm.
    pub comm: Option<String>,
    /// It held NVIDIA files.
    pub used_gpu: bool,
    /// How it ended: "SIGKILL", "exit code 0"; null while it lives.
    pub ended_by: Option<String>,
    /// The steps, in the kernel's order.
    pub steps: Vec<Step>,
    /// The first step that did not happen.
    pub waiting_for: Option<StepId>,
    /// From the first step that has a time to the last, ns.
    pub total_ns: Option<u64>,
}

/// Timelines of GPU processes whose end began, or of every process with this PID; by start of the end, then PID.
#[must_use]
pub fn timelines(world: &World, pid: Option<u32>) -> Vec<Timeline> {
    let wanted = |process: &&Process| match pid {
        Some(pid) => process.id().tgid() == pid,
        None => (process.held || process.charged) && is_ending(process),
    };
    let mut all: Vec<&Process> = world.finished().chain(world.processes()).filter(wanted).collect();
    all.sort_by_key(|process| (first_time(process), process.id()));
    all.into_iter().map(|process| timeline(world, process)).collect()
}

fn is_ending(process: &Process) -> bool {
    process.stage() > Stage::Alive || ending_signal(process).is_some()
}

fn first_time(process: &Process) -> BootNs {
    let signal = ending_signal(process).and_then(|record| record.sent);
    signal.or(process.ended_at()).or(process.exit.gone).unwrap_or(process.first_seen)
}

/// The signal that ended it, or that is meant to.
fn ending_signal(process: &Process) -> Option<&SignalRecord> {
    if process.exit.code.is_some() {
        return process.fatal_signal();
    }
    let decides = |r: &&SignalRecord| match r.delivered {
        Some((_, action)) => action == Action::Default && signal::is_fatal_by_default(r.sig),
        None => r.sig == signal::SIGKILL,
    };
    process.signals.iter().find(decides)
}

/// A step before its neighbours are known.
struct Draft {
    step: StepId,
    at: Option<BootNs>,
    inferred: bool,
    /// It belongs to this process's way at all, so that its absence means waiting.
    expected: bool,
    what: String,
}

fn draft(step: StepId, at: Option<BootNs>, expected: bool, what: impl Into<String>) -> Draft {
    Draft { step, at, inferred: false, expected, what: what.into() }
}

fn timeline(world: &World, process: &Process) -> Timeline {
    let mut drafts = Vec::from(signal_steps(process));
    drafts.extend(exit_steps(process));
    drafts.extend(release_steps(world, process));
    drafts.extend(parent_steps(world, process));
    drafts.push(memory_step(process));
    // A step happened if a later one did: only its time was not seen.
    let reached = drafts.iter().rposition(|d| d.at.is_some() && d.step != StepId::MemoryBack);
    let waiting = drafts.iter().enumerate().find(|(place, d)| {
        d.at.is_none() && d.expected && reached.is_none_or(|reached| *place > reached)
    });
    let waiting_for = waiting.map(|(_, d)| d.step).filter(|_| is_ending(process));
    let id = process.id();
    let times: Vec<BootNs> = drafts.iter().filter_map(|d| d.at).collect();
    let total = times.iter().max().zip(times.iter().min()).map(|(last, first)| last - first);
    let mut before: Option<BootNs> = None;
    let steps = drafts.into_iter().map(|d| {
        let after_ns = d.at.zip(before).map(|(at, before)| at.saturating_sub(before));
        before = d.at.or(before);
        let at = d.at.and_then(|at| world.host().wall(at));
        let awaited = waiting_for == Some(d.step);
        Step { step: d.step, at_ns: d.at, at, inferred: d.inferred, awaited, after_ns, what: d.what }
    });
    Timeline {
        pid: id.tgid(),
        start_ns: id.start(),
        start_time: if id.start() == 0 { None } else { world.host().wall(id.start()) },
        comm: process.info.comm.clone(),
        used_gpu: process.held || process.charged,
        ended_by: process.exit.code.map(status),
        steps: steps.collect(),
        waiting_for,
        total_ns: total.filter(|_| times.len() > 1),
    }
}

fn signal_steps(process: &Process) -> [Draft; 2] {
    let Some(record) = ending_signal(process) else {
        let why = match process.exit.code {
            Some(code) if code & 0x7f == 0 => "no signal ended it: it exited by itself",
            Some(_) => "the signal was not seen sent",
            None => "no signal was seen",
        };
        return [draft(StepId::SignalSent, None, false, why), draft(StepId::SignalDelivered, None, false, why)];
    };
    let name = signal::name(record.sig);
    let oom = if process.oom_at.is_some() { " (the OOM killer chose it)" } else { "" };
    let sent = match record.sent {
        Some(_) => format!("{} sent {name}{oom}", sender(record)),
        None => format!("{name} was not seen sent"),
    };
    let delivered = record.delivered.map(|(at, _)| at);
    let how = match delivered {
        Some(_) => format!("{name} was delivered"),
        None if process.exit.began.is_some() => "its delivery was not seen".to_owned(),
        None => format!("{name} is pending: no thread has come back from the kernel to take it"),
    };
    [draft(StepId::SignalSent, record.sent, false, sent), draft(StepId::SignalDelivered, delivered, true, how)]
}

fn exit_steps(process: &Process) -> [Draft; 3] {
    let exit = &process.exit;
    let state = process.state.as_ref().filter(|(_, state)| state.dumping_core);
    let dumped = exit.code.is_some_and(|code| code & 0x80 != 0 && code & 0x7f != 0);
    let begun = exit.began;
    let core = match (dumped, state) {
        (true, _) => {
            let mut core = draft(StepId::CoreDump, begun, false, "a core was dumped before the exit went on");
            core.inferred = true;
            core
        }
        (false, Some(_)) if begun.is_none() => {
            draft(StepId::CoreDump, None, true, "the core dump is still being written")
        }
        _ => draft(StepId::CoreDump, None, false, "no core was dumped"),
    };
    let begins = match begun {
        Some(_) => "the first thread left".to_owned(),
        None if process.stage() > Stage::Alive => "when its exit began was not seen".to_owned(),
        None => "its exit has not begun".to_owned(),
    };
    let count = exit.thread_count as usize;
    let last = match (exit.last_thread, exit.live) {
        (Some(_), _) => format!("the last thread left ({} seen)", words::count(count, "exit", "exits")),
        (None, Some(live)) if process.stage() < Stage::Zombie => {
            format!("{} in it", words::count(live as usize, "thread is still", "threads are still"))
        }
        (None, _) if process.stage() >= Stage::Zombie => "when its last thread left was not seen".to_owned(),
        (None, _) => "it has live threads".to_owned(),
    };
    [core, draft(StepId::ExitBegins, begun, true, begins), draft(StepId::LastThread, exit.last_thread, true, last)]
}

/// Between the last thread and the zombie notice; the notice is their upper bound, unless the driver's own functions were watched.
fn release_steps(world: &World, process: &Process) -> [Draft; 2] {
    let exit = &process.exit;
    let bound = exit.zombie.or(exit.reaped.as_ref().map(|r| r.0)).or(exit.freed).filter(|_| exit.last_thread.is_some());
    let what = |thing: &str| match bound {
        Some(_) => format!("{thing}: at the latest when its parent was told"),
        None if process.stage() >= Stage::Zombie => format!("{thing}; when was not seen"),
        None if exit.last_thread.is_some() => format!("{thing}: not finished, or the parent was not told yet"),
        None => format!("{thing}: not begun"),
    };
    let step = |id, thing| Draft { step: id, at: bound, inferred: true, expected: true, what: what(thing) };
    let mut map = step(StepId::MemoryMapGone, "memory map released");
    if let Some(released) = &exit.releases {
        // The kernel lets go of the map before the files (do_exit, kernel/exit.c).
        map.at = Some(released.began);
        map.what = "memory map released: at the latest when the driver began with the files".to_owned();
    }
    let files = match &exit.releases {
        Some(released) => seen_releases(world, released),
        None => step(StepId::FilesGone, "files released, driver takes its context apart"),
    };
    [map, files]
}

/// What the driver released in the process's own exit.
fn seen_releases(world: &World, released: &Released) -> Draft {
    let files = words::count(released.count as usize, "file", "files");
    if released.under_way > 0 {
        let left = released.under_way;
        return draft(StepId::FilesGone, None, true, format!("the driver released {} of {files}, and is not done", released.count - left.min(released.count)));
    }
    let took = released.ended.map_or(0, |ended| ended.saturating_sub(released.began));
    let slowest = released.slowest.filter(|_| released.count > 1);
    let slowest = slowest.map(|(dev, ns)| format!("; {} took {}", words::device(world, dev), words::duration(ns)));
    let what = format!("the driver released {files} in {}{}", words::duration(took), slowest.unwrap_or_default());
    draft(StepId::FilesGone, released.ended, true, what)
}

fn parent_steps(world: &World, process: &Process) -> [Draft; 2] {
    let exit = &process.exit;
    let parent = exit.told.or(process.info.parent).map(|id: ProcessId| words::by_id(world, id));
    let parent = parent.unwrap_or_else(|| "its parent".to_owned());
    let gone = process.stage() == Stage::Gone;
    let zombie = match exit.zombie {
        Some(_) => format!("it became a zombie; {parent} was told"),
        None if exit.found_zombie.is_some() => "it is a zombie; when it became one was not seen".to_owned(),
        None if gone => "it was reaped without a notice (its parent ignores SIGCHLD), or the notice was not seen".to_owned(),
        None => "it is not a zombie yet".to_owned(),
    };
    let reaped_at = exit.reaped.as_ref().map(|r| r.0).or(exit.freed);
    let reaped = match (&exit.reaped, exit.freed) {
        (Some((_, by, comm)), _) => format!("{} reaped it", words::named(Some(comm), *by)),
        (None, Some(_)) => "reaped by someone who was not seen to wait; its task was freed".to_owned(),
        (None, None) if exit.gone.is_some() => "a scan no longer found it; who reaped it was not seen".to_owned(),
        (None, None) => format!("{parent} has not waited for it"),
    };
    let reap = draft(StepId::Reaped, reaped_at, !gone, reaped);
    [draft(StepId::Zombie, exit.zombie, exit.found_zombie.is_none() && !gone, zombie), reap]
}

fn memory_step(process: &Process) -> Draft {
    match (process.charged, process.uncharged_at) {
        (_, Some(at)) => draft(StepId::MemoryBack, Some(at), true, "NVML no longer charges memory to it"),
        (true, None) => draft(StepId::MemoryBack, None, true, "NVML still charges memory to it"),
        (false, None) => draft(StepId::MemoryBack, None, false, "NVML never charged memory to it while it was watched"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ReleaseStep, What};
    use crate::story::Story;

    fn steps(timeline: &Timeline) -> Vec<(StepId, bool)> {
        timeline.steps.iter().map(|s| (s.step, s.at_ns.is_some())).collect()
    }

    fn one(story: &Story) -> Timeline {
        let mut all = timelines(&story.world(), None);
        assert_eq!(all.len(), 1, "{all:#?}");
        all.remove(0)
    }

    #[test]
    fn every_step_of_a_watched_kill_has_its_time_in_order() {
        let mut story = Story::warm();
        let bash = (ProcessId(12, 5), "bash");
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_560, &[(574, 2_560)]);
        story.killed(bash, trainer);
        story.nvml(0, &[]);
        let timeline = one(&story);
        let untimed: Vec<StepId> = timeline.steps.iter().filter(|s| s.at_ns.is_none()).map(|s| s.step).collect();
        assert_eq!(untimed, [StepId::CoreDump]);
        let times: Vec<BootNs> = timeline.steps.iter().filter_map(|s| s.at_ns).collect();
        assert!(times.is_sorted(), "{timeline:#?}");
        assert_eq!(timeline.waiting_for, None);
        assert_eq!(timeline.ended_by.as_deref(), Some("SIGKILL"));
        assert_eq!(timeline.steps[0].what, "bash (PID 12) sent SIGKILL");
        assert_eq!(timeline.steps[8].what, "systemd (PID 1) reaped it");
    }

    #[test]
    fn a_zombie_waits_for_its_parent() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.dies(trainer, 0);
        let timeline = one(&story);
        assert_eq!(timeline.waiting_for, Some(StepId::Reaped));
        let reaped = timeline.steps.iter().find(|s| s.step == StepId::Reaped).unwrap();
        assert!(reaped.awaited);
        assert_eq!(reaped.what, "systemd (PID 1) has not waited for it");
        assert_eq!(timeline.steps[0].what, "no signal ended it: it exited by itself");
    }

    #[test]
    fn memory_that_is_still_charged_after_the_reap_is_what_is_waited_for() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_560, &[(574, 2_560)]);
        story.forks(trainer, 580, "python3");
        story.killed((ProcessId(12, 5), "bash"), trainer);
        let all = timelines(&story.world(), Some(574));
        assert_eq!(all[0].waiting_for, Some(StepId::MemoryBack));
    }

    #[test]
    fn a_pending_sigkill_waits_for_delivery() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.signals(Some((ProcessId(12, 5), "bash")), trainer, 9);
        assert_eq!(one(&story).waiting_for, Some(StepId::SignalDelivered));
    }

    #[test]
    fn sigterm_is_the_signal_although_the_threads_see_sigkill() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.signals(Some((ProcessId(12, 5), "bash")), trainer, 15);
        story.delivered(trainer, 9, Action::Default);
        story.dies(trainer, 15);
        let timeline = one(&story);
        assert_eq!(timeline.steps[0].what, "bash (PID 12) sent SIGTERM");
        assert_eq!(steps(&timeline)[1], (StepId::SignalDelivered, true));
    }

    #[test]
    fn a_stuck_exit_waits_for_its_last_thread() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.thread_exits(trainer, 575, 9, Some(9), 2);
        let timeline = one(&story);
        assert_eq!(timeline.waiting_for, Some(StepId::LastThread));
        let last = timeline.steps.iter().find(|s| s.awaited).unwrap();
        assert_eq!(last.what, "2 threads are still in it");
    }

    #[test]
    fn a_release_that_was_seen_has_its_own_time() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        let held = story.opens(trainer, crate::story::CTL);
        story.thread_exits(trainer, 574, 9, Some(9), 0);
        let release = |step| What::Release { by: trainer, tid: 574, comm: "python3".into(), file: Some(held.file), dev: held.dev, step };
        story.push(release(ReleaseStep::Begin));
        assert_eq!(one(&story).waiting_for, Some(StepId::FilesGone));
        story.push(release(ReleaseStep::End));
        let ended = story.now;
        story.dies(trainer, 9);
        let timeline = one(&story);
        let step = timeline.steps.iter().find(|s| s.step == StepId::FilesGone).unwrap();
        assert!(!step.inferred && step.at_ns.is_some_and(|at| at <= ended), "{step:#?}");
        assert_eq!(step.what, "the driver released 1 file in 1 ms");
    }

    #[test]
    fn a_living_process_has_no_timeline_and_waits_for_nothing() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        assert!(timelines(&story.world(), None).is_empty());
        assert_eq!(timelines(&story.world(), Some(574))[0].waiting_for, None);
    }

    #[test]
    fn a_timeline_survives_json() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.dies(trainer, 0x100);
        let timeline = one(&story);
        let back: Timeline = serde_json::from_str(&serde_json::to_string(&timeline).unwrap()).unwrap();
        assert_eq!(back, timeline);
        assert_eq!(back.ended_by.as_deref(), Some("exit code 1"));
    }
}
