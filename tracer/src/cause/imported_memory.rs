//! `imported_memory`: another process imported the memory, and so keeps it although who allocated it is gone.
//!
//! CUDA IPC (cudaIpcOpenMemHandle) and shared handles (cuMemImportFromShareableHandle) give the importer a reference of its own.
//! When the exporter dies, the driver keeps the memory and charges it to the importer from then on: NVML's figure of the
//! importer grows by memory that it never allocated.
//!
//! * **Must be seen:** the duplicate or import by another process, and that the allocator's own handle is gone (its end, or
//!   its free).
//! * **Would refute it:** the allocator's client lives; the importer freed its reference.
//! * **Confidence:** exact; inferred when the allocation was before the recording (its size, or its maker, is not known).
//! * **Cold:** nothing tells afterwards: a look without a recording calls the importer an `owner_alive`.
//! * **Remedy:** let the importer close its handle (cudaIpcCloseMemHandle, cuMemRelease), or end it.

use super::case::{Case, Kind};
use super::evidence::{ended, note};
use super::{Verdict, remedy, words};
use crate::explanation::Confidence;
use crate::world::books::memory::Ref;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    if case.kind != Kind::Imported {
        return None;
    }
    let importers: Vec<_> = case.holders.iter().map(|holder| holder.process).collect();
    let names = words::list(&importers.iter().map(|p| words::process(p)).collect::<Vec<_>>(), 3);
    let allocated = match (case.owner, case.living_owner()) {
        (Some(_), Some(owner)) => format!("was allocated by {}, which has freed it", words::process(owner)),
        (Some(_), None) => format!("was allocated by {}{}", case.owner_name(), ended(case)),
        (None, _) => "was allocated by a process that was not seen".to_owned(),
    };
    let keeps = if importers.len() == 1 { "keeps" } else { "keep" };
    let sized = case.share.as_ref().is_some_and(|share| share.is_sized());
    let exact = sized && case.owner.is_some();
    Some(Verdict {
        confidence: if exact { Confidence::Exact } else { Confidence::Inferred },
        summary: format!("{} {allocated}; {names} imported it and {keeps} it.", case.what()),
        notes: imports(case),
        remedies: remedies(case, &names, &importers),
    })
}

fn imports(case: &Case<'_>) -> Vec<super::Note> {
    let books = case.world.books();
    let mut notes = Vec::new();
    for memory in case.share.iter().flat_map(|share| &share.memories) {
        for taken in memory.refs() {
            let Ref::Object { client, .. } = taken.what else { continue };
            let Some(client) = books.client(client) else { continue };
            let (name, size) = (words::by_id(case.world, client.process), memory.bytes.map_or("memory".to_owned(), words::size));
            notes.push(note(Some(taken.at), format!("{name} imported {size} (client {:x} of the driver)", client.handle)));
        }
    }
    // Many pieces are told by the first ones.
    notes.truncate(4);
    notes
}

fn remedies(case: &Case<'_>, names: &str, importers: &[&crate::world::process::Process]) -> Vec<crate::explanation::Remedy> {
    let close = format!("{names} closes the imported handle (cudaIpcCloseMemHandle or cuMemRelease)");
    let mut remedies = vec![remedy::wait(close, case.bytes)];
    remedies.extend(remedy::end_all(case, importers));
    remedies
}

#[cfg(test)]
mod tests {
    use crate::event::{Hold, ProcessId, Via};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{MIB, Story};

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    /// An exporter with 2 GiB, an importer with 512 MiB of its own that refers to them; each with its /dev/nvidiactl.
    fn shared(story: &mut Story) -> [(ProcessId, Hold); 2] {
        let [exporter, importer] = [(574, "vllm", 0xc1, 2_048), (580, "worker", 0xc2, 512)].map(|(pid, comm, client, mib)| {
            let id = story.process(pid, comm);
            let ctl = story.uses_cuda(id).swap_remove(0);
            story.client(id, &ctl, client);
            story.device(id, &ctl, client, 0);
            story.memory(id, &ctl, client, 3, mib);
            (id, ctl)
        });
        story.dup(importer.0, &importer.1, (0xc2, 4), (0xc1, 3));
        story.nvml(2_560, &[(574, 2_048), (580, 512)]);
        [exporter, importer]
    }

    #[test]
    fn the_importer_keeps_what_the_dead_exporter_allocated() {
        let mut story = Story::warm();
        let [(exporter, _), (importer, _)] = shared(&mut story);
        assert!(story.told().holdings.iter().all(|h| h.cause == CauseId::OwnerAlive), "both live: nothing outlives");
        story.killed(BASH, exporter);
        story.nvml(2_560, &[(580, 2_560)]);
        story.scanned();
        let told = story.told();
        assert_eq!(told.holdings.len(), 2, "{:#?}", told.holdings);
        let kept = &told.holdings[0];
        assert_eq!((kept.cause, kept.confidence, kept.bytes), (CauseId::ImportedMemory, Confidence::Exact, Some(2_048 * MIB)));
        assert_eq!(kept.owner.as_ref().unwrap().pid, exporter.tgid());
        assert_eq!((kept.holders[0].pid, kept.holders[0].via), (importer.tgid(), Via::Import));
        let own = &told.holdings[1];
        assert_eq!((own.cause, own.bytes), (CauseId::OwnerAlive, Some(512 * MIB)));
        let said = "NVML charges 2.5 GiB on GPU 0 to PID 580; 2.0 GiB of it another process allocated";
        assert!(own.evidence.iter().any(|e| e.what == said), "{:#?}", own.evidence);
        let books = own.books.as_ref().unwrap();
        assert_eq!((books.bytes, books.nvml_bytes, books.complete), (2_560 * MIB, Some(2_560 * MIB), true));
        assert_eq!(told.gpus[0].unexplained_bytes, Some(0));
        assert_eq!(told.exit_code(), 3);
    }

    #[test]
    fn what_a_living_exporter_freed_is_still_there_for_the_importer() {
        let mut story = Story::warm();
        let [(exporter, ctl), _] = shared(&mut story);
        story.frees(exporter, &ctl, 0xc1, 3);
        story.nvml(2_560, &[(580, 2_560)]);
        let told = story.told();
        let kept = told.holdings.iter().find(|h| h.cause == CauseId::ImportedMemory).unwrap();
        assert!(kept.summary.contains("was allocated by vllm (PID 574), which has freed it"), "{}", kept.summary);
    }

    #[test]
    fn what_the_importer_releases_too_is_gone() {
        let mut story = Story::warm();
        let [(exporter, _), (importer, ctl)] = shared(&mut story);
        story.killed(BASH, exporter);
        story.frees(importer, &ctl, 0xc2, 4);
        story.nvml(512, &[(580, 512)]);
        assert!(story.told().holdings.iter().all(|h| h.cause != CauseId::ImportedMemory));
    }
}
