//! `imported_memory`: another process imported the memory, and so keeps it although who allocated it is gone.
//!
//! CUDA IPC (cudaIpcOpenMemHandle) and shared handles (cuMemImportFromShareableHandle) give the importer a reference of its own.
//! When the exporter dies, the driver keeps the memory and charges it to the importer from then on: NVML's figure of the
//! importer grows by memory that it never allocated.
//!
//! * **Must be seen:** the duplicate or import by another process, and that the allocator's own handle is gone (its end, or
//!   its free).
//! * **Would refute it:** the allocator's client lives; the importer freed its reference.
//! * **Confidence:** exact; inferred when its size is not known, or how a further holder got the importer's files.
//! * **No alarm** while the allocator lives and only freed it: the two work together.
//! * **Cold:** nothing tells afterwards: a look without a recording calls the importer an `owner_alive`.
//! * **Remedy:** let the importer close its handle (cudaIpcCloseMemHandle, cuMemRelease), or end it.

use super::case::{Case, Kind};
use super::evidence::{ended, note};
use super::{Verdict, mps_server, remedy, words};
use crate::event::Via;
use crate::explanation::{Confidence, Remedy};
use crate::world::books::memory::Ref;
use crate::world::process::Process;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    if case.kind != Kind::Imported {
        return None;
    }
    let allocated = match (case.owner, case.living_owner()) {
        (Some(_), Some(owner)) => format!("was allocated by {}, which has freed it", words::process(owner)),
        _ => format!("was allocated by {}{}", case.owner_name(), ended(case)),
    };
    let sized = case.share.as_ref().is_some_and(|share| share.is_sized());
    let exact = sized && case.holders.iter().all(|holder| holder.deduced.is_none());
    Some(Verdict {
        confidence: if exact { Confidence::Exact } else { Confidence::Inferred },
        summary: format!("{} {allocated}; {}.", case.what(), kept(case)),
        notes: imports(case),
        remedies: remedies(case),
    })
}

/// Who keeps it, in which way.
fn kept(case: &Case<'_>) -> String {
    let names = |via: &dyn Fn(Via) -> bool| -> Vec<String> {
        case.holders.iter().filter(|holder| via(holder.via)).map(|holder| words::process(holder.process)).collect()
    };
    let verb = |n: usize, one: &'static str, many: &'static str| if n == 1 { one } else { many };
    let importers = names(&|via| via == Via::Import);
    let handles = names(&|via| matches!(via, Via::ExportFd | Via::InFlight));
    let others = names(&|via| !matches!(via, Via::Import | Via::ExportFd | Via::InFlight));
    let mut parts = Vec::new();
    if !importers.is_empty() {
        let keep = verb(importers.len(), "keeps", "keep");
        parts.push(format!("{} imported it and {keep} it", words::list(&importers, 3)));
    }
    if !others.is_empty() {
        let have = verb(others.len(), "has", "have");
        parts.push(format!("{} still {have} the files of a process that imported it", words::list(&others, 3)));
    }
    if !handles.is_empty() {
        let have = verb(handles.len(), "has", "have");
        parts.push(format!("{} {have} its exported handle", words::list(&handles, 3)));
    }
    if parts.is_empty() { "another process imported it and keeps it".to_owned() } else { parts.join("; ") }
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

fn remedies(case: &Case<'_>) -> Vec<Remedy> {
    let mut processes: Vec<&Process> = case.holders.iter().map(|holder| holder.process).collect();
    processes.sort_by_key(|process| process.id());
    processes.dedup_by_key(|process| process.id());
    if processes.iter().any(|process| mps_server::is_mps(process)) {
        return vec![mps_server::quit(case)];
    }
    let names = words::processes(processes.iter().copied());
    let mut remedies = Vec::new();
    if !processes.is_empty() {
        let verb = if processes.len() == 1 { "closes" } else { "close" };
        let close = format!("{names} {verb} the imported handle (cudaIpcCloseMemHandle or cuMemRelease)");
        remedies.push(remedy::wait(close, case.bytes));
    }
    remedies.extend(remedy::end_all(case, &processes));
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
