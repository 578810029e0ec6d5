//! The driver's releases of descriptions, step by step: what driver hooks add to the story.
//!
//! Always true: a description is gone when the driver's release function has returned, whoever was thought to hold it; what was put
//! off to a thread of the driver's is remembered until that has done it. Bounded: the newest [`RELEASES_KEPT`] are kept.

use super::World;
use super::process::Stage;
use crate::event::{BootNs, Dev, Event, ProcessId, ReleaseStep, Token, What};

/// Releases that are remembered.
const RELEASES_KEPT: usize = 1_024;

/// A thread that releases, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The process, or the kernel thread.
    pub by: ProcessId,
    /// The thread.
    pub tid: u32,
    /// Its comm.
    pub comm: Box<str>,
    /// When it began.
    pub began: BootNs,
    /// When it had done it.
    pub ended: Option<BootNs>,
}

/// The release of one description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Which, when known.
    pub file: Option<Token>,
    /// Its device number.
    pub dev: Dev,
    /// Who had opened it, when known.
    pub owner: Option<ProcessId>,
    /// In the driver's release function; none: that was not seen.
    pub direct: Option<Work>,
    /// What was put off, once it began.
    pub deferred: Option<Work>,
}

impl Release {
    /// The work that is not done, if there is one.
    #[must_use]
    pub fn under_way(&self) -> Option<&Work> {
        let open = |work: &Option<Work>| work.as_ref().is_some_and(|work| work.ended.is_none());
        if open(&self.deferred) { self.deferred.as_ref() } else { self.direct.as_ref().filter(|work| work.ended.is_none()) }
    }
}

/// What a process released in its exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Descriptions.
    pub count: u32,
    /// When the first began.
    pub began: BootNs,
    /// When the last that has ended did.
    pub ended: Option<BootNs>,
    /// Those that have not ended.
    pub under_way: u32,
    /// The one that took longest, and ns.
    pub slowest: Option<(Dev, u64)>,
}

/// One step, as the event tells it.
pub(super) struct StepOf<'a> {
    pub(super) by: ProcessId,
    pub(super) tid: u32,
    pub(super) comm: &'a str,
    pub(super) file: Option<Token>,
    pub(super) dev: Dev,
    pub(super) step: ReleaseStep,
}

impl World {
    /// The releases that were seen, oldest first.
    pub fn releases(&self) -> impl DoubleEndedIterator<Item = &Release> {
        self.releases.iter()
    }

    pub(super) fn released(&mut self, at: BootNs, step: &StepOf<'_>) {
        let work = || Work { by: step.by, tid: step.tid, comm: step.comm.into(), began: at, ended: None };
        match step.step {
            ReleaseStep::Begin => {
                self.has_come_back(at, step.by, Some(step.tid));
                self.releasing.insert(step.by);
                let owner = step.file.and_then(|token| self.files.get(&token)).and_then(|file| file.opener).map(|(id, _)| id);
                self.remember(Release { file: step.file, dev: step.dev, owner, direct: Some(work()), deferred: None });
                self.in_exit(step.by, |released| {
                    if released.count == 0 {
                        released.began = at;
                    }
                    released.count = released.count.saturating_add(1);
                    released.under_way = released.under_way.saturating_add(1);
                });
            }
            ReleaseStep::End => {
                let began = self.releases.iter_mut().rev().find_map(|release| {
                    let direct = release.direct.as_mut().filter(|work| work.tid == step.tid && work.ended.is_none())?;
                    (release.file == step.file).then(|| direct.ended = Some(at))?;
                    Some(direct.began)
                });
                if let Some(began) = began {
                    let took = (step.dev, at.saturating_sub(began));
                    self.in_exit(step.by, |released| {
                        released.ended = Some(at);
                        released.under_way = released.under_way.saturating_sub(1);
                        released.slowest = released.slowest.filter(|slowest| slowest.1 >= took.1).or(Some(took));
                    });
                }
                if let Some(token) = step.file {
                    self.forget_released(at, token, at);
                }
            }
            ReleaseStep::DeferredBegin => {
                self.has_come_back(at, step.by, Some(step.tid));
                self.releasing.insert(step.by);
                let put_off = |release: &&mut Release| step.file.is_some() && release.file == step.file && release.deferred.is_none();
                match self.releases.iter_mut().rev().find(put_off) {
                    Some(release) => release.deferred = Some(work()),
                    None => self.remember(Release { file: step.file, dev: step.dev, owner: None, direct: None, deferred: Some(work()) }),
                }
            }
            ReleaseStep::DeferredEnd => {
                let done = |release: &mut Release| {
                    let work = release.deferred.as_mut().filter(|work| work.tid == step.tid && work.ended.is_none())?;
                    work.ended = Some(at);
                    Some(())
                };
                // Of a release whose beginning was forgotten there is nothing to say.
                let _known = self.releases.iter_mut().rev().find_map(done);
            }
        }
    }

