//! How processes, times and signals are named in sentences.
//!
//! Always true: nothing here decides anything; names are raw and are escaped when they are shown.

use crate::event::{BootNs, ProcessId};
use crate::report::layout::size;
use crate::world::World;
use crate::world::process::{Process, SignalSent, signal_name};

/// "python3 (PID 574)", "PID 574" when no name is known.
#[must_use]
pub fn named(world: &World, id: ProcessId) -> String {
    let comm = world.process(id).and_then(|p| p.info.comm.as_deref()).filter(|c| !c.is_empty());
    match comm {
        Some(comm) => format!("{comm} (PID {})", id.tgid()),
        None => format!("PID {}", id.tgid()),
    }
}

/// "2.5 GiB on GPU 0", "Memory on GPU 0", "GPU memory of unknown size".
#[must_use]
pub fn amount(bytes: Option<u64>, gpu: Option<u32>) -> String {
    match (bytes, gpu) {
        (Some(bytes), Some(gpu)) => format!("{} on GPU {gpu}", size(bytes)),
        (Some(bytes), None) => format!("{} of GPU memory", size(bytes)),
        (None, Some(gpu)) => format!("Memory of unknown size on GPU {gpu}"),
        (None, None) => "GPU memory of unknown size".to_owned(),
    }
}

/// " at 12:03:55", or nothing.
#[must_use]
pub fn at(world: &World, when: Option<BootNs>) -> String {
    let Some(text) = when.and_then(|w| world.wall(w)) else { return String::new() };
    let time = text.split_once('T').map_or(text.as_str(), |(_, t)| t);
    format!(" at {}", time.get(..8).unwrap_or(time))
}

/// "bash (PID 12)", "the kernel".
#[must_use]
pub fn sender(world: &World, signal: &SignalSent) -> String {
    match signal.from {
        Some(id) if !signal.comm.is_empty() => format!("{} (PID {})", signal.comm, id.tgid()),
        Some(id) => named(world, id),
        None => "the kernel".to_owned(),
    }
}

/// How a dead process ended, as the end of a sentence: "was killed by SIGKILL from bash (PID 12) at 12:03:55", "exited with code 1", "is gone".
#[must_use]
pub fn ended(world: &World, process: Option<&Process>) -> String {
    let Some(process) = process else { return "is gone".to_owned() };
    let exit = &process.exit;
    let when = at(world, exit.last.or(exit.began).or(exit.zombie));
    match exit.status {
        Some(status) if status & 0x7f != 0 => {
            let sig = i32::try_from(status & 0x7f).unwrap_or(0);
            let by = killer(process, sig).map(|s| format!(" from {}", sender(world, s))).unwrap_or_default();
            let oom = if exit.oom.is_some() { " (out of memory)" } else { "" };
            format!("was killed by {}{by}{oom}{when}", signal_name(sig))
        }
        Some(status) => format!("exited with code {}{when}", status >> 8 & 0xff),
        None if process.is_zombie() => "is dead (a zombie)".to_owned(),
        None => "is gone".to_owned(),
    }
}

/// The signal that killed it: the last one of that number.
#[must_use]
pub fn killer(process: &Process, sig: i32) -> Option<&SignalSent> {
    process.signals.iter().rev().find(|s| s.sig == sig && s.result != crate::event::SignalResult::Ignored)
}

/// "running", "sleeping", "stopped", "exiting", "zombie", "gone", "unknown".
#[must_use]
pub fn state(process: Option<&Process>) -> String {
    let Some(p) = process else { return "gone".to_owned() };
    if p.is_gone() {
        return "gone".to_owned();
    }
    if p.is_zombie() {
        return "zombie".to_owned();
    }
    if p.is_exiting() {
        return "exiting".to_owned();
    }
    let letter = p.state.as_ref().map(|(_, s)| s.state.as_str());
    let frozen = p.state.as_ref().is_some_and(|(_, s)| s.frozen);
    match letter {
        _ if frozen => "frozen",
        Some("R") => "running",
        Some("S" | "I") => "sleeping",
        Some("D") => "waiting in the kernel",
        Some("T") => "stopped",
        Some("t") => "stopped by a tracer",
        Some("Z") => "main thread exited",
        _ => "alive",
    }
    .to_owned()
}

/// "1 GPU file", "21 GPU files".
#[must_use]
pub fn files(n: usize) -> String {
    crate::report::layout::count(n, "GPU file")
}
