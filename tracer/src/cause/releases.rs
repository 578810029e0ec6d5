//! What the driver has released, and is releasing, of the owner's files: evidence that only driver hooks give.
//!
//! Always true: adds notes, never a verdict, so that what is concluded does not depend on which hooks a kernel allows; a release
//! is told of when the owner opened its file, or the owner's own thread does it.

use super::case::Case;
use super::evidence::note;
use super::{Note, words};
use crate::world::World;
use crate::world::release::{Release, Work};

/// Releases under way that are told one by one.
const TOLD: usize = 4;

/// The notes of a case.
#[must_use]
pub fn notes(case: &Case<'_>) -> Vec<Note> {
    let Some(owner) = case.owner.map(|owner| owner.id) else { return Vec::new() };
    let is_its = |release: &&Release| release.owner == Some(owner) || release.direct.as_ref().is_some_and(|work| work.by == owner);
    let its: Vec<&Release> = case.world.releases().filter(is_its).collect();
    let mut notes: Vec<Note> = its.iter().rev().filter_map(|release| under_way(case.world, release)).take(TOLD).collect();
    let done = its.iter().filter(|release| release.under_way().is_none()).filter_map(|release| Some((ended(release)?, *release)));
    let done: Vec<(u64, &Release)> = done.collect();
    if let Some((last, _)) = done.iter().max_by_key(|(at, _)| *at) {
        let files = words::count(done.len(), "GPU file", "GPU files");
        let longest = done.iter().filter_map(|(at, release)| Some((at - began(release)?.min(*at), *release))).max_by_key(|(took, _)| *took);
        let longest = longest.map(|(took, release)| format!("; the longest, {}, took {}", words::device(case.world, release.dev), words::duration(took)));
        notes.push(note(Some(*last), format!("The driver had released {files} of {}{}", case.owner_name(), longest.unwrap_or_default())));
    }
    notes
}

fn under_way(world: &World, release: &Release) -> Option<Note> {
    let work = release.under_way()?;
    let file = words::device(world, release.dev);
    let put_off = release.deferred.is_some() && release.direct.is_some();
    let who = if put_off { format!("the kernel thread {}", words::named(Some(&work.comm), work.by)) } else { thread(world, work) };
    let how = if put_off { "; it had been put off" } else { "" };
    Some(note(Some(work.began), format!("The driver began to release {file} in {who}, and has not finished{how}")))
}

/// "thread 575 of python3 (PID 574)", "python3 (PID 574)".
fn thread(world: &World, work: &Work) -> String {
    let name = match world.process(work.by) {
        Some(process) => words::process(process),
        None => words::named(Some(&work.comm), work.by),
    };
    if work.tid == work.by.tgid() { name } else { format!("thread {} of {name}", work.tid) }
}

fn began(release: &Release) -> Option<u64> {
    let work = release.direct.as_ref().or(release.deferred.as_ref())?;
    Some(work.began)
}

fn ended(release: &Release) -> Option<u64> {
    let end = |work: &Option<Work>| work.as_ref().and_then(|work| work.ended);
    end(&release.deferred).max(end(&release.direct))
}

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, ReleaseStep, What};
    use crate::explanation::CauseId;
    use crate::story::{CTL, GPU0, Story};

    fn step(story: &mut Story, by: (ProcessId, &str), file: u64, step: ReleaseStep) {
        story.push(What::Release { by: by.0, tid: by.0.tgid(), comm: by.1.into(), file: Some(file), dev: GPU0, step });
    }

    #[test]
    fn a_release_that_does_not_return_is_evidence() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        let file = story.opens(trainer, GPU0).file;
        story.opens(trainer, CTL);
        story.nvml(2_560, &[(574, 2_560)]);
        story.thread_exits(trainer, 574, 9, Some(9), 0);
        step(&mut story, (trainer, "python3"), file, ReleaseStep::Begin);
        let holding = story.holding();
        let said = "The driver began to release /dev/nvidia0 in python3 (PID 574), and has not finished";
        assert!(holding.evidence.iter().any(|e| e.what == said && e.at.is_some()), "{:#?}", holding.evidence);
    }

    #[test]
    fn what_hooks_there_are_changes_no_verdict() {
        let told = |releases: bool| {
            let mut story = Story::warm();
            let trainer = story.process(574, "python3");
            let file = story.opens(trainer, GPU0).file;
            story.nvml(2_560, &[(574, 2_560)]);
            story.thread_exits(trainer, 574, 9, Some(9), 0);
            if releases {
                step(&mut story, (trainer, "python3"), file, ReleaseStep::Begin);
                step(&mut story, (trainer, "python3"), file, ReleaseStep::End);
                step(&mut story, (ProcessId(77, 1), "nv_queue"), file, ReleaseStep::DeferredBegin);
            }
            story.dies(trainer, 9);
            story.scanned();
            story.wait(30);
            story.used(2_560);
            story.scanned();
            let holding = story.holding();
            (holding.cause, holding.confidence, holding.evidence.iter().any(|e| e.what.contains("put off")))
        };
        let (with, without) = (told(true), told(false));
        assert_eq!((with.0, with.1), (without.0, without.1));
        assert_eq!(with.0, CauseId::NoHolder);
        assert!(with.2 && !without.2);
    }
}
