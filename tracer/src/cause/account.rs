//! Who owns what: from the world's descriptions and NVML's figures to cases.
//!
//! Always true: every description with a holder is in exactly one group; no byte is given to two cases; a figure is
//! taken from NVML where NVML has one, else from the books, and is what remains of the GPU where exactly one case can have it.

use super::case::{BytesFrom, Case, HolderView, Kind, Owner, OwnerFrom};
use super::shares::{Imported, Share, Shares, only_gpu};
use super::{ending, owners, via};
use crate::event::{BootNs, Dev, Node, ProcessId, Role, Via};
use crate::world::World;
use crate::world::books::memory::Ref;
use crate::world::file::File;
use crate::world::gpu::{Gpu, NOISE_BYTES};
use crate::world::process::Process;
use std::collections::{BTreeMap, BTreeSet};

/// What our own recorder is called: it keeps NVML open, and allocates nothing.
const RECORDER: &str = "outlive";

/// Where NVML does not tell the driver's reserve from used memory, up to this much may be it (an H200 has 615 MiB).
const RESERVE_MAX: u64 = 1 << 30;

/// All cases of the world, in no particular order of importance.
#[must_use]
pub fn cases(world: &World) -> Vec<Case<'_>> {
    let groups = owners::groups(world);
    let shares = Shares::of(world);
    let open: BTreeSet<u32> = groups.iter().flat_map(|group| group.candidates.iter().copied()).collect();
    let mut cases = Vec::new();
    let mut used_lines: BTreeSet<(u32, u32)> = BTreeSet::new();
    for group in groups {
        let case = Case {
            owner: group.owner,
            holders: holders(world, group.owner, &group.files),
            files: group.files,
            candidates: group.candidates,
            ..empty(world, Kind::Files)
        };
        cases.extend(per_gpu(case, &mut used_lines, &shares));
    }
    cases.retain(|case| !is_twin(case, &shares));
    cases.extend(shares.imported.iter().map(|import| imported(world, import)));
    cases.extend(listed(world, &used_lines, &open));
    cap_dma_bufs(world, &mut cases);
    remainders(world, &mut cases);
    managed(world, &mut cases);
    leftovers(world, &mut cases);
    cases
}

fn empty(world: &World, kind: Kind) -> Case<'_> {
    Case {
        world,
        kind,
        gpu: None,
        bytes: None,
        bytes_from: BytesFrom::Nobody,
        nvml: None,
        of_others: 0,
        share: None,
        owner: None,
        files: Vec::new(),
        holders: Vec::new(),
        candidates: Vec::new(),
    }
}

/// The case once per GPU on which NVML charges its owner or the books know memory of it, or once.
fn per_gpu<'a>(case: Case<'a>, used: &mut BTreeSet<(u32, u32)>, shares: &Shares<'a>) -> Vec<Case<'a>> {
    let tokens = case.files.iter().map(|file| file.token).collect();
    let mut of_books = shares.of_files(&tokens);
    let mut split = Vec::new();
    for (index, gpu) in case.world.gpus() {
        let Some(owner) = case.owner else { break };
        let pid = owner.id.tgid();
        let Some(charged) = gpu.charged(pid) else { continue };
        // Of two owners with one number, the lines are those of the one that was there when they appeared.
        let first_seen = gpu.of_pid(pid).map(|line| line.first_seen).min().unwrap_or_default();
        if owner.id.start() > first_seen || !used.insert((*index, pid)) {
            continue;
        }
        let of_others = charged.map_or(0, |all| shares.charged_for_others(case.world, owner.id, *index).min(all));
        let share = of_books.remove(&Some(*index));
        let (bytes, bytes_from) = match (charged, &share) {
            (Some(all), share) => {
                let uncharged = share.as_ref().map_or(0, Share::uncharged);
                (Some((all - of_others).saturating_add(uncharged)), BytesFrom::Nvml)
            }
            (None, Some(share)) => (Some(share.bytes()), BytesFrom::Books),
            (None, None) => (None, BytesFrom::Nobody),
        };
        split.push(Case { gpu: Some(*index), bytes, bytes_from, nvml: charged, of_others, share, ..case.clone() });
    }
    // A late client's device is not known: where the files can belong to one GPU only, it is that one.
    let touched: Vec<u32> = case.world.gpus().keys().copied().filter(|index| touches(&case, *index)).collect();
    if let [only] = &touched[..]
        && let Some(unplaced) = of_books.remove(&None)
    {
        match split.iter_mut().find(|placed: &&mut Case<'_>| placed.gpu == Some(*only)) {
            Some(placed) => placed.share.get_or_insert_default().memories.extend(unplaced.memories),
            None => of_books.entry(Some(*only)).or_default().memories.extend(unplaced.memories),
        }
    }
    for (gpu, share) in of_books {
        // Pieces of unknown size only say that there is something.
        let bytes = Some(share.bytes()).filter(|bytes| *bytes > 0 || share.is_sized());
        let bytes_from = if bytes.is_some() { BytesFrom::Books } else { BytesFrom::Nobody };
        split.push(Case { gpu, bytes, bytes_from, share: Some(share), ..case.clone() });
    }
    if split.is_empty() { vec![of_dma_bufs(case)] } else { split }
}

