//! The recorder: drains every source into one world and one trace file until it is told to stop.
//!
//! Always true:
//! * every event goes through [`Recorder::take`], which folds it and writes it: what the file says is what was known;
//! * a scan of all processes happens when something changed that only a scan can settle, never more often than its
//!   own cost allows, and the ring is drained between the scan and the comparison;
//! * NVML is sampled soon after a program opened the driver, and every few milliseconds from a GPU process's exit until its memory is back or nothing moves;
//! * a full disk, a vanished driver or a lost GPU is reported and recording goes on.

mod pace;

use crate::event::{BootNs, Event, ProcessId, Via, What};
use crate::source::kernel::{Kernel, KernelError};
use crate::source::kmsg::Kmsg;
use crate::source::nvml::{self, Rate, Sampler};
use crate::source::procfs::Proc;
use crate::trace::writer::{self, Writer};
use crate::world::World;
use crate::world::signal::is_fatal_by_default;
use crate::{host, sys};
use anyhow::Result;
use pace::{MemoryWatch, SamplePlan, ScanPlan};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the end of a recording waits for a last NVML sample.
const LAST_SAMPLE: Duration = Duration::from_secs(2);
/// Time between two drains while events come, and when none do.
const SOON: Duration = Duration::from_millis(3);
const IDLE: Duration = Duration::from_millis(900);
/// The wall clock is written again when it moved by more than this against boottime.
const CLOCK_STEP_NS: u64 = 50_000_000;
/// A rotation that failed is tried again after this time.
const ROTATE_AGAIN_NS: u64 = 60_000_000_000;
/// After a scan of more threads than this, its memory is given back at once.
const LARGE_SCAN: usize = 4_096;
/// After so many events at once some may have been lost.
const STORM: usize = 8_192;
/// Events that the buffer keeps room for.
const BUFFER_KEPT: usize = 1_024;

/// Everything that a recording needs. `writer` is the only thing that it changes on the host.
pub struct Recorder {
    kernel: Kernel,
    sampler: Sampler,
    kmsg: Option<Kmsg>,
    proc: Proc,
    world: World,
    writer: Writer,
    memory: MemoryWatch,
    fast: bool,
    scan: ScanPlan,
    sample: SamplePlan,
    wall_offset: i128,
    write_failed: bool,
    /// Its caller reports what cannot be written now.
    finishing: bool,
    scan_failed: bool,
    /// Not before this time.
    rotate_at: BootNs,
    /// The last drain found events.
    busy: bool,
    buffer: Vec<Event>,
}

/// The sources of a recording, ready to run.
pub struct Sources {
    /// With everything attached.
    pub kernel: Kernel,
    /// Started.
    pub sampler: Sampler,
    /// The kernel log, for Xids; none where it cannot be read.
    pub kmsg: Option<Kmsg>,
    /// /proc.
    pub proc: Proc,
}

