//! Why memory is held: one file per cause, one ordered list.
//!
//! Always true: a cause is a pure function from a [`Case`] to a [`Verdict`] or nothing; the first rule of [`RULES`]
//! that answers is the cause, and the last one always answers. Each file's first lines are the user's documentation
//! of that cause: what must be seen, what would refute it, how sure it can be, and what to do.

pub mod account;
pub mod case;
pub mod core_dump;
pub mod deferred;
pub mod descriptor_in_flight;
pub mod driver_reserve;
pub mod ending;
pub mod evidence;
pub mod exit_blocked;
pub mod exported_handle;
pub mod health;
pub mod imported_memory;
pub mod inherited_descriptor;
pub mod kernel_client;
pub mod leader_exited;
pub mod mps_server;
pub mod no_holder;
pub mod orphaned_process;
pub mod owner_alive;
pub mod owner_stopped;
mod owners;
pub mod passed_descriptor;
pub mod releases;
pub mod remedy;
pub mod shares;
pub mod signal_not_fatal;
pub mod teardown_running;
pub mod threads;
pub mod unknown;
#[cfg(test)]
mod tests;
mod via;
pub mod way_out;
pub mod words;
pub mod xid;

use crate::event::BootNs;
use crate::explanation::{CauseId, Confidence, Remedy};
use case::Case;

/// One thing that was seen, before times are written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// When; absent for a standing fact.
    pub at: Option<BootNs>,
    /// A sentence.
    pub what: String,
}

/// What a cause says of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How sure.
    pub confidence: Confidence,
    /// One sentence for the person with the pager.
    pub summary: String,
    /// What this cause rests on, beside what every cause shows.
    pub notes: Vec<Note>,
    /// Least harmful first.
    pub remedies: Vec<Remedy>,
}

/// One cause's rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Which cause.
    pub id: CauseId,
    /// Whether this is it.
    pub judge: fn(&Case<'_>) -> Option<Verdict>,
}

const fn rule(id: CauseId, judge: fn(&Case<'_>) -> Option<Verdict>) -> Rule {
    Rule { id, judge }
}

/// The causes in the order in which they are asked.
pub const RULES: &[Rule] = &[
    // Not anybody's memory at all: nothing else applies.
    rule(CauseId::DriverReserve, driver_reserve::judge),
    // Another process's reference: nothing about the allocator's own files or life explains it.
    rule(CauseId::ImportedMemory, imported_memory::judge),
    // A dumping process is also dying of a signal and looks stuck: the dump is the reason.
    rule(CauseId::CoreDump, core_dump::judge),
    // A stopped process also has signals pending: they wait for it to continue.
    rule(CauseId::OwnerStopped, owner_stopped::judge),
    // Before the blocked exits: falling memory or a young exit means that nothing is stuck yet.
    rule(CauseId::TeardownRunning, teardown_running::judge),
    // A driver frame on any thread's stack decides; "elsewhere" is what is left.
    rule(CauseId::ExitBlockedInDriver, exit_blocked::judge_in_driver),
    rule(CauseId::ExitBlockedElsewhere, exit_blocked::judge_elsewhere),
    // What someone did to end it says more than how it came to be alone.
    rule(CauseId::SignalNotFatal, signal_not_fatal::judge),
    // `ps` shows it as a zombie: that must be explained before its parentage is.
    rule(CauseId::LeaderExited, leader_exited::judge),
    // Its parent is PID 1 and its launcher gone by design; and a dead client's memory is with the server.
    rule(CauseId::MpsServer, mps_server::judge),
    rule(CauseId::OrphanedProcess, orphaned_process::judge),
    // Every living owner that nothing above explains.
    rule(CauseId::OwnerAlive, owner_alive::judge),
    // From here the owner is dead or unknown. What kind of file is left explains more than how it came to its holder.
    rule(CauseId::ExportedHandle, exported_handle::judge),
    rule(CauseId::KernelClient, kernel_client::judge),
    // In flight answers only when nothing else holds the files.
    rule(CauseId::DescriptorInFlight, descriptor_in_flight::judge),
    // Passed answers only when no forked holder has the files from the owner's side.
    rule(CauseId::PassedDescriptor, passed_descriptor::judge),
    rule(CauseId::InheritedDescriptor, inherited_descriptor::judge),
    // Needs the proof that nobody holds anything.
    rule(CauseId::NoHolder, no_holder::judge),
    // Always answers.
    rule(CauseId::Unknown, unknown::judge),
];

/// The cause of a case.
#[must_use]
pub fn judge(case: &Case<'_>) -> (CauseId, Verdict) {
    let answer = RULES.iter().find_map(|rule| (rule.judge)(case).map(|verdict| (rule.id, verdict)));
    let (id, mut verdict) = answer.unwrap_or_else(|| (CauseId::Unknown, unknown::verdict(case)));
    verdict.notes.extend(evidence::common(case));
    // Known times first and in order, standing facts after them; equal times stay in the order of the telling.
    verdict.notes.sort_by_key(|note| (note.at.is_none(), note.at));
    verdict.notes.dedup();
    (id, verdict)
}