/// Without a recording, the kernel still tells how large a dma-buf is.
fn of_dma_bufs(case: Case<'_>) -> Case<'_> {
    let sizes = case.files.iter().map(|file| file.bytes.filter(|_| file.dev == Dev::DMA_BUF));
    let Some(bytes) = sizes.sum::<Option<u64>>().filter(|_| !case.files.is_empty()) else { return case };
    let gpu = only_gpu(case.world);
    Case { gpu, bytes: Some(bytes), bytes_from: BytesFrom::DmaBuf, ..case }
}

/// Only exported handles are left, and all that they keep was imported too: that case tells of their holders.
fn is_twin(case: &Case<'_>, shares: &Shares<'_>) -> bool {
    let books = case.world.books();
    let told = |file: &&File| books.is_export(file.token) && books.kept_by(file.token).iter().all(|id| shares.is_imported(*id));
    case.living_owner().is_none() && case.share.is_none() && !case.files.is_empty() && case.files.iter().all(told)
}

/// Memory whose maker's handle is gone and that others imported.
fn imported<'a>(world: &'a World, import: &Imported<'a>) -> Case<'a> {
    let owner = Owner { id: import.maker, process: owners::lookup(world, import.maker), from: OwnerFrom::Allocator };
    let mut holders: BTreeMap<(ProcessId, Via), HolderView<'a>> = BTreeMap::new();
    for taken in import.share.memories.iter().flat_map(|memory| memory.refs()) {
        let opener = match taken.what {
            Ref::Object { client, .. } => world.books().client(client).map(|client| client.process),
            Ref::Export { .. } => Some(import.maker),
            Ref::Space { .. } => continue,
        };
        let Some(opener) = opener else { continue };
        let Some(file) = world.books().keeper(&taken.what).and_then(|token| world.file(token)) else {
            // Its description of /dev/nvidiactl is not known.
            if let Some(process) = world.process(opener).filter(|process| process.is_alive() && process.id() != import.maker) {
                holders.entry((opener, Via::Import)).or_insert_with(|| imports(process, import.maker, taken.at));
            }
            continue;
        };
        for ((id, place), holder) in &file.holders {
            let Some(process) = world.process(*id).filter(|process| process.id() != import.maker) else { continue };
            let mut new = imports(process, import.maker, taken.at);
            if *id != opener {
                // It imported nothing itself: it has the file of who did, or the exported handle.
                let of = Owner { id: opener, process: owners::lookup(world, opener), from: OwnerFrom::Opener };
                let way = via::of(world, Some(of), file, process, *place, holder);
                (new.via, new.deduced, new.from, new.since) = (way.via, way.deduced, way.from.or(Some(opener)), way.since);
            }
            let view = holders.entry((*id, new.via)).or_insert(new);
            view.descriptors.extend(holder.slots.iter().map(|slot| (slot.fd, file.dev, slot.tid)));
            view.descriptors.sort_unstable();
            view.descriptors.dedup();
        }
    }
    let bytes = Some(import.share.bytes()).filter(|bytes| *bytes > 0);
    Case {
        gpu: import.gpu,
        bytes,
        bytes_from: if bytes.is_some() { BytesFrom::Books } else { BytesFrom::Nobody },
        share: Some(import.share.clone()),
        owner: Some(owner),
        holders: holders.into_values().collect(),
        ..empty(world, Kind::Imported)
    }
}

fn imports(process: &Process, maker: ProcessId, at: BootNs) -> HolderView<'_> {
    HolderView { process, via: Via::Import, deduced: None, from: Some(maker), since: Some(at), descriptors: Vec::new() }
}

