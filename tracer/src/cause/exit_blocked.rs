//! `exit_blocked_in_driver` and `exit_blocked_elsewhere`: the owner should be dead, and a thread of it cannot leave the
//! kernel.
//!
//! A process dies only when each of its threads comes back from the kernel. One that sleeps uninterruptibly (D) or
//! spins there keeps everything, and SIGKILL waits. A frame of the NVIDIA modules on the stack says that the driver
//! has it; otherwise (FUSE, NFS, a disk) the GPU is innocent.
//!
//! * **Must be seen:** the owner is exiting, or a signal that must end it is pending; a thread's kernel stack, or for
//!   `elsewhere` one without a driver frame; used memory not falling; the exit not younger than five seconds.
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
    let waited = ending.since.map(|since| format!(" for {}", words::duration(case.now().saturating_sub(since)))).unwrap_or_default();
    let watched = case.gpu().is_some_and(|gpu| gpu.flat_for() >= PATIENCE_NS) || ending.since.is_some();
    Verdict {
        confidence: if watched { confidence(case) } else { Confidence::Inferred },
        summary: format!("{} belongs to {name}, {how}: thread {} {doing} {place}{waited} ({innermost}).", case.what(), thread.tid),
        notes: ending.notes(),
        remedies,
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, StuckThread};
    use crate::explanation::{CauseId, Confidence, Holding};
    use crate::story::Story;

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    fn stuck(letter: &str, stack: &[&str]) -> StuckThread {
        let stack = stack.iter().map(|frame| (*frame).to_owned()).collect();
        StuckThread { tid: 577, state: letter.into(), exiting: false, stack }
    }

    /// SIGKILL was sent half a minute ago and the memory stays.
    fn killed_in_vain(thread: StuckThread) -> Holding {
        let mut story = Story::warm();
        let trainer = story.process(574, "EngineCore");
        story.uses_cuda(trainer);
        story.nvml(2_560, &[(574, 2_560)]);
        story.signals(Some(BASH), trainer, 9);
        story.wait(30);
        story.used(2_560);
        story.stands(trainer, "R", |s| (s.pending, s.stuck) = (1 << 8, vec![thread]));
        story.holding()
    }

    #[test]
    fn a_driver_frame_means_the_driver_even_for_a_spinning_thread() {
        let holding = killed_in_vain(stuck("R", &["uvm_spin_loop+0x1c/0x90 [nvidia_uvm]", "uvm_ioctl+0x1/0x2 [nvidia_uvm]"]));
        assert_eq!((holding.cause, holding.confidence), (CauseId::ExitBlockedInDriver, Confidence::Exact));
        assert_eq!(
            holding.summary,
            "2.5 GiB on GPU 0 belongs to EngineCore (PID 574), which cannot die: thread 577 spins inside the NVIDIA driver \
             for 30.0 s (uvm_spin_loop+0x1c/0x90 [nvidia_uvm])."
        );
        assert!(holding.remedy.iter().all(|r| r.command.as_deref().is_none_or(|c| !c.starts_with("kill"))));
    }

    #[test]
    fn without_a_driver_frame_the_gpu_is_innocent() {
        let holding = killed_in_vain(stuck("D", &["request_wait_answer+0x1/0x2 [fuse]", "fuse_read+0x1/0x2 [fuse]"]));
        assert_eq!(holding.cause, CauseId::ExitBlockedElsewhere);
        assert!(holding.summary.contains("thread 577 is stuck in kernel code outside the NVIDIA driver for 30.0 s (request_wait_answer"));
    }

    #[test]
    fn without_a_stack_it_cannot_be_told_and_says_what_to_read() {
        let holding = killed_in_vain(stuck("D", &[]));
        assert_eq!(holding.cause, CauseId::Unknown);
        assert!(holding.summary.contains("cat /proc/574/task/*/stack"), "{}", holding.summary);
    }

    #[test]
    fn a_fresh_sigkill_is_given_time() {
        let mut story = Story::warm();
        let trainer = story.process(574, "EngineCore");
        story.uses_cuda(trainer);
        story.signals(Some(BASH), trainer, 9);
        story.stands(trainer, "D", |s| s.stuck = vec![stuck("D", &["x+0x1/0x2 [nvidia]"])]);
        assert_eq!(story.holding().cause, CauseId::TeardownRunning);
    }

    #[test]
    fn a_thread_in_the_driver_without_any_signal_is_a_living_owner() {
        let mut story = Story::warm();
        let trainer = story.process(574, "EngineCore");
        story.uses_cuda(trainer);
        story.stands(trainer, "D", |s| s.stuck = vec![stuck("D", &["x+0x1/0x2 [nvidia]"])]);
        assert_eq!(story.holding().cause, CauseId::OwnerAlive);
    }
}
