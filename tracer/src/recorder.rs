//! The recorder: drains every source into one world and one trace file until it is told to stop.
//!
//! Always true:
//! * every event goes through [`Recorder::take`], which folds it and writes it: what the file says is what was known;
//! * a scan of all processes happens when something changed that only a scan can settle, never more often than its
//!   own cost allows, and the ring is drained between the scan and the comparison;
//! * NVML is sampled every few milliseconds from a GPU process's exit until its memory is back or nothing moves;
//! * a full disk, a vanished driver or a lost GPU is reported and recording goes on.

use crate::event::{BootNs, Event, ProcessId, What};
use crate::source::kernel::Kernel;
use crate::source::kmsg::Kmsg;
use crate::source::nvml::{self, Rate, Sampler};
use crate::source::procfs::Proc;
use crate::trace::writer::Writer;
use crate::world::World;
use crate::{host, sys};
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::Duration;

/// A change waits this long for others before it is followed by a scan.
const SCAN_DELAY_NS: u64 = 5_000_000;
/// A scan may take at most this share of the time: the next one waits this many times the last one's duration.
const SCAN_COST: u64 = 50;
/// While something outlives its owner, its state is looked at this often.
const LOOK_AGAIN_NS: u64 = 5_000_000_000;
/// With nothing going on, a scan confirms the books this often.
const HEARTBEAT_NS: u64 = 600_000_000_000;
/// Fast sampling goes on until nothing moved for this long...
const STABLE_NS: u64 = 500_000_000;
/// ...and a process that does not finish its exit is watched no longer than this.
const FAST_MAX_NS: u64 = 60_000_000_000;
/// Time between two drains while events come, and when none do.
const SOON: Duration = Duration::from_millis(3);
const IDLE: Duration = Duration::from_millis(900);
/// The wall clock is written again when it moved by more than this against boottime.
const CLOCK_STEP_NS: u64 = 50_000_000;

/// Everything that a recording needs. `writer` is the only thing that it changes on the host.
pub struct Recorder {
    kernel: Kernel,
    sampler: Sampler,
    kmsg: Option<Kmsg>,
    proc: Proc,
    world: World,
    writer: Writer,
    /// GPU processes whose exit has begun, and when.
    leaving: BTreeMap<ProcessId, BootNs>,
    /// Last time that memory or a process list moved.
    moved_at: BootNs,
    fast: bool,
    scan: ScanPlan,
    wall_offset: i128,
    write_failed: bool,
    /// The last drain found events.
    busy: bool,
    buffer: Vec<Event>,
}

/// When the next scan is due.
#[derive(Debug, Default)]
struct ScanPlan {
    /// Something changed then that a scan must follow.
    wanted_at: Option<BootNs>,
    last_at: BootNs,
    last_cost_ns: u64,
}

impl ScanPlan {
    fn want(&mut self, at: BootNs) {
        self.wanted_at.get_or_insert(at);
    }

    fn due(&self, now: BootNs, outliving: bool) -> bool {
        let since = now.saturating_sub(self.last_at);
        if since < self.last_cost_ns.saturating_mul(SCAN_COST) {
            return false;
        }
        match self.wanted_at {
            Some(at) => now.saturating_sub(at) >= SCAN_DELAY_NS,
            None => since >= if outliving { LOOK_AGAIN_NS } else { HEARTBEAT_NS },
        }
    }
}

/// The sources of a recording, ready to run.
pub struct Sources {
    /// With everything attached.
    pub kernel: Kernel,
    /// Started.
    pub sampler: Sampler,
    /// The kernel log, where the Xid tracepoint is missing.
    pub kmsg: Option<Kmsg>,
    /// /proc.
    pub proc: Proc,
}

impl Recorder {
    /// Takes the first snapshot. `opening` are the events that `writer` was created with.
    ///
    /// # Errors
    /// When the host cannot be scanned.
    pub fn new(sources: Sources, writer: Writer, opening: &[Event]) -> Result<Recorder> {
        let mut world = World::default();
        for event in opening {
            world.apply(event);
        }
        let Sources { kernel, sampler, kmsg, proc } = sources;
        let mut recorder = Recorder {
            kernel,
            sampler,
            kmsg,
            proc,
            world,
            writer,
            leaving: BTreeMap::new(),
            moved_at: 0,
            fast: false,
            scan: ScanPlan::default(),
            wall_offset: wall_offset(),
            write_failed: false,
            busy: false,
            buffer: Vec::new(),
        };
        recorder.scan_now()?;
        recorder.track_known();
        // What was opened between attaching and tracking is found by a second scan.
        recorder.scan_now()?;
        recorder.tick()?;
        Ok(recorder)
    }