/// Lines of NVML whose PID owns no description that we know of.
fn listed<'a>(world: &'a World, used: &BTreeSet<(u32, u32)>, open: &BTreeSet<u32>) -> Vec<Case<'a>> {
    let mut cases = Vec::new();
    for (index, gpu) in world.gpus() {
        let pids: BTreeSet<u32> = gpu.lines.keys().map(|(pid, _)| *pid).collect();
        for pid in pids.into_iter().filter(|pid| !used.contains(&(*index, *pid))) {
            let first_seen = gpu.of_pid(pid).map(|line| line.first_seen).min().unwrap_or_default();
            let process = world.living(pid).filter(|p| p.id().start() <= first_seen);
            let process = process.or_else(|| world.dead(pid, first_seen));
            let id = process.map_or(ProcessId(pid, 0), Process::id);
            let bytes = gpu.charged(pid).flatten();
            cases.push(Case {
                gpu: Some(*index),
                bytes,
                bytes_from: if bytes.is_some() { BytesFrom::Nvml } else { BytesFrom::Nobody },
                nvml: bytes,
                owner: Some(Owner { id, process, from: OwnerFrom::NvmlOnly }),
                candidates: open.iter().copied().filter(|candidate| *candidate == pid).collect(),
                ..empty(world, Kind::Listed)
            });
        }
    }
    cases
}

