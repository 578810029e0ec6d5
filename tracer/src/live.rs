//! One look at the running host: iterators, /proc, NVML and the kernel log, folded into a world.
//!
//! Always true: reads only; our own process is left out of every list. The look is repeated for a moment when
//! something is on its way out, so that "falling" and "stuck" can be told apart.

use crate::cli::Common;
use crate::event::{Event, What};
use crate::explanation::limits::NO_FIGURES;
use crate::source::kernel::{Kernel, Options};
use crate::source::kmsg::{self, Kmsg};
use crate::source::nvml::{self, Sampler};
use crate::source::procfs::Proc;
use crate::source::devices;
use crate::world::World;
use crate::{host, sys};
use anyhow::{Context as _, Result};
use std::time::{Duration, Instant};

/// NVML's own start takes 0.1 to 3 s when it must initialise a GPU; a driver that hangs answers never.
const NVML_PATIENCE: Duration = Duration::from_secs(10);
/// How long something that is leaving is watched before it is judged.
const SECOND_LOOK: Duration = Duration::from_millis(400);
/// How long memory is watched, when it does not move, where an owner should be gone: teardown of pinned memory has pauses.
const LONG_LOOK: Duration = Duration::from_millis(1_000);
/// Time between two samples of that.
const WATCH_STEP: Duration = Duration::from_millis(200);

/// Looks at the host, on top of what `history` knows.
///
/// # Errors
/// When the iterators cannot be loaded: not root, no BTF, refused by the kernel; when no device matches.
pub fn look(common: &Common, history: World) -> Result<World> {
    let began = sys::boottime_ns();
    // NVML starts first: it is the slowest, and on a thread of its own.
    let options = nvml::Options { library: common.nvml.clone(), ..nvml::Options::default() };
    let mut sampler = Sampler::start(options).context("cannot start a thread for NVML")?;
    let mut world = history;
    let devices = devices::find(&common.devices)?;
    let mut kernel = Kernel::for_scan(Options::new(devices.clone()))?;
    let proc = Proc::default();
    world.apply(&host::header(&proc, &kernel, devices, None));
    host::limits(&kernel).for_each(|event| world.apply(&event));
    scan(&mut kernel, &proc, &mut world)?;
    look_back(&mut world);
    if !sampler.wait(Sampler::FIRST, NVML_PATIENCE) {
        let overdue = sampler.overdue(Duration::ZERO);
        overdue.iter().for_each(|event| world.apply(event));
    }
    collect(&mut sampler, &mut world);
    if !world.something_is_leaving() && (!world.unknown_pids().is_empty() || world.wants_kernel_threads()) {
        // The first scan did not know what NVML says: whether the processes that it names exist, and whether the kernel itself is
        // at work where it names nobody, is what this one must say.
        scan(&mut kernel, &proc, &mut world)?;
    }
    if world.something_is_leaving() || world.is_kernel_at_it() {
        second_look(&mut kernel, &proc, &mut sampler, &mut world)?;
    }
    if world.gpus().values().any(|gpu| gpu.sampled_at < began) {
        let voids = "how many bytes are held now: what is told is the history's".to_owned();
        world.apply(&Event { at: sys::boottime_ns(), what: What::Limit { missing: NO_FIGURES.to_owned(), voids } });
    }
    Ok(world)
}

fn scan(kernel: &mut Kernel, proc: &Proc, world: &mut World) -> Result<()> {
    let seen = kernel.scan()?;
    for event in host::compare(seen, proc, world) {
        world.apply(&event);
    }
    Ok(())
}

fn collect(sampler: &mut Sampler, world: &mut World) {
    while let Some(event) = sampler.try_recv() {
        world.apply(&event);
    }
}

/// Watches memory for a moment and looks again at the processes.
fn second_look(kernel: &mut Kernel, proc: &Proc, sampler: &mut Sampler, world: &mut World) -> Result<()> {
    let long = world.somebody_must_die() || world.is_kernel_at_it();
    let began = Instant::now();
    let mut patience = NVML_PATIENCE;
    std::thread::sleep(SECOND_LOOK);
    loop {
        let ticket = sampler.sample_now();
        // A driver that hangs once is not waited for again.
        if !sampler.wait(ticket, patience) {
            patience = Duration::ZERO;
        }
        collect(sampler, world);
        let moves = world.gpus().values().any(|gpu| gpu.falling(world.host().now).is_some());
        if moves || !long || began.elapsed() >= LONG_LOOK {
            break;
        }
        std::thread::sleep(WATCH_STEP);
    }
    scan(kernel, proc, world)
}

/// Xids that the kernel log still has.
fn look_back(world: &mut World) {
    let mut events = Vec::new();
    let read = Kmsg::open(kmsg::From::Start).and_then(|mut log| log.drain(&mut events));
    if let Err(error) = read {
        events.push(Event { at: sys::boottime_ns(), what: error.limit() });
    }
    // Xids of long ago say nothing about now, but they are history: the world keeps the recent ones.
    for event in events.iter().filter(|e| matches!(e.what, What::Xid { .. } | What::Limit { .. })) {
        world.apply(event);
    }
}