impl Recorder {
    /// Takes the first snapshot. `opening` are the events that `writer` was created with.
    #[must_use]
    pub fn new(sources: Sources, writer: Writer, opening: &[Event]) -> Recorder {
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
            memory: MemoryWatch::default(),
            fast: false,
            scan: ScanPlan::default(),
            sample: SamplePlan::default(),
            wall_offset: sys::wall_offset_ns(),
            write_failed: false,
            finishing: false,
            scan_failed: false,
            rotate_at: 0,
            busy: false,
            buffer: Vec::new(),
        };
        recorder.scan_now();
        // What the processes that the first scan found did until they were followed is found by a second one.
        recorder.scan_now();
        recorder.tick();
        recorder
    }

    /// Waits for something to happen and deals with it. Returns after at most a second.
    ///
    /// # Errors
    /// When the kernel's ring can no longer be read.
    pub async fn step(&mut self) -> Result<()> {
        // After events, look again soon: the kernel wakes us at most every RING_WAKE_NS.
        let pause = if self.busy || self.scan.is_wanted() { SOON } else { IDLE };
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
        if self.sample.take(now) {
            self.sampler.sample_now();
        }
        // Not whenever memory is charged to nobody: managed memory always is.
        let lasting = || self.world.anything_outlives() || self.world.is_kernel_at_it() || self.world.charges_the_dead();
        if self.scan.due(now, || self.memory.anybody_watched() || lasting()) {
            self.scan_now();
            // A trace has only what moves: that the memory does not, while the kernel works on it, must be said.
            if self.world.is_kernel_at_it() {
                self.sampler.sample_now();
            }
        }
        Ok(())
    }

    /// What is due once a second: losses, the wall clock, the kernel log, NVML's silence, the file. What fails is reported
    /// and survived.
    pub fn tick(&mut self) {
        self.take_losses();
        for event in self.kernel.follow_driver() {
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
        if self.writer.wants_rotation() && sys::boottime_ns() >= self.rotate_at {
            self.rotate();
        }
    }

    fn take_losses(&mut self) {
        for event in self.kernel.lost() {
            self.scan.want(event.at);
            self.take(event);
        }
    }

    /// Looks once more, writes why the recording ends, and closes the file.
    ///
    /// # Errors
    /// When the last events cannot be written.
    pub fn finish(mut self, reason: &str) -> Result<()> {
        let last_sample = self.sampler.sample_now();
        let _ = self.sampler.wait(last_sample, LAST_SAMPLE);
        self.drain();
        self.scan_now();
        while let Some(event) = self.sampler.try_recv() {
            self.take(event);
        }
        self.finishing = true;
        self.tick();
        self.take(Event { at: sys::boottime_ns(), what: What::Stop { reason: reason.to_owned() } });
        Ok(self.writer.finish()?)
    }

    /// The world as recorded so far.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The one way in: fold, write, react.
    fn take(&mut self, event: Event) {
        self.world.apply(&event);
        let written = self.writer.write(&event);
        self.report_writing(written);
        self.react(&event);
    }

    /// What an event asks of the recorder.
    fn react(&mut self, event: &Event) {
        match &event.what {
            What::Exit { id, last, .. } if self.world.uses_gpu(*id) => {
                if self.world.gives_memory_back(*id) {
                    self.memory.leaves(*id, event.at);
                }
                if *last {
                    self.scan.want(event.at);
                }
            }
            What::Signal { to, sig, .. } if is_fatal_by_default(*sig) && self.world.uses_gpu(*to) => {
                self.memory.signalled(*to, event.at);
                self.scan.want(event.at);
            }
            What::Hold(hold) if hold.via == Some(Via::Opened) => self.sample.opened(event.at),
            What::Zombie { id, .. } => self.left(*id, event.at),
            What::Free { id } | What::ProcessGone { id } => self.left(*id, event.at),
            What::GpuMemory { .. } | What::GpuProcesses { .. } => self.memory.moved(event.at),
            What::Exec { .. } | What::Sent { .. } | What::Lost { .. } => self.scan.want(event.at),
            _ => {}
        }
    }

    /// A process that was leaving has left; its memory is sampled a moment longer.
    fn left(&mut self, id: ProcessId, at: BootNs) {
        if self.memory.left(id, at) {
            self.scan.want(at);
        }
    }

    /// Reads what the kernel's record could not carry: arguments, cgroup.
    fn enrich(&mut self, id: ProcessId) {
        if let Some(info) = self.proc.process(id) {
            self.take(Event { at: sys::boottime_ns(), what: What::Process(Box::new(info)) });
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
            let new = if let What::Process(info) = &event.what { Some(info.id) } else { None };
            self.take(event);
            if let Some(id) = new {
                self.enrich(id);
            }
        }
        // A storm fills megabytes; rest needs none of them.
        let storm = events.capacity() > STORM;
        events.shrink_to(BUFFER_KEPT);
        self.buffer = events;
        if storm {
            // What was lost happened just behind what was there.
            self.take_losses();
        }
        some
    }

    fn scan_now(&mut self) {
        let began = sys::boottime_ns();
        match self.kernel.scan() {
            Ok(seen) => {
                // Events up to the scan's end must be known before the comparison.
                self.drain();
                let large = seen.tasks.len() > LARGE_SCAN;
                let news = host::compare(seen, &self.proc, &self.world);
                self.take_scan(news);
                if large {
                    sys::return_free_memory();
                }
            }
            Err(error) => self.scan_failed(&error),
        }
        self.scan.made(began, sys::boottime_ns());
    }

    /// Takes what a scan found, and has the kernel side follow holders that no hook saw (they were there before us, opened
    /// the file through io_uring or in a 32-bit program, or their event was lost).
    fn take_scan(&mut self, news: Vec<Event>) {
        let mut holders = BTreeSet::new();
        for event in news {
            if let What::Hold(hold) = &event.what {
                holders.insert(hold.id);
            }
            self.take(event);
        }
        if !holders.is_empty() {
            self.kernel.track(&self.world.tracked(&holders));
        }
    }

    /// Hooks and NVML go on without it; the next scan may work again.
    fn scan_failed(&mut self, error: &KernelError) {
        if !self.scan_failed {
            self.scan_failed = true;
            tracing::error!("{error}; recording goes on with what the hooks see");
            let voids = "who holds an NVIDIA file without having been seen to get it, and who no longer does".to_owned();
            self.take(Event { at: sys::boottime_ns(), what: What::Limit { missing: error.to_string(), voids } });
        }
    }

    fn adapt_sampling(&mut self, now: BootNs) {
        let fast = self.memory.is_fast(now);
        if fast != self.fast {
            self.fast = fast;
            self.sampler.set_rate(if fast { Rate::Fast } else { Rate::Rest });
        }
    }

    fn follow_wall_clock(&mut self) {
        let offset = sys::wall_offset_ns();
        if (offset - self.wall_offset).unsigned_abs() > u128::from(CLOCK_STEP_NS) {
            self.wall_offset = offset;
            let at = sys::boottime_ns();
            let real_ns = u64::try_from(i128::from(at) + offset).unwrap_or(0);
            self.take(Event { at, what: What::Clock { real_ns } });
        }
    }

    fn rotate(&mut self) {
        let opening = self.world.carry_over();
        if let Err(error) = self.writer.rotate(&opening) {
            tracing::error!("{error}; the old trace file goes on, and a new one is tried again in a minute");
            self.rotate_at = sys::boottime_ns().saturating_add(ROTATE_AGAIN_NS);
        }
    }

    /// Says once that writing fails, and once that it works again.
    fn report_writing(&mut self, result: std::result::Result<(), writer::Error>) {
        match result {
            Err(error) if !self.write_failed && !self.finishing => {
                tracing::error!("{error}");
                self.write_failed = true;
            }
            // While writing fails, events are taken into memory, which does not mean that it works again.
            Ok(()) if self.write_failed && !self.writer.is_failing() => {
                tracing::warn!("the trace {} can be written again", self.writer.path().display());
                self.write_failed = false;
            }
            _ => {}
        }
    }
}
