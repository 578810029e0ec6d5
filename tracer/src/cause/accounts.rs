//! Who owns what: groups open file descriptions by the process that opened them and adds NVML's figures.
//!
//! Always true: deterministic; every held description is in exactly one group; bytes are attributed at most once.

use super::case::{Case, Keeper, Owner};
use super::provenance::{keeper, opener_of};
use crate::event::{ProcessId, Token};
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};

/// Smaller differences between NVML's total and its list are the driver's own bookkeeping (8 MiB on an H200 for one context).
pub const NOISE: u64 = 16 << 20;

/// What a group is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A process that was seen.
    Process(ProcessId),
    /// Nobody known, but one process: the credentials of its files.
    Cred(Token),
    /// NVML's number of a process that is not there any more.
    Number(u32),
    /// Nothing at all is known of the opener.
    Nobody,
}

#[derive(Default)]
struct Group {
    files: Vec<Token>,
    /// (GPU, bytes) that NVML charges.
    charged: Vec<(u32, Option<u64>)>,
    deduced: Option<String>,
}

/// All cases of this world, most bytes first.
#[must_use]
pub fn cases(world: &World) -> Vec<Case<'_>> {
    let mut groups = group_files(world);
    charge(world, &mut groups);
    pair_numbers(world, &mut groups);
    let mut cases = Vec::new();
    for (key, group) in &groups {
        cases.extend(cases_of(world, *key, group));
    }
    attribute_rest(world, &mut cases);
    cases.sort_by_key(|c| (std::cmp::Reverse(c.bytes.unwrap_or(0)), c.gpu, c.owner.id, c.keepers.first().map(|k| k.id)));
    cases
}

fn group_files(world: &World) -> BTreeMap<Key, Group> {
    let mut groups: BTreeMap<Key, Group> = BTreeMap::new();
    let mut tokens: Vec<Token> = world.files.keys().copied().collect();
    tokens.sort_unstable();
    let by_cred = world.by_cred();
    for token in tokens {
        let Some(file) = world.files.get(&token) else { continue };
        let (key, deduced) = match opener_of(world, file, &by_cred) {
            Some((id, deduced)) => (Key::Process(id), deduced),
            None => (file.cred.map_or(Key::Nobody, Key::Cred), None),
        };
        let group = groups.entry(key).or_default();
        group.files.push(token);
        group.deduced = group.deduced.take().or(deduced);
    }
    groups
}

/// Adds NVML's figures to the groups, making groups for processes that hold no file that we see.
fn charge(world: &World, groups: &mut BTreeMap<Key, Group>) {
    for (index, gpu) in &world.gpus {
        let pids: BTreeSet<u32> = gpu.processes.iter().map(|p| p.pid).collect();
        for pid in pids {
            let owner = groups
                .keys()
                .filter_map(|k| if let Key::Process(id) = k { Some(*id) } else { None })
                .filter(|id| id.tgid() == pid)
                .max_by_key(|id| id.start())
                .or_else(|| living_user(world, pid));
            let key = owner.map_or(Key::Number(pid), Key::Process);
            groups.entry(key).or_default().charged.push((*index, gpu.charged(pid)));
        }
    }
}

/// The process with this PID, when it may well be the one that NVML means: it uses NVIDIA files, or nothing is known against it.
fn living_user(world: &World, pid: u32) -> Option<ProcessId> {
    let process = world.by_tgid(pid)?;
    let used = process.used_gpu && (!process.held.is_empty() || process.opened > 0 || process.is_dead() || process.is_exiting());
    used.then(|| process.id())
}

/// Files whose opener nobody saw and a number that NVML names although no such process holds anything: one of each is a pair.
fn pair_numbers(world: &World, groups: &mut BTreeMap<Key, Group>) {
    let mut numbers: Vec<u32> = groups.keys().filter_map(|k| if let Key::Number(n) = k { Some(*n) } else { None }).collect();
    let creds: Vec<Key> = groups.keys().filter(|k| matches!(k, Key::Cred(_) | Key::Nobody)).copied().collect();
    for key in creds.iter().copied() {
        let Some(found) = pick_number(world, groups, key, &numbers, creds.len()) else { continue };
        let (number, why) = found;
        numbers.retain(|n| *n != number);
        let Some(mut group) = groups.remove(&key) else { continue };
        if let Some(charged) = groups.remove(&Key::Number(number)) {
            group.charged = charged.charged;
        }
        group.deduced = Some(why);
        let target = groups.entry(Key::Number(number)).or_default();
        target.files.extend(group.files);
        target.charged.extend(group.charged);
        target.deduced = group.deduced;
    }
}

