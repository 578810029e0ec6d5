//! Reading what may never answer.
//!
//! Some files of /proc take a lock of the process that they tell of, and a thread that is stuck in the driver may hold it for ever; this
//! is why `ps` hangs in such incidents:
//!
//! * cmdline and maps take that of its memory map (`mmap_read_lock_killable`, fs/proc/base.c and task_mmu.c);
//! * stack and syscall take `exec_update_lock` (`lock_trace`, fs/proc/base.c), which a thread that executes a program holds while
//!   the old memory map, and what the driver has in it, is taken apart (`exec_mmap`, fs/exec.c).
//!
//! Always true: the caller waits for [`PATIENCE`] at most; a file whose read hangs is not read again before that read ends; when
//! [`HUNG_MAX`] reads hang, none is begun. They hang on threads that die with us, since the waits are killable. As long as nothing
//! hangs, one thread does all the reading: being guarded then costs a read no more than two changes of thread.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A read that is not answered within this time is given up.
const PATIENCE: Duration = Duration::from_millis(200);
/// Reads that were given up and are still under way.
const HUNG_MAX: usize = 8;

/// What these read.
static HUNG: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
/// A reader with nothing to do.
static IDLE: Mutex<Option<Reader>> = Mutex::new(None);

/// The file's content, if it can be read.
type Answer = Option<Vec<u8>>;

/// It is not read now: it does not answer, or too many others do not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hangs;

/// A thread that reads. It ends when this is dropped, after what it reads.
struct Reader {
    jobs: SyncSender<(PathBuf, usize)>,
    answers: Receiver<Answer>,
}

/// At most `max` bytes of a file; `None` when it cannot be read, or not now.
pub(super) fn bytes(path: PathBuf, max: usize) -> Option<Vec<u8>> {
    read(path, max).ok().flatten()
}

/// The same, for who must know which of the two it is.
pub(super) fn read(path: PathBuf, max: usize) -> Result<Answer, Hangs> {
    let refused = {
        let hung = lock(&HUNG);
        hung.len() >= HUNG_MAX || hung.contains(&path)
    };
    if refused {
        return Err(Hangs);
    }
    let idle = lock(&IDLE).take();
    let reader = idle.map_or_else(Reader::start, Ok).map_err(|_| Hangs)?;
    let Some(answer) = reader.ask(&path, max) else { return Err(Hangs) };
    // Somebody else's may be there by now; then this one ends.
    *lock(&IDLE) = Some(reader);
    Ok(answer)
}

impl Reader {
    fn start() -> std::io::Result<Reader> {
        let (jobs, theirs) = mpsc::sync_channel::<(PathBuf, usize)>(1);
        let (tell, answers) = mpsc::sync_channel(1);
        let work = move || {
            for (path, max) in theirs {
                let answer = content(&path, max);
                // Under the lock, so that whoever gives up finds either the answer or us still at it.
                let mut hung = lock(&HUNG);
                // Who asked may have given up.
                let _ = tell.send(answer);
                hung.remove(&path);
            }
        };
        std::thread::Builder::new().name("proc-read".to_owned()).spawn(work)?;
        Ok(Reader { jobs, answers })
    }

    /// None: it does not answer, and is of no more use.
    fn ask(&self, path: &Path, max: usize) -> Option<Answer> {
        self.jobs.send((path.to_owned(), max)).ok()?;
        if let Ok(answer) = self.answers.recv_timeout(PATIENCE) {
            return Some(answer);
        }
        let mut hung = lock(&HUNG);
        // It may have been answered just now, after all.
        let late = self.answers.try_recv().ok();
        if late.is_none() {
            hung.insert(path.to_owned());
        }
        late
    }
}

fn content(path: &Path, max: usize) -> Answer {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(max as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file whose read never returns; tests go on without it where it cannot be made.
#[cfg(test)]
pub(super) fn endless(path: &Path) -> bool {
    // Opening a pipe for reading waits until somebody writes.
    std::process::Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_does_not_answer_is_given_up_and_left_alone_until_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        std::fs::write(&there, "12345").unwrap();
        assert_eq!(bytes(there.clone(), 3).as_deref(), Some(&b"123"[..]));
        assert_eq!(read(folder.path().join("nowhere"), 3), Ok(None));
        let pipe = folder.path().join("pipe");
        if !endless(&pipe) {
            return;
        }
        assert_eq!(read(pipe.clone(), 3), Err(Hangs));
        assert!(lock(&HUNG).contains(&pipe));
        let began = Instant::now();
        for _ in 0..HUNG_MAX {
            assert_eq!(read(pipe.clone(), 3), Err(Hangs));
        }
        assert!(began.elapsed() < PATIENCE, "it is not asked again");
        assert_eq!(bytes(there, 3).as_deref(), Some(&b"123"[..]), "others are read as before");
        std::fs::write(&pipe, "x").unwrap();
        while lock(&HUNG).contains(&pipe) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_guarded_read_costs_little() {
        let began = Instant::now();
        for _ in 0..1_000 {
            assert!(bytes(PathBuf::from("/proc/self/cmdline"), 4_096).is_some());
        }
        // Some 20 µs each; a thread for each would take longer than this allows on a loaded machine only.
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
