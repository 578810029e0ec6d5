//! The host: header, clocks, what was lost, what cannot be seen, and Xids.
//!
//! Always true: bounded, and no clock is read: wall-clock times are computed from what the events say.

use crate::event::{BootNs, Header, KernelThread};
use crate::explanation::LimitPart;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

/// Xids kept.
pub const XIDS_KEPT: usize = 256;
/// Clock corrections kept.
const CLOCKS_KEPT: usize = 256;
/// Limits kept.
const LIMITS_KEPT: usize = 256;
/// Kernel threads and modules kept.
const KERNEL_THREADS_KEPT: usize = 64;
const MODULES_KEPT: usize = 32;

/// A GPU error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// When.
    pub at: BootNs,
    /// PCI address as reported.
    pub pci: String,
    /// Number.
    pub code: u32,
    /// Creator of the channel.
    pub pid: Option<u32>,
    /// Message.
    pub message: String,
}

/// The last scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastScan {
    /// When it began.
    pub began: BootNs,
    /// When it was complete.
    pub at: BootNs,
    /// Processes on the host.
    pub processes: u32,
    /// Zombies on the host.
    pub zombies: u32,
    /// Every table could be read.
    pub complete: bool,
}

/// The host.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Latest header.
    pub header: Option<Box<Header>>,
    /// Time of the latest event.
    pub now: BootNs,
    /// (boottime, wall clock), in order.
    clocks: Vec<(BootNs, u64)>,
    /// Lost events by cause: how many, last when.
    pub lost: BTreeMap<String, (u64, BootNs)>,
    /// What cannot be seen.
    pub limits: BTreeSet<LimitPart>,
    /// GPU errors, oldest first.
    pub xids: VecDeque<Xid>,
    /// Older ones that are no longer kept.
    pub xids_forgotten: u64,
    /// The last scan.
    pub scan: Option<LastScan>,
    /// Kernel threads inside the driver, when they were last looked for.
    pub kernel_threads: Option<(BootNs, Vec<KernelThread>)>,
    /// Users of each loaded module of the driver, as last read.
    pub modules: BTreeMap<String, u32>,
    /// When the recorder stopped, and why.
    pub stopped: Option<(BootNs, String)>,
}

impl Host {
    /// Sets the wall clock.
    pub fn set_clock(&mut self, at: BootNs, real_ns: u64) {
        if real_ns == 0 {
            return;
        }
        let place = self.clocks.partition_point(|(known, _)| *known <= at);
        self.clocks.insert(place, (at, real_ns));
        if self.clocks.len() > CLOCKS_KEPT {
            self.clocks.remove(1);
        }
    }

    /// (boottime, wall clock ns since 1970) pairs, in order.
    pub fn clocks(&self) -> impl Iterator<Item = (BootNs, u64)> {
        self.clocks.iter().copied()
    }

    /// Wall-clock ns since 1970 at `at`, by the clock in force then.
    #[must_use]
    pub fn real_ns(&self, at: BootNs) -> Option<u64> {
        let after = self.clocks.partition_point(|(known, _)| *known <= at);
        let (known, real) = *self.clocks.get(after.saturating_sub(1))?;
        Some(if at >= known { real.saturating_add(at - known) } else { real.saturating_sub(known - at) })
    }

    /// RFC 3339 with milliseconds, UTC.
    #[must_use]
    pub fn wall(&self, at: BootNs) -> Option<String> {
        // u64 nanoseconds end in 2554, well before what RFC 3339 can write.
        let real = self.real_ns(at)?;
        Some(humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + Duration::from_nanos(real)).to_string())
    }

    /// Keeps an Xid; the same one reported by two sources within a second counts once, those of different processes never.
    pub fn xid(&mut self, xid: Xid) {
        let same = |x: &&mut Xid| {
            let one_pid = x.pid == xid.pid || x.pid.is_none() || xid.pid.is_none();
            x.code == xid.code && one_pid && same_gpu(&x.pci, &xid.pci) && x.at.abs_diff(xid.at) < 1_000_000_000
        };
        if let Some(known) = self.xids.iter_mut().rev().take(16).find(same) {
            known.pid = known.pid.or(xid.pid);
            return;
        }
        if self.xids.len() == XIDS_KEPT {
            self.xids.pop_front();
            self.xids_forgotten = self.xids_forgotten.saturating_add(1);
        }
        self.xids.push_back(xid);
    }

    /// The kernel threads inside the driver are these now.
    pub fn sees_kernel_threads(&mut self, at: BootNs, list: &[KernelThread]) {
        self.kernel_threads = Some((at, list.iter().take(KERNEL_THREADS_KEPT).cloned().collect()));
    }

    /// The modules of the driver have these users now.
    pub fn sees_modules(&mut self, users: &BTreeMap<String, u32>) {
        self.modules = users.iter().take(MODULES_KEPT).map(|(name, users)| (name.clone(), *users)).collect();
    }

    /// Keeps a limit.
    pub fn limit(&mut self, limit: LimitPart) {
        if self.limits.len() < LIMITS_KEPT {
            self.limits.insert(limit);
        }
    }

    /// Events were lost.
    pub fn loses(&mut self, at: BootNs, cause: &str, count: u64) {
        if count == 0 {
            return;
        }
        if let Some(known) = self.lost.get_mut(cause) {
            *known = (known.0.saturating_add(count), known.1.max(at));
        } else if self.lost.len() < LIMITS_KEPT {
            self.lost.insert(cause.to_owned(), (count, at));
        }
    }

    /// When the hooks were attached.
    #[must_use]
    pub fn watching_since(&self) -> Option<BootNs> {
        self.header.as_ref().and_then(|h| h.watching_since)
    }
}

/// "0000:0b:00.0" and "0000:0B:00" and "00000000:0B:00.0" are one GPU.
#[must_use]
pub fn same_gpu(a: &str, b: &str) -> bool {
    fn key(pci: &str) -> Option<(u32, u32, u32)> {
        let mut parts = pci.split(':').rev();
        let device = parts.next()?.split('.').next()?;
        let bus = parts.next()?;
        let domain = parts.next().unwrap_or("0");
        let hex = |s: &str| u32::from_str_radix(s.trim(), 16).ok();
        Some((hex(domain)?, hex(bus)?, hex(device)?))
    }
    match (key(a), key(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(at: BootNs, pid: Option<u32>) -> Xid {
        Xid { at, pci: "0000:0b:00".to_owned(), code: 31, pid, message: String::new() }
    }

    #[test]
    fn one_xid_of_two_sources_counts_once_and_those_of_two_processes_twice() {
        let mut host = Host::default();
        [xid(1, None), xid(2, Some(574)), xid(3, Some(580)), xid(4, Some(574))].into_iter().for_each(|one| host.xid(one));
        assert_eq!(host.xids.iter().map(|xid| xid.pid).collect::<Vec<_>>(), [Some(574), Some(580)]);
    }

    #[test]
    fn xids_that_are_no_longer_kept_are_counted() {
        let mut host = Host::default();
        (0..XIDS_KEPT as u32 + 7).for_each(|pid| host.xid(xid(1, Some(pid + 1))));
        assert_eq!((host.xids.len(), host.xids_forgotten), (XIDS_KEPT, 7));
    }
}
