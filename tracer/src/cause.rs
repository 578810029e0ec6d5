//! Why memory outlives its owner: one file per cause, asked in a fixed order.
//!
//! Always true: a rule looks at one [`case::Case`] and gives a [`Verdict`] or nothing; it never changes the case; the
//! first rule that answers is the answer, and [`RULES`] says why each stands where it stands.

pub mod accounts;
pub mod case;
mod core_dump;
mod descriptor_in_flight;
pub mod evidence;
mod exit_blocked;
pub mod gpu_level;
mod inherited_descriptor;
mod leader_exited;
mod orphaned_process;
mod owner_alive;
mod owner_stopped;
mod passed_descriptor;
mod provenance;
pub mod remedies;
mod signal_not_fatal;
mod teardown_running;
mod unknown;
pub mod words;

use crate::explanation::{CauseId, Confidence, Remedy};
use case::Case;

/// What a rule says of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Why.
    pub cause: CauseId,
    /// How sure.
    pub confidence: Confidence,
    /// One sentence.
    pub summary: String,
    /// Facts of this rule, beside the common ones: (when, what).
    pub facts: Vec<(Option<u64>, String)>,
    /// Least harmful first.
    pub remedy: Vec<Remedy>,
}

/// A rule.
pub type Rule = fn(&Case<'_>) -> Option<Verdict>;

/// The rules, in the order in which they are asked.
pub const RULES: &[Rule] = &[
    // An owner that still lives, most specific state first.
    // A dump suspends everything else: the process is neither stopped nor stuck, and signals wait for it.
    core_dump::verdict,
    // Stopped: no signal but KILL and CONT acts, so "the signal was not fatal" would be true but not the reason.
    owner_stopped::verdict,
    // Exiting: stuck only when its stack says so and memory does not move; else it simply takes time.
    exit_blocked::verdict,
    teardown_running::verdict,
    // Alive and signalled, or with a signal pending.
    signal_not_fatal::verdict,
    // Alive, but its main thread is gone, so that it looks dead to everybody.
    leader_exited::verdict,
    // Alive, but what started it is gone.
    orphaned_process::verdict,
    owner_alive::verdict,
    // A dead owner: who keeps it. In flight only when nobody has a descriptor of it, because reading or closing that
    // socket would free nothing while somebody else holds the description.
    descriptor_in_flight::verdict,
    passed_descriptor::verdict,
    inherited_descriptor::verdict,
    // Always answers.
    unknown::verdict,
];

/// The answer to a case.
#[must_use]
pub fn verdict(case: &Case<'_>) -> Verdict {
    RULES.iter().find_map(|rule| rule(case)).unwrap_or_else(|| unknown::answer(case))
}
