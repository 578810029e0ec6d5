//! What one open file description keeps.
//!
//! Always true: a description is here only while it keeps something, or something keeps it open. It is not released while it is held
//! or pinned; one that nobody is known to hold waits for a complete scan to say so.

use super::Books;
use super::memory::MemoryId;
use crate::event::rm::{ExportKind, Handle};
use crate::event::{BootNs, Token};
use std::collections::{BTreeMap, BTreeSet};

/// GPUs kept per address space (UVM_MAX_GPUS is less).
const GPUS_MAX: usize = 256;

/// An address space of UVM.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// When it was made, or first used.
    pub at: BootNs,
    /// Its making was seen.
    pub made: bool,
    /// `UVM_INIT_FLAGS_*`.
    pub flags: u64,
    /// UUIDs of the GPUs that are registered with it.
    pub gpus: Vec<(u64, u64)>,
    /// It mapped an object of which it is not known whether that is GPU memory: first when.
    pub unknown: Option<BootNs>,
    /// Mappings by first address.
    pub(super) maps: BTreeMap<u64, Mapping>,
}

impl Space {
    /// The memory that it maps, by first address.
    pub fn maps(&self) -> impl Iterator<Item = (u64, MemoryId)> {
        self.maps.iter().map(|(base, map)| (*base, map.memory))
    }

    pub(super) fn registers(&mut self, uuid: (u64, u64)) {
        if self.gpus.len() < GPUS_MAX && !self.gpus.contains(&uuid) {
            self.gpus.push(uuid);
        }
    }

    fn is_empty(&self) -> bool {
        !self.made && self.unknown.is_none() && self.gpus.is_empty() && self.maps.is_empty()
    }
}

/// A mapping in an address space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) seq: u64,
    pub(super) memory: MemoryId,
    pub(super) length: u64,
    pub(super) at: BootNs,
}

/// An object in an exported handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Export {
    pub(super) seq: u64,
    pub(super) memory: MemoryId,
    pub(super) kind: ExportKind,
    pub(super) at: BootNs,
}

/// An open file description.
#[derive(Clone, Debug, Default)]
pub(super) struct Description {
    /// Order of arrival.
    pub(super) seq: u64,
    /// The world knows it: it will say when it is released.
    pub(super) held: bool,
    /// First and last request through it.
    pub(super) first: BootNs,
    pub(super) last: BootNs,
    /// Clients that it owns.
    pub(super) clients: BTreeSet<Handle>,
    /// What it keeps as an exported handle, in order of export.
    pub(super) exports: Vec<Export>,
    /// What it keeps as an address space.
    pub(super) space: Option<Box<Space>>,
    /// What it keeps open, and what keeps it open.
    pub(super) pins: Option<Token>,
    pub(super) pinned_by: BTreeSet<Token>,
}

impl Description {
    pub(super) fn memories(&self) -> impl Iterator<Item = MemoryId> {
        let maps = self.space.iter().flat_map(|space| space.maps.values().map(|map| map.memory));
        maps.chain(self.exports.iter().map(|export| export.memory))
    }

    fn is_empty(&self) -> bool {
        self.clients.is_empty()
            && self.exports.is_empty()
            && self.space.is_none()
            && self.pins.is_none()
            && self.pinned_by.is_empty()
    }
}

impl Books {
    /// When the description with this token was first used, as far as it is in the books.
    pub(in crate::world) fn first_used(&self, token: Token) -> Option<BootNs> {
        self.descriptions.get(&token).map(|d| d.first)
    }

    /// Forgets a description that keeps nothing, and an address space that nothing is known of.
    pub(super) fn prune(&mut self, token: Token) {
        let Some(description) = self.descriptions.get_mut(&token) else { return };
        description.space.take_if(|space| space.is_empty());
        if description.is_empty() {
            self.descriptions.remove(&token);
        }
    }
}