fn pick_number(world: &World, groups: &BTreeMap<Key, Group>, key: Key, numbers: &[u32], ownerless: usize) -> Option<(u32, String)> {
    let group = groups.get(&key)?;
    let kin: BTreeSet<u32> = group
        .files
        .iter()
        .filter_map(|t| world.files.get(t))
        .flat_map(|f| f.holders.keys())
        .filter_map(|id| world.process(*id))
        .flat_map(|p| [p.info.pgrp, p.info.session].into_iter().flatten().filter(move |n| *n != p.id().tgid()))
        .collect();
    let by_kin: Vec<u32> = numbers.iter().copied().filter(|n| kin.contains(n)).collect();
    if let [number] = by_kin[..] {
        return Some((number, format!("NVML charges PID {number}, which no longer exists, and its holder belongs to that process group or session")));
    }
    match numbers {
        [number] if ownerless == 1 => Some((
            *number,
            format!("NVML charges PID {number}, which holds nothing any more, and these are the only files whose opener is gone"),
        )),
        _ => None,
    }
}

fn cases_of<'a>(world: &'a World, key: Key, group: &Group) -> Vec<Case<'a>> {
    let owner = match key {
        Key::Process(id) => Owner { id: Some(id), deduced: group.deduced.clone() },
        Key::Number(n) => Owner { id: Some(ProcessId(n, 0)), deduced: group.deduced.clone().or_else(|| Some(format!("only NVML names PID {n}"))) },
        Key::Cred(_) | Key::Nobody => gone_leader(world, group),
    };
    let mut people: BTreeMap<ProcessId, Keeper> = BTreeMap::new();
    for token in &group.files {
        let Some(file) = world.files.get(token) else { continue };
        for (id, holder) in &file.holders {
            keeper(world, &mut people, owner.id, *id, *token, file, holder);
        }
    }
    let own = owner.id.and_then(|id| people.remove(&id));
    let keepers: Vec<Keeper> = people.into_values().collect();
    let case = |gpu, bytes| Case { world, gpu, bytes, bytes_deduced: None, owner: owner.clone(), keepers: keepers.clone(), own: own.clone() };
    if group.charged.is_empty() {
        return vec![case(gpu_of(world, &group.files), None)];
    }
    group.charged.iter().map(|(gpu, bytes)| case(Some(*gpu), *bytes)).collect()
}

/// Nobody saw the opener; a process group or session whose leader is gone names a likely one.
fn gone_leader(world: &World, group: &Group) -> Owner {
    let mut candidates: BTreeSet<u32> = BTreeSet::new();
    for token in &group.files {
        for id in world.files.get(token).into_iter().flat_map(|f| f.holders.keys()) {
            let Some(process) = world.process(*id) else { continue };
            let gone = |n: &u32| *n != id.tgid() && *n > 1 && world.by_tgid(*n).is_none_or(|p| p.is_dead());
            candidates.extend(process.info.pgrp.filter(gone));
        }
    }
    match candidates.iter().next() {
        Some(pid) if candidates.len() == 1 => Owner {
            id: Some(ProcessId(*pid, 0)),
            deduced: Some(format!("PID {pid} led the process group of the holder and is gone; nobody saw who opened the files")),
        },
        _ => Owner { id: None, deduced: Some("nobody saw who opened the files, and that process is gone".to_owned()) },
    }
}

/// The GPU that these files are of, when the nodes tell and it is one.
fn gpu_of(world: &World, files: &[Token]) -> Option<u32> {
    if world.gpus.len() == 1 {
        return world.gpus.keys().next().copied();
    }
    let found: BTreeSet<u32> = files
        .iter()
        .filter_map(|t| world.files.get(t))
        .filter_map(|f| {
            let path = world.device(f.dev);
            let minor: u32 = path.rsplit('/').next()?.strip_prefix("nvidia")?.parse().ok()?;
            world.gpus.iter().find(|(_, g)| g.minor == Some(minor)).map(|(index, _)| *index)
        })
        .collect();
    if found.len() == 1 { found.first().copied() } else { None }
}

/// Memory that NVML charges to nobody belongs to the only case of that GPU for which nobody gave a figure.
fn attribute_rest(world: &World, cases: &mut [Case<'_>]) {
    for (index, gpu) in &world.gpus {
        let Some(memory) = gpu.now() else { continue };
        let attributed: u64 = cases.iter().filter(|c| c.gpu == Some(*index)).filter_map(|c| c.bytes).sum();
        let rest = memory.used.saturating_sub(attributed);
        if rest < NOISE {
            continue;
        }
        let mut unknown: Vec<&mut Case<'_>> = cases.iter_mut().filter(|c| c.bytes.is_none() && c.gpu.is_none_or(|g| g == *index)).collect();
        if let [case] = &mut unknown[..] {
            case.gpu = Some(*index);
            case.bytes = Some(rest);
            case.bytes_deduced = Some("NVML names nobody for it; it is what remains of the GPU's used memory after everybody else's".to_owned());
        }
    }
}
