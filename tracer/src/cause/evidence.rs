//! What every cause shows: how the owner is known, how it ended, how each holder came to hold, and what else happened
//! near it (annotations).
//!
//! Always true: a note says only what is in the world; deduced links say that they are deduced.

use super::{Note, health, releases};
use super::case::{BytesFrom, Case, HolderView, Kind, OwnerFrom};
use super::shares::Share;
use super::words;
use crate::event::{Action, BootNs, SignalResult, Via};
use crate::explanation::Confidence;
use crate::world::World;
use crate::world::file::Known;
use crate::world::process::Process;
use crate::world::signal::{self, SignalRecord};

/// Holders told one by one.
const HOLDERS_TOLD: usize = 8;
/// Longest chain of forks that is followed.
const CHAIN_MAX: usize = 16;

/// A note with a time.
#[must_use]
pub fn note(at: Option<BootNs>, what: impl Into<String>) -> Note {
    Note { at, what: what.into() }
}

/// The notes that belong to any case.
#[must_use]
pub fn common(case: &Case<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    ownership(case, &mut notes);
    bytes(case, &mut notes);
    if let Some(process) = case.owner.and_then(|owner| owner.process) {
        end(case.world, process, &mut notes);
    } else if let Some(owner) = case.owner
        && case.world.is_absent(owner.id.tgid())
    {
        notes.push(note(None, format!("No process with PID {} exists any more", owner.id.tgid())));
    }
    for holder in case.others().take(HOLDERS_TOLD) {
        arrival(case, holder, &mut notes);
    }
    let more = case.others().count().saturating_sub(HOLDERS_TOLD);
    if more > 0 {
        notes.push(note(None, format!("{more} more processes hold these files")));
    }
    annotations(case, &mut notes);
    notes
}

/// `Exact` when every link of the chain from owner to holder was seen.
#[must_use]
pub fn confidence(case: &Case<'_>) -> Confidence {
    let owner_seen = case.owner.is_some_and(|owner| owner.from.deduced().is_none());
    let ways_seen = case.others().all(|holder| holder.deduced.is_none());
    let bytes_seen = case.bytes_from != BytesFrom::Remainder || case.bytes == Some(0);
    if owner_seen && ways_seen && bytes_seen { Confidence::Exact } else { Confidence::Inferred }
}

fn ownership(case: &Case<'_>, notes: &mut Vec<Note>) {
    let Some(owner) = case.owner else {
        if case.kind == Kind::Files {
            let fits = case.candidates.iter().map(|pid| format!("PID {pid}")).collect::<Vec<_>>();
            let fits = if fits.is_empty() { String::new() } else { format!("; NVML charges {}", words::list(&fits, 8)) };
            notes.push(note(None, format!("Which process opened these files was not seen{fits}")));
        }
        return;
    };
    let name = case.owner_name();
    let files = words::count(case.files.len(), "GPU file", "GPU files");
    if let Some(why) = owner.from.deduced() {
        notes.push(note(None, format!("That these {files} belong to {name} is deduced: {why}")));
    } else if owner.from == OwnerFrom::Opener {
        let seen = case.files.iter().any(|file| matches!(file.opener, Some((_, Known::Seen))));
        let since = case.files.iter().filter_map(|file| file.opened_at).min();
        if seen {
            notes.push(note(since, format!("{name} opened {files}")));
        } else {
            notes.push(note(since, format!("{files} carry the credentials of {name}: it opened them")));
        }
    }
}

fn bytes(case: &Case<'_>, notes: &mut Vec<Note>) {
    books(case, notes);
    let (Some(bytes), Some(gpu)) = (case.bytes, case.gpu) else {
        if case.bytes == Some(0) {
            notes.push(note(None, "NVML charges no memory to it, and no used memory is left unexplained"));
        }
        return;
    };
    let pid = case.owner.map(|owner| owner.id.tgid());
    match (case.bytes_from, pid) {
        (BytesFrom::Nvml, Some(pid)) => {
            let all = words::size(case.nvml.unwrap_or(bytes));
            let others = match case.of_others {
                0 => String::new(),
                of_others => format!("; {} of it another process allocated", words::size(of_others)),
            };
            let uncharged = match case.share.as_ref().map_or(0, Share::uncharged) {
                0 => String::new(),
                bytes => format!("; {} more it allocated, and only an exported handle or a mapping keeps them", words::size(bytes)),
            };
            notes.push(note(None, format!("NVML charges {all} on GPU {gpu} to PID {pid}{others}{uncharged}")));
        }
        (BytesFrom::DmaBuf, _) => {
            let all = case.files.iter().filter_map(|file| file.bytes).fold(0, u64::saturating_add);
            notes.push(note(None, format!("The kernel says that the dma-bufs add up to {}", words::size(all))));
        }
        (BytesFrom::Remainder, _) if case.kind == Kind::Files => notes.push(note(
            None,
            format!(
                "NVML names nobody for it; {} is what remains of GPU {gpu}'s used memory, and no other holder is left to have it",
                words::size(bytes)
            ),
        )),
        (BytesFrom::Remainder, _) if case.kind == Kind::Managed => notes.push(note(
            None,
            format!(
                "{} on GPU {gpu} is used beyond all that NVML charges; managed memory is charged to nobody, and no other context can have any",
                words::size(bytes)
            ),
        )),
        _ => {}
    }
}