    /// Waits for something to happen and deals with it. Returns after at most a second.
    ///
    /// # Errors
    /// When the kernel's ring can no longer be read.
    pub async fn step(&mut self) -> Result<()> {
        // After events, look again soon: the kernel wakes us at most every RING_WAKE_NS.
        let pause = if self.busy || self.scan.wanted_at.is_some() { SOON } else { IDLE };
        tokio::select! {
            ready = self.kernel.readable() => ready?,
            Some(event) = self.sampler.recv() => self.take(event),
            () = tokio::time::sleep(pause) => {}
        }
        self.busy = self.drain();
        while let Some(event) = self.sampler.try_recv() {
            self.take(event);
        }
        let now = sys::boottime_ns();
        self.adapt_sampling(now);
        if self.scan.due(now, !self.leaving.is_empty() || self.world.anything_outlives()) {
            self.scan_now()?;
        }
        Ok(())
    }

    /// What is due once a second: losses, the wall clock, the kernel log, NVML's silence, the file.
    ///
    /// # Errors
    /// None today; a full disk is reported and survived.
    pub fn tick(&mut self) -> Result<()> {
        for event in self.kernel.lost() {
            self.scan.want(event.at);
            self.take(event);
        }
        if let Some(kmsg) = &mut self.kmsg {
            let mut events = Vec::new();
            if let Err(error) = kmsg.drain(&mut events) {
                events.push(Event { at: sys::boottime_ns(), what: error.limit() });
                self.kmsg = None;
            }
            for event in events {
                self.take(event);
            }
        }
        if let Some(event) = self.sampler.overdue(nvml::OVERDUE) {
            self.take(event);
        }
        self.follow_wall_clock();
        let written = self.writer.flush();
        self.report_writing(written);
        if self.writer.wants_rotation() {
            self.rotate();
        }
        Ok(())
    }

    /// Looks once more, writes why the recording ends, and closes the file.
    ///
    /// # Errors
    /// When the last events cannot be written.
    pub fn finish(mut self, reason: &str) -> Result<()> {
        self.drain();
        if let Err(error) = self.scan_now() {
            tracing::warn!("no scan at the end of the recording: {error:#}");
        }
        while let Some(event) = self.sampler.try_recv() {
            self.take(event);
        }
        let _ = self.tick();
        self.take(Event { at: sys::boottime_ns(), what: What::Stop { reason: reason.to_owned() } });
        Ok(self.writer.finish()?)
    }

    /// The world as recorded so far.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The one way in: fold, react, write.
    fn take(&mut self, event: Event) {
        self.world.apply(&event);
        self.react(&event);
        let xid = matches!(event.what, What::Xid { .. });
        let mut written = self.writer.write(&event);
        if xid && written.is_ok() {
            written = self.writer.sync();
        }
        self.report_writing(written);
    }

    /// What an event asks of the recorder.
    fn react(&mut self, event: &Event) {
        match &event.what {
            What::Exit { id, last, .. } if self.world.uses_gpu(*id) => {
                self.leaving.entry(*id).or_insert(event.at);
                self.moved_at = event.at;
                if *last {
                    self.scan.want(event.at);
                }
            }
            What::Zombie { id, .. } => self.left(*id, event.at),
            What::Free { id } | What::ProcessGone { id } => self.left(*id, event.at),
            What::GpuMemory { .. } | What::GpuProcesses { .. } => self.moved_at = event.at,
            What::Exec { .. } | What::Sent { .. } | What::Lost { .. } => self.scan.want(event.at),
            What::Process(info) if info.cmdline.is_none() => self.enrich(info.id),
            _ => {}
        }
    }

    /// A process that was leaving has left; its memory is sampled a moment longer.
    fn left(&mut self, id: ProcessId, at: BootNs) {
        if self.leaving.remove(&id).is_some() {
            self.moved_at = at;
            self.scan.want(at);
        }
    }

