//! Reading what may never answer.
//!
//! /proc/PID/cmdline and /proc/PID/maps take the lock of the process's memory map (`mmap_read_lock_killable`,
//! fs/proc/task_mmu.c). A thread that is stuck in the driver may hold it for ever: this is why `ps` hangs in such
//! incidents.
//!
//! Always true: the caller waits for [`PATIENCE`] at most; at most [`HUNG_MAX`] reads hang at one time, on threads that
//! die with us, since the wait is killable.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// A read that is not answered within this time is given up.
const PATIENCE: Duration = Duration::from_millis(50);
/// Reads that may be under way, given up or not.
const HUNG_MAX: usize = 4;

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// At most `max` bytes of a file; `None` when it cannot be read, or not now.
pub(super) fn bytes(path: PathBuf, max: usize) -> Option<Vec<u8>> {
    if UNDER_WAY.fetch_add(1, Ordering::Relaxed) >= HUNG_MAX {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let read = move || {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path);
        let read = file.and_then(|file| file.take(max as u64).read_to_end(&mut bytes));
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        // The caller may have given up.
        let _ = sender.send(read.ok().map(|_| bytes));
    };
    if std::thread::Builder::new().name("proc-read".to_owned()).spawn(read).is_err() {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    receiver.recv_timeout(PATIENCE).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        std::fs::write(&there, "12345").unwrap();
        assert_eq!(bytes(there, 3).as_deref(), Some(&b"123"[..]));
        assert_eq!(bytes(folder.path().join("nowhere"), 3), None);
    }
}