/// Less than this is the same figure.
const SAME_BYTES: u64 = 2 << 20;

/// What the allocations that were seen add up to, beside NVML's figure.
fn books(case: &Case<'_>, notes: &mut Vec<Note>) {
    let Some(sum) = case.books() else { return };
    let figure = words::size(sum.bytes);
    let seen = match sum.objects {
        0 => "No allocation of it was seen".to_owned(),
        1 if sum.bytes == 0 => "Its allocation was seen, but not how large it is".to_owned(),
        1 => format!("The allocation that was seen is {figure}"),
        n => format!("The {n} allocations that were seen add up to {figure}"),
    };
    let what = match (case.gap_words(), case.nvml) {
        (Some(missing), _) if sum.objects == 0 => format!("No allocation of it was seen: {missing}"),
        (Some(missing), _) => format!("{seen}, which may not be all: {missing}"),
        (None, Some(nvml)) if nvml.abs_diff(sum.bytes) <= SAME_BYTES => format!("{seen}, as NVML says"),
        (None, Some(nvml)) => {
            let more = if nvml > sum.bytes { "more" } else { "less" };
            format!("{seen}; NVML says {} {more}", words::size(nvml.abs_diff(sum.bytes)))
        }
        (None, None) if case.kind == Kind::Files && case.gpu().is_some_and(|gpu| gpu.listed_at.is_some()) => {
            format!("{seen}; NVML charges it to nobody")
        }
        (None, None) => seen,
    };
    notes.push(note(None, what));
}

/// How a process ended, step by step.
pub fn end(world: &World, process: &Process, notes: &mut Vec<Note>) {
    let name = words::process(process);
    let exit = &process.exit;
    if let Some(at) = process.oom_at {
        notes.push(note(Some(at), format!("The OOM killer chose {name}")));
    }
    if let Some(record) = process.fatal_signal() {
        notes.push(note(record.sent, format!("{} sent {} to {name}", sender(record), signal::name(record.sig))));
    }
    if let Some(began) = exit.began {
        notes.push(note(Some(began), format!("The exit of {name} began")));
    }
    if let Some(last) = exit.last_thread {
        let how = exit.code.map(|code| format!(" ({})", status(code))).unwrap_or_default();
        notes.push(note(Some(last), format!("The last thread of {name} exited{how}")));
    }
    let parent = process.info.parent.map(|id| words::by_id(world, id)).unwrap_or_else(|| "its parent".to_owned());
    if let Some(at) = exit.zombie {
        notes.push(note(Some(at), format!("{name} became a zombie and holds nothing any more; {parent} was told")));
    } else if let Some(at) = exit.found_zombie {
        let how = exit.code.map(|code| format!(" ({})", status(code))).unwrap_or_default();
        notes.push(note(Some(at), format!("A scan found {name} as a zombie{how}; {parent} must wait for it")));
    }
    if let Some((at, by, comm)) = &exit.reaped {
        notes.push(note(Some(*at), format!("{} reaped {name}", words::named(Some(comm), *by))));
    } else if let Some(at) = exit.freed {
        notes.push(note(Some(at), format!("{name} was reaped and freed")));
    } else if let Some(at) = exit.gone {
        notes.push(note(Some(at), format!("A scan no longer found {name}")));
    }
}

/// How a holder came to hold, and the chain to the owner.
fn arrival(case: &Case<'_>, holder: &HolderView<'_>, notes: &mut Vec<Note>) {
    let name = words::process(holder.process);
    let from = holder.from.map(|id| words::by_id(case.world, id));
    let files = words::count(holder.descriptors.len(), "GPU file", "GPU files");
    if let Some(why) = holder.deduced {
        let way = match holder.via {
            Via::Fork => "inherited",
            _ => "received",
        };
        notes.push(note(None, format!("That {name} {way} {files} is deduced: {why}")));
        return;
    }
    let by = from.map(|from| format!(" {from}")).unwrap_or_else(|| " a process that was not seen".to_owned());
    let what = match holder.via {
        Via::Fork => format!("{name} was forked from{by} and got {files}"),
        Via::ScmRights => format!("{name} received {files} over a unix socket from{by}"),
        Via::PidfdGetfd => format!("{name} took {files} with pidfd_getfd from{by}"),
        Via::InFlight => format!("{files} from{by} wait unread in a unix socket of {name}"),
        Via::IoUring => format!("{files} are registered in an io_uring of {name}"),
        Via::Import => format!("{name} imported memory from{by}"),
        Via::ExportFd => format!("{name} got {files} from{by}: an exported handle"),
        Via::Opened | Via::Thread => format!("{name} has {files} open"),
    };
    notes.push(note(holder.since, what));
    if holder.via == Via::Fork {
        chain(case, holder, notes);
    }
}

