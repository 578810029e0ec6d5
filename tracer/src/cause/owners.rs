//! Whose descriptions these are.
//!
//! Always true: an opener that was seen, or whose credentials the description carries, is taken as it is; else the
//! descriptions of equal credentials (one process opened them) are matched, as a whole, to what NVML and the
//! process tree say, and every match says what it rests on.

use super::case::{Owner, OwnerFrom};
use crate::event::{ProcessId, Token};
use crate::world::World;
use crate::world::file::File;
use crate::world::gpu::{Gpu, NOISE_BYTES};
use crate::world::process::Process;
use std::collections::{BTreeMap, BTreeSet};

/// Descriptions of one owner.
pub(super) struct Group<'a> {
    pub(super) owner: Option<Owner<'a>>,
    pub(super) files: Vec<&'a File>,
    /// PIDs that fit, when the owner is unknown.
    pub(super) candidates: Vec<u32>,
}

/// All descriptions of the world, grouped.
pub(super) fn groups(world: &World) -> Vec<Group<'_>> {
    let mut known: BTreeMap<ProcessId, Vec<&File>> = BTreeMap::new();
    let mut orphans: BTreeMap<Option<Token>, Vec<&File>> = BTreeMap::new();
    for file in world.files() {
        match file.opener {
            Some((id, _)) => known.entry(id).or_default().push(file),
            None => orphans.entry(file.cred).or_default().push(file),
        }
    }
    let taken: BTreeSet<u32> = known.keys().map(|id| id.tgid()).collect();
    let mut groups: Vec<Group<'_>> = known.into_iter().map(|(id, files)| opened(world, id, files)).collect();
    for group in match_orphans(world, orphans.into_values().collect(), &taken) {
        // A process that changed its credentials has descriptions of both.
        let same = |g: &&mut Group<'_>| g.owner.is_some() && g.owner.map(|o| o.id) == group.owner.map(|o| o.id);
        match groups.iter_mut().find(same) {
            Some(known) => known.files.extend(group.files),
            None => groups.push(group),
        }
    }
    groups
}

fn opened<'a>(world: &'a World, id: ProcessId, files: Vec<&'a File>) -> Group<'a> {
    let owner = Owner { id, process: lookup(world, id), from: OwnerFrom::Opener };
    Group { owner: Some(owner), files, candidates: Vec::new() }
}

pub(super) fn lookup(world: &World, id: ProcessId) -> Option<&Process> {
    world.process(id).or_else(|| world.finished().rev().find(|p| p.id() == id))
}

fn match_orphans<'a>(world: &'a World, orphans: Vec<Vec<&'a File>>, taken: &BTreeSet<u32>) -> Vec<Group<'a>> {
    let mut dead = dead_pids(world, taken);
    let mut groups: Vec<Group<'a>> = orphans
        .into_iter()
        .map(|files| Group { owner: living_owner(world, &files), files, candidates: Vec::new() })
        .collect();
    let led: Vec<Option<u32>> = groups.iter().map(|group| led_by(world, group, &dead)).collect();
    for (group, pid) in groups.iter_mut().zip(&led) {
        // One leader of several groups' holders does not say which group is its.
        let unique = led.iter().filter(|other| *other == pid).count() == 1;
        if let Some(pid) = pid.filter(|pid| unique && dead.remove(pid)) {
            group.owner = Some(by_pid(world, pid, OwnerFrom::NvmlGroup));
        }
    }
    let mut open: Vec<&mut Group<'a>> = groups.iter_mut().filter(|group| group.owner.is_none()).collect();
    if let ([group], Some(pid)) = (&mut open[..], the_one(dead.iter().copied())) {
        group.owner = Some(by_pid(world, pid, OwnerFrom::NvmlAlone));
        dead.clear();
    } else if open.len() == dead.len() && by_first_descriptor(&mut open) {
        for (group, pid) in open.into_iter().zip(std::mem::take(&mut dead)) {
            group.owner = Some(by_pid(world, pid, OwnerFrom::NvmlOrder));
        }
    }
    // A dead leader can own the files of one unknown opener, not of several; and NVML's word goes before it.
    let alone = dead.is_empty() && groups.iter().filter(|group| group.owner.is_none()).count() == 1;
    for group in groups.iter_mut().filter(|group| group.owner.is_none()) {
        group.candidates = dead.iter().copied().collect();
        let leader = || gone_leader(world, &group.files).filter(|_| alone);
        group.owner = sole_holder(world, &group.files).or_else(|| leader().map(|pid| by_pid(world, pid, OwnerFrom::Leader)));
    }
    groups
}

/// The dead PID of NVML that led the process group or session of an ownerless group's holders, when it is one.
fn led_by(world: &World, group: &Group<'_>, dead: &BTreeSet<u32>) -> Option<u32> {
    let unknown = group.owner.is_none();
    the_one(leaders(world, &group.files).intersection(dead).copied()).filter(|_| unknown)
}

