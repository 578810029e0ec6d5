//! What the recorder and a live look ask of the world.

use super::World;
use super::gpu::{Gpu, NOISE_BYTES};
use super::process::{Process, Stage};
use crate::event::ProcessId;
use std::collections::{BTreeMap, BTreeSet};

/// Ancestors that are followed.
const ANCESTORS_MAX: usize = 64;

impl World {
    /// It holds or held an NVIDIA file, descends from a process that does, or NVML charges it.
    #[must_use]
    pub fn uses_gpu(&self, id: ProcessId) -> bool {
        self.process(id).is_some_and(|p| p.held || p.charged || p.info.gpu_user == Some(true))
    }

    /// Its exit has begun and may give GPU memory back. A thread's exit in a living process does not, nor does that of a
    /// program which a GPU process has started and which closed its descriptors when it was executed.
    #[must_use]
    pub fn gives_memory_back(&self, id: ProcessId) -> bool {
        self.process(id).is_some_and(|p| p.stage() == Stage::Exiting && (p.charged || !p.files.is_empty()))
    }

    /// Processes that the kernel side must follow: those of `holders` that still hold something (`true`), and their
    /// ancestors (`false`).
    #[must_use]
    pub fn tracked(&self, holders: &BTreeSet<ProcessId>) -> Vec<(ProcessId, bool)> {
        let mut list: BTreeMap<ProcessId, bool> = BTreeMap::new();
        let holds = |p: &&Process| p.is_alive() && !p.files.is_empty();
        for process in holders.iter().filter_map(|id| self.process(*id)).filter(holds) {
            list.insert(process.id(), true);
            let parent = |id: &ProcessId| self.process(*id).and_then(|p| p.info.parent).filter(|p| p.tgid() > 1);
            let parents = std::iter::successors(parent(&process.id()), parent);
            for ancestor in parents.take(ANCESTORS_MAX) {
                list.entry(ancestor).or_insert(false);
            }
        }
        list.into_iter().collect()
    }

    /// A GPU process is on its way out: looking again shortly tells falling memory from stuck.
    #[must_use]
    pub fn something_is_leaving(&self) -> bool {
        let leaving = |p: &Process| p.stage() == Stage::Exiting || p.is_alive() && p.state().is_some_and(|s| !s.stuck.is_empty());
        self.processes().any(|p| leaving(p) && (!p.files.is_empty() || self.uses_gpu(p.id())))
    }

    /// Some GPU process should be gone: its exit has begun, or SIGKILL is pending.
    #[must_use]
    pub fn somebody_must_die(&self) -> bool {
        let must = |p: &Process| p.stage() == Stage::Exiting || p.is_alive() && p.state().is_some_and(|s| s.must_die());
        self.processes().any(|p| must(p) && self.uses_gpu(p.id()))
    }

    /// Where the kernel's own threads, and processes without descriptors that are exiting, are matters: somebody dies, memory is in use that no living process is charged for, or one of
    /// them was found inside the driver.
    #[must_use]
    pub fn wants_kernel_threads(&self) -> bool {
        let nobodys = |gpu: &Gpu| gpu.uncharged().is_some_and(|bytes| bytes > NOISE_BYTES);
        self.is_kernel_at_it() || self.somebody_must_die() || self.charges_the_dead() || self.gpus.values().any(nobodys)
    }

    /// NVML charges a process that is not known to live: who lives and is charged has the driver open, and a scan found it.
    #[must_use]
    pub fn charges_the_dead(&self) -> bool {
        self.gpus.values().flat_map(|gpu| gpu.lines.keys()).any(|(pid, _)| self.living(*pid).is_none_or(|p| !p.is_alive()))
    }

    /// A kernel thread was last seen inside the driver.
    #[must_use]
    pub fn is_kernel_at_it(&self) -> bool {
        self.host.kernel_threads.as_ref().is_some_and(|(_, list)| !list.is_empty())
    }

    /// Some description is held whose opener is not known to live.
    #[must_use]
    pub fn anything_outlives(&self) -> bool {
        let lives = |id: ProcessId| self.process(id).is_some_and(Process::is_alive);
        self.files().any(|file| file.opener.is_none_or(|(id, _)| !lives(id)))
    }

    /// PIDs that NVML charges and of which nothing is known: neither a process nor its absence, or no more of a zombie than that it is one. A
    /// scan that knows NVML's lists says which.
    #[must_use]
    pub fn unknown_pids(&self) -> BTreeSet<u32> {
        let listed = self.gpus().values().flat_map(|gpu| gpu.lines.keys().map(|(pid, _)| *pid));
        let unread = |process: &Process| process.stage() == Stage::Zombie && process.info.cgroup.is_none();
        listed.filter(|pid| self.living(*pid).map_or_else(|| !self.is_absent(*pid), unread)).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::event::What;
    use crate::story::Story;

    #[test]
    fn only_the_end_of_a_process_that_has_the_gpu_gives_memory_back() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.thread_exits(trainer, 575, 0, None, 3);
        assert!(!story.world().gives_memory_back(trainer), "a thread");
        let helper = story.forks(trainer, 580, "python3");
        story.execs(helper, "ls");
        story.thread_exits(helper, 580, 0, Some(0), 0);
        assert!(!story.world().gives_memory_back(helper), "it executed something else, which closed its descriptors");
        let worker = story.forks(trainer, 581, "python3");
        story.thread_exits(worker, 581, 0, Some(0), 0);
        assert!(story.world().gives_memory_back(worker), "a fork that still had the files");
        story.push(What::Zombie { id: worker, parent: trainer });
        assert!(!story.world().gives_memory_back(worker), "that is over");
        story.thread_exits(trainer, 574, 9, Some(9), 0);
        assert!(story.world().gives_memory_back(trainer));
    }
}
