//! Reading what may never answer.
//!
//! /proc/PID/cmdline and /proc/PID/maps take the lock of the process's memory map (`mmap_read_lock_killable`,
//! fs/proc/task_mmu.c). A thread that is stuck in the driver may hold it for ever: this is why `ps` hangs in such
//! incidents.
//!
//! Always true: the caller waits for [`PATIENCE`] at most; when [`HUNG_MAX`] reads hang, none is begun. They hang on threads that
//! die with us, since the wait is killable.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// A read that is not answered within this time is given up.
const PATIENCE: Duration = Duration::from_millis(200);
/// Reads that were given up and are still under way.
const HUNG_MAX: usize = 2;

static HUNG: AtomicUsize = AtomicUsize::new(0);

/// At most `max` bytes of a file; `None` when it cannot be read, or not now.
pub(super) fn bytes(path: PathBuf, max: usize) -> Option<Vec<u8>> {
    if HUNG.load(Ordering::Relaxed) >= HUNG_MAX {
        return None;
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    // Whoever is second, the reader or the caller that gives up, finds it set.
    let over = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&over);
    let read = move || {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path);
        let read = file.and_then(|file| file.take(max as u64).read_to_end(&mut bytes));
        if theirs.swap(true, Ordering::AcqRel) {
            HUNG.fetch_sub(1, Ordering::Relaxed);
        }
        // The caller may have given up.
        let _ = sender.send(read.ok().map(|_| bytes));
    };
    std::thread::Builder::new().name("proc-read".to_owned()).spawn(read).ok()?;
    if let Ok(answer) = receiver.recv_timeout(PATIENCE) {
        return answer;
    }
    HUNG.fetch_add(1, Ordering::Relaxed);
    if over.swap(true, Ordering::AcqRel) {
        // It was answered just now, after all.
        HUNG.fetch_sub(1, Ordering::Relaxed);
        return receiver.try_recv().ok().flatten();
    }
    None
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
        // Opening a pipe for reading waits until somebody writes.
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|status| status.success()) {
            assert_eq!(bytes(pipe.clone(), 3), None);
            assert_eq!(HUNG.load(Ordering::Relaxed), 1);
            std::fs::write(&pipe, "x").unwrap();
            while HUNG.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
        }
    }
}
