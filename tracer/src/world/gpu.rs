//! One GPU: its memory now and a moment ago, and whom NVML charges.
//!
//! Always true: the history is bounded and holds changes only, so "flat" is the absence of newer entries.

use crate::event::{BootNs, GpuProcess};
use std::collections::VecDeque;

/// Samples kept per GPU.
const HISTORY_MAX: usize = 512;

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// When it changed to this.
    pub at: BootNs,
    /// Total bytes.
    pub total: u64,
    /// Used by clients.
    pub used: u64,
    /// Driver's reserve.
    pub reserved: Option<u64>,
}

/// What is known of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// UUID.
    pub uuid: String,
    /// Product.
    pub name: String,
    /// Minor number of its node.
    pub minor: Option<u32>,
    /// PCI address.
    pub pci: Option<String>,
    /// Readings, oldest first.
    pub memory: VecDeque<Memory>,
    /// NVML's list.
    pub processes: Vec<GpuProcess>,
    /// Per PID of the list, since when it is in it.
    pub listed_since: Vec<(u32, BootNs)>,
}

impl Gpu {
    /// The latest reading.
    #[must_use]
    pub fn now(&self) -> Option<Memory> {
        self.memory.back().copied()
    }

    /// Adds a reading.
    pub fn read(&mut self, memory: Memory) {
        if self.memory.len() >= HISTORY_MAX {
            self.memory.pop_front();
        }
        self.memory.push_back(memory);
    }

    /// Replaces the process list.
    pub fn list(&mut self, at: BootNs, list: &[GpuProcess]) {
        let since: Vec<(u32, BootNs)> = list
            .iter()
            .map(|p| (p.pid, self.listed_since.iter().find(|(pid, _)| *pid == p.pid).map_or(at, |(_, since)| *since)))
            .collect();
        self.listed_since = since;
        self.processes = list.to_vec();
    }

    /// Bytes that NVML charges to this PID, all lists together (a process can be in several with the same figure).
    #[must_use]
    pub fn charged(&self, pid: u32) -> Option<u64> {
        self.processes.iter().filter(|p| p.pid == pid).filter_map(|p| p.bytes).max()
    }

    /// Used memory fell by more than noise since `since`.
    #[must_use]
    pub fn fell_since(&self, since: BootNs) -> Option<u64> {
        let now = self.now()?.used;
        let before = self.memory.iter().filter(|m| m.at >= since).map(|m| m.used).max()?;
        let start = self.memory.iter().rev().find(|m| m.at <= since).map_or(before, |m| m.used.max(before));
        (start > now).then(|| start - now)
    }
}
