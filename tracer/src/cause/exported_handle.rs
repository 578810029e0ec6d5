//! `exported_handle`: an exported handle, which is a file descriptor, keeps the memory of its dead maker by itself.
//!
//! cuMemExportToShareableHandle gives a descriptor of /dev/nvidiactl, cuMemGetHandleForAddressRange a dma-buf. Whoever has it holds the
//! memory, without ever having used CUDA, and NVML names nobody. It can even wait unread in a unix socket.
//!
//! * **Must be seen:** the owner is dead (or unknown), and all that is left open of its files are exported handles: the export was
//!   seen, or the driver's private data of the file, or the dma-buf's exporter, says what it is.
//! * **Would refute it:** another file of the owner that is still open (then that explains more).
//! * **Confidence:** exact when the owner is proven; else inferred.
//! * **Remedy:** let the holder close the descriptor, or end it.

use super::case::{Case, HolderView, Kind, descriptor_numbers};
use super::evidence::{confidence, ended, note};
use super::{Verdict, remedy, words};
use crate::event::{Dev, Role, Via};
use crate::world::World;
use crate::world::file::File;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let exports_only = !case.files.is_empty() && case.files.iter().all(|file| is_exported(case.world, file));
    if case.kind != Kind::Files || case.living_owner().is_some() || !exports_only {
        return None;
    }
    let sockets = case.others_via(&[Via::InFlight]);
    let others: Vec<&HolderView<'_>> = case.others().collect();
    let sent = case.in_transit().next().is_some();
    if others.is_empty() && !sent {
        return None;
    }
    let names = |of: &[&HolderView<'_>]| words::processes(of.iter().map(|h| h.process));
    let belonged = match case.owner {
        Some(_) => format!("was exported by {}{}", case.owner_name(), ended(case)),
        // It may well live: its figure can have the same bytes.
        None if case.bytes == Some(0) => "was exported by a process that cannot be told".to_owned(),
        None => format!("was exported by {}", case.unknown_owner()),
    };
    let handle = if case.files.iter().all(|f| f.dev == Dev::DMA_BUF) { "dma-buf" } else { "exported handle" };
    let place = if others.is_empty() {
        format!("the {handle} was sent over a unix socket and has not been received")
    } else if sockets.len() == others.len() {
        format!("the {handle} waits unread in a unix socket of {}", names(&sockets))
    } else {
        let keeps = if others.len() == 1 { "has" } else { "have" };
        format!("{} still {keeps} the {handle} open, which keeps it", names(&others))
    };
    let mut remedies = Vec::new();
    if !others.is_empty() {
        let does = match (sockets.len() == others.len(), others.len()) {
            (true, 1) => "reads or closes the socket",
            (true, _) => "read or close the sockets",
            (false, 1) => "closes the descriptor",
            (false, _) => "close the descriptors",
        };
        remedies.push(remedy::wait(format!("{} {does} ({})", names(&others), fds(&others)), case.bytes));
    }
    remedies.extend(remedy::end_all(case, &others.iter().map(|holder| holder.process).collect::<Vec<_>>()));
    let how = case.files.iter().map(|file| known_by(case, file));
    let what = if case.bytes == Some(0) { "Memory that others have too".to_owned() } else { case.what() };
    Some(Verdict {
        confidence: confidence(case),
        summary: format!("{what} {belonged}; {place}."),
        notes: how.collect(),
        remedies,
    })
}

/// The description is an exported handle.
#[must_use]
pub fn is_exported(world: &World, file: &File) -> bool {
    file.dev == Dev::DMA_BUF || file.role == Some(Role::Exported) || world.books().is_export(file.token)
}

fn known_by(case: &Case<'_>, file: &File) -> super::Note {
    let size = file.bytes.map_or(String::new(), |bytes| format!(" of {}", words::size(bytes)));
    if let Some(at) = case.world.books().exported_at(file.token) {
        return note(Some(at), format!("It was exported to a {}", if file.dev == Dev::DMA_BUF { "dma-buf" } else { "file descriptor" }));
    }
    if file.dev == Dev::DMA_BUF {
        return note(None, format!("The file is a dma-buf{size} that the NVIDIA driver exported"));
    }
    note(None, "The driver's own data of the file say that it is an exported handle")
}

