//! How often the recorder looks: when a scan is due, and when NVML is sampled fast.
//!
//! Always true: pure, so that every rule has a test; whatever happens, scans take a bounded share of the time and fast
//! sampling ends by itself.

use crate::event::{BootNs, ProcessId};
use std::collections::BTreeMap;

/// A change waits this long for others before it is followed by a scan.
const SCAN_DELAY_NS: u64 = 5_000_000;
/// A scan may take at most this share of the time: the next one waits this many times the last one's duration.
const SCAN_COST: u64 = 50;
/// While something outlives its owner, its state is looked at this often.
const LOOK_AGAIN_NS: u64 = 5_000_000_000;
/// No hook tells that a process was frozen, traced, or registered a file in an io_uring: a scan looks at a quiet host this often
/// at least, at most, and so that it takes no more than this share of the time.
const HEARTBEAT_MIN_NS: u64 = 30_000_000_000;
const HEARTBEAT_MAX_NS: u64 = 600_000_000_000;
const HEARTBEAT_COST: u64 = 2_000;
/// Fast sampling goes on until nothing moved for this long...
const STABLE_NS: u64 = 500_000_000;
/// ...and no longer than this after a process began its exit, or finished it: on a busy host memory always moves.
const FAST_MAX_NS: u64 = 60_000_000_000;

/// When the next scan is due.
#[derive(Debug, Default)]
pub(super) struct ScanPlan {
    /// Something changed then that a scan must follow.
    wanted_at: Option<BootNs>,
    last_at: BootNs,
    last_cost_ns: u64,
}

impl ScanPlan {
    /// Something changed at `at`.
    pub(super) fn want(&mut self, at: BootNs) {
        self.wanted_at.get_or_insert(at);
    }

    /// A scan is waiting to become due.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted_at.is_some()
    }

    /// A scan was made, or tried in vain.
    pub(super) fn made(&mut self, began: BootNs, ended: BootNs) {
        *self = ScanPlan { wanted_at: None, last_at: ended, last_cost_ns: ended.saturating_sub(began) };
    }

    /// `outliving` is asked only when it matters, because the answer takes a pass over all descriptions.
    pub(super) fn due(&self, now: BootNs, outliving: impl FnOnce() -> bool) -> bool {
        let since = now.saturating_sub(self.last_at);
        if since < self.last_cost_ns.saturating_mul(SCAN_COST) {
            return false;
        }
        match self.wanted_at {
            Some(at) => now.saturating_sub(at) >= SCAN_DELAY_NS,
            None => since >= self.heartbeat() || since >= LOOK_AGAIN_NS && outliving(),
        }
    }
}

impl ScanPlan {
    fn heartbeat(&self) -> u64 {
        self.last_cost_ns.saturating_mul(HEARTBEAT_COST).clamp(HEARTBEAT_MIN_NS, HEARTBEAT_MAX_NS)
    }
}

/// When NVML is asked again after a program opened the driver, lest its memory stay unknown until the next sample at rest: once it has
/// had time for a first allocation, and once its libraries are loaded.
const SAMPLE_AFTER_NS: [u64; 2] = [1_000_000_000, 5_000_000_000];

/// Samples that are due because programs began to use the GPU.
#[derive(Debug, Default)]
pub(super) struct SamplePlan {
    /// Ascending; at most one for each delay, so that a storm of programs is sampled no more often than one of them.
    due: [Option<BootNs>; SAMPLE_AFTER_NS.len()],
}

impl SamplePlan {
    /// A program opened the driver.
    pub(super) fn opened(&mut self, at: BootNs) {
        for (due, after) in self.due.iter_mut().zip(SAMPLE_AFTER_NS) {
            due.get_or_insert(at.saturating_add(after));
        }
    }

    /// A sample is due; it then no longer is.
    pub(super) fn take(&mut self, now: BootNs) -> bool {
        let mut any = false;
        for due in &mut self.due {
            any |= due.take_if(|at| *at <= now).is_some();
        }
        any
    }
}

/// Whose memory is about to come back.
#[derive(Debug, Default)]
pub(super) struct MemoryWatch {
    /// GPU processes whose exit has begun, and when.
    leaving: BTreeMap<ProcessId, BootNs>,
    /// GPU processes that got a signal that should end them, and when: looked at until it is clear whether it did.
    signalled: BTreeMap<ProcessId, BootNs>,
    /// The last one of them had left then.
    left_at: Option<BootNs>,
    /// Last time that memory or a process list moved.
    moved_at: BootNs,
}

impl MemoryWatch {
    /// The exit of a GPU process has begun.
    pub(super) fn leaves(&mut self, id: ProcessId, at: BootNs) {
        self.leaving.entry(id).or_insert(at);
    }

    /// A GPU process got a signal that should end it.
    pub(super) fn signalled(&mut self, id: ProcessId, at: BootNs) {
        self.signalled.entry(id).or_insert(at);
    }

