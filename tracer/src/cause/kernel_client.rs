//! `kernel_client`: a client inside the kernel has the memory, and NVML lists it under no PID.
//!
//! The unified-memory driver (nvidia-uvm) takes references of its own to everything that it maps, for as long as its address space
//! lives; the display driver (nvidia-modeset) has its own too. When only a descriptor of such a device is left, the memory
//! stays, `nvidia-smi` shows it used, and no process is charged.
//!
//! * **Must be seen:** the owner is dead (or unknown), and the only files of it that are still open are /dev/nvidia-uvm or
//!   /dev/nvidia-modeset.
//! * **Would refute it:** an open /dev/nvidiactl or /dev/nvidiaN of the owner (then its own client lives).
//! * **Confidence:** exact when every link from the owner to the holder was seen; else inferred.
//! * **Not seen:** memory that peer-memory or GDRCopy drivers pin: their files are not NVIDIA's (`no_holder` says so).
//! * **Remedy:** end the holders of the descriptor, all of them.

use super::case::{Case, Kind};
use super::evidence::{confidence, ended, note};
use super::{Verdict, remedy, words};
use crate::event::{Dev, Node, Via};

/// Minor number of /dev/nvidia-modeset (nv-chardev-numbers.h).
const MODESET: Dev = Dev::new(195, 254);

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    // What waits in a socket or ring has no holder yet: `descriptor_in_flight`.
    let in_table = case.others().any(|holder| !matches!(holder.via, Via::InFlight | Via::IoUring));
    if case.kind != Kind::Files || case.living_owner().is_some() || !in_table {
        return None;
    }
    let driver = driver(case)?;
    let names = words::processes(case.others().map(|h| h.process));
    let belonged = match case.owner {
        Some(_) => format!("belonged to {}{}", case.owner_name(), ended(case)),
        None => format!("belongs to {}", case.unknown_owner()),
    };
    let how = match case.others().map(|h| h.via).collect::<Vec<_>>()[..] {
        [Via::Fork] => "inherited by",
        [_] => "passed to",
        ref all if all.iter().all(|via| *via == Via::Fork) => "inherited by",
        _ => "now with",
    };
    let reference = "Only the kernel's own reference to the memory is left, which is a client of the driver without a PID";
    Some(Verdict {
        confidence: confidence(case),
        summary: format!("{} {belonged}; {driver} in the kernel still has it, through the descriptor {how} {names}.", case.what()),
        notes: vec![note(None, reference)],
        remedies: remedy::end_all(case, &case.others().map(|holder| holder.process).collect::<Vec<_>>()),
    })
}

/// The kernel's driver that all of these files belong to.
fn driver(case: &Case<'_>) -> Option<&'static str> {
    let all = |is: &dyn Fn(Dev) -> bool| !case.files.is_empty() && case.files.iter().all(|file| is(file.dev));
    if all(&|dev| case.world.node_of(dev) == Node::Uvm) {
        return Some("nvidia-uvm");
    }
    all(&|dev| dev == MODESET).then_some("nvidia-modeset")
}

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, Via, What};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{MIB, Story, UVM, bare};

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    #[test]
    fn a_child_with_only_a_uvm_descriptor_keeps_what_uvm_maps() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        let files = story.uses_cuda(trainer);
        story.client(trainer, &files[0], 0xc1);
        story.device(trainer, &files[0], 0xc1, 0);
        story.memory(trainer, &files[0], 0xc1, 3, 2_048);
        story.memory(trainer, &files[0], 0xc1, 4, 512);
        story.map(trainer, &files[1], (0xc1, 3), 0x7000_0000);
        let child = story.forks(trainer, 580, "python3");
        for file in [&files[0], &files[2]] {
            story.push(What::Drop { id: child, tid: None, fd: file.fd, file: file.file });
        }
        story.killed(BASH, trainer);
        story.nvml(2_050, &[]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::KernelClient, Confidence::Exact));
        assert_eq!(holding.bytes, Some(2_048 * MIB), "what is not mapped went with the client");
        assert_eq!((holding.holders[0].pid, holding.holders[0].via), (580, Via::Fork));
        let end = "nvidia-uvm in the kernel still has it, through the descriptor inherited by python3 (PID 580).";
        assert!(holding.summary.ends_with(end), "{}", holding.summary);
    }

    #[test]
    fn cold_the_device_says_so() {
        let mut story = Story::cold();
        let child = ProcessId(580, 580);
        story.info(child, "python3", |info| info.never_execed = Some(true));
        story.found(&crate::event::Hold { cred: Some(66), cloexec: Some(true), ..bare(child, 7, 7, UVM) });
        story.nvml(2_569, &[]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.bytes), (CauseId::KernelClient, Some(2_569 * MIB)));
    }
}
