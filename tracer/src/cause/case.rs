//! One case: memory (or open files) of one owner on one GPU, and everybody who keeps it.
//!
//! Always true: a holder in a case has at least one descriptor of a description of that owner, or is the owner itself; a
//! zombie is never a holder.

use crate::event::{ProcessId, Token, Via};
use crate::explanation::Confidence;
use crate::world::World;
use crate::world::process::Process;

/// Whose memory it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The process; start 0 when only NVML's number is known; `None` when nobody is.
    pub id: Option<ProcessId>,
    /// How that is known, when it was deduced.
    pub deduced: Option<String>,
}

/// Who keeps it, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The process.
    pub id: ProcessId,
    /// How it came to it.
    pub via: Via,
    /// From whom, when that was seen.
    pub from: Option<ProcessId>,
    /// Why we think so, when it was not seen.
    pub deduced: Option<String>,
    /// Its descriptors of this owner's descriptions: (descriptor, description).
    pub slots: Vec<(i32, Token)>,
    /// A thread other than the leader has them in a table of its own, or the leader is gone.
    pub thread: Option<u32>,
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// Everything known.
    pub world: &'a World,
    /// NVML index.
    pub gpu: Option<u32>,
    /// Bytes held.
    pub bytes: Option<u64>,
    /// How the figure was deduced, when NVML does not give it for this owner.
    pub bytes_deduced: Option<String>,
    /// Whose.
    pub owner: Owner,
    /// Everybody but the owner.
    pub keepers: Vec<Keeper>,
    /// The owner's own descriptors, when it lives.
    pub own: Option<Keeper>,
}

impl<'a> Case<'a> {
    /// The owner, when it is known as a process.
    #[must_use]
    pub fn owner_process(&self) -> Option<&'a Process> {
        self.owner.id.and_then(|id| self.world.process(id))
    }

    /// The owner is known to live: it runs, is stopped, or is exiting.
    #[must_use]
    pub fn owner_lives(&self) -> bool {
        self.owner_process().is_some_and(|p| !p.is_dead())
    }

    /// Exact unless a link was deduced or the evidence has holes.
    #[must_use]
    pub fn confidence(&self) -> Confidence {
        let deduced = self.owner.deduced.is_some()
            || self.bytes_deduced.is_some()
            || self.keepers.iter().any(|k| k.deduced.is_some());
        if deduced || self.world.has_holes() { Confidence::Inferred } else { Confidence::Exact }
    }

    /// Some signal of which we know that it was meant to end the owner.
    #[must_use]
    pub fn kill_attempts(&self) -> Vec<&'a crate::world::process::SignalSent> {
        use crate::world::process::kills_by_default;
        self.owner_process().map_or_else(Vec::new, |p| p.signals.iter().filter(|s| kills_by_default(s.sig)).collect())
    }
}