    /// The process is past its end; true when it was being watched.
    pub(super) fn left(&mut self, id: ProcessId, at: BootNs) -> bool {
        self.signalled.remove(&id);
        let watched = self.leaving.remove(&id).is_some();
        if watched {
            self.left_at = Some(at);
        }
        watched
    }

    /// Memory or a process list changed.
    pub(super) fn moved(&mut self, at: BootNs) {
        self.moved_at = at;
    }

    /// Some GPU process is on its way out, or should be.
    pub(super) fn anybody_watched(&self) -> bool {
        !self.leaving.is_empty() || !self.signalled.is_empty()
    }

    /// Sample fast now. Forgets those that do not finish their exit.
    pub(super) fn is_fast(&mut self, now: BootNs) -> bool {
        for watched in [&mut self.leaving, &mut self.signalled] {
            watched.retain(|_, since| now.saturating_sub(*since) < FAST_MAX_NS);
        }
        let settling = |left: BootNs| {
            let quiet = now.saturating_sub(left.max(self.moved_at));
            now.saturating_sub(left) < FAST_MAX_NS && quiet < STABLE_NS
        };
        !self.leaving.is_empty() || self.left_at.is_some_and(settling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SEC: u64 = 1_000 * MS;
    const WHO: ProcessId = ProcessId(574, 1);

    #[test]
    fn a_change_is_followed_by_a_scan_but_scans_never_take_more_than_their_share() {
        let mut plan = ScanPlan { wanted_at: None, last_at: SEC, last_cost_ns: MS };
        assert!(!plan.due(1_100 * MS, || false));
        plan.want(1_100 * MS);
        assert!(!plan.due(1_101 * MS, || false), "waits for more changes");
        assert!(plan.due(1_106 * MS, || false));
        plan.last_cost_ns = 100 * MS;
        assert!(!plan.due(1_106 * MS, || false), "a slow scan is not repeated at once");
        assert!(plan.due(6_100 * MS, || false));
    }

    #[test]
    fn what_outlives_its_owner_is_looked_at_again_and_again() {
        let plan = ScanPlan::default();
        assert!(!plan.due(6 * SEC, || false));
        assert!(plan.due(6 * SEC, || true));
    }

    #[test]
    fn a_quiet_host_is_looked_at_as_often_as_it_can_afford() {
        let at = |last_cost_ns| ScanPlan { wanted_at: None, last_at: 0, last_cost_ns };
        assert!(at(MS / 3).due(31 * SEC, || false));
        assert!(!at(30 * MS).due(31 * SEC, || false));
        assert!(at(30 * MS).due(61 * SEC, || false));
    }

    #[test]
    fn a_program_that_opened_the_driver_is_sampled_soon_and_once_more() {
        const SECOND: u64 = 1_000_000_000;
        let mut plan = SamplePlan::default();
        assert!(!plan.take(10 * SECOND));
        plan.opened(10 * SECOND);
        plan.opened(10 * SECOND + 7);
        let due: Vec<u64> = (0..100).map(|tenth| 10 * SECOND + tenth * SECOND / 10).filter(|now| plan.take(*now)).collect();
        assert_eq!(due, [11 * SECOND, 15 * SECOND]);
    }

    #[test]
    fn a_signal_is_followed_without_sampling_fast() {
        let mut watch = MemoryWatch::default();
        watch.signalled(WHO, 10 * SEC);
        assert!(watch.anybody_watched() && !watch.is_fast(11 * SEC));
        assert!(!watch.is_fast(71 * SEC) && !watch.anybody_watched(), "it did not end in a minute");
    }

    #[test]
    fn memory_that_moves_while_nobody_exits_is_not_sampled_fast() {
        let mut watch = MemoryWatch::default();
        watch.moved(10 * SEC);
        assert!(!watch.is_fast(10 * SEC + MS));
    }

    #[test]
    fn an_exit_is_sampled_fast_until_memory_is_stable() {
        let mut watch = MemoryWatch::default();
        watch.leaves(WHO, 10 * SEC);
        assert!(watch.is_fast(11 * SEC));
        assert!(watch.left(WHO, 12 * SEC));
        watch.moved(12 * SEC + 400 * MS);
        assert!(watch.is_fast(12 * SEC + 800 * MS), "it moved 400 ms ago");
        assert!(!watch.is_fast(12 * SEC + 900 * MS));
        assert!(!watch.left(WHO, 13 * SEC), "only once");
    }

    #[test]
    fn fast_sampling_ends_though_an_exit_hangs_or_others_keep_memory_moving() {
        let mut watch = MemoryWatch::default();
        watch.leaves(WHO, SEC);
        assert!(watch.is_fast(60 * SEC));
        watch.moved(61 * SEC);
        assert!(!watch.is_fast(61 * SEC), "the exit hangs");
        watch.leaves(WHO, 100 * SEC);
        assert!(watch.left(WHO, 101 * SEC));
        watch.moved(161 * SEC);
        assert!(!watch.is_fast(161 * SEC), "another process allocates");
    }
}