/// Bytes of a GPU that the cases account for. NVML's figures, or a damaged trace's, need not be possible.
fn explained(cases: &[Case<'_>], gpu: u32) -> u64 {
    let of_gpu = cases.iter().filter(|c| c.gpu == Some(gpu) && c.kind != Kind::Reserve);
    of_gpu.filter_map(|c| c.bytes).fold(0, u64::saturating_add)
}

/// Used bytes of a GPU that no case accounts for.
fn unexplained(world: &World, cases: &[Case<'_>], gpu: u32) -> Option<u64> {
    let memory = world.gpus().get(&gpu)?.memory?;
    Some(memory.used.saturating_sub(explained(cases, gpu)))
}

/// The case's files can hold memory of this GPU.
fn touches(case: &Case<'_>, index: u32) -> bool {
    const NVIDIA_MAJOR: u32 = 195;
    const CTL_MINOR: u32 = 254;
    if let Some(gpu) = case.gpu {
        return gpu == index;
    }
    let minor = case.world.gpus().get(&index).and_then(|gpu| gpu.minor);
    let mut nodes = case.files.iter().map(|f| f.dev).filter(|d| d.major() == NVIDIA_MAJOR && d.minor() < CTL_MINOR).peekable();
    // nvidiactl and nvidia-uvm serve every GPU.
    nodes.peek().is_none() || minor.is_none() || nodes.any(|dev| Some(dev.minor()) == minor)
}

/// The books know everything that the case has.
fn is_settled(case: &Case<'_>) -> bool {
    match (case.bytes_from, &case.share) {
        (BytesFrom::Nvml | BytesFrom::DmaBuf, _) => true,
        (_, Some(share)) => share.is_sized() && case.gap().is_none(),
        _ => false,
    }
}

/// The kernel tells how large a dma-buf is, not how much of it others have too: it is no more than what nobody else explains.
fn cap_dma_bufs(world: &World, cases: &mut [Case<'_>]) {
    for at in 0..cases.len() {
        let (BytesFrom::DmaBuf, Some(bytes), Some(gpu)) = (cases[at].bytes_from, cases[at].bytes, cases[at].gpu) else { continue };
        let Some(memory) = world.gpus().get(&gpu).and_then(|gpu| gpu.memory) else { continue };
        let over = explained(cases, gpu).saturating_sub(memory.used);
        cases[at].bytes = Some(bytes.saturating_sub(over));
    }
}

/// Gives what remains of a GPU to the one case that can have it. The dead come first: NVML names the living, unless it has no
/// lists at all.
fn remainders(world: &World, cases: &mut Vec<Case<'_>>) {
    for (&index, gpu) in world.gpus() {
        let Some(left) = unexplained(world, cases, index).filter(|left| *left > NOISE_BYTES) else { continue };
        let fits = |c: &Case<'_>| c.kind == Kind::Files && !is_settled(c) && touches(c, index);
        let dead: Vec<usize> =
            (0..cases.len()).filter(|i| fits(&cases[*i]) && cases[*i].living_owner().is_none()).collect();
        let living = || (0..cases.len()).filter(|i| fits(&cases[*i])).collect();
        let fitting: Vec<usize> = match dead.is_empty() {
            true if gpu.listed_at.is_none() => living(),
            _ => dead,
        };
        let [only] = fitting[..] else { continue };
        let known = cases[only].bytes.filter(|_| cases[only].gpu == Some(index)).unwrap_or_default();
        let share = Case {
            gpu: Some(index),
            bytes: Some(left.saturating_add(known)),
            bytes_from: BytesFrom::Remainder,
            ..cases[only].clone()
        };
        // The same files may hold what remains of several GPUs.
        let same = cases[only].bytes.is_none() || cases[only].gpu.is_none_or(|gpu| gpu == index);
        if same { cases[only] = share } else { cases.push(share) }
    }
    let settled = |c: &Case<'_>, index: u32| {
        // An older sample says nothing of what was opened since.
        let opened = c.files.iter().map(|file| file.opened_at.unwrap_or(file.first_seen)).max().unwrap_or_default();
        let listed = world.gpus().get(&index).is_some_and(|gpu| gpu.listed_at.is_some() && gpu.sampled_at >= opened);
        !touches(c, index) || (listed && unexplained(world, cases, index).is_some_and(|left| left <= NOISE_BYTES))
    };
    let empty: Vec<bool> = cases
        .iter()
        .map(|c| {
            c.kind == Kind::Files && c.bytes.is_none() && c.candidates.is_empty() && !world.gpus().is_empty() && world.gpus().keys().all(|i| settled(c, *i))
        })
        .collect();
    for (case, empty) in cases.iter_mut().zip(empty) {
        if empty && case.gpu.is_none() {
            case.bytes = Some(0);
            case.bytes_from = BytesFrom::Remainder;
        }
    }
}

/// Managed memory (cudaMallocManaged) is no object of the driver and in no figure of NVML: what remains of a GPU is that of the
/// one context that can have some, when a recording shows that it cannot be what the dead left behind. It lives with the address
/// space of /dev/nvidia-uvm.
fn managed(world: &World, cases: &mut Vec<Case<'_>>) {
    for (&index, gpu) in world.gpus() {
        if gpu.falling(world.host().now).is_some() || dead_may_have_left(world, gpu) {
            continue;
        }
        let Some(left) = unexplained(world, cases, index).filter(|left| *left > NOISE_BYTES) else { continue };
        // A living process that NVML does not list, and whose books are not known, may have it as well.
        let other = |c: &Case<'_>| c.kind == Kind::Files && c.bytes.is_none() && !is_settled(c) && touches(c, index);
        let mut fitting = cases.iter().filter(|case| case.gpu == Some(index) && may_be_managed(case));
        let (Some(case), None) = (fitting.next(), fitting.next()) else { continue };
        if cases.iter().any(|c| other(c) && !is_monitor(world, c)) {
            continue;
        }
        let case = Case {
            kind: Kind::Managed,
            bytes: Some(left),
            bytes_from: BytesFrom::Remainder,
            nvml: None,
            of_others: 0,
            share: None,
            ..case.clone()
        };
        cases.push(case);
    }
}

/// A process that NVML charged has ended since everything in use was last explained, or nobody watched.
fn dead_may_have_left(world: &World, gpu: &Gpu) -> bool {
    let settled = gpu.settled_at.filter(|_| world.host().watching_since().is_some());
    settled.is_none_or(|settled| world.processes().chain(world.finished()).any(|process| process.left_since(settled)))
}

/// Nothing of what it asked of the driver takes memory, as far as a recording goes back.
fn is_monitor(world: &World, case: &Case<'_>) -> bool {
    let Some(process) = case.living_owner() else { return false };
    let books = world.books();
    // Our own requests are not recorded, and `record` watches from inside.
    is_recorder(world, case) || books.of_process(process.id()).next().is_some() && books.charged(process.id(), None) == 0
}

/// It has our recorder's name, which anybody may take, and can have no memory: NVML has lists and it is in none, and it has no address space
/// that managed memory would need. (NVML opens /dev/nvidia-uvm too, and makes nothing of it.)
fn is_recorder(world: &World, case: &Case<'_>) -> bool {
    let Some(process) = case.living_owner().filter(|process| process.comm() == RECORDER) else { return false };
    let made = |file: &&File| matches!(file.role, Some(Role::Space | Role::SpaceMm)) || world.books().space(file.token).is_some();
    let space = case.files.iter().any(made);
    let unlisted = |gpu: &Gpu| gpu.listed_at.is_some() && gpu.charged(process.id().tgid()).is_none();
    !space && world.gpus().values().all(unlisted)
}

/// It has a context, and an address space that can have managed memory.
fn may_be_managed(case: &Case<'_>) -> bool {
    let space = |file: &&File| {
        let unified = case.world.node_of(file.dev) == Node::Uvm && file.role != Some(Role::SpaceMm);
        // When it was seen to be made, it was seen to get its GPUs.
        unified && case.world.books().space(file.token).is_none_or(|space| !space.made || !space.gpus.is_empty())
    };
    case.kind == Kind::Files && case.bytes.is_some_and(|bytes| bytes > 0) && case.files.iter().any(space)
}

/// What is left of each GPU when no case can have it, and the driver's reserve when there is nothing else.
fn leftovers<'a>(world: &'a World, cases: &mut Vec<Case<'a>>) {
    for (&index, gpu) in world.gpus() {
        let Some(memory) = gpu.memory else { continue };
        let left = unexplained(world, cases, index).unwrap_or_default();
        // The dead who may have it are told of themselves.
        let told = |c: &Case<'_>| {
            let unplaced = c.bytes.is_none() || c.gpu.is_none() && c.bytes.is_some_and(|bytes| bytes > 0);
            c.kind == Kind::Files && unplaced && c.living_owner().is_none() && touches(c, index)
        };
        let (kind, bytes) = match memory.reserved {
            _ if left > NOISE_BYTES && cases.iter().any(told) => continue,
            None if left > NOISE_BYTES && left <= RESERVE_MAX => (Kind::Reserve, left),
            _ if left > NOISE_BYTES => (Kind::Leftover, left),
            // A figure from before somebody's memory, which is known otherwise, does not say that the GPU is idle.
            Some(reserved) if reserved > 0 && memory.used <= NOISE_BYTES && explained(cases, index) <= NOISE_BYTES => (Kind::Reserve, reserved),
            _ => continue,
        };
        // The living who may have it: NVML does not list them, or their memory may be managed, and nothing rules them out; or NVML charges them
        // less than they still have, as while an exit is not over.
        let ends = |c: &Case<'_>| c.living_owner().is_some_and(|process| ending::of_process(process).is_some());
        let open = |c: &Case<'_>| c.kind == Kind::Files && (may_be_managed(c) || c.bytes.is_none() && !is_settled(c));
        let may = |c: &&Case<'_>| touches(c, index) && (open(c) || ends(c));
        let pids: BTreeSet<u32> = match kind {
            Kind::Leftover => cases.iter().filter(may).filter(|c| !is_recorder(world, c)).filter_map(Case::living_owner).map(|p| p.id().tgid()).collect(),
            _ => BTreeSet::new(),
        };
        cases.push(Case {
            gpu: Some(index),
            bytes: Some(bytes),
            bytes_from: if memory.reserved.is_some() && kind == Kind::Reserve { BytesFrom::Nvml } else { BytesFrom::Remainder },
            candidates: pids.into_iter().collect(),
            ..empty(world, kind)
        });
    }
}

