//! Open file descriptions of NVIDIA files: who opened them, who holds them, and how.
//!
//! Always true: keyed by description, never by (PID, descriptor), because fork, dup and SCM_RIGHTS share it. A description
//! without a holder is closed as far as we know, and is dropped from the table.

use crate::event::{BootNs, Dev, Hold, ProcessId, Token, Via};
use std::collections::BTreeMap;

/// How the opener of a description is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenerKnown {
    /// Its open was seen, or its credentials are those of the description.
    Exact,
    /// It was deduced.
    Inferred,
}

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number.
    pub fd: i32,
    /// The thread whose own table has it; `None` for the process's table.
    pub tid: Option<u32>,
    /// Closed by exec; `None` when not known.
    pub cloexec: Option<bool>,
    /// When it appeared here.
    pub since: BootNs,
}

/// What one process has of one description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// How it came to it; `None` when nobody saw.
    pub via: Option<Via>,
    /// From whom.
    pub from: Option<ProcessId>,
    /// Since when, when that was seen.
    pub since: Option<BootNs>,
    /// Its descriptors, at least one.
    pub slots: Vec<Slot>,
}

/// One open file description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Device number.
    pub dev: Dev,
    /// Who opened it, when that was seen.
    pub opener: Option<ProcessId>,
    /// Credentials of the opener.
    pub cred: Option<Token>,
    /// Opened with O_CLOEXEC.
    pub opened_cloexec: Option<bool>,
    /// When it was opened, or first seen.
    pub since: BootNs,
    /// Who has it.
    pub holders: BTreeMap<ProcessId, Holder>,
}

impl OpenFile {
    /// A description that is met for the first time.
    #[must_use]
    pub fn new(hold: &Hold, at: BootNs) -> OpenFile {
        OpenFile {
            dev: hold.dev,
            opener: hold.opener.or((hold.via == Some(Via::Opened)).then_some(hold.id)),
            cred: hold.cred,
            opened_cloexec: hold.opened_cloexec,
            since: hold.since.unwrap_or(at),
            holders: BTreeMap::new(),
        }
    }

    /// Adds a descriptor.
    pub fn add(&mut self, hold: &Hold, at: BootNs) {
        if let Some(opener) = hold.opener {
            self.opener.get_or_insert(opener);
        }
        self.cred = self.cred.or(hold.cred);
        self.opened_cloexec = self.opened_cloexec.or(hold.opened_cloexec);
        let holder = self.holders.entry(hold.id).or_insert_with(|| Holder {
            via: hold.via,
            from: hold.from,
            since: hold.since.or(hold.via.map(|_| at)),
            slots: Vec::new(),
        });
        holder.via = holder.via.or(hold.via);
        holder.from = holder.from.or(hold.from);
        let slot = Slot { fd: hold.fd, tid: hold.tid, cloexec: hold.cloexec, since: at };
        match holder.slots.iter_mut().find(|s| s.fd == hold.fd && s.tid == hold.tid) {
            Some(known) => known.cloexec = hold.cloexec.or(known.cloexec),
            None => holder.slots.push(slot),
        }
    }

    /// A child now shares what `parent` has in its own table.
    pub fn fork(&mut self, parent: ProcessId, child: ProcessId, at: BootNs) {
        let Some(of_parent) = self.holders.get(&parent) else { return };
        // What waits in a socket or is registered in a ring is reached through a descriptor that fork copies too.
        let slots: Vec<Slot> = of_parent.slots.iter().map(|s| Slot { since: at, tid: None, ..*s }).collect();
        let via = match of_parent.via {
            Some(via @ (Via::InFlight | Via::IoUring)) => via,
            _ => Via::Fork,
        };
        self.holders.insert(child, Holder { via: Some(via), from: Some(parent), since: Some(at), slots });
    }

    /// Removes a descriptor; true when the process then has none.
    pub fn remove(&mut self, id: ProcessId, tid: Option<u32>, fd: i32) -> bool {
        let Some(holder) = self.holders.get_mut(&id) else { return false };
        holder.slots.retain(|s| !(s.fd == fd && s.tid == tid));
        if holder.slots.is_empty() {
            self.holders.remove(&id);
            return true;
        }
        false
    }

    /// Exec closes what is close-on-exec; true when the process then has none.
    pub fn exec(&mut self, id: ProcessId) -> bool {
        let Some(holder) = self.holders.get_mut(&id) else { return false };
        holder.slots.retain(|s| s.cloexec != Some(true));
        if holder.slots.is_empty() {
            self.holders.remove(&id);
            return true;
        }
        false
    }
}
