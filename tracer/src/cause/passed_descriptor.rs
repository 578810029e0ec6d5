//! `passed_descriptor`: another process received the dead owner's GPU file, and still has it open.
//!
//! A descriptor can be sent over a unix socket (SCM_RIGHTS) or taken with pidfd_getfd(2). The receiver then keeps the
//! sender's memory alive, without any family relation between them and without ever having used the GPU.
//!
//! * **Must be seen:** the owner is dead (or unknown), and the living holders received the descriptions, or were
//!   forked from one that did.
//! * **Would refute it:** a holder that was forked from the owner's side (`inherited_descriptor` then explains more).
//! * **Confidence:** exact when the receipt was seen; else inferred: the receiver is older than the owner, or its
//!   close-on-exec flag is not the one of the open, or it executed a program and the flag says that exec would have
//!   closed the descriptor.
//! * **Remedy:** let the receiver close it (restart or reconfigure the broker), or end the receiver.

use super::case::{Case, HolderView};
use super::evidence::{confidence, ended};
use super::{Verdict, remedy, via, words};
use crate::event::{ProcessId, Via};

/// Ways in which a descriptor is passed.
const PASSED: [Via; 4] = [Via::ScmRights, Via::PidfdGetfd, Via::Import, Via::ExportFd];
/// Longest chain of forks that is followed.
const CHAIN_MAX: usize = 16;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    if case.living_owner().is_some() {
        return None;
    }
    let received = case.others_via(&PASSED);
    if received.is_empty() {
        return None;
    }
    let receivers: Vec<ProcessId> = received.iter().map(|holder| holder.process.id()).collect();
    let forked = case.others_via(&[Via::Fork]);
    if !forked.iter().all(|holder| comes_from(case, holder, &receivers)) {
        return None;
    }
    let all: Vec<_> = case.others().map(|holder| holder.process).collect();
    Some(Verdict {
        confidence: confidence(case),
        summary: summary(case, &received),
        notes: Vec::new(),
        remedies: remedy::end_all(case, &all),
    })
}

fn comes_from(case: &Case<'_>, holder: &HolderView<'_>, receivers: &[ProcessId]) -> bool {
    let mut next = holder.from;
    for _ in 0..CHAIN_MAX {
        match next {
            Some(id) if receivers.contains(&id) => return true,
            Some(id) => next = case.world.process(id).and_then(|p| p.born_of),
            None => return false,
        }
    }
    false
}

fn summary(case: &Case<'_>, received: &[&HolderView<'_>]) -> String {
    let names: Vec<String> = received.iter().map(|holder| words::process(holder.process)).collect();
    let who = words::list(&names, 3);
    let has = if received.len() == 1 { "has" } else { "have" };
    let files = if received.iter().map(|h| h.descriptors.len()).sum::<usize>() == 1 { "a GPU file" } else { "GPU files" };
    let how = match received[0] {
        HolderView { via: Via::PidfdGetfd, deduced: None, .. } => format!("took {files} from it with pidfd_getfd"),
        HolderView { via: Via::ScmRights, deduced: None, .. } => format!("received {files} of it over a unix socket"),
        HolderView { deduced: Some(via::CLEARED), .. } => format!("got {files} of it (passed, or kept when it executed another program)"),
        _ => format!("got {files} of it passed (over a unix socket or with pidfd_getfd)"),
    };
    let belonged = match case.owner {
        Some(_) => format!("belonged to {}{}", case.owner_name(), ended(case)),
        None => format!("belongs to {}", case.unknown_owner()),
    };
    let still = if files == "a GPU file" { "it" } else { "them" };
    format!("{} {belonged}; {who} {how} and still {has} {still} open.", case.what())
}

#[cfg(test)]
mod tests {
    use crate::event::{Hold, ProcessId, Via, What};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{CTL, Story, bare};

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    /// The broker exists before the trainer and receives one file from it.
    fn brokered(story: &mut Story) -> (ProcessId, ProcessId) {
        let broker = story.process(300, "broker");
        let trainer = story.process(574, "python3");
        let files = story.uses_cuda(trainer);
        story.push(What::Sent { id: trainer, file: files[0].file, dev: CTL, socket: Some(4242) });
        story.found(&Hold { id: broker, fd: 9, via: Some(Via::ScmRights), cloexec: Some(false), ..files[0].clone() });
        (broker, trainer)
    }