/// Who keeps these descriptions open: one view per process and way.
fn holders<'a>(world: &'a World, owner: Option<Owner<'a>>, files: &[&'a File]) -> Vec<HolderView<'a>> {
    let mut views: BTreeMap<(ProcessId, Via), HolderView<'a>> = BTreeMap::new();
    for file in files {
        for ((id, place), holder) in &file.holders {
            let Some(process) = world.process(*id) else { continue };
            let way = via::of(world, owner, file, process, *place, holder);
            let view = views.entry((*id, way.via)).or_insert_with(|| HolderView {
                process,
                via: way.via,
                deduced: None,
                from: way.from,
                since: way.since,
                descriptors: Vec::new(),
            });
            view.deduced = view.deduced.or(way.deduced);
            view.from = view.from.or(way.from);
            view.since = match (view.since, way.since) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            view.descriptors.extend(holder.slots.iter().map(|slot| (slot.fd, file.dev, slot.tid)));
        }
    }
    let mut views: Vec<_> = views.into_values().collect();
    for view in &mut views {
        view.descriptors.sort_unstable();
    }
    views
}

#[cfg(test)]
mod tests {
    use crate::event::{Dev, Hold, ProcessId, Role, What};
    use crate::explanation::{CauseId, Confidence, Holding};
    use crate::story::{CTL, GPU0, MIB, Story, UVM, bare};

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    /// One child has files of as many dead openers as there are credentials; NVML charges these PIDs.
    fn cold_owners(creds: &[u64], pids: &[u32]) -> Story {
        let mut story = Story::cold();
        let child = ProcessId(900, 900);
        story.info(child, "worker", |info| (info.never_execed, info.pgrp) = (Some(true), Some(pids[0])));
        for (place, cred) in creds.iter().enumerate() {
            let fd = 3 + place as i32;
            story.found(&Hold { cred: Some(*cred), cloexec: Some(true), ..bare(child, fd, fd as u64, CTL) });
        }
        let lines: Vec<_> = pids.iter().map(|pid| (*pid, u64::from(*pid))).collect();
        story.nvml(lines.iter().map(|line| line.1).sum(), &lines);
        for pid in pids {
            story.push(What::ProcessGone { id: ProcessId(*pid, 0) });
        }
        story.scanned();
        story
    }

