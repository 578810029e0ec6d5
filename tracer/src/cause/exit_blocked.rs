//! `exit_blocked_in_driver` and `exit_blocked_elsewhere`: the owner should be dead, and a thread of it cannot leave the
//! kernel.
//!
//! A process dies only when each of its threads comes back from the kernel. One that sleeps uninterruptibly (D) or
//! spins there keeps everything, and SIGKILL waits. A frame of the NVIDIA modules on the stack says that the driver
//! has it; otherwise (FUSE, NFS, a disk) the GPU is innocent.
//!
//! * **Must be seen:** the owner is exiting, or a signal that must end it is pending; a thread's kernel stack, or for
//!   `elsewhere` one without a driver frame; used memory not falling; the exit not younger than ten seconds.
//! * **Would refute it:** falling memory (`teardown_running`); a thread that runs user code.
//! * **Confidence:** exact when memory was watched and stayed; inferred from a single look.
//! * **Remedy:** no signal helps. In the driver: read the kernel log (Xid); in the end a GPU reset or a reboot, which
//!   cost every process of that GPU or host. Elsewhere: repair what the thread waits for (e.g. abort the FUSE mount).

use super::case::{Case, PATIENCE_NS};
use super::evidence::confidence;
use super::{Verdict, ending, remedy, words};
use crate::event::StuckThread;
use crate::explanation::{Confidence, Remedy};

/// Whether a thread is stuck in the NVIDIA driver.
#[must_use]
pub fn judge_in_driver(case: &Case<'_>) -> Option<Verdict> {
    let ending = stuck(case)?;
    let thread = ending.in_driver()?;
    let remedies = vec![
        remedy::wait("a signal cannot help: the thread must come back from the driver", None),
        remedy::command(
            "dmesg --time-format iso | grep -iE 'xid|nvrm|nvidia'".to_owned(),
            "shows what the driver says of this GPU; an Xid decides between waiting, reset and reboot",
            None,
            "none",
        ),
    ];
    Some(verdict(case, &ending, thread, "inside the NVIDIA driver", remedies))
}

/// Whether a thread is stuck in other kernel code.
#[must_use]
pub fn judge_elsewhere(case: &Case<'_>) -> Option<Verdict> {
    let ending = stuck(case)?;
    if ending.in_driver().is_some() {
        return None;
    }
    let thread = ending.elsewhere()?;
    let effect = "a signal cannot help: what the thread waits for (see its stack: FUSE, NFS, a disk) must answer or be aborted";
    Some(verdict(case, &ending, thread, "in kernel code outside the NVIDIA driver", vec![remedy::wait(effect, case.bytes)]))
}

fn stuck<'a>(case: &Case<'a>) -> Option<ending::Ending<'a>> {
    let ending = ending::of(case)?;
    (case.falling().is_none() && !ending.is_young(case.now())).then_some(ending)
}

fn verdict(case: &Case<'_>, ending: &ending::Ending<'_>, thread: &StuckThread, place: &str, remedies: Vec<Remedy>) -> Verdict {
    let name = words::process(ending.process);
    let innermost = thread.stack.first().map(|frame| words::plain(frame)).unwrap_or_default();
    let doing = if thread.state == "R" { "spins" } else { "is stuck" };
    let how = if ending.exiting { "whose exit cannot finish" } else { "which cannot die" };
    let watched = case.gpu().is_some_and(|gpu| gpu.flat_for() >= PATIENCE_NS) || ending.since.is_some();
    Verdict {
        confidence: if watched { confidence(case) } else { Confidence::Inferred },
        summary: format!("{} belongs to {name}, {how}: thread {} {doing} {place} ({innermost}).", case.what(), thread.tid),
        notes: ending.notes(),
        remedies,
    }
}