    /// Reads what the kernel's record could not carry: arguments, cgroup.
    fn enrich(&mut self, id: ProcessId) {
        if let Some(info) = self.proc.process(id) {
            let event = Event { at: sys::boottime_ns(), what: What::Process(Box::new(info)) };
            self.world.apply(&event);
            let written = self.writer.write(&event);
            self.report_writing(written);
        }
    }

    /// Takes everything that is on the ring; true when there was something.
    fn drain(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.buffer);
        self.kernel.drain(&mut events);
        if !self.kernel.take_changed().is_empty() {
            self.scan.want(sys::boottime_ns());
        }
        let some = !events.is_empty();
        for event in events.drain(..) {
            self.take(event);
        }
        self.buffer = events;
        some
    }

    fn scan_now(&mut self) -> Result<()> {
        let began = sys::boottime_ns();
        let seen = self.kernel.scan()?;
        // Events up to the scan's end must be known before the comparison.
        self.drain();
        for event in host::compare(seen, &self.proc, &self.world) {
            self.take(event);
        }
        let now = sys::boottime_ns();
        self.scan = ScanPlan { wanted_at: None, last_at: now, last_cost_ns: now.saturating_sub(began) };
        Ok(())
    }

    /// Tells the kernel side about the processes that the first scan found.
    fn track_known(&mut self) {
        self.kernel.track(&self.world.tracked());
    }

    fn adapt_sampling(&mut self, now: BootNs) {
        self.leaving.retain(|_, began| now.saturating_sub(*began) < FAST_MAX_NS);
        let fast = !self.leaving.is_empty() || now.saturating_sub(self.moved_at) < STABLE_NS && self.moved_at != 0;
        if fast != self.fast {
            self.fast = fast;
            self.sampler.set_rate(if fast { Rate::Fast } else { Rate::Rest });
        }
    }

    fn follow_wall_clock(&mut self) {
        let offset = wall_offset();
        if (offset - self.wall_offset).unsigned_abs() > u128::from(CLOCK_STEP_NS) {
            self.wall_offset = offset;
            let at = sys::boottime_ns();
            let real_ns = u64::try_from(i128::from(at) + offset).unwrap_or(0);
            self.take(Event { at, what: What::Clock { real_ns } });
        }
    }

    fn rotate(&mut self) {
        let opening = self.world.carry_over();
        let rotated = self.writer.rotate(&opening);
        self.report_writing(rotated);
    }

    /// Says once that writing fails, and once that it works again.
    fn report_writing(&mut self, result: std::result::Result<(), crate::trace::writer::Error>) {
        match result {
            Err(error) if !self.write_failed => {
                tracing::error!("{error}; recording goes on in memory and counts what it cannot write");
                self.write_failed = true;
            }
            // An event that the writer merely counted says nothing about the disk.
            Ok(()) if self.write_failed && !self.writer.is_failing() => {
                tracing::warn!("{} can be written again", self.writer.path().display());
                self.write_failed = false;
            }
            _ => {}
        }
    }
}

/// Wall clock minus boottime, ns.
fn wall_offset() -> i128 {
    i128::from(sys::realtime_ns()) - i128::from(sys::boottime_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_followed_by_a_scan_but_scans_never_take_more_than_their_share() {
        let mut plan = ScanPlan { wanted_at: None, last_at: 1_000_000_000, last_cost_ns: 1_000_000 };
        assert!(!plan.due(1_100_000_000, false));
        plan.want(1_100_000_000);
        assert!(!plan.due(1_101_000_000, false), "waits for more changes");
        assert!(plan.due(1_106_000_000, false));
        plan.last_cost_ns = 100_000_000;
        assert!(!plan.due(1_106_000_000, false), "a slow scan is not repeated at once");
        assert!(plan.due(6_100_000_000, false));
    }

    #[test]
    fn what_outlives_its_owner_is_looked_at_again_and_again() {
        let plan = ScanPlan { wanted_at: None, last_at: 0, last_cost_ns: 0 };
        assert!(!plan.due(6_000_000_000, false));
        assert!(plan.due(6_000_000_000, true));
    }
}