    #[test]
    fn cold_two_dead_owners_of_one_holder_are_taken_in_the_order_of_their_descriptors() {
        // The holder's group leader is one of them, which says nothing of whose files are whose.
        let told = cold_owners(&[77, 66], &[574, 575]).told();
        let of = |h: &Holding| (h.owner.as_ref().map(|o| o.pid), h.holders[0].descriptors[0].fd, h.confidence);
        let all: Vec<_> = told.holdings.iter().map(of).collect();
        assert_eq!(all, [(Some(575), 4, Confidence::Inferred), (Some(574), 3, Confidence::Inferred)]);
    }

    #[test]
    fn cold_more_dead_pids_than_owners_are_candidates_and_not_called_lost() {
        let told = cold_owners(&[77, 66], &[573, 574, 575]).told();
        assert!(!told.holdings.iter().any(|h| h.cause == CauseId::NoHolder), "{:#?}", told.holdings);
        let inherited = told.holdings.iter().filter(|h| h.cause == CauseId::InheritedDescriptor);
        assert_eq!(inherited.count(), 2);
        assert_eq!(told.holdings.iter().filter(|h| h.cause == CauseId::Unknown).count(), 3);
        assert_eq!(told.exit_code(), 3);
    }

    #[test]
    fn a_monitor_that_nvml_does_not_list_holds_no_memory() {
        let mut story = Story::warm();
        let monitor = story.process(300, "nvtop");
        story.uses_cuda(monitor);
        story.nvml(0, &[]);
        let told = story.told();
        assert_eq!(told.holdings[0].bytes, Some(0));
        assert!(told.holdings[0].summary.starts_with("A GPU context that holds no memory belongs to nvtop (PID 300)"));
    }