/// The processes between a forked holder and the owner, each with its end.
fn chain(case: &Case<'_>, holder: &HolderView<'_>, notes: &mut Vec<Note>) {
    let owner = case.owner.map(|owner| owner.id);
    let mut next = holder.from;
    for _ in 0..CHAIN_MAX {
        let Some(id) = next.filter(|id| Some(*id) != owner) else { return };
        let Some(middle) = case.world.process(id) else { return };
        if let Some(parent) = middle.born_of {
            let (name, from) = (words::process(middle), words::by_id(case.world, parent));
            notes.push(note(middle.forked_at, format!("{name} was forked from {from}")));
        }
        if !middle.is_alive() {
            end(case.world, middle, notes);
        }
        next = middle.born_of;
    }
}

fn annotations(case: &Case<'_>, notes: &mut Vec<Note>) {
    let owner = case.owner.and_then(|owner| owner.process);
    let holders = case.holders.iter().map(|holder| holder.process);
    for process in owner.into_iter().chain(holders).take(HOLDERS_TOLD) {
        if let Some(inside) = process.info.ns_pid {
            let place = container(process).map(|c| format!(" ({c})")).unwrap_or_default();
            let name = words::process(process);
            notes.push(note(None, format!("{name} is in another PID namespace{place}, where its PID is {inside}")));
        } else if let Some(container) = container(process) {
            notes.push(note(None, format!("{} is in {container}", words::process(process))));
        }
    }
    health::notes(case, notes);
    notes.extend(releases::notes(case));
    recycled(case, notes);
}

/// "docker 3f2a...", "pod ...".
#[must_use]
pub fn container(process: &Process) -> Option<String> {
    let container = process.info.container.as_ref()?;
    let short: String = words::plain(&container.id).chars().take(12).collect();
    let runtime = words::plain(&container.runtime);
    Some(match &container.pod {
        Some(pod) => format!("pod {} ({runtime} {short})", words::plain(pod)),
        None => format!("{runtime} {short}"),
    })
}

/// NVML's PID is that of the client's creator; another process may have the number by now.
fn recycled(case: &Case<'_>, notes: &mut Vec<Note>) {
    let Some(owner) = case.owner.filter(|_| case.bytes_from == BytesFrom::Nvml) else { return };
    if let Some(other) = case.world.living(owner.id.tgid()).filter(|p| p.id() != owner.id) {
        let name = words::process(other);
        notes.push(note(
            None,
            format!("NVML's PID {} is {name} by now, which has nothing to do with it: the number was used again", owner.id.tgid()),
        ));
    }
}

/// Who sent a signal.
#[must_use]
pub fn sender(record: &SignalRecord) -> String {
    match record.from {
        Some(from) => words::named(Some(&record.comm), from),
        None if record.sent.is_none() => "An unseen sender".to_owned(),
        None => "The kernel".to_owned(),
    }
}

/// "SIGKILL", "exit code 1".
#[must_use]
pub fn status(code: u32) -> String {
    let sig = code & 0x7f;
    if sig == 0 {
        return format!("exit code {}", code >> 8 & 0xff);
    }
    let core = if code & 0x80 == 0 { "" } else { ", core dumped" };
    format!("{}{core}", signal::name(sig.cast_signed()))
}

/// ", killed by SIGKILL from bash (PID 12) at 12:03:55 UTC": the owner's end as a clause; empty without an owner.
#[must_use]
pub fn ended(case: &Case<'_>) -> String {
    let Some(owner) = case.owner else { return String::new() };
    let Some(process) = owner.process else {
        let number = owner.id.tgid();
        let reused = case.world.living(number).is_some_and(|other| other.is_alive());
        return if reused { ", which is gone (its number is another process's now)".to_owned() } else { ", which no longer exists".to_owned() };
    };
    let at = words::at(case.world, process.ended_at());
    if let Some(sig) = process.killed_by() {
        let sig = signal::name(sig);
        return match process.fatal_signal() {
            _ if process.oom_at.is_some() => format!(", killed by the OOM killer{at}"),
            Some(SignalRecord { from: Some(from), .. }) if *from == process.id() => format!(", which ended itself with {sig}{at}"),
            Some(record) if record.from.is_some() => format!(", killed by {sig} from {}{at}", sender(record)),
            Some(record) if record.sent.is_some() => format!(", killed by {sig} from the kernel{at}"),
            _ => format!(", killed by {sig}{at}"),
        };
    }
    match process.exit.code {
        Some(code) => format!(", which exited with code {}{at}", code >> 8 & 0xff),
        None if at.is_empty() => ", which no longer exists".to_owned(),
        None => format!(", which ended{at}"),
    }
}

/// What a delivered or dropped signal met.
#[must_use]
pub fn fate(record: &SignalRecord) -> &'static str {
    match (record.result, record.delivered) {
        (SignalResult::Ignored, _) | (_, Some((_, Action::Ignored))) => "was ignored",
        (SignalResult::Overflow, _) => "was lost because its queue was full",
        (_, Some((_, Action::Handled))) => "was caught by a handler",
        (_, Some((_, Action::Default))) => "was delivered",
        (_, None) => "was not delivered yet",
    }
}