    #[test]
    fn a_receiver_keeps_the_memory_of_a_dead_sender() {
        let mut story = Story::warm();
        let (broker, trainer) = brokered(&mut story);
        story.killed(BASH, trainer);
        story.nvml(2_571, &[(574, 2_571)]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::PassedDescriptor, Confidence::Exact));
        assert_eq!((holding.holders[0].pid, holding.holders[0].via), (broker.tgid(), Via::ScmRights));
        assert!(holding.summary.ends_with("broker (PID 300) received a GPU file of it over a unix socket and still has it open."), "{}", holding.summary);
        assert!(holding.evidence.iter().any(|e| e.what == "broker (PID 300) received 1 GPU file over a unix socket from python3 (PID 574)"));
    }

    #[test]
    fn with_a_forked_child_as_well_it_is_inherited() {
        let mut story = Story::warm();
        let (_, trainer) = brokered(&mut story);
        story.forks(trainer, 580, "python3");
        story.killed(BASH, trainer);
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::InheritedDescriptor);
        assert_eq!(holding.holders.len(), 2);
    }

    #[test]
    fn a_child_forked_from_the_receiver_is_still_a_passing() {
        let mut story = Story::warm();
        let (broker, trainer) = brokered(&mut story);
        story.forks(broker, 580, "broker");
        story.killed(BASH, trainer);
        let holding = story.holding();
        assert_eq!((holding.cause, holding.holders.len()), (CauseId::PassedDescriptor, 2));
    }

    #[test]
    fn a_receiver_of_a_living_sender_is_no_cause() {
        let mut story = Story::warm();
        brokered(&mut story);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }

    fn cold(story: &mut Story, execed: bool, cloexec: bool) -> crate::explanation::Holding {
        let broker = ProcessId(300, 900);
        story.info(broker, "broker", |info| {
            info.never_execed = Some(!execed);
            info.cred = Some(77);
        });
        let mut hold = bare(broker, 5, 5, CTL);
        (hold.cred, hold.cloexec, hold.opened_cloexec) = (Some(66), Some(cloexec), Some(true));
        story.found(&hold);
        story.nvml(2_571, &[(574, 2_571)]);
        story.push(What::ProcessGone { id: ProcessId(574, 0) });
        story.scanned();
        story.holding()
    }

    #[test]
    fn cold_a_close_on_exec_descriptor_after_an_exec_was_passed() {
        let holding = cold(&mut Story::cold(), true, true);
        assert_eq!((holding.cause, holding.confidence), (CauseId::PassedDescriptor, Confidence::Inferred));
        assert!(holding.summary.contains("got a GPU file of it passed (over a unix socket"), "{}", holding.summary);
    }

    #[test]
    fn cold_a_descriptor_that_survives_exec_may_have_been_kept_too() {
        let mut story = Story::cold();
        let other = ProcessId(300, 900);
        story.info(other, "other", |info| (info.never_execed, info.cred) = (Some(false), Some(77)));
        let mut hold = bare(other, 5, 5, CTL);
        (hold.cred, hold.cloexec) = (Some(66), Some(false));
        story.found(&hold);
        story.nvml(2_571, &[(574, 2_571)]);
        story.push(What::ProcessGone { id: ProcessId(574, 0) });
        story.scanned();
        let holding = story.holding();
        assert!(holding.summary.contains("(passed, or kept when it executed another program)"), "{}", holding.summary);
    }

    #[test]
    fn cold_another_close_on_exec_flag_than_the_opens_was_passed() {
        let holding = cold(&mut Story::cold(), false, false);
        assert_eq!(holding.cause, CauseId::PassedDescriptor);
    }

    #[test]
    fn cold_an_unexecuted_child_with_the_same_flag_inherited() {
        let holding = cold(&mut Story::cold(), false, true);
        assert_eq!(holding.cause, CauseId::InheritedDescriptor);
    }
}
