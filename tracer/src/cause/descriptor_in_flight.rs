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

use super::case::{Case, descriptor_numbers};
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
        None => format!("{} belongs to {}", case.what(), case.unknown_owner()),
    };
    let names = |of: &[&super::case::HolderView<'_>]| {
        words::processes(of.iter().map(|h| h.process))
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
        let effect = format!("{} reads or closes the socket (descriptor {})", names(&sockets), words::list(&descriptor_numbers(&sockets), 4));
        remedies.push(remedy::wait(effect, case.bytes));
    }
    let all: Vec<_> = case.others().map(|holder| holder.process).collect();
    remedies.extend(remedy::end_all(case, &all));
    Some(Verdict { confidence, summary: format!("{belonged}; {place}."), notes, remedies })
}

#[cfg(test)]
mod tests {
    use crate::event::{Hold, ProcessId, Via, What};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{CTL, Story};

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    fn sent(story: &mut Story) -> (ProcessId, Hold) {
        let trainer = story.process(574, "python3");
        let files = story.uses_cuda(trainer);
        story.push(What::Sent { id: trainer, file: files[0].file, dev: CTL, socket: Some(4242) });
        (trainer, files[0].clone())
    }

    #[test]
    fn a_message_that_nobody_reads_keeps_the_memory() {
        let mut story = Story::warm();
        let reader = story.process(300, "server");
        let (trainer, file) = sent(&mut story);
        story.killed(BASH, trainer);
        story.nvml(2_048, &[]);
        story.found(&Hold { id: reader, fd: 7, via: Some(Via::InFlight), ..file });
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::DescriptorInFlight);
        assert_eq!(holding.bytes, Some(2_048 << 20));
        assert_eq!((holding.holders[0].pid, holding.holders[0].via), (300, Via::InFlight));
        assert!(holding.summary.ends_with("its GPU file waits unread in a unix socket of server (PID 300)."), "{}", holding.summary);
        assert_eq!(holding.remedy[0].command, None);
    }

    #[test]
    fn a_sending_without_a_receipt_is_inferred_before_any_scan() {
        let mut story = Story::warm();
        let (trainer, _) = sent(&mut story);
        story.killed(BASH, trainer);
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::DescriptorInFlight, Confidence::Inferred));
        assert!(holding.holders.is_empty());
        assert_eq!(holding.owner.unwrap().pid, 574);
    }

    #[test]
    fn a_complete_scan_that_finds_no_message_ends_it() {
        let mut story = Story::warm();
        let (trainer, _) = sent(&mut story);
        story.killed(BASH, trainer);
        story.scanned();
        assert!(story.told().holdings.is_empty());
    }

    #[test]
    fn an_io_uring_is_named_as_such() {
        let mut story = Story::warm();
        let server = story.process(300, "server");
        let trainer = story.process(574, "python3");
        let files = story.uses_cuda(trainer);
        story.found(&Hold { id: server, fd: 7, via: Some(Via::IoUring), ..files[0].clone() });
        story.killed(BASH, trainer);
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::DescriptorInFlight);
        assert!(holding.summary.contains("is registered in an io_uring of server (PID 300)"), "{}", holding.summary);
    }

    #[test]
    fn a_descriptor_in_a_table_answers_before_one_in_flight() {
        let mut story = Story::warm();
        let reader = story.process(300, "server");
        let (trainer, file) = sent(&mut story);
        story.forks(trainer, 580, "python3");
        story.found(&Hold { id: reader, fd: 7, via: Some(Via::InFlight), ..file });
        story.killed(BASH, trainer);
        assert_eq!(story.holding().cause, CauseId::InheritedDescriptor);
    }
}
