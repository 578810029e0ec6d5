//! Whether a living owner is on its way out, since when, and what its threads do: shared by the causes about exits.
//!
//! Always true: a process is "ending" when its exit has begun or a signal that must end it is pending; a thread in
//! uninterruptible sleep alone does not make it so, unless its main thread has gone and the driver has all others.

use super::case::{Case, PATIENCE_NS};
use super::evidence::note;
use super::threads::{self, Place, Where, locate};
use super::{Note, words};
use crate::event::{BootNs, SignalResult, StuckThread};
use crate::stack::Wait;
use crate::world::World;
use crate::world::process::{Process, Stage};
use crate::world::signal::{self, SIGKILL};

/// Threads whose whole stack is evidence.
const THREADS_TOLD: usize = 8;

/// An exit under way.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// Who.
    pub process: &'a Process,
    /// Its exit has begun (else a fatal signal is only pending).
    pub exiting: bool,
    /// Since when, when seen.
    pub since: Option<BootNs>,
    /// Threads that neither run user code nor are gone.
    pub stuck: &'a [StuckThread],
}

/// The exit of the case's living owner, when it is under way.
#[must_use]
pub fn of<'a>(case: &Case<'a>) -> Option<Ending<'a>> {
    of_process(case.living_owner()?)
}

/// The exit of a process, when it is under way.
#[must_use]
pub fn of_process(process: &Process) -> Option<Ending<'_>> {
    let stuck = process.state().map_or(&[][..], |state| &state.stuck);
    if process.stage() == Stage::Exiting {
        return Some(Ending { process, exiting: true, since: process.exit.began, stuck });
    }
    if process.stage() > Stage::Exiting {
        return None;
    }
    let record = process
        .signals
        .iter()
        .rev()
        .find(|r| r.sig == SIGKILL && r.delivered.is_none() && r.result != SignalResult::Ignored);
    let pending = process.state().is_some_and(|state| {
        // A signal that a handler takes, or nobody, need not end it.
        let open = state.pending & !state.blocked;
        let fatal = open & !state.caught & !state.ignored;
        let asleep = !state.stuck.is_empty();
        let has = |mask: u64, sig: i32| mask >> (sig - 1) & 1 == 1;
        has(open, SIGKILL) || asleep && (1..=31).any(|sig| has(fatal, sig) && signal::asks_to_end(sig))
    });
    let asked = || process.signals.iter().rev().find(|r| r.delivered.is_none() && signal::asks_to_end(r.sig)).and_then(|r| r.sent);
    let since = match record {
        Some(record) => record.sent,
        None if pending => asked(),
        None => process.exit.leader,
    };
    (record.is_some() || pending || is_abandoned(process)).then_some(Ending { process, exiting: false, since, stuck })
}

/// The main thread has gone, and all that is left was found in the same place in the driver by two looks: a zombie to `ps` that
/// is none. A thread that is in a request to the driver for a moment is not meant.
fn is_abandoned(process: &Process) -> bool {
    process.state().is_some_and(|state| {
        let left = state.leader_exited && !state.stuck.is_empty() && state.stuck.len() == state.live_threads as usize;
        left && state.stuck.iter().all(|thread| thread.same_since.is_some() && thread.state != "S" && locate(thread).place == Place::Driver)
    })
}

impl<'a> Ending<'a> {
    /// It may simply not be over yet.
    #[must_use]
    pub fn is_young(&self, now: BootNs) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) < PATIENCE_NS)
    }

    /// The thread that says most of why it does not end: one that waits for something before one that waits for a lock, which
    /// the first one may hold.
    #[must_use]
    pub fn in_driver(&self) -> Option<(&'a StuckThread, Where<'a>)> {
        let rank = |found: &Where<'_>| match found.wait {
            Some(Wait::Gpu | Wait::Firmware) => 0,
            None | Some(Wait::Unmapping) => 1,
            Some(Wait::Deferred) => 2,
            Some(_) => 3,
        };
        self.located(Place::Driver).min_by_key(|(_, found)| rank(found))
    }

    /// A thread that sits in other kernel code, one with a known reason first.
    #[must_use]
    pub fn elsewhere(&self) -> Option<(&'a StuckThread, Where<'a>)> {
        self.located(Place::Outside).min_by_key(|(_, found)| match found.wait {
            Some(wait) if wait.is_files() => 0,
            Some(Wait::Namespace) | None => 2,
            Some(_) => 1,
        })
    }

    /// A thread that takes the process apart and does work: it unmaps host memory and uses a CPU, or has not been looked at twice; or it
    /// is exiting and uses a CPU where no stack can be seen. On an H200 that is all that there is to see of an ordinary exit with
    /// pinned memory: state R, no stack, and GPU memory that stays as it is until the very end.
    #[must_use]
    pub fn at_work(&self) -> Option<&'a StuckThread> {
        let unmaps = |thread: &&StuckThread| locate(thread).wait == Some(Wait::Unmapping) && thread.ran.is_none_or(|ran| ran.percent() > 0);
        self.stuck.iter().find(unmaps).or_else(|| self.busy_unseen().filter(|thread| thread.exiting))
    }

    /// A thread that uses a CPU in the kernel and of which nothing else could be read. It is in the kernel, since a fatal signal takes
    /// effect whenever a thread goes back to its program.
    #[must_use]
    pub fn busy_unseen(&self) -> Option<&'a StuckThread> {
        self.stuck.iter().find(|thread| threads::spins(thread) && locate(thread).place == Place::Unknown)
    }

    fn located(&self, place: Place) -> impl Iterator<Item = (&'a StuckThread, Where<'a>)> {
        self.stuck.iter().map(|thread| (thread, locate(thread))).filter(move |(_, found)| found.place == place)
    }

    /// What would have to be read to say where it hangs.
    #[must_use]
    pub fn missing(&self) -> String {
        let pid = self.process.id().tgid();
        match self.busy_unseen() {
            Some(thread) => {
                let used = thread.ran.map(|ran| format!(", {} % of it over {}", ran.percent(), words::duration(ran.over_ns)));
                format!(
                    "where {} runs: it uses a CPU in the kernel{}, and shows no stack while it does (as root: echo l > /proc/sysrq-trigger; \
                     dmesg; or: perf record -g -t {} -- sleep 1)",
                    threads::name(self.process, thread),
                    used.unwrap_or_default(),
                    thread.tid
                )
            }
            None => format!("where its threads are (as root: cat /proc/{pid}/task/*/stack)"),
        }
    }

    /// How it is ending, as evidence.
    #[must_use]
    pub fn notes(&self, world: &World) -> Vec<Note> {
        let name = words::process(self.process);
        let mut notes = Vec::new();
        if self.exiting {
            if self.since.is_none() {
                notes.push(note(None, format!("{name} is exiting; when that began was not seen")));
            }
        } else if is_abandoned(self.process) {
            notes.push(note(self.since, format!("The main thread of {name} has exited, and what is left of it is in the driver")));
        } else {
            notes.push(note(self.since, format!("A signal that must end {name} is pending and has not taken effect")));
        }
        let at = self.process.state.as_ref().map(|(at, _)| *at);
        for thread in self.stuck.iter().take(THREADS_TOLD) {
            let what = threads::name(self.process, thread).replacen('t', "T", 1);
            notes.push(note(at, format!("{what} of {name} {}", threads::seen(world, thread))));
            notes.extend(threads::mounts_note(thread).map(|what| note(at, what)));
        }
        let more = self.stuck.len().saturating_sub(THREADS_TOLD);
        if more > 0 {
            notes.push(note(at, format!("{more} more threads of {name} have not ended")));
        }
        notes
    }
}