    #[test]
    fn a_sample_from_before_the_open_says_nothing_of_it() {
        let mut story = Story::warm();
        story.nvml(0, &[]);
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        assert_eq!(story.told().holdings[0].bytes, None);
    }

    #[test]
    fn the_dead_get_what_nvml_does_not_name_and_the_living_do_not() {
        let mut story = Story::warm();
        let monitor = story.process(300, "nvtop");
        story.uses_cuda(monitor);
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.forks(trainer, 580, "python3");
        story.killed(BASH, trainer);
        story.nvml(2_574, &[]);
        let told = story.told();
        let bytes: Vec<_> = told.holdings.iter().map(|h| (h.owner.as_ref().unwrap().pid, h.bytes)).collect();
        assert_eq!(bytes, [(574, Some(2_574 * MIB)), (300, Some(0))]);
        assert_eq!(told.gpus[0].unexplained_bytes, Some(0));
    }

    #[test]
    fn what_two_could_have_is_given_to_neither_and_called_unexplained() {
        let mut story = Story::warm();
        for pid in [574, 575] {
            let trainer = story.process(pid, "python3");
            story.uses_cuda(trainer);
            story.forks(trainer, pid + 100, "python3");
            story.killed(BASH, trainer);
        }
        story.nvml(2_574, &[]);
        story.scanned();
        let told = story.told();
        assert!(told.holdings.iter().all(|h| h.bytes.is_none()), "{:#?}", told.holdings);
        assert_eq!((told.holdings.len(), told.gpus[0].unexplained_bytes), (2, Some(2_574 * MIB)));
    }

    /// What is left of a GPU beside a process of this name with these files.
    fn beside(comm: &str, uvm: bool, charged: &[(u32, u64)]) -> CauseId {
        if uvm { beside_with(comm, Some(Role::Space), charged) } else { beside_files(comm, &[CTL, GPU0], None, charged) }
    }

    fn beside_with(comm: &str, role: Option<Role>, charged: &[(u32, u64)]) -> CauseId {
        beside_files(comm, &[CTL, GPU0, UVM], role, charged)
    }

    fn beside_files(comm: &str, files: &[Dev], role: Option<Role>, charged: &[(u32, u64)]) -> CauseId {
        let mut story = Story::cold();
        let other = story.process(300, comm);
        for dev in files {
            let held = story.opens(other, *dev);
            if *dev == UVM {
                story.found(&Hold { role, ..held });
            }
        }
        story.nvml(2_560, charged);
        story.scanned();
        story.told().holdings.iter().find(|holding| holding.owner.is_none()).unwrap().cause
    }

    #[test]
    fn a_name_alone_rules_nobody_out() {
        for comm in ["outlive", "python3"] {
            assert_eq!(beside(comm, true, &[(300, 500)]), CauseId::Unknown, "{comm} may have managed memory");
            assert_eq!(beside(comm, true, &[]), CauseId::Unknown, "{comm} has an address space, though NVML does not list it");
        }
        assert_eq!(beside("outlive", false, &[]), CauseId::NoHolder, "our recorder has no memory, and NVML does not list it");
        assert_eq!(beside_with("outlive", None, &[]), CauseId::NoHolder, "nor has it made anything of its /dev/nvidia-uvm");
        assert_eq!(beside("python3", false, &[]), CauseId::Unknown);
    }

    #[test]
    fn managed_memory_is_not_given_to_one_because_of_the_others_name() {
        let told = |comm: &str| {
            let mut story = Story::warm();
            let trainer = story.process(574, "python3");
            story.uses_cuda(trainer);
            story.nvml(500, &[(574, 500)]);
            let other = story.process(300, comm);
            for held in story.uses_cuda(other) {
                let role = (held.dev == UVM).then_some(Role::Space);
                story.found(&Hold { role, ..held });
            }
            story.nvml(2_560, &[(574, 500)]);
            story.scanned();
            story.told().holdings.iter().map(|h| (h.owner.as_ref().map(|o| o.pid), h.cause, h.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(told("outlive"), told("python3"));
    }
}
