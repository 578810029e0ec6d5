//! Open file descriptions of NVIDIA devices and who holds each.
//!
//! Always true: a [`File`] in the world has at least one holder, or was sent into a socket and not yet seen to
//! arrive. Its identity is its token until an open of the same token is seen: then it is another description.

use crate::event::{BootNs, Dev, ProcessId, Role, Token, Via};
use std::collections::BTreeMap;

/// Sendings kept per description.
pub const SENT_KEPT: usize = 8;

/// Where a process keeps a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In a descriptor table.
    Table,
    /// Unread in a unix socket of the process.
    Socket,
    /// Registered in an io_uring of the process.
    Ring,
}

impl Place {
    /// The place that a `via` implies.
    #[must_use]
    pub const fn of(via: Option<Via>) -> Place {
        match via {
            Some(Via::InFlight) => Place::Socket,
            Some(Via::IoUring) => Place::Ring,
            _ => Place::Table,
        }
    }
}

/// How an opener is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The open was seen.
    Seen,
    /// The description's credentials are this process's own: fork and exec always make new ones, and the file pins
    /// them (`file->f_cred`), so nobody else can have opened it.
    Credentials,
}

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The descriptor (of the socket or ring, for these places).
    pub fd: i32,
    /// A thread with a table of its own.
    pub tid: Option<u32>,
    /// It is close-on-exec.
    pub cloexec: Option<bool>,
    /// Last change.
    pub changed: BootNs,
}

/// One process's holding of one description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// How it got it, when that was seen.
    pub via: Option<Via>,
    /// From whom, when known.
    pub from: Option<ProcessId>,
    /// Since when, when known.
    pub since: Option<BootNs>,
    /// Its descriptors; never empty.
    pub slots: Vec<Slot>,
}

/// A description was put into a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When.
    pub at: BootNs,
    /// By whom.
    pub by: ProcessId,
    /// Through the socket with this inode number.
    pub socket: Option<u64>,
}

/// One open file description.
#[derive(Clone, Debug)]
pub struct File {
    /// Which.
    pub token: Token,
    /// Its device number.
    pub dev: Dev,
    /// Its opener's credentials.
    pub cred: Option<Token>,
    /// It was opened with O_CLOEXEC.
    pub opened_cloexec: Option<bool>,
    /// Who opened it.
    pub opener: Option<(ProcessId, Known)>,
    /// When it was opened.
    pub opened_at: Option<BootNs>,
    /// First event that mentioned it.
    pub first_seen: BootNs,
    /// Who holds it, and where.
    pub holders: BTreeMap<(ProcessId, Place), Holder>,
    /// Sendings, oldest first.
    pub sent: Vec<Sent>,
    /// Sendings that were not seen to arrive.
    pub in_transit: u32,
    /// What the driver made of it, when that is known.
    pub role: Option<Role>,
    /// The description that it keeps open, when that is known.
    pub pins: Option<Token>,
    /// Bytes that it keeps by itself, when the kernel told: a dma-buf.
    pub bytes: Option<u64>,
}

impl File {
    /// Nothing keeps it open.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.holders.is_empty() && self.in_transit == 0
    }

    /// The place in which this process has it at `fd`.
    #[must_use]
    pub fn slot(&self, id: ProcessId, fd: i32) -> Option<(Place, &Slot)> {
        self.holders
            .range((id, Place::Table)..=(id, Place::Ring))
            .find_map(|((_, place), holder)| holder.slots.iter().find(|s| s.fd == fd).map(|s| (*place, s)))
    }

    /// It can be held by this process in some place.
    #[must_use]
    pub fn is_held_by(&self, id: ProcessId) -> bool {
        self.holders.range((id, Place::Table)..=(id, Place::Ring)).next().is_some()
    }

    /// It is in a descriptor table of this process.
    #[must_use]
    pub fn is_held_by_table(&self, id: ProcessId) -> bool {
        self.holders.contains_key(&(id, Place::Table))
    }
}