    /// A process that is past its end is in no release any more, whether its return was seen or not.
    pub(super) fn has_released(&mut self, at: BootNs, id: ProcessId) {
        // Most that die never released anything.
        if self.releasing.remove(&id) {
            self.has_come_back(at, id, None);
        }
    }

    /// The thread (none: any of the process's) is in no release of before, whether the return was seen or not: it can be in one only.
    fn has_come_back(&mut self, at: BootNs, by: ProcessId, tid: Option<u32>) {
        if !self.releasing.contains(&by) && tid.is_some() {
            return;
        }
        let is_its = |work: &&mut Work| work.by == by && tid.is_none_or(|tid| work.tid == tid) && work.ended.is_none() && work.began <= at;
        let mut released = Vec::new();
        for release in &mut self.releases {
            if let Some(work) = release.deferred.as_mut().filter(is_its) {
                work.ended = Some(at);
            }
            if let Some(work) = release.direct.as_mut().filter(is_its) {
                work.ended = Some(at);
                released.push((release.file, work.began));
            }
        }
        if let Some(exit) = self.processes.get_mut(&by).and_then(|process| process.exit.releases.as_mut()) {
            exit.under_way = exit.under_way.saturating_sub(u32::try_from(released.len()).unwrap_or(u32::MAX));
        }
        for (token, began) in released {
            if let Some(token) = token {
                self.forget_released(at, token, began);
            }
        }
    }

    /// What was released at `released` is gone; the token may be another description's by now.
    fn forget_released(&mut self, at: BootNs, token: Token, released: BootNs) {
        if self.files.get(&token).is_some_and(|file| file.opened_at.unwrap_or(file.first_seen) <= released) {
            self.forget_file(at, token);
        }
    }

    /// Counts for a process that is on its way out.
    fn in_exit(&mut self, id: ProcessId, count: impl FnOnce(&mut Released)) {
        if let Some(process) = self.processes.get_mut(&id).filter(|process| process.stage() == Stage::Exiting) {
            count(process.exit.releases.get_or_insert_default());
        }
    }

    fn remember(&mut self, release: Release) {
        if self.releases.len() == RELEASES_KEPT {
            // One that has not ended explains more than one that has.
            let done = self.releases.iter().position(|release| release.under_way().is_none()).unwrap_or(0);
            self.releases.remove(done);
        }
        self.releases.push_back(release);
    }

