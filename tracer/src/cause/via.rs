//! How a process came to hold a description, when nobody watched.
//!
//! Always true: what was seen is taken as it is; what is deduced says from what.

use super::case::Owner;
use super::exported_handle;
use crate::event::{BootNs, ProcessId, Via};
use crate::world::World;
use crate::world::file::{File, Holder, Place, Slot};
use crate::world::process::{Process, Stage};

/// Longest chain of forks that is followed.
const CHAIN_MAX: usize = 16;

/// Why a descriptor is taken for passed that an owner may also have opened so, or made so, that its child keeps it across exec.
pub(super) const CLEARED: &str =
    "its descriptor survives exec, while NVIDIA's libraries open theirs close-on-exec: it was passed, or made to survive";

/// The answer.
pub(super) struct Way {
    pub(super) via: Via,
    pub(super) from: Option<ProcessId>,
    pub(super) since: Option<BootNs>,
    /// Why it is only deduced.
    pub(super) deduced: Option<&'static str>,
}

/// How `process` came to hold `file`. Of an exported handle it matters less how it was passed than that it is one.
pub(super) fn of(
    world: &World,
    owner: Option<Owner<'_>>,
    file: &File,
    process: &Process,
    place: Place,
    holder: &Holder,
) -> Way {
    let way = came(world, owner, file, process, place, holder);
    let exported = exported_handle::is_exported(world, file);
    match way.via {
        Via::ScmRights | Via::PidfdGetfd if exported => Way { via: Via::ExportFd, ..way },
        _ => way,
    }
}

fn came(
    world: &World,
    owner: Option<Owner<'_>>,
    file: &File,
    process: &Process,
    place: Place,
    holder: &Holder,
) -> Way {
    let seen = |via| Way { via, from: holder.from, since: holder.since, deduced: None };
    let sender = file.sent.last().map(|sent| sent.by);
    match place {
        Place::Socket => return Way { from: holder.from.or(sender), ..seen(Via::InFlight) },
        Place::Ring => return seen(Via::IoUring),
        Place::Table => {}
    }
    if owner.is_some_and(|owner| owner.id == process.id()) {
        let lives_on = process.exit.leader.is_some() || process.state().is_some_and(|s| s.leader_exited);
        let via = if lives_on && process.stage() == Stage::Alive { Via::Thread } else { Via::Opened };
        return seen(via);
    }
    if let Some(via) = holder.via.filter(|via| *via != Via::Opened) {
        return seen(via);
    }
    if let Some((from, since)) = forked_with(world, owner, file, process, holder) {
        return Way { via: Via::Fork, from: Some(from), since: Some(since), deduced: None };
    }
    let sent_to_someone = sender.is_some() && world.host().watching_since().is_some();
    let (via, why) = deduce(owner, file, process, holder, sent_to_someone);
    Way { via, from: None, since: None, deduced: Some(why) }
}

/// The fork that gave it the file: it descends from the owner by forks that were seen, the first of them after the open,
/// executed nothing since, and the file was never sent. Copies that no hook shows (F_DUPFD, as libcuda makes them) are
/// in the owner's table all the same.
fn forked_with(
    world: &World,
    owner: Option<Owner<'_>>,
    file: &File,
    process: &Process,
    holder: &Holder,
) -> Option<(ProcessId, BootNs)> {
    let owner = owner?.id;
    let survives = |slots: &[Slot]| slots.iter().all(|slot| slot.cloexec == Some(false));
    if !file.sent.is_empty() || process.execed_at.is_some() && !survives(&holder.slots) {
        return None;
    }
    let mut link = process;
    for _ in 0..CHAIN_MAX {
        let parent = link.born_of?;
        if parent == owner {
            let before = file.opened_at.is_none_or(|opened| link.forked_at.is_some_and(|forked| opened <= forked));
            return process.born_of.zip(process.forked_at).filter(|_| before);
        }
        link = world.process(parent)?;
    }
    None
}

fn deduce(owner: Option<Owner<'_>>, file: &File, process: &Process, holder: &Holder, sent: bool) -> (Via, &'static str) {
    let start = process.id().start();
    let older = owner.is_some_and(|o| o.id.start() != 0 && start != 0 && start < o.id.start());
    // Programs often set the flag after the open; only passing and dup clear it.
    let differs = holder.slots.iter().all(|slot| slot.cloexec == Some(false)) && file.opened_cloexec == Some(true);
    // libcuda and NVML open every NVIDIA file with O_CLOEXEC, and fork keeps the flag; SCM_RIGHTS clears it unless asked.
    let cleared = file.opened_cloexec.is_none() && holder.slots.iter().all(|slot| slot.cloexec == Some(false));
    let closes_at_exec = holder.slots.iter().all(|slot| slot.cloexec == Some(true));
    if older {
        return (Via::ScmRights, "it is older than the owner, so it was not forked from it");
    }
    if sent {
        return (Via::ScmRights, "the description was sent through a unix socket, and nobody saw it forked");
    }
    if cleared {
        return (Via::ScmRights, CLEARED);
    }
    match process.info.never_execed {
        Some(true) if !differs => (Via::Fork, "it never executed a program of its own since it was forked"),
        Some(false) if closes_at_exec => {
            (Via::ScmRights, "it executed a program, and its descriptor is one that exec closes: it came later")
        }
        _ if differs => {
            (Via::ScmRights, "its close-on-exec flag is not the one of the open: it was passed, not forked")
        }
        Some(false) => (Via::Fork, "the descriptor survives exec, and its close-on-exec flag is the one of the open"),
        _ => (Via::Fork, "nothing shows that it was passed"),
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{Hold, ProcessId, Via, What};
    use crate::explanation::{CauseId, Confidence, Holding};
    use crate::story::{CTL, GPU0, Story};

    #[test]
    fn an_exiting_owner_is_no_thread_that_lives_on() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.thread_exits(trainer, 574, 0, Some(0), 1);
        assert_eq!(story.holding().holders[0].via, Via::Opened);
    }

    /// The trainer makes a copy that no hook shows, closes the original, and forks.
    fn hidden_copy(story: &mut Story, opened_late: bool) -> Holding {
        let trainer = story.process(574, "python3");
        story.info(trainer, "python3", |info| info.cred = Some(66));
        story.opens(trainer, CTL);
        let mut child = trainer;
        let fork = |story: &mut Story| story.forks(trainer, 580, "worker");
        if opened_late {
            child = fork(story);
        }
        let file = story.opens(trainer, GPU0);
        if !opened_late {
            story.push(What::Drop { id: trainer, tid: None, fd: file.fd, file: file.file });
            child = fork(story);
        }
        story.found(&Hold { id: child, fd: 30, via: None, opener: None, cred: Some(66), ..file });
        story.killed((ProcessId(12, 5), "bash"), trainer);
        story.holding()
    }

    #[test]
    fn a_seen_fork_explains_copies_that_no_hook_shows() {
        let holding = hidden_copy(&mut Story::warm(), false);
        assert_eq!((holding.cause, holding.confidence), (CauseId::InheritedDescriptor, Confidence::Exact));
        assert_eq!(holding.holders[0].descriptors.len(), 2);
    }

    #[test]
    fn a_fork_before_the_open_gave_nothing_of_it() {
        let holding = hidden_copy(&mut Story::warm(), true);
        assert_eq!(holding.confidence, Confidence::Inferred);
    }
}
