//! `descriptor_in_flight`: the only thing that keeps the dead owner's GPU file open is a message or a ring.
//!
//! A descriptor that was sent over a unix socket is kept open by the unread message, and one that is registered in an
//! io_uring is kept open by the ring: no process shows it in /proc/PID/fd, and fuser and lsof find nothing.
//!
//! * **Must be seen:** the owner is dead (or unknown), no process has the description in a descriptor table, and a
//!   scan found it in the receive queue of a unix socket or in an io_uring; or it was seen sent and not received.
//! * **Would refute it:** any process with the description in its table.
//! * **Confidence:** exact when a scan found it in the socket or ring; inferred when only the sending was seen.
//! * **Remedy:** let the process that has the socket read or close it; let the one with the ring unregister the file;
//!   or end it.

use super::case::Case;
use super::evidence::{confidence, ended, note};
use super::{Verdict, remedy, words};
use crate::event::Via;
use crate::explanation::Confidence;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    if case.living_owner().is_some() || !case.others().all(|h| matches!(h.via, Via::InFlight | Via::IoUring)) {
        return None;
    }
    let sockets = case.others_via(&[Via::InFlight]);
    let rings = case.others_via(&[Via::IoUring]);
    let belonged = match case.owner {
        Some(_) => format!("{} belonged to {}{}", case.what(), case.owner_name(), ended(case)),
        None => format!("{} belongs to a process that is gone", case.what()),
    };
    let names = |of: &[&super::case::HolderView<'_>]| {
        words::list(&of.iter().map(|h| words::process(h.process)).collect::<Vec<_>>(), 3)
    };
    let notes = case.in_transit().map(|(_, sent)| {
        let socket = sent.socket.map(|inode| format!(" through socket {inode}")).unwrap_or_default();
        let by = words::by_id(case.world, sent.by);
        note(Some(sent.at), format!("{by} sent a GPU file{socket}; nobody was seen to receive it"))
    });
    let notes: Vec<_> = notes.collect();
    let (confidence, place) = match (&sockets[..], &rings[..]) {
        ([], []) if notes.is_empty() => return None,
        ([], []) => (Confidence::Inferred, "its GPU file was sent over a unix socket and has not been received".to_owned()),
        (_, []) => (confidence(case), format!("its GPU file waits unread in a unix socket of {}", names(&sockets))),
        ([], _) => (confidence(case), format!("its GPU file is registered in an io_uring of {}", names(&rings))),
        _ => (confidence(case), format!("its GPU files wait in unix sockets of {} and io_urings of {}", names(&sockets), names(&rings))),
    };
    let mut remedies = Vec::new();
    if !sockets.is_empty() {
        let effect = format!("{} reads or closes the socket (descriptor {})", names(&sockets), fds(&sockets));
        remedies.push(remedy::wait(effect, case.bytes));
    }
    let all: Vec<_> = case.others().map(|holder| holder.process).collect();
    remedies.extend(remedy::end_all(case, &all));
    Some(Verdict { confidence, summary: format!("{belonged}; {place}."), notes, remedies })
}

fn fds(holders: &[&super::case::HolderView<'_>]) -> String {
    let mut fds: Vec<i32> = holders.iter().flat_map(|h| h.descriptors.iter().map(|d| d.0)).collect();
    fds.sort_unstable();
    fds.dedup();
    words::list(&fds.iter().map(ToString::to_string).collect::<Vec<_>>(), 4)
}
