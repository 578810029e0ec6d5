//! What /proc and the cgroup file systems say of processes and of the host.
//!
//! Always true: reads are bounded; a process that vanishes while it is read is normal and yields `None`; what is
//! returned for a [`ProcessId`] was read from that process and not from another one that got its PID
//! ([`Proc::is`]). Only what a scan by BPF iterators cannot give is read here, and only for the processes asked for.
//!
//! Everything is read below [`Proc::root`], so that tests use a tree of their own.

mod cgroup;
mod container;
mod guard;
mod host;
mod mounts;
mod process;
mod status;
mod stuck;

use std::io::Read;
use std::path::{Path, PathBuf};

pub use host::Host;

use crate::event::ProcessId;

/// Longest command line and cgroup path that is kept, bytes.
const TEXT_MAX: usize = 4096;
/// Largest file that is read here, bytes.
const FILE_MAX: usize = 64 << 10;
/// `sysconf(_SC_CLK_TCK)`: the unit of times in /proc/PID/stat, 100 on every architecture with an NVIDIA driver.
const NS_PER_TICK: u64 = 1_000_000_000 / 100;

/// /proc and /sys, below some root.
#[derive(Clone, Debug)]
pub struct Proc {
    /// "/" for the live host.
    pub root: PathBuf,
}

impl Default for Proc {
    fn default() -> Self {
        Proc {
            root: PathBuf::from("/"),
        }
    }
}

impl Proc {
    /// /proc and /sys below `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Proc {
        Proc { root: root.into() }
    }

    /// The process that has this PID now is `id`: it started in the same clock tick. An id without a start time is
    /// taken at its word.
    #[must_use]
    pub fn is(&self, id: ProcessId) -> bool {
        self.start_ticks(id.tgid())
            .is_some_and(|ticks| id.start() == 0 || id.start() / NS_PER_TICK == ticks)
    }

    /// When the process that has this PID now started, in clock ticks of boottime (field 22 of /proc/PID/stat).
    #[must_use]
    pub fn start_ticks(&self, pid: u32) -> Option<u64> {
        let stat = self.text(format!("proc/{pid}/stat"))?;
        // comm (field 2) is in parentheses and may hold any byte, so count from the last one.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_ascii_whitespace().nth(19)?.parse().ok()
    }

    /// At most [`FILE_MAX`] bytes of a file; `None` when it cannot be read.
    fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let file = std::fs::File::open(self.root.join(path)).ok()?;
        let mut bytes = Vec::new();
        file.take(FILE_MAX as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.bytes(path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file of one line.
    fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        self.text(path)
            .map(|text| bounded(text.trim(), TEXT_MAX).to_owned())
    }

    fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.line(path)?.parse().ok()
    }
}

/// The first `max` bytes of `text`, or a little less so as not to cut a character.
fn bounded(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests;
