//! What may be missing in the books.
//!
//! Always true: books that are complete (no gap) hold every GPU memory object of the client or process, and its sizes are
//! those that the driver rounded.

use super::{Books, Client, Origin, bit};
use crate::event::rm::{Handle, Missed, Role};
use crate::event::{BootNs, Node, ProcessId, Token};
use crate::world::World;
use crate::world::file::File;

/// The cause of a [`Gap::Lost`] that a live look leaves after the recording that it goes by has ended.
pub const RECORDING_ENDED: &str = "recording_ended";
/// Processes remembered whose requests were not understood.
const MISSED_MAX: usize = 4_096;

/// Why something may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap<'a> {
    /// A client was there before it could be seen; it was first named then.
    Named {
        /// When.
        at: BootNs,
    },
    /// A description of /dev/nvidiactl was open before it could be seen: it may own clients that nothing has named.
    OpenedBefore {
        /// The description.
        file: Token,
    },
    /// Events were lost, or there was no room for more.
    Lost {
        /// Last when.
        at: BootNs,
        /// Why.
        cause: &'a str,
    },
    /// A request of the process was granted and could not be understood or believed.
    Missed {
        /// Last when.
        at: BootNs,
        /// Why.
        why: Missed,
    },
    /// A request contradicted what was known of a client.
    Inconsistent {
        /// First when.
        at: BootNs,
    },
    /// An address space mapped an object of which it is not known whether that is GPU memory.
    UnknownMapping {
        /// First when.
        at: BootNs,
    },
}

/// The latest loss.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Loss {
    pub(super) at: BootNs,
    pub(super) cause: Box<str>,
}

impl Books {
    /// What may be missing of a client; `None` when its books are complete or it is not known at all.
    #[must_use]
    pub fn gap_of_client(&self, handle: Handle) -> Option<Gap<'_>> {
        self.gap_of(self.clients.get(&handle)?)
    }

    /// What may be missing of what an address space keeps.
    #[must_use]
    pub fn gap_of_space(&self, token: Token) -> Option<Gap<'_>> {
        let space = self.space(token)?;
        let at = space.unknown.or((!space.made).then_some(space.at));
        at.map(|at| Gap::UnknownMapping { at }).or_else(|| self.lost_since(space.at))
    }

    /// Processes of which a request was not understood.
    #[must_use]
    pub fn missed_processes(&self) -> usize {
        self.missed.len()
    }

    pub(in crate::world) fn loses(&mut self, at: BootNs, cause: &str, count: u64) {
        let newer = |known: &Loss| (known.at, &*known.cause) < (at, cause);
        match &mut self.loss {
            _ if count == 0 => {}
            Some(known) if *known.cause == *cause => known.at = known.at.max(at),
            Some(known) if !newer(known) => {}
            loss => *loss = Some(Loss { at, cause: cause.into() }),
        }
    }

    /// Everything that the client allocated is here: what it has beside that is no GPU memory.
    pub(super) fn is_complete(&self, client: &Client) -> bool {
        let missed = self.missed_since(client.process, client.at);
        client.origin == Origin::Made && missed.is_none() && self.lost_since(client.at).is_none()
    }

    fn gap_of(&self, client: &Client) -> Option<Gap<'_>> {
        let named = (client.origin == Origin::Named).then_some(Gap::Named { at: client.at });
        let inconsistent = client.inconsistent.map(|at| Gap::Inconsistent { at });
        let missed = self.missed_since(client.process, client.at);
        named.or(inconsistent).or(missed).or_else(|| self.lost_since(client.at))
    }

    /// A request of this process was not understood.
    pub(super) fn misses(&mut self, at: BootNs, id: ProcessId, why: Missed) {
        if self.missed.len() >= MISSED_MAX && !self.missed.contains_key(&id) {
            self.loses(at, "books_full", 1);
            return;
        }
        let known = self.missed.entry(id).or_insert((at, why));
        *known = (*known).max((at, why));
    }

    /// Of processes that are not known any more nothing needs to be said.
    pub(in crate::world) fn forget_missed(&mut self, known: &dyn Fn(&ProcessId) -> bool) {
        self.missed.retain(|id, _| known(id));
    }

    fn missed_since(&self, id: ProcessId, since: BootNs) -> Option<Gap<'static>> {
        let (at, why) = self.missed.get(&id).copied().filter(|(at, _)| *at >= since)?;
        Some(Gap::Missed { at, why })
    }

    fn lost_since(&self, since: BootNs) -> Option<Gap<'_>> {
        let loss = self.loss.as_ref().filter(|loss| loss.at >= since)?;
        Some(Gap::Lost { at: loss.at, cause: &loss.cause })
    }
}

impl World {
    /// What may be missing of the memory of a process's clients.
    #[must_use]
    pub fn gap_of_process(&self, id: ProcessId) -> Option<Gap<'_>> {
        let clients = || self.books.of_process(id).filter_map(|client| self.books.gap_of(client)).next();
        let opened = |file: &File| file.opener.map_or_else(|| file.is_held_by(id), |(opener, _)| opener == id);
        let missed = || self.books.missed_since(id, id.start());
        clients().or_else(missed).or_else(|| self.opened_before(opened)).or_else(|| self.books.lost_since(id.start()))
    }

    /// What may be missing of the memory of a device instance.
    #[must_use]
    pub fn gap_of_device(&self, device: u32) -> Option<Gap<'_>> {
        // Of a client that was named late, the devices are not all known either.
        let concerns = |client: &Client| client.devices & bit(device) != 0 || client.origin == Origin::Named;
        let clients = self.books.clients().filter(|client| concerns(client));
        let first = clients.filter_map(|client| self.books.gap_of(client)).next();
        first.or_else(|| self.opened_before(|_| true)).or_else(|| self.books.lost_since(0))
    }

    fn opened_before(&self, of: impl Fn(&File) -> bool) -> Option<Gap<'_>> {
        let since = self.host.watching_since();
        let before = |file: &&File| {
            let unseen = file.opened_at.is_none_or(|opened| since.is_none_or(|since| opened < since));
            file.dev.node() == Node::Control && file.role != Some(Role::Exported) && unseen && of(file)
        };
        self.files().find(before).map(|file| Gap::OpenedBefore { file: file.token })
    }
}
