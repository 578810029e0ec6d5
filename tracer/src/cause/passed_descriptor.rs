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
use super::{Verdict, remedy, words};
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
        _ => format!("got {files} of it passed (over a unix socket or with pidfd_getfd)"),
    };
    let belonged = match case.owner {
        Some(_) => format!("belonged to {}{}", case.owner_name(), ended(case)),
        None => "belongs to a process that is gone".to_owned(),
    };
    let still = if files == "a GPU file" { "it" } else { "them" };
    format!("{} {belonged}; {who} {how} and still {has} {still} open.", case.what())
}
