//! `exit_blocked_in_driver`, `exit_blocked_elsewhere`: the owner is exiting, or was killed, and a thread does not leave the kernel.
//!
//! Seen: exiting or SIGKILL pending, a thread in D or with a kernel stack while memory does not fall, for longer than
//! [`PATIENCE_NS`]. In the driver when a frame of an NVIDIA module is on that stack. Refuted by: memory falling.
//! Confidence: inferred (a stack is one moment). Remedy: no signal helps; what the thread waits for must end.

use super::case::Case;
use super::{Verdict, remedies, words};
use crate::event::StuckThread;
use crate::explanation::{CauseId, Confidence};
use crate::world::process::Process;

/// A normal teardown shows progress within this time.
const PATIENCE_NS: u64 = 5_000_000_000;
const SIGKILL_BIT: u64 = 1 << 8;

pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    let owner = case.owner_process().filter(|p| !p.is_dead())?;
    let (seen, state) = owner.state.as_ref()?;
    let killed = state.pending & SIGKILL_BIT != 0;
    if !owner.is_exiting() && !killed {
        return None;
    }
    let since = leaving_since(owner).unwrap_or(*seen);
    let waited = case.world.now.saturating_sub(since);
    let falling = case.gpu.and_then(|g| case.world.gpus.get(&g)).is_some_and(|g| g.fell_since(since).is_some());
    let thread = state.stuck.iter().find(|t| !t.stack.is_empty())?;
    if waited < PATIENCE_NS || falling {
        return None;
    }
    let in_driver = thread.stack.iter().any(|frame| frame.contains("[nvidia"));
    Some(blocked(case, owner, thread, in_driver, waited))
}

/// When its end began, as far as it was seen.
pub(super) fn leaving_since(owner: &Process) -> Option<u64> {
    let kill = owner.signals.iter().filter(|s| s.sig == 9).map(|s| s.at).min();
    [owner.exit.began, owner.exiting_since, kill].into_iter().flatten().min()
}

fn blocked(case: &Case<'_>, owner: &Process, thread: &StuckThread, in_driver: bool, waited: u64) -> Verdict {
    let who = words::named(case.world, owner.id());
    let place = if in_driver { "in the NVIDIA driver" } else { "in the kernel, outside the NVIDIA driver" };
    let doing = if thread.state == "R" { "spins" } else { "waits" };
    let summary = format!(
        "{} belongs to {who}, which cannot finish its exit: thread {} {doing} {place} for {} and more.",
        words::amount(case.bytes, case.gpu),
        thread.tid,
        crate::report::layout::duration(waited)
    );
    let stack: Vec<&str> = thread.stack.iter().take(8).map(String::as_str).collect();
    let facts = vec![(owner.state.as_ref().map(|(t, _)| *t), format!("thread {} (state {}): {}", thread.tid, thread.state, stack.join(" < ")))];
    let advice = if in_driver {
        "no signal can help: SIGKILL is already taken. Look for an Xid; if none of the memory moves, only a GPU reset with nothing else using it, or a reboot, ends this."
    } else {
        "no signal can help, and neither can the GPU: make what the thread waits for answer (a FUSE daemon, NFS server or disk; see its stack)."
    };
    let cause = if in_driver { CauseId::ExitBlockedInDriver } else { CauseId::ExitBlockedElsewhere };
    Verdict { cause, confidence: Confidence::Inferred, summary, facts, remedy: vec![remedies::wait(advice, case.bytes)] }
}