/// Sorts groups that one process holds by their lowest descriptor there: an ancestor's files were open before its
/// child opened its own. False when no process holds all of them.
fn by_first_descriptor(groups: &mut [&mut Group<'_>]) -> bool {
    let holders = |group: &Group<'_>| -> BTreeSet<ProcessId> {
        group.files.iter().flat_map(|file| file.holders.keys().map(|(id, _)| *id)).collect()
    };
    let all = groups.iter().map(|group| holders(group)).reduce(|a, b| &a & &b).unwrap_or_default();
    let Some(common) = all.first().copied() else { return false };
    groups.sort_by_key(|group| {
        let held = group.files.iter().flat_map(|file| file.holders.iter()).filter(|((id, _), _)| *id == common);
        held.flat_map(|(_, holder)| holder.slots.iter().map(|slot| slot.fd)).min()
    });
    true
}

/// PIDs in NVML's lists that no living process with NVIDIA files has, and that own nothing yet.
fn dead_pids(world: &World, taken: &BTreeSet<u32>) -> BTreeSet<u32> {
    let listed = world.gpus().values().flat_map(|gpu| gpu.lines.keys().map(|(pid, _)| *pid));
    let lives = |pid: u32| world.living(pid).is_some_and(|p| p.is_alive() && p.held);
    listed.filter(|pid| !taken.contains(pid) && !lives(*pid)).collect()
}

fn by_pid(world: &World, pid: u32, from: OwnerFrom) -> Owner<'_> {
    let process = world.dead(pid, u64::MAX);
    Owner { id: process.map_or(ProcessId(pid, 0), Process::id), process, from }
}

/// A holder that NVML charges.
fn living_owner<'a>(world: &'a World, files: &[&File]) -> Option<Owner<'a>> {
    let charged = |p: &&Process| world.gpus().values().any(|gpu| gpu.charged(p.id().tgid()).is_some());
    let mut fits = holders(world, files).into_iter().filter(charged).filter(|p| p.is_alive());
    let process = fits.next()?;
    fits.next().is_none().then_some(Owner { id: process.id(), process: Some(process), from: OwnerFrom::NvmlHolder })
}

/// The only holder, when it executed its own program, leads its own life, and its descriptors look as opened:
/// daemons that change their user after opening have other credentials than their files.
fn sole_holder<'a>(world: &'a World, files: &[&File]) -> Option<Owner<'a>> {
    let all = holders(world, files);
    let [process] = all[..] else { return None };
    // A scan cannot say how a file was opened: then close-on-exec, which passing clears, must do.
    let as_opened = |file: &&File| {
        let mut slots = file.holders.values().flat_map(|holder| &holder.slots);
        slots.all(|slot| match file.opened_cloexec {
            Some(opened) => slot.cloexec == Some(opened),
            None => slot.cloexec == Some(true) && !has_hidden_memory(world),
        })
    };
    let unsent = files.iter().all(|file| file.sent.is_empty() && file.holders.values().all(|h| h.via.is_none()));
    let own = process.info.never_execed == Some(false) && gone_leader(world, files).is_none();
    let fits = own && unsent && files.iter().all(as_opened);
    fits.then_some(Owner { id: process.id(), process: Some(process), from: OwnerFrom::SoleHolder })
}

/// NVML is not there to say, or more memory is in use than it charges to anybody: some files hold it.
fn has_hidden_memory(world: &World) -> bool {
    let hidden = |gpu: &Gpu| gpu.uncharged().is_none_or(|bytes| bytes > NOISE_BYTES);
    world.gpus().is_empty() || world.gpus().values().any(hidden)
}

/// Leaders of the holders' process groups and sessions.
fn leaders(world: &World, files: &[&File]) -> BTreeSet<u32> {
    let mut leaders = BTreeSet::new();
    for process in holders(world, files) {
        leaders.extend([process.info.pgrp, process.info.session].into_iter().flatten());
        leaders.remove(&process.id().tgid());
    }
    leaders
}

fn gone_leader(world: &World, files: &[&File]) -> Option<u32> {
    let groups: BTreeSet<u32> = holders(world, files).iter().filter_map(|p| p.info.pgrp).collect();
    let sessions: BTreeSet<u32> = holders(world, files).iter().filter_map(|p| p.info.session).collect();
    let gone = |pids: BTreeSet<u32>| the_one(pids.into_iter()).filter(|pid| *pid > 1 && is_gone(world, *pid));
    gone(groups).or_else(|| gone(sessions))
}

/// No process with this number can have files any more.
pub(super) fn is_gone(world: &World, pid: u32) -> bool {
    match world.living(pid) {
        Some(process) => !process.is_alive(),
        None => world.is_absent(pid) || world.process_at(pid, u64::MAX).is_some(),
    }
}

fn holders<'a>(world: &'a World, files: &[&File]) -> Vec<&'a Process> {
    let ids: BTreeSet<ProcessId> = files.iter().flat_map(|file| file.holders.keys().map(|(id, _)| *id)).collect();
    ids.into_iter().filter_map(|id| world.process(id)).collect()
}

fn the_one<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}
