//! Everything that is known: the fold of events.
//!
//! Always true: [`World::apply`] is the only way in; no clock and no I/O; the same events give the same world; memory is
//! bounded, because what is dead, collected and holds nothing is forgotten, oldest first; any order that the kernel can
//! produce and any prefix of a recording is accepted.

mod apply;
mod carry;
pub mod file;
pub mod gpu;
pub mod process;
mod time;

use crate::event::{BootNs, Dev, Header, ProcessId, Token};
use file::OpenFile;
use gpu::Gpu;
use process::Process;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Finished processes kept for timelines.
const FINISHED_MAX: usize = 10_000;
/// Descriptor passings, Xids kept.
const LOG_MAX: usize = 1_024;
/// Distinct limits kept.
const LIMITS_MAX: usize = 256;

/// A description was put into a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When.
    pub at: BootNs,
    /// By whom.
    pub by: ProcessId,
    /// The description.
    pub file: Token,
}

/// A GPU error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// When.
    pub at: BootNs,
    /// PCI address.
    pub pci: String,
    /// Number.
    pub code: u32,
    /// PID that the message names.
    pub pid: Option<u32>,
    /// Message.
    pub message: String,
}

/// The last complete scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanDone {
    /// When it began.
    pub began: BootNs,
    /// Processes on the host.
    pub processes: u32,
    /// Zombies on the host.
    pub zombies: u32,
    /// Every table could be read.
    pub complete: bool,
}

/// Everything that is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    /// The host and what was attached.
    pub header: Header,
    /// Time of the newest event.
    pub now: BootNs,
    /// Wall clock minus boottime, ns; 0 until a header came.
    wall_offset: i128,
    /// GPUs by NVML index.
    pub gpus: BTreeMap<u32, Gpu>,
    /// Processes.
    pub processes: HashMap<ProcessId, Process>,
    /// The newest process of each tgid.
    latest: HashMap<u32, ProcessId>,
    /// Living descriptions.
    pub files: HashMap<Token, OpenFile>,
    /// Passings, oldest first.
    pub sent: VecDeque<Sent>,
    /// GPU errors, oldest first.
    pub xids: VecDeque<Xid>,
    /// Lost events by cause.
    pub lost: BTreeMap<String, u64>,
    /// When the last loss was reported.
    pub lost_at: Option<BootNs>,
    /// What cannot be seen: missing, voids.
    pub limits: BTreeMap<String, String>,
    /// The last scan.
    pub scan: Option<ScanDone>,
    /// Dead, collected processes, oldest first, kept for timelines.
    finished: VecDeque<ProcessId>,
    /// Files of which nobody is left, so that a shared opener count stays right.
    archived: u64,
}

impl World {
    /// The newest process with this tgid.
    #[must_use]
    pub fn by_tgid(&self, tgid: u32) -> Option<&Process> {
        self.latest.get(&tgid).and_then(|id| self.processes.get(id))
    }

    /// A process.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(&id)
    }

    /// It opened an NVIDIA file, holds one, or NVML charged it.
    #[must_use]
    pub fn uses_gpu(&self, id: ProcessId) -> bool {
        self.processes.get(&id).is_some_and(|p| p.used_gpu || !p.held.is_empty() || p.info.gpu_user == Some(true))
    }

    /// Path of a device number.
    #[must_use]
    pub fn device(&self, dev: Dev) -> String {
        self.header
            .devices
            .iter()
            .find(|n| n.dev == dev)
            .map_or_else(|| format!("device {}:{}", dev.major(), dev.minor()), |n| n.path.clone())
    }

    /// Processes that the kernel side must follow: (process, it uses the GPU itself).
    #[must_use]
    pub fn tracked(&self) -> Vec<(ProcessId, bool)> {
        let mut list: BTreeMap<ProcessId, bool> = BTreeMap::new();
        for process in self.processes.values().filter(|p| !p.held.is_empty() && !p.is_dead()) {
            list.insert(process.id(), true);
            for ancestor in self.ancestors(process.id()) {
                list.entry(ancestor).or_insert(false);
            }
        }
        list.into_iter().collect()
    }

    /// Parents of a process, nearest first, without PID 1; at most 64.
    pub fn ancestors(&self, id: ProcessId) -> impl Iterator<Item = ProcessId> + '_ {
        let next = move |id: &ProcessId| self.processes.get(id).and_then(|p| p.info.parent).filter(|p| p.tgid() > 1);
        std::iter::successors(next(&id), next).take(64)
    }

    /// Something is on its way out: a process that holds descriptions is exiting, or one that NVML charges has just died.
    #[must_use]
    pub fn something_is_leaving(&self) -> bool {
        self.processes.values().any(|p| p.is_exiting() && (!p.held.is_empty() || p.used_gpu || self.charged(p.id().tgid())))
    }

    /// NVML charges this PID with memory on some GPU.
    #[must_use]
    pub fn charged(&self, pid: u32) -> bool {
        self.gpus.values().any(|g| g.charged(pid).is_some())
    }

    /// Some description is held whose opener is not alive.
    #[must_use]
    pub fn anything_outlives(&self) -> bool {
        self.files.values().any(|f| f.opener.is_none_or(|o| self.processes.get(&o).is_none_or(Process::is_dead)))
    }

    /// The process whose credentials are these; zombies included, because they keep theirs.
    #[must_use]
    pub fn by_cred(&self) -> HashMap<Token, ProcessId> {
        let known = self.processes.values().filter(|p| !p.is_gone());
        known.filter_map(|p| p.info.cred.filter(|c| *c != 0).map(|c| (c, p.id()))).collect()
    }

    /// Events were lost: what could have been in the hole is deduced, not known.
    #[must_use]
    pub fn has_holes(&self) -> bool {
        !self.lost.is_empty()
    }
}
