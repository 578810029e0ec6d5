//! Forgetting the dead.
//!
//! Always true: a dead process is kept as long as an explanation can name it: it opened a description that is still
//! open, passed it on, made GPU memory that is still kept, launched a process that still lives, is in an NVML list, or died within the last second.
//! Looking for the others costs a pass over the world, so it is done once per so many deaths: a constant per death.

use super::World;
use super::process::{Process, Stage};
use crate::event::{BootNs, ProcessId};
use std::collections::BTreeSet;

/// Finished processes kept for timelines.
pub(super) const FINISHED_KEPT: usize = 10_000;
/// Deaths after which it is worth looking.
const DEATHS_BETWEEN: usize = 1_024;
/// A reap or an NVML list may follow a death by this much.
const RECENT_NS: BootNs = 1_000_000_000;
/// PIDs known to be absent, kept.
const ABSENT_KEPT: usize = 65_536;

impl World {
    pub(super) fn retire_the_dead(&mut self) {
        if self.deaths < DEATHS_BETWEEN.max(self.processes.len() / 2) {
            return;
        }
        self.deaths = 0;
        let needed = self.needed();
        let recent = self.host.now.saturating_sub(RECENT_NS);
        let done = |p: &Process| {
            p.stage() == Stage::Gone && p.exit.last_known().is_none_or(|at| at < recent) && !needed.contains(&p.id())
        };
        let ids: Vec<ProcessId> = self.processes().filter(|p| done(p)).map(Process::id).collect();
        for id in &ids {
            if let Some(mut process) = self.processes.remove(id) {
                if process.held || process.charged || process.info.gpu_user == Some(true) {
                    process.shrink();
                    self.finished.push_back(process);
                }
                if self.finished.len() > FINISHED_KEPT {
                    let forgotten = self.finished.pop_front();
                    forgotten.iter().for_each(|process| self.gpus.values_mut().for_each(|gpu| gpu.forget_settled(process)));
                }
            }
        }
        let processes = &self.processes;
        self.books.forget_missed(&|id| processes.contains_key(id));
        self.creds.retain(|_, id| processes.contains_key(id));
        self.unreaped.retain(|_, children| {
            children.retain(|id| processes.contains_key(id));
            !children.is_empty()
        });
        while self.absent.len() > ABSENT_KEPT {
            self.absent.pop_first();
        }
    }

    fn needed(&self) -> BTreeSet<ProcessId> {
        let mut needed = BTreeSet::new();
        for file in self.files.values() {
            needed.extend(file.opener.map(|(id, _)| id));
            needed.extend(file.holders.values().filter_map(|holder| holder.from));
            needed.extend(file.sent.iter().map(|sent| sent.by));
        }
        needed.extend(self.books.needed());
        for process in self.processes.values().filter(|p| p.stage() < Stage::Gone) {
            needed.extend(process.born_of);
            needed.extend(process.first_parent);
        }
        for (pid, _) in self.gpus.values().flat_map(|gpu| gpu.lines.keys()) {
            needed.extend(self.process_at(*pid, BootNs::MAX).map(Process::id));
        }
        needed
    }
}
