//! `no_holder`: memory is in use, and nothing on this host holds it.
//!
//! When no process, message, ring or thread has a GPU file that could own the memory, and it does not fall, then the
//! driver lost it, or a client inside the kernel (peer memory, GDRCopy, display) has it.
//!
//! * **Must be seen:** more than 16 MiB of used memory that no owner accounts for, a complete scan of every process,
//!   thread, unix socket and io_uring from the initial PID namespace, and nothing found.
//! * **Would refute it:** a holder, or a living context that may have it and that no recording rules out; memory that falls; a scan
//!   that could not read everything (then `unknown`).
//! * **Confidence:** inferred: that nothing holds it was seen, that the driver lost it is what remains.
//! * **Remedy:** nothing to kill. Look at the kernel log; reload nvidia_uvm when nothing uses it; reset the GPU; reboot.

use super::case::{Case, Kind, PATIENCE_NS};
use super::evidence::{ended, note};
use super::{Verdict, remedy, unknown, way_out};
use crate::explanation::Confidence;
use crate::world::process::Process;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let nobody = matches!(case.kind, Kind::Listed | Kind::Leftover) && case.living_owner().is_none();
    let gone = case.owner.is_none() || case.owner_is_dead();
    if !nobody || !gone || !case.candidates.is_empty() || !unknown::missing(case).is_empty() {
        return None;
    }
    let scan = case.world.host().scan?;
    let belonged = match case.owner {
        Some(_) => format!("belonged to {}{}, and", case.owner_name(), ended(case)),
        None => "is in use, but".to_owned(),
    };
    let ruled_out = format!(
        "Ruled out: a descriptor in any of {} processes and their threads, one unread in a unix socket, one in an io_uring",
        scan.processes
    );
    let (mut remedies, why_not) = way_out::steps(case, Vec::new(), None);
    let lately = is_perhaps_late(case);
    if lately {
        remedies.insert(0, remedy::wait("look again in ten seconds: a driver that frees it late needs no help", None));
    }
    let perhaps = if lately { ", or has not come to freeing it yet" } else { "" };
    let mut notes = vec![note(Some(scan.at), ruled_out)];
    notes.extend(why_not);
    Some(Verdict {
        confidence: Confidence::Inferred,
        summary: format!("{} {belonged} nothing on this host holds it: the driver lost it{perhaps}, or a client inside the kernel has it.", case.what()),
        notes,
        remedies,
    })
}

/// Neither was the owner's end seen long ago, nor was the memory watched for long.
fn is_perhaps_late(case: &Case<'_>) -> bool {
    let ended = case.owner.and_then(|owner| owner.process).and_then(Process::ended_at);
    let long_ago = ended.is_some_and(|at| case.now().saturating_sub(at) >= PATIENCE_NS);
    !long_ago && case.gpu().is_none_or(|gpu| gpu.flat_for() < PATIENCE_NS)
}

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, What};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{MIB, Story};

    #[test]
    fn memory_that_nobody_holds_is_said_to_be_lost_with_what_was_ruled_out() {
        let mut story = Story::cold();
        story.nvml(700, &[]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.bytes), (CauseId::NoHolder, Some(700 * MIB)));
        assert!(holding.evidence.iter().any(|e| e.what.starts_with("Ruled out: a descriptor in any of 300 processes")));
        let told = story.told();
        assert_eq!(told.exit_code(), 3);
        assert_eq!(told.gpus[0].unexplained_bytes, Some(700 * MIB));
    }

    #[test]
    fn a_dead_pid_of_nvml_without_any_file_is_named() {
        let mut story = Story::cold();
        story.nvml(700, &[(574, 700)]);
        story.push(What::ProcessGone { id: ProcessId(574, 0) });
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::NoHolder);
        assert_eq!(holding.owner.unwrap().pid, 574);
    }

    #[test]
    fn without_a_scan_nobody_can_say_so() {
        let mut story = Story::cold();
        story.nvml(700, &[]);
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::Unknown, Confidence::Unknown));
        assert_eq!(story.told().exit_code(), 4);
    }

    #[test]
    fn from_inside_a_pid_namespace_nobody_can_say_so() {
        let mut story = Story::cold();
        let What::Header(header) = &mut story.events[0].what else { panic!("the first event is the header") };
        header.initial_pid_namespace = false;
        story.nvml(700, &[]);
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::Unknown);
        assert!(holding.summary.contains("the processes outside this PID namespace"), "{}", holding.summary);
    }

    #[test]
    fn less_than_16_mib_is_noise() {
        let mut story = Story::cold();
        story.nvml(12, &[]);
        story.scanned();
        assert_eq!(story.holding().cause, CauseId::DriverReserve);
    }
}
