//! Who opened a description and how a holder came to it, from what was seen or, failing that, from what stays visible.
//!
//! What stays visible after the fact:
//! * `file->f_cred` is the opener's `task->cred`, as a pointer; fork and exec make new credentials (`copy_creds`,
//!   `prepare_exec_creds`; kernel/cred.c), and the file pins its own. Equal pointers prove the opener, even a zombie.
//! * fork keeps a descriptor's close-on-exec bit; SCM_RIGHTS and pidfd_getfd set their own; the bit asked for at open stays in
//!   `file->f_flags`. A difference means that the descriptor was passed (or duplicated).
//! * PF_FORKNOEXEC: a process that never executed anything may have inherited what it has; one that did cannot have
//!   inherited a close-on-exec descriptor.
//!
//! Always true: what is deduced says so and why.

use super::case::Keeper;
use crate::event::{ProcessId, Token, Via};
use crate::world::World;
use crate::world::file::{Holder, OpenFile};
use std::collections::{BTreeMap, HashMap};

/// The opener, and why we think so when nobody saw it; `None` when it cannot be told.
pub(super) fn opener_of(world: &World, file: &OpenFile, by_cred: &HashMap<Token, ProcessId>) -> Option<(ProcessId, Option<String>)> {
    if let Some(id) = file.opener {
        return Some((id, None));
    }
    if let Some(id) = file.cred.and_then(|c| by_cred.get(&c)) {
        return Some((*id, None));
    }
    // A process that changed its credentials after it opened: NVML charges it, and it holds the description.
    let mut charged = file.holders.keys().filter(|id| world.charged(id.tgid()));
    if let (Some(id), None) = (charged.next(), charged.next()) {
        return Some((*id, Some("NVML charges it and it holds the files; its open was not seen".to_owned())));
    }
    // The only holder, which executed a program of its own and has the descriptor as an open would leave it.
    let (id, holder) = file.holders.iter().next().filter(|_| file.holders.len() == 1)?;
    let process = world.process(*id)?;
    let as_opened = holder.via.is_none() && holder.slots.iter().all(|s| s.cloexec.is_some() && s.cloexec == file.opened_cloexec);
    let could_not_inherit = process.info.never_execed == Some(false) && file.opened_cloexec == Some(true);
    let known_different = file.cred.is_some() && process.info.cred.is_some() && file.cred != process.info.cred;
    (as_opened && could_not_inherit && !known_different)
        .then(|| (*id, Some("it is the only holder and executed its program before the open".to_owned())))
}

/// Adds one holding to the holders of a case.
pub(super) fn keeper(
    world: &World,
    people: &mut BTreeMap<ProcessId, Keeper>,
    owner: Option<ProcessId>,
    id: ProcessId,
    token: Token,
    file: &OpenFile,
    holder: &Holder,
) {
    let (via, deduced) = via_of(world, owner, id, file, holder);
    let entry = people.entry(id).or_insert_with(|| Keeper { id, via, from: holder.from, deduced, slots: Vec::new(), thread: None });
    // Something inherited outweighs something that only waits in a socket.
    if matches!(entry.via, Via::InFlight | Via::IoUring) && !matches!(via, Via::InFlight | Via::IoUring) {
        entry.via = via;
        entry.from = holder.from;
    }
    entry.slots.extend(holder.slots.iter().map(|s| (s.fd, token)));
    entry.thread = entry.thread.or(holder.slots.iter().find_map(|s| s.tid));
}

fn via_of(world: &World, owner: Option<ProcessId>, id: ProcessId, file: &OpenFile, holder: &Holder) -> (Via, Option<String>) {
    if owner == Some(id) {
        let threaded = world.process(id).is_some_and(|p| p.leader_exited());
        return (if threaded { Via::Thread } else { Via::Opened }, None);
    }
    if let Some(via) = holder.via {
        return (via, None);
    }
    let never_execed = world.process(id).and_then(|p| p.info.never_execed);
    let bit = holder.slots.iter().find_map(|s| s.cloexec);
    match (never_execed, bit, file.opened_cloexec) {
        (Some(false), Some(true), _) => (
            Via::ScmRights,
            Some("received after its exec: an inherited close-on-exec descriptor would have been closed".to_owned()),
        ),
        (_, Some(bit), Some(opened)) if bit != opened => (
            Via::ScmRights,
            Some("received: its close-on-exec bit is not the one that the file was opened with, and fork would have kept it".to_owned()),
        ),
        (Some(true), _, _) => (Via::Fork, Some("inherited: it never executed a program of its own since it was forked".to_owned())),
        (Some(false), _, _) => (Via::Fork, Some("inherited across exec: the file was opened without close-on-exec".to_owned())),
        (None, _, _) => (Via::Fork, Some("inherited or received: neither was seen".to_owned())),
    }
}