    /// What is under way, for the next trace file. The files themselves are carried before.
    pub(super) fn carry_releases(&self, out: &mut Vec<Event>) {
        for release in self.releases.iter().filter(|release| release.under_way().is_some()) {
            let mut tell = |work: &Work, at, step| {
                let Work { by, tid, ref comm, .. } = *work;
                out.push(Event { at, what: What::Release { by, tid, comm: comm.to_string(), file: release.file, dev: release.dev, step } });
            };
            if let Some(work) = &release.direct {
                tell(work, work.began, ReleaseStep::Begin);
                if let Some(ended) = work.ended {
                    tell(work, ended, ReleaseStep::End);
                }
            }
            if let Some(work) = &release.deferred {
                tell(work, work.began, ReleaseStep::DeferredBegin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Hold, Via};
    use crate::story::{CTL, GPU0, Story};

    fn step(story: &mut Story, by: ProcessId, file: Option<Token>, dev: Dev, step: ReleaseStep) {
        story.push(What::Release { by, tid: by.tgid(), comm: "python3".into(), file, dev, step });
    }

    #[test]
    fn a_description_is_gone_when_its_release_has_returned() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        let file = story.opens(trainer, CTL);
        step(&mut story, trainer, Some(file.file), CTL, ReleaseStep::Begin);
        assert!(story.world().file(file.file).is_some(), "it is still being released");
        step(&mut story, trainer, Some(file.file), CTL, ReleaseStep::End);
        let world = story.world();
        assert!(world.file(file.file).is_none());
        let release = world.releases().next().unwrap();
        assert_eq!(release.owner, Some(trainer));
        assert!(release.under_way().is_none() && release.direct.as_ref().unwrap().ended.is_some());
    }

    #[test]
    fn what_is_put_off_is_under_way_until_the_drivers_thread_has_done_it() {
        let mut story = Story::warm();
        let (trainer, queue) = (story.process(574, "python3"), ProcessId(77, 3));
        let file = story.opens(trainer, GPU0).file;
        step(&mut story, trainer, Some(file), GPU0, ReleaseStep::Begin);
        step(&mut story, trainer, Some(file), GPU0, ReleaseStep::End);
        step(&mut story, queue, Some(file), GPU0, ReleaseStep::DeferredBegin);
        assert_eq!(story.world().releases().next().unwrap().under_way().unwrap().by, queue);
        // The next file of the recording knows it too.
        let mut again = World::default();
        story.world().carry_over().iter().for_each(|event| again.apply(event));
        assert_eq!(again.releases().next().unwrap().under_way().unwrap().by, queue);
        step(&mut story, queue, Some(file), GPU0, ReleaseStep::DeferredEnd);
        assert!(story.world().releases().all(|release| release.under_way().is_none()));
    }

    #[test]
    fn whose_return_was_missed_is_over_when_the_process_is() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        let opened = story.opens(trainer, CTL);
        // Somebody is thought to have it still, who closed it unseen: what is being released nobody has.
        let other = story.process(600, "broker");
        story.found(&Hold { id: other, via: Some(Via::ScmRights), opener: None, ..opened.clone() });
        story.thread_exits(trainer, 574, 9, Some(9), 0);
        step(&mut story, trainer, Some(opened.file), CTL, ReleaseStep::Begin);
        assert!(story.world().releases().any(|release| release.under_way().is_some()));
        story.push(What::Zombie { id: trainer, parent: ProcessId(1, 1) });
        let world = story.world();
        assert!(world.releases().all(|release| release.under_way().is_none()) && world.file(opened.file).is_none());
        assert_eq!(world.process(trainer).unwrap().exit.releases.unwrap().under_way, 0);
    }

    #[test]
    fn a_missed_return_says_nothing_of_a_description_that_has_the_token_by_then() {
        let mut story = Story::warm();
        let monitor = story.process(300, "nvtop");
        let old = story.opens(monitor, CTL);
        step(&mut story, monitor, Some(old.file), CTL, ReleaseStep::Begin);
        let trainer = story.process(574, "python3");
        let since = Some(story.now + 1_000_000);
        story.found(&Hold { id: trainer, opener: Some(trainer), via: Some(Via::Opened), since, ..old.clone() });
        story.dies(monitor, 0);
        let world = story.world();
        assert!(world.file(old.file).unwrap().is_held_by(trainer));
        assert!(world.releases().all(|release| release.under_way().is_none()));
    }

    #[test]
    fn a_thread_that_begins_another_release_has_come_back_from_the_last() {
        let mut story = Story::warm();
        let (monitor, queue) = (story.process(300, "nvtop"), ProcessId(77, 3));
        for (file, begin, by) in [(1, ReleaseStep::Begin, monitor), (2, ReleaseStep::DeferredBegin, queue)] {
            for file in [file, file + 10] {
                step(&mut story, by, Some(file), GPU0, begin);
            }
        }
        let world = story.world();
        let open: Vec<_> = world.releases().filter(|release| release.under_way().is_some()).map(|release| release.file).collect();
        assert_eq!(open, [Some(11), Some(12)]);
    }

    #[test]
    fn memory_stays_bounded_and_what_is_stuck_is_not_forgotten() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        step(&mut story, trainer, Some(1), CTL, ReleaseStep::Begin);
        for file in 2..2_000 {
            step(&mut story, ProcessId(600, 1), Some(file), GPU0, ReleaseStep::Begin);
            step(&mut story, ProcessId(600, 1), Some(file), GPU0, ReleaseStep::End);
        }
        let world = story.world();
        assert_eq!(world.releases().count(), RELEASES_KEPT);
        assert_eq!(world.releases().next().unwrap().file, Some(1));
    }
}