fn fds(holders: &[&HolderView<'_>]) -> String {
    let fds = descriptor_numbers(holders);
    let noun = if fds.len() == 1 { "descriptor" } else { "descriptors" };
    format!("{noun} {}", words::list(&fds, 4))
}

#[cfg(test)]
mod tests {
    use crate::event::rm::ExportKind;
    use crate::event::{Dev, Hold, ProcessId, Role, Via, What};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{CTL, GPU0, MIB, Story, bare};

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    /// A trainer exports 2 GiB to a descriptor.
    fn exported(story: &mut Story) -> (ProcessId, Hold) {
        let trainer = story.process(574, "python3");
        let files = story.uses_cuda(trainer);
        story.client(trainer, &files[0], 0xc1);
        story.device(trainer, &files[0], 0xc1, 0);
        story.memory(trainer, &files[0], 0xc1, 3, 2_048);
        let handle = story.export(trainer, &files[0], (0xc1, 3));
        (trainer, handle)
    }

    #[test]
    fn a_process_that_never_used_cuda_keeps_the_memory_by_the_handle() {
        let mut story = Story::warm();
        let broker = story.process(300, "broker");
        let (trainer, handle) = exported(&mut story);
        story.found(&Hold { id: broker, fd: 7, via: Some(Via::ScmRights), from: Some(trainer), opener: None, ..handle });
        story.killed(BASH, trainer);
        story.nvml(2_048, &[]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.confidence), (CauseId::ExportedHandle, Confidence::Exact));
        assert_eq!((holding.holders[0].pid, holding.holders[0].via), (300, Via::ExportFd));
        assert_eq!(holding.bytes, Some(2_048 * MIB));
        assert!(holding.summary.ends_with("broker (PID 300) still has the exported handle open, which keeps it."), "{}", holding.summary);
    }

    #[test]
    fn unread_in_a_socket_it_keeps_the_memory_too() {
        let mut story = Story::warm();
        let reader = story.process(300, "server");
        let (trainer, handle) = exported(&mut story);
        story.push(What::Sent { id: trainer, file: handle.file, dev: CTL, socket: Some(4242) });
        story.killed(BASH, trainer);
        assert_eq!(story.told().holdings[0].cause, CauseId::ExportedHandle);
        story.found(&Hold { id: reader, fd: 9, via: Some(Via::InFlight), opener: None, ..handle });
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.holders[0].via), (CauseId::ExportedHandle, Via::InFlight));
        assert!(holding.summary.ends_with("the exported handle waits unread in a unix socket of server (PID 300)."), "{}", holding.summary);
        assert_eq!(holding.remedy[0].effect, "server (PID 300) reads or closes the socket (descriptor 9)");
    }

    #[test]
    fn cold_the_drivers_own_data_tell_what_the_file_is() {
        let mut story = Story::cold();
        let broker = ProcessId(300, 300);
        story.info(broker, "broker", |info| info.never_execed = Some(false));
        story.found(&Hold { cred: Some(66), cloexec: Some(false), role: Some(Role::Exported), ..bare(broker, 7, 7, CTL) });
        story.nvml(2_048, &[]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.bytes), (CauseId::ExportedHandle, Some(2_048 * MIB)));
        assert_eq!(holding.holders[0].via, Via::ExportFd);
    }

    #[test]
    fn cold_a_dma_buf_tells_its_size() {
        let mut story = Story::cold();
        let broker = ProcessId(300, 300);
        story.info(broker, "broker", |info| info.never_execed = Some(false));
        let hold = Hold { cred: Some(66), bytes: Some(512 * MIB), ..bare(broker, 7, 7, Dev::DMA_BUF) };
        story.found(&hold);
        story.nvml(514, &[]);
        story.scanned();
        let holding = story.holding();
        assert_eq!((holding.cause, holding.bytes), (CauseId::ExportedHandle, Some(512 * MIB)));
        assert!(holding.summary.contains("broker (PID 300) still has the dma-buf open"), "{}", holding.summary);
        assert_eq!(holding.holders[0].descriptors[0].device, "dma-buf");
    }

    #[test]
    fn a_forked_child_with_everything_explains_more_than_the_handle() {
        let mut story = Story::warm();
        let (trainer, _) = exported(&mut story);
        story.forks(trainer, 580, "python3");
        story.killed(BASH, trainer);
        assert_eq!(story.holding().cause, CauseId::InheritedDescriptor);
    }

    #[test]
    fn a_dma_buf_that_was_seen_to_be_exported_has_the_bytes_of_the_books() {
        let mut story = Story::warm();
        let broker = story.process(300, "broker");
        let (trainer, _) = exported(&mut story);
        let (through, gpu) = (story.opens(trainer, GPU0), story.opens(trainer, Dev::DMA_BUF));
        story.asks(trainer, &through, crate::event::rm::Op::Export { client: 0xc1, object: 3, to: gpu.file, kind: ExportKind::DmaBuf });
        story.found(&Hold { id: broker, fd: 7, via: Some(Via::ScmRights), opener: None, ..gpu });
        story.killed(BASH, trainer);
        story.scanned();
        assert_eq!((story.holding().cause, story.holding().bytes), (CauseId::ExportedHandle, Some(2_048 * MIB)));
    }
}
