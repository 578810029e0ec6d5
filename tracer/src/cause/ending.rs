//! Whether a living owner is on its way out, since when, and what its threads do: shared by the causes about exits.
//!
//! Always true: a process is "ending" when its exit has begun or a signal that must end it is pending; a thread in
//! uninterruptible sleep alone does not make it so.

use super::Note;
use super::case::{Case, PATIENCE_NS};
use super::evidence::note;
use super::words;
use crate::event::{BootNs, SignalResult, StuckThread};
use crate::world::process::{Process, Stage};
use crate::world::signal::{self, SIGKILL};

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
    let process = case.living_owner()?;
    let stuck = process.state().map_or(&[][..], |state| &state.stuck);
    if process.stage() == Stage::Exiting {
        return Some(Ending { process, exiting: true, since: process.exit.began, stuck });
    }
    let record = process
        .signals
        .iter()
        .rev()
        .find(|r| r.sig == SIGKILL && r.delivered.is_none() && r.result != SignalResult::Ignored);
    let pending = process.state().is_some_and(|state| {
        let open = state.pending & !state.blocked;
        let asleep = !state.stuck.is_empty();
        (1..=31).any(|sig| {
            let bit = open >> (sig - 1) & 1 == 1;
            bit && (sig == SIGKILL || asleep && signal::asks_to_end(sig))
        })
    });
    let since = record.and_then(|r| r.sent);
    (record.is_some() || pending).then_some(Ending { process, exiting: false, since, stuck })
}

impl Ending<'_> {
    /// It may simply not be over yet.
    #[must_use]
    pub fn is_young(&self, now: BootNs) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) < PATIENCE_NS)
    }

    /// A thread has a frame of the NVIDIA modules on its kernel stack.
    #[must_use]
    pub fn in_driver(&self) -> Option<&StuckThread> {
        self.stuck.iter().find(|thread| thread.stack.iter().any(|frame| is_driver(frame)))
    }

    /// A thread sits in the kernel with a readable stack.
    #[must_use]
    pub fn elsewhere(&self) -> Option<&StuckThread> {
        self.stuck.iter().find(|thread| !thread.stack.is_empty())
    }

    /// How it is ending, as evidence.
    #[must_use]
    pub fn notes(&self) -> Vec<Note> {
        let name = words::process(self.process);
        let mut notes = Vec::new();
        if !self.exiting {
            notes.push(note(self.since, format!("A signal that must end {name} is pending and has not taken effect")));
        } else if self.since.is_none() {
            notes.push(note(None, format!("{name} is exiting; when that began was not seen")));
        }
        let at = self.process.state.as_ref().map(|(at, _)| *at);
        for thread in self.stuck.iter().take(4) {
            let frames: Vec<String> = thread.stack.iter().take(6).map(|frame| words::plain(frame)).collect();
            let stack = if frames.is_empty() { "its kernel stack could not be read".to_owned() } else { frames.join(" <- ") };
            notes.push(note(at, format!("Thread {} of {name} is in state {}: {stack}", thread.tid, words::plain(&thread.state))));
        }
        notes
    }
}

/// "uvm_spin_loop+0x1c/0x90 [nvidia_uvm]"
#[must_use]
pub fn is_driver(frame: &str) -> bool {
    frame.contains("[nvidia") || frame.contains("[nv_peer_mem") || frame.contains("[gdrdrv")
}
