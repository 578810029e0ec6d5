//! What must be said of a part, as data.
//!
//! Always true: people are named by the part's own names for them; nothing here runs anything.

use outlive::event::Via;
use outlive::explanation::{CauseId, Confidence};

/// A part, and what outlive must say of it.
pub struct Scenario {
    /// Name of the part: `scenario list`.
    pub part: &'static str,
    /// Holdings that a look without history must report, all and no others.
    pub cold: Vec<Expect>,
    /// Holdings with a recorder's history.
    pub warm: Vec<Expect>,
    /// Zombies that must be listed: who, who must wait for it ("stage" is the part's own process), whether it used
    /// the GPU (which only history can tell).
    pub zombies: Vec<(&'static str, &'static str, bool)>,
    /// No hook fires: a recording knows of it only after its next scan of all processes, at the latest when it stops.
    pub quiet: bool,
    /// Doing what outlive proposes must end every holder.
    pub remedies_end_holders: bool,
}

/// One holding.
pub struct Expect {
    /// Causes that are right: more than one where the evidence leaves it open.
    pub causes: Vec<CauseId>,
    /// Confidences that are right.
    pub confidence: &'static [Confidence],
    /// Whose memory.
    pub owner: Owner,
    /// Who keeps it, and the ways to say how it came to that.
    pub holders: Vec<(&'static str, Vec<Via>)>,
    /// The holders' descriptors need not be listed (the kernel has taken them out of the table).
    pub no_descriptors: bool,
}

/// What must be said of the owner.
#[derive(Clone, Copy)]
pub enum Owner {
    /// This actor.
    Is(&'static str),
    /// This actor or nobody: the evidence does not say, and a wrong name would be worse than none.
    IsOrUnknown(&'static str),
}

impl Scenario {
    /// Nothing outlives anything: no holding may be reported.
    #[must_use]
    pub fn nothing(part: &'static str) -> Scenario {
        Scenario { part, cold: Vec::new(), warm: Vec::new(), zombies: Vec::new(), quiet: false, remedies_end_holders: false }
    }

    /// Different answers with and without history.
    #[must_use]
    pub fn new(part: &'static str, cold: Vec<Expect>, warm: Vec<Expect>) -> Scenario {
        Scenario { cold, warm, ..Scenario::nothing(part) }
    }

    /// Adds a zombie.
    #[must_use]
    pub fn zombie(mut self, who: &'static str, parent: &'static str, used_gpu: bool) -> Scenario {
        self.zombies.push((who, parent, used_gpu));
        self
    }

    /// No hook fires.
    #[must_use]
    pub fn quiet(mut self) -> Scenario {
        self.quiet = true;
        self
    }

    /// The proposed commands must end every holder.
    #[must_use]
    pub fn remedied(mut self) -> Scenario {
        self.remedies_end_holders = true;
        self
    }
}

/// A holding of `owner` for this cause; exact, held by nobody yet.
#[must_use]
pub fn held(cause: CauseId, owner: &'static str) -> Expect {
    Expect {
        causes: vec![cause],
        confidence: &[Confidence::Exact],
        owner: Owner::Is(owner),
        holders: Vec::new(),
        no_descriptors: false,
    }
}

impl Expect {
    /// Adds a holder.
    #[must_use]
    pub fn by(mut self, who: &'static str, via: Via) -> Expect {
        self.holders.push((who, vec![via]));
        self
    }

    /// Adds a holder for which several words are right.
    #[must_use]
    pub fn by_any(mut self, who: &'static str, via: &[Via]) -> Expect {
        self.holders.push((who, via.to_vec()));
        self
    }

    /// A link may be deduced rather than seen.
    #[must_use]
    pub fn inferred(mut self) -> Expect {
        self.confidence = &[Confidence::Inferred];
        self
    }

    /// Seen or deduced, both are right.
    #[must_use]
    pub fn exact_or_inferred(mut self) -> Expect {
        self.confidence = &[Confidence::Exact, Confidence::Inferred];
        self
    }

    /// The owner may stay unnamed and its bytes uncounted, but neither may be wrong.
    #[must_use]
    pub fn owner_perhaps_unknown(mut self) -> Expect {
        if let Owner::Is(name) = self.owner {
            self.owner = Owner::IsOrUnknown(name);
        }
        self
    }

    /// Another cause that is right as well.
    #[must_use]
    pub fn or(mut self, cause: CauseId) -> Expect {
        self.causes.push(cause);
        self
    }

    /// The kernel no longer shows descriptors.
    #[must_use]
    pub fn without_descriptors(mut self) -> Expect {
        self.no_descriptors = true;
        self
    }
}
