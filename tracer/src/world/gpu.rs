//! One GPU as NVML shows it: memory over time and process lists.
//!
//! Always true: bounded. Samples are kept as points of change, so that a flat line costs nothing.

use super::process::Process;
use crate::event::{BootNs, GpuProcess, GpuUse};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Points of change kept.
pub const SAMPLES_KEPT: usize = 64;
/// A fall that is younger than this is still going on.
pub const FALLING_NS: u64 = 3_000_000_000;

/// Less than this is rounding, page tables, and the driver's own bookkeeping beside NVML's figures (9 MiB for one context on an H200).
pub const NOISE_BYTES: u64 = 16 << 20;

/// Memory at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Total bytes.
    pub total: u64,
    /// Used by clients.
    pub used: u64,
    /// Driver's reserve.
    pub reserved: Option<u64>,
}

/// One line of a process list, and since when it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Bytes that NVML charges.
    pub bytes: Option<u64>,
    /// Name, when NVML knew one.
    pub name: Option<String>,
    /// First list that had it.
    pub first_seen: BootNs,
}

/// One GPU.
#[derive(Clone, Debug, Default)]
pub struct Gpu {
    /// UUID.
    pub uuid: String,
    /// Product.
    pub name: String,
    /// Minor number of /dev/nvidiaN.
    pub minor: Option<u32>,
    /// PCI address.
    pub pci: Option<String>,
    /// Latest memory.
    pub memory: Option<Memory>,
    /// When it was last sampled, changed or not.
    pub sampled_at: BootNs,
    /// Used bytes at points of change, oldest first.
    pub samples: VecDeque<(BootNs, u64)>,
    /// Process lists by PID and list.
    pub lines: BTreeMap<(u32, GpuUse), Line>,
    /// When the lists were last received; absent when never.
    pub listed_at: Option<BootNs>,
    /// Last time that all that was in use was charged to somebody.
    pub settled_at: Option<BootNs>,
    /// What NVML last said of its health, and since when; absent when it never said anything.
    pub health: Option<(BootNs, Health)>,
}

/// A GPU's health in NVML's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// `nvmlDeviceGpuRecoveryAction_t`.
    pub recovery: Option<u32>,
    /// It fell off the bus.
    pub lost: bool,
    /// It does not answer before a reset.
    pub reset_required: bool,
}

impl Gpu {
    /// Takes a sample.
    pub fn sample(&mut self, at: BootNs, memory: Memory) {
        // The lists of the last sample, which came after its memory if they changed, belong to that.
        self.settle(self.sampled_at);
        self.sampled_at = self.sampled_at.max(at);
        self.memory = Some(memory);
        if self.samples.back().is_none_or(|(_, used)| *used != memory.used) {
            if self.samples.len() == SAMPLES_KEPT {
                self.samples.pop_front();
            }
            self.samples.push_back((at, memory.used));
        }
    }

    /// Takes whole lists; returns the PIDs that were charged before and no longer are.
    pub fn list(&mut self, at: BootNs, list: &[GpuProcess]) -> Vec<(u32, BootNs)> {
        let old = std::mem::take(&mut self.lines);
        for line in list {
            let first_seen = old.get(&(line.pid, line.usage)).map_or(at, |known| known.first_seen);
            let entry = Line { bytes: line.bytes, name: line.name.clone(), first_seen };
            self.lines.insert((line.pid, line.usage), entry);
        }
        self.listed_at = Some(at);
        self.settle(at);
        old.iter().filter(|((pid, _), _)| self.of_pid(*pid).next().is_none()).map(|((pid, _), l)| (*pid, l.first_seen)).collect()
    }

    /// Notes whether all that is in use is charged to somebody.
    fn settle(&mut self, at: BootNs) {
        if self.listed_at.is_some() && self.uncharged().is_some_and(|bytes| bytes <= NOISE_BYTES) {
            self.settled_at = self.settled_at.max(Some(at));
        }
    }

    /// Where this process may have left memory behind, nobody can tell any more, once it is forgotten, since when all was charged.
    pub(super) fn forget_settled(&mut self, process: &Process) {
        self.settled_at = self.settled_at.filter(|settled| !process.left_since(*settled));
    }

    /// Used bytes that NVML charges to no process.
    #[must_use]
    pub fn uncharged(&self) -> Option<u64> {
        let pids: BTreeSet<u32> = self.lines.keys().map(|(pid, _)| *pid).collect();
        let charged = pids.into_iter().filter_map(|pid| self.charged(pid).flatten()).fold(0, u64::saturating_add);
        Some(self.memory?.used.saturating_sub(charged))
    }

    /// The lines of one PID.
    pub fn of_pid(&self, pid: u32) -> impl Iterator<Item = &Line> {
        self.lines.range((pid, GpuUse::Compute)..=(pid, GpuUse::Mps)).map(|(_, line)| line)
    }

    /// Bytes charged to a PID; `None` when it is not listed, `Some(None)` when it is but NVML does not say how much.
    #[must_use]
    pub fn charged(&self, pid: u32) -> Option<Option<u64>> {
        // A process may be in several lists with the same memory: the largest figure is the whole.
        self.of_pid(pid).map(|line| line.bytes).reduce(Option::max)
    }

    /// Used memory fell, and the fall is younger than [`FALLING_NS`]: from how much, since when.
    #[must_use]
    pub fn falling(&self, now: BootNs) -> Option<(BootNs, u64)> {
        let (last_at, last) = *self.samples.back()?;
        if now.saturating_sub(last_at) > FALLING_NS {
            return None;
        }
        let mut top = (last_at, last);
        for &(at, used) in self.samples.iter().rev().skip(1) {
            if used < top.1 {
                break;
            }
            top = (at, used);
        }
        (top.1 > last).then_some(top)
    }

    /// Used memory has not changed between two samples for at least this long.
    #[must_use]
    pub fn flat_for(&self) -> u64 {
        self.samples.back().map_or(0, |(at, _)| self.sampled_at.saturating_sub(*at))
    }
}
