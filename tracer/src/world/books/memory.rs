//! GPU memory and the references that keep it.
//!
//! Always true: references are in order of arrival, the first one is living, and adding or taking one away costs the same
//! however many there are.

use crate::event::rm::{ExportKind, Handle};
use crate::event::{BootNs, ProcessId, Token};
use std::collections::VecDeque;

/// Names memory within one world, in order of becoming known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryId(pub(super) u64);

/// Who allocated memory, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Maker {
    /// The process of the client.
    pub process: Option<ProcessId>,
    /// The client.
    pub client: Option<Handle>,
    /// The handle that the memory had there.
    pub object: Option<Handle>,
    /// The description that owned the client.
    pub file: Option<Token>,
}

/// What keeps memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ref {
    /// An object of a client.
    Object {
        /// The client.
        client: Handle,
        /// The object.
        object: Handle,
    },
    /// A mapping in an address space of UVM.
    Space {
        /// The description that is the address space.
        file: Token,
        /// First address.
        base: u64,
        /// Bytes of address space.
        length: u64,
    },
    /// An exported handle.
    Export {
        /// The description that is the handle.
        file: Token,
        /// What that is.
        kind: ExportKind,
    },
}

/// A reference, and when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    /// What keeps the memory.
    pub what: Ref,
    /// Since when.
    pub at: BootNs,
}

/// GPU memory.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Which.
    pub id: MemoryId,
    /// Its size; `None` when its allocation was not seen.
    pub bytes: Option<u64>,
    /// RM class; 0 when it is not known.
    pub class: u32,
    /// The driver's device instance.
    pub device: Option<u32>,
    /// Who allocated it.
    pub maker: Maker,
    /// When it was allocated, or became known.
    pub at: BootNs,
    /// What keeps it.
    pub(super) refs: Refs,
}

impl Memory {
    /// What keeps it, oldest first; never empty. The driver charges the first.
    pub fn refs(&self) -> impl DoubleEndedIterator<Item = &Taken> {
        self.refs.iter().map(|(_, taken)| taken)
    }

    /// The reference that the driver charges.
    #[must_use]
    pub fn first(&self) -> Option<&Taken> {
        self.refs().next()
    }
}

/// References by their number. What was taken away leaves a gap, and the gaps are closed when they are the greater part.
#[derive(Clone, Debug, Default)]
pub(super) struct Refs {
    list: VecDeque<(u64, Option<Taken>)>,
    living: usize,
}

impl Refs {
    /// Adds one; numbers only grow.
    pub(super) fn push(&mut self, seq: u64, taken: Taken) {
        // Most memory has one or two.
        if self.list.len() < 4 {
            self.list.reserve_exact(1);
        }
        self.list.push_back((seq, Some(taken)));
        self.living += 1;
    }

    /// Takes one away.
    pub(super) fn remove(&mut self, seq: u64) {
        let Ok(place) = self.list.binary_search_by_key(&seq, |(known, _)| *known) else { return };
        let Some((_, slot)) = self.list.get_mut(place) else { return };
        if slot.take().is_some() {
            self.living -= 1;
        }
        while self.list.front().is_some_and(|(_, taken)| taken.is_none()) {
            self.list.pop_front();
        }
        if self.list.len() > 2 * self.living + 8 {
            self.list.retain(|(_, taken)| taken.is_some());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.living == 0
    }

    pub(super) fn is_first(&self, seq: u64) -> bool {
        self.list.front().is_some_and(|(first, _)| *first == seq)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Taken)> {
        self.list.iter().filter_map(|(seq, taken)| Some((*seq, taken.as_ref()?)))
    }
}
