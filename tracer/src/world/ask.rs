//! What the recorder and a live look ask of the world.

use super::World;
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

    /// Some description is held whose opener is not known to live.
    #[must_use]
    pub fn anything_outlives(&self) -> bool {
        let lives = |id: ProcessId| self.process(id).is_some_and(Process::is_alive);
        self.files().any(|file| file.opener.is_none_or(|(id, _)| !lives(id)))
    }

    /// PIDs that NVML charges and of which nothing at all is known: neither a process nor its absence. A scan that
    /// knows NVML's lists says which.
    #[must_use]
    pub fn unknown_pids(&self) -> BTreeSet<u32> {
        let listed = self.gpus().values().flat_map(|gpu| gpu.lines.keys().map(|(pid, _)| *pid));
        listed.filter(|pid| self.living(*pid).is_none() && !self.is_absent(*pid)).collect()
    }
}
