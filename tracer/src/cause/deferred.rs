//! A release that goes on without its owner: a thread of the kernel itself is inside the driver and gives memory back.
//!
//! The last reference to a file may go anywhere: on a kworker (`delayed_fput`, when the last `fput` came from a kernel thread or
//! after the process's own task work), on the driver's "nv_queue" (nvidia_close_deferred) or on "UVM deferred release
//! queue" (uvm_release_deferred), when a signal or a suspend was in the way. Always true: pure; used only where no
//! process is left to hold the memory; that the thread releases just this memory is deduced.

use super::case::{Case, Kind, PATIENCE_NS};
use super::evidence::{ended, note};
use super::{Note, threads};
use crate::event::{BootNs, KernelThread};
use crate::stack;
use crate::world::World;

/// In the same place for so long, while the memory does not move: it does not get on. Longer than for a process, since nobody waits
/// for such a thread, and it may have more to do than this.
const STUCK_NS: BootNs = 10_000_000_000;

/// Such a release.
#[derive(Clone, Copy, Debug)]
pub struct Deferred<'a> {
    /// The kernel's thread.
    pub thread: &'a KernelThread,
    /// When it was seen.
    pub at: BootNs,
}

/// The release that the case's memory may wait for.
#[must_use]
pub fn of<'a>(case: &Case<'a>) -> Option<Deferred<'a>> {
    let nobodys = matches!(case.kind, Kind::Listed | Kind::Leftover) && case.living_owner().is_none() && case.candidates.is_empty();
    let (at, _) = case.world.host().kernel_threads.as_ref().filter(|_| nobodys)?;
    let thread = threads::kernel(case.world).find(|found| stack::releases(&found.thread.stack))?;
    Some(Deferred { thread, at: *at })
}

impl Deferred<'_> {
    /// It may simply be under way.
    #[must_use]
    pub fn is_young(&self, case: &Case<'_>) -> bool {
        if self.is_recent(case) {
            return true;
        }
        let still = self.thread.thread.same_since.is_some_and(|since| case.now().saturating_sub(since) >= STUCK_NS);
        // Where nobody says how much memory there is, the thread alone must do.
        let flat = case.gpu().is_none_or(|gpu| gpu.memory.is_none() || gpu.flat_for() >= STUCK_NS);
        !(still && flat)
    }

    /// The owner's end was seen, and not long ago.
    #[must_use]
    pub fn is_recent(&self, case: &Case<'_>) -> bool {
        let ended = case.owner.and_then(|owner| owner.process).and_then(|process| process.ended_at());
        ended.is_some_and(|at| case.now().saturating_sub(at) < PATIENCE_NS)
    }

    /// "2.5 GiB on GPU 0 belonged to python3 (PID 574), which ... ended; the kernel thread kworker/3:1 (PID 77) releases it in the driver".
    #[must_use]
    pub fn subject(&self, case: &Case<'_>) -> String {
        let found = threads::locate(&self.thread.thread);
        let frame = found.frame.map(|frame| format!(" ({})", threads::function(frame))).unwrap_or_default();
        format!("{} {}; {} is releasing files inside the NVIDIA driver{frame},", case.what(), belonged(case), threads::kernel_name(self.thread))
    }

    /// Its stack.
    #[must_use]
    pub fn note(&self, world: &World) -> Note {
        let name = threads::kernel_name(self.thread).replacen('t', "T", 1);
        note(Some(self.at), format!("{name} {}", threads::seen(world, &self.thread.thread)))
    }
}

/// "belonged to python3 (PID 574), killed by SIGKILL"; "is charged to no process".
#[must_use]
pub fn belonged(case: &Case<'_>) -> String {
    match case.owner {
        Some(_) => format!("belonged to {}{}", case.owner_name(), ended(case)),
        None => "is charged to no process".to_owned(),
    }
}
