//! Phrases that every cause uses, so that the same fact always reads the same.
//!
//! Always true: names that come from other processes are made plain (no control characters, bounded) before they
//! enter a sentence or a command.

use crate::event::rm::Missed;
use crate::event::{BootNs, Dev, ProcessId};
use crate::world::World;
use crate::world::books::gap::{Gap, RECORDING_ENDED};
use crate::world::process::Process;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Longest name shown.
const NAME_MAX: usize = 64;

/// "2.5 GiB", "514 MiB", "0 bytes".
#[must_use]
pub fn size(bytes: u64) -> String {
    if bytes >= GIB {
        // Tenths by integers: rounding must not depend on floating point.
        let tenths = (u128::from(bytes) * 10 + u128::from(GIB / 2)) / u128::from(GIB);
        format!("{}.{} GiB", tenths / 10, tenths % 10)
    } else if bytes >= MIB {
        format!("{} MiB", (bytes + MIB / 2) / MIB)
    } else if bytes >= 1024 {
        format!("{} KiB", bytes / 1024)
    } else {
        format!("{bytes} bytes")
    }
}

/// A name from another process, safe to print and to paste.
#[must_use]
pub fn plain(name: &str) -> String {
    let odd = |c: char| c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    name.chars().take(NAME_MAX).map(|c| if odd(c) { '?' } else { c }).collect()
}

/// "python3 (PID 574)".
#[must_use]
pub fn process(process: &Process) -> String {
    named(process.info.comm.as_deref(), process.id())
}

/// "python3 (PID 574)", "PID 574" when the name is unknown.
#[must_use]
pub fn named(comm: Option<&str>, id: ProcessId) -> String {
    match comm.filter(|comm| !comm.is_empty()) {
        Some(comm) => format!("{} (PID {})", plain(comm), id.tgid()),
        None => format!("PID {}", id.tgid()),
    }
}

/// The name that the world knows for an id.
#[must_use]
pub fn by_id(world: &World, id: ProcessId) -> String {
    let finished = || world.finished().rev().find(|p| p.id() == id);
    named(world.process(id).or_else(finished).and_then(|p| p.info.comm.as_deref()), id)
}

/// The living process with this number, by its name.
#[must_use]
pub fn by_pid(world: &World, pid: u32) -> String {
    world.living(pid).map_or_else(|| format!("PID {pid}"), process)
}

/// The path of a device number.
#[must_use]
pub fn device(world: &World, dev: Dev) -> String {
    let nodes = world.host().header.iter().flat_map(|header| &header.devices);
    if let Some(node) = nodes.into_iter().find(|node| node.dev == dev) {
        return node.path.clone();
    }
    match (dev.major(), dev.minor()) {
        _ if dev == Dev::DMA_BUF => "dma-buf".to_owned(),
        (195, 255) => "/dev/nvidiactl".to_owned(),
        (195, 254) => "/dev/nvidia-modeset".to_owned(),
        (195, minor) => format!("/dev/nvidia{minor}"),
        (major, minor) => format!("device {major}:{minor}"),
    }
}

/// " at 12:03:55 UTC", with the date when it is not the day of the explanation; empty when not known.
#[must_use]
pub fn at(world: &World, when: Option<BootNs>) -> String {
    let (Some(wall), Some(now)) = (when.and_then(|at| world.host().wall(at)), world.host().wall(world.host().now))
    else {
        return String::new();
    };
    let time = wall.get(11..19).unwrap_or_default();
    let day = wall.get(..10).unwrap_or_default();
    if now.get(..10) == Some(day) { format!(" at {time} UTC") } else { format!(" at {day} {time} UTC") }
}

/// "3.2 s", "91 ms", "2 h 5 min".
#[must_use]
pub fn duration(ns: u64) -> String {
    let ms = ns / 1_000_000;
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
        3_600_000..172_800_000 => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
        _ => format!("{} days {} h", ms / 86_400_000, ms % 86_400_000 / 3_600_000),
    }
}

/// Why something may be missing in the books.
#[must_use]
pub fn gap(gap: &Gap<'_>) -> String {
    match gap {
        Gap::Named { .. } => "its session with the driver began before the recording".to_owned(),
        Gap::OpenedBefore { .. } => "it had opened the driver before the recording began".to_owned(),
        Gap::Lost { cause: RECORDING_ENDED, .. } => "the recording had ended before this look".to_owned(),
        Gap::Lost { cause, .. } => format!("events were lost ({})", plain(cause)),
        Gap::Missed { why, .. } => format!("one of its requests to the driver could not be verified ({})", missed(*why)),
        Gap::Inconsistent { .. } => "a request contradicted what was known of its session with the driver".to_owned(),
        Gap::UnknownMapping { .. } => "an address space maps what was not seen to be allocated".to_owned(),
    }
}

const fn missed(why: Missed) -> &'static str {
    match why {
        Missed::Unreadable => "it could not be read",
        Missed::Changed => "it changed while it was under way",
        Missed::UnknownLayout => "its layout is not known for this driver",
        Missed::Compat => "a 32-bit program made it",
        Missed::TooMany => "too many were under way",
        Missed::NoFile => "its descriptor no longer named a file",
        Missed::TooLong => "it named too many objects",
    }
}

/// "python3 (PID 574), python3 (PID 575) and 3 more".
#[must_use]
pub fn processes<'a>(processes: impl IntoIterator<Item = &'a Process>) -> String {
    list(&processes.into_iter().map(process).collect::<Vec<_>>(), 3)
}

/// "a, b and 3 more".
#[must_use]
pub fn list(names: &[String], shown: usize) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        _ if names.len() <= shown => {
            let (last, first) = names.split_last().map_or(("", names), |(last, first)| (last.as_str(), first));
            format!("{} and {last}", first.join(", "))
        }
        _ => format!("{} and {} more", names[..shown].join(", "), names.len() - shown),
    }
}

/// "descriptor" or "descriptors" with the count in front.
#[must_use]
pub fn count(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}
