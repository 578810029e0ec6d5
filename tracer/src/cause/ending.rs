//! Whether a living owner is on its way out, since when, and what its threads do: shared by the causes about exits.
//!
//! Always true: a process is "ending" when its exit has begun or a signal that must end it is pending (SIGKILL, or one that it neither
//! handles nor ignores nor blocks); a thread in uninterruptible sleep alone does not make it so, unless its main thread has gone and the driver has all others.

use super::case::{Case, PATIENCE_NS};
use super::evidence::note;
use super::threads::{self, Place, Where, locate};
use super::{Note, words};
use crate::event::{BootNs, SignalResult, StuckThread};
use crate::stack::Wait;
use crate::world::World;
use crate::world::process::{Process, Stage};
use crate::world::signal::{self, SIGKILL, SignalRecord};

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
    let must_end = |sig: i32| {
        // A damaged trace may have any number.
        let Some(state) = process.state().filter(|_| signal::asks_to_end(sig)) else { return false };
        // A signal that a handler takes, or nobody, need not end it.
        let open = state.pending & !state.blocked;
        let fatal = open & !state.caught & !state.ignored;
        let has = |mask: u64| mask >> (sig - 1) & 1 == 1;
        if sig == SIGKILL { has(open) } else { has(fatal) && !state.stuck.is_empty() }
    };
    let pending = (1..=31).any(must_end);
    let is_it = |r: &&SignalRecord| (r.sig == SIGKILL || must_end(r.sig)) && r.delivered.is_none() && r.result != SignalResult::Ignored;
    // Of the newest that counts: one that was sent again while it was pending changes nothing.
    let record = process.signals.iter().rev().filter(is_it).min_by_key(|r| r.result == SignalResult::AlreadyPending);
    let since = match record {
        Some(record) => record.sent,
        None if pending => None,
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

    /// Beside the thread `at_work`, two looks found another one in the same place in the driver, and what that waits for is not what the
    /// first one may hold or do.
    #[must_use]
    pub fn is_stuck_beside(&self, at_work: &StuckThread) -> bool {
        let stays = |thread: &StuckThread| thread.tid != at_work.tid && thread.same_since.is_some();
        let by_itself = |found: &Where<'_>| !matches!(found.wait, Some(Wait::DriverLock | Wait::Lock | Wait::Deferred | Wait::Unmapping));
        self.located(Place::Driver).any(|(thread, found)| stays(thread) && by_itself(&found))
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

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, SignalResult, StuckThread};
    use crate::explanation::{CauseId, Holding};
    use crate::story::Story;

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    /// A signal is pending, and the main thread sits in a request to a file server; it was sent `seconds` ago.
    fn asked(sig: i32, caught: bool, ignored: bool, seconds: u64) -> Holding {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.wait(60);
        story.signals(Some(BASH), trainer, sig);
        story.wait(seconds);
        let bit = 1 << (sig - 1);
        let thread = StuckThread { tid: 574, state: "D".into(), stack: vec!["rpc_wait_bit_killable+0x1/0x2 [sunrpc]".into()], ..StuckThread::default() };
        story.stands(trainer, "D", |s| (s.pending, s.caught, s.ignored, s.stuck) = (bit, bit * u64::from(caught), bit * u64::from(ignored), vec![thread]));
        story.holding()
    }

    #[test]
    fn a_signal_that_is_handled_need_not_end_anything() {
        for sig in [1, 2, 3, 15] {
            assert_eq!(asked(sig, true, false, 30).cause, CauseId::SignalNotFatal, "signal {sig}");
            assert_eq!(asked(sig, false, true, 30).cause, CauseId::SignalNotFatal, "signal {sig}");
            let holding = asked(sig, false, false, 30);
            assert_eq!(holding.cause, CauseId::ExitBlockedElsewhere, "signal {sig}");
            assert!(holding.summary.contains("which has not died in 30.0 s"), "since it was sent: {}", holding.summary);
            assert_ne!(asked(sig, false, false, 1).cause, CauseId::ExitBlockedElsewhere, "signal {sig} is young");
        }
        assert_eq!(asked(9, true, true, 30).cause, CauseId::ExitBlockedElsewhere, "nothing handles SIGKILL");
    }

    #[test]
    fn since_when_it_cannot_die_is_told_by_the_signal_that_must_end_it() {
        let laters = [(15, 1, SignalResult::Ignored), (15, 2, SignalResult::Queued), (15, 15, SignalResult::AlreadyPending), (9, 9, SignalResult::AlreadyPending)];
        for (first, later, result) in laters {
            let mut story = Story::warm();
            let trainer = story.process(574, "python3");
            story.uses_cuda(trainer);
            story.signals(Some(BASH), trainer, first);
            story.wait(60);
            story.signal_with(Some(BASH), trainer, later, result);
            let thread = StuckThread { tid: 574, state: "D".into(), stack: vec!["rpc_wait_bit_killable+0x1/0x2 [sunrpc]".into()], ..StuckThread::default() };
            let bit = |sig: i32| 1 << (sig - 1);
            story.stands(trainer, "D", |s| (s.pending, s.caught, s.stuck) = (bit(first) | bit(2), bit(2), vec![thread]));
            let holding = story.holding();
            assert_eq!(holding.cause, CauseId::ExitBlockedElsewhere, "signal {later}");
            assert!(holding.summary.contains("which has not died in 1 min 0 s"), "signal {later}: {}", holding.summary);
        }
    }
}
