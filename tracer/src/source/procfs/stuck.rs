//! Where threads are that should be gone: stack, sleep, system call, CPU time, and the file system they wait for.
//!
//! Always true: only threads that are exiting, killed, in uninterruptible sleep, or perhaps in the way of such a one are read.
//! A running thread has no stack to read: the kernel unwinds only what is not on a CPU (`__unwind_start`,
//! arch/x86/kernel/unwind_orc.c), so it is asked several times, and its CPU time says the rest. What the thread itself may keep from
//! being read is read under guard.

use super::process::{PF_EXITING, letter, uninterruptible};
use super::{FILE_MAX, Proc, bounded, guard};
use crate::event::{KernelThread, Mount, ProcessId, ProcessState, StuckThread};
use crate::snapshot::TaskLine;
use crate::stack::{self, Wait};
use std::collections::BTreeMap;
use std::time::Duration;

/// Kernel stack frames that are kept.
const FRAMES_MAX: usize = 64;
/// Threads of a process that are read.
const STUCK_MAX: usize = 256;
const FRAME_MAX: usize = 256;
/// How often the stack of a running thread is asked for, and with which pause.
const TRIES: usize = 8;
const TRY_AGAIN: Duration = Duration::from_millis(1);
/// Running threads of one look that are asked more than once.
const PATIENT_MAX: usize = 4;
/// Running threads that are read to find who holds a lock.
const SUSPECTS_MAX: usize = 64;
/// Descriptors and kinds of wait for which mounts are searched.
const MOUNTS_SOUGHT_MAX: usize = 8;
/// Kernel threads that are read.
const KERNEL_THREADS_MAX: usize = 512;
/// Of these, those inside the driver that are kept.
const KERNEL_THREADS_KEPT: usize = 32;
/// include/linux/sched.h
const PF_KTHREAD: u32 = 0x0020_0000;
const COMM_MAX: usize = 64;

/// System calls by number; those whose first argument is a descriptor come first.
const CALLS: &[(libc::c_long, &str)] = &[
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_read, "read"),
    (libc::SYS_write, "write"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_preadv, "preadv"),
    (libc::SYS_pwritev, "pwritev"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_fstat, "fstat"),
    (libc::SYS_getdents64, "getdents64"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_lseek, "lseek"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_close, "close"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_newfstatat, "newfstatat"),
    (libc::SYS_statx, "statx"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_exit, "exit"),
    (libc::SYS_exit_group, "exit_group"),
    (libc::SYS_execve, "execve"),
];
/// So many of them take a descriptor that is still open.
const CALLS_WITH_FD: usize = 17;

/// What the threads that are read in one go share.
struct Shared {
    /// Running threads that may still be asked more than once.
    patient: usize,
    /// The mounts that were found, by process and what was asked: searching them reads every descriptor of the process.
    mounts: BTreeMap<(u32, Option<i32>, Wait), Vec<Mount>>,
}

impl Shared {
    const fn new(patient: usize) -> Shared {
        Shared { patient, mounts: BTreeMap::new() }
    }
}

impl Proc {
    /// Threads that are exiting, in uninterruptible sleep, or still there although SIGKILL is pending: the kernel
    /// marks SIGKILL as pending for every thread (complete_signal, kernel/signal.c). Those asleep first, then those running.
    pub(super) fn stuck(&self, pid: u32, live: &[&&TaskLine], killed: bool) -> Vec<StuckThread> {
        let worth = |task: &&&TaskLine| killed || task.flags & PF_EXITING != 0 || uninterruptible(task);
        let mut tasks: Vec<&TaskLine> = live.iter().copied().copied().filter(|task| worth(&task)).collect();
        let rank = |task: &&TaskLine| match letter(task) {
            "D" => 0,
            "R" => 1,
            _ => 2,
        };
        tasks.sort_by_key(|task| (rank(task), task.tid));
        let mut shared = Shared::new(PATIENT_MAX);
        tasks.into_iter().take(STUCK_MAX).map(|task| self.thread(pid, task, &mut shared)).collect()
    }

    fn thread(&self, pid: u32, task: &TaskLine, shared: &mut Shared) -> StuckThread {
        let tid = task.tid;
        let running = letter(task) == "R";
        let stack = self.stack(pid, task);
        // What keeps its stack from being read keeps its call too.
        let answers = stack.is_some();
        let mut frames = stack.unwrap_or_default();
        if running && frames.is_empty() && answers && shared.patient > 0 {
            shared.patient -= 1;
            for _ in 1..TRIES {
                std::thread::sleep(TRY_AGAIN);
                frames = self.stack(pid, task).unwrap_or_default();
                if !frames.is_empty() {
                    break;
                }
            }
        }
        let exiting = task.flags & PF_EXITING != 0;
        let wchan = if frames.is_empty() { self.wchan(pid, tid) } else { None };
        // Of an exiting thread the number of its last call says nothing of where it is.
        let asked = if answers && !exiting { self.syscall(pid, task) } else { (None, None) };
        let (syscall, fd) = match asked {
            _ if exiting => (None, None),
            // /proc says "running" of a running thread; its saved registers say more.
            (None, _) if running && task.ioctl.is_some() => (Some("ioctl".to_owned()), task.ioctl),
            asked => asked,
        };
        let named = wchan.clone().into_iter().collect::<Vec<_>>();
        let waits = stack::wait(if frames.is_empty() { &named } else { &frames }).map(|(wait, _)| wait);
        let mounts = waits.filter(|wait| wait.is_files()).map(|wait| self.mounts_once(pid, tid, fd, wait, shared));
        StuckThread {
            tid,
            comm: Some(bounded(&task.comm, COMM_MAX).to_owned()).filter(|comm| !comm.is_empty()),
            state: letter(task).to_owned(),
            exiting,
            stack: frames,
            wchan,
            syscall,
            file: fd.and_then(|fd| self.file(pid, tid, fd)),
            cpu_ns: Some(self.ran(pid, tid).unwrap_or(task.cpu_ns)),
            ran: None,
            same_since: None,
            mounts: mounts.unwrap_or_default(),
        }
    }

    /// The mounts that a thread may wait for, searched once for all threads of its process that wait alike.
    fn mounts_once(&self, pid: u32, tid: u32, fd: Option<i32>, wait: Wait, shared: &mut Shared) -> Vec<Mount> {
        if let Some(known) = shared.mounts.get(&(pid, fd, wait)) {
            return known.clone();
        }
        if shared.mounts.len() >= MOUNTS_SOUGHT_MAX {
            return Vec::new();
        }
        let found = self.mounts(pid, tid, fd, wait);
        shared.mounts.insert((pid, fd, wait), found.clone());
        found
    }

    /// Where a thread waits for a lock of the driver, the one that has it may be running inside the driver: such threads of the
    /// processes in `states` are added.
    pub(super) fn add_lock_holders(&self, tasks: &[TaskLine], states: &mut [ProcessState]) {
        let waits = |thread: &StuckThread| matches!(stack::wait(&thread.stack), Some((Wait::DriverLock | Wait::Lock, _)));
        if !states.iter().flat_map(|state| &state.stuck).any(waits) {
            return;
        }
        let known: BTreeMap<ProcessId, usize> = states.iter().enumerate().map(|(at, state)| (state.id, at)).collect();
        let running = tasks.iter().filter(|task| task.exit_state == 0 && letter(task) == "R");
        // Only then the limit: a busy host runs hundreds of threads that have nothing to do with the driver.
        let suspects = running.filter_map(|task| known.get(&task.id).map(|at| (task, *at)));
        let mut shared = Shared::new(PATIENT_MAX);
        for (task, at) in suspects.take(SUSPECTS_MAX) {
            let Some(state) = states.get_mut(at).filter(|state| state.stuck.iter().all(|known| known.tid != task.tid)) else { continue };
            let thread = self.thread(task.id.tgid(), task, &mut shared);
            if stack::is_in_driver(&thread.stack) {
                state.stuck.push(thread);
            }
        }
    }

    /// Kernel threads that do something inside the NVIDIA driver now, and processes that do so at the very end of their exit, when the
    /// kernel has taken their descriptors away and nothing else tells that they held any.
    #[must_use]
    pub fn kernel_threads(&self, tasks: &[TaskLine]) -> Vec<KernelThread> {
        let named = |comm: &str| comm.starts_with("nv") || comm.starts_with("UVM") || comm.contains("nvidia");
        let worth = |task: &&TaskLine| {
            let kernels = task.flags & PF_KTHREAD != 0 && (matches!(letter(task), "R" | "D") || named(&task.comm));
            let ending = task.flags & PF_EXITING != 0 && task.files == 0;
            task.exit_state == 0 && (kernels || ending)
        };
        // Any kernel thread may be running for reasons of its own: only the driver's are asked again.
        let (mut patient, mut hasty) = (Shared::new(PATIENT_MAX), Shared::new(0));
        let mut found = Vec::new();
        for task in tasks.iter().filter(worth).take(KERNEL_THREADS_MAX) {
            let shared = if named(&task.comm) { &mut patient } else { &mut hasty };
            let thread = self.thread(task.id.tgid(), task, shared);
            if !stack::is_idle(&thread.stack) && stack::is_in_driver(&thread.stack) && found.len() < KERNEL_THREADS_KEPT {
                found.push(KernelThread { id: task.id, comm: bounded(&task.comm, COMM_MAX).to_owned(), thread });
            }
        }
        found
    }

    /// A file of a thread that takes `exec_update_lock`; empty when it may not be read, `None` when it does not answer.
    ///
    /// Who executes a program holds that lock, possibly for ever; the threads of its process are gone by then (`de_thread`, fs/exec.c). So
    /// it is not one that exits, nor one of the kernel's.
    fn of_thread(&self, pid: u32, task: &TaskLine, file: &str) -> Option<String> {
        let path = format!("proc/{pid}/task/{}/{file}", task.tid);
        if task.flags & (PF_EXITING | PF_KTHREAD) != 0 {
            return Some(self.text(path).unwrap_or_default());
        }
        let bytes = guard::read(self.root.join(path), FILE_MAX).ok()?.unwrap_or_default();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Kernel stack of a thread, innermost frame first; empty when it may not be read or the thread is running, `None` when it
    /// does not answer.
    fn stack(&self, pid: u32, task: &TaskLine) -> Option<Vec<String>> {
        let text = self.of_thread(pid, task, "stack")?;
        Some(text.lines().map(frame).filter(|frame| !frame.is_empty()).take(FRAMES_MAX).collect())
    }

    /// "0" when it does not sleep.
    fn wchan(&self, pid: u32, tid: u32) -> Option<String> {
        let name = self.line(format!("proc/{pid}/task/{tid}/wchan"))?;
        (!name.is_empty() && name != "0").then(|| bounded(&name, FRAME_MAX).to_owned())
    }

    /// The call's name and its descriptor: "16 0x5 ...", "running", "-1 ..." outside of any.
    fn syscall(&self, pid: u32, task: &TaskLine) -> (Option<String>, Option<i32>) {
        let line = self.of_thread(pid, task, "syscall").unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(number) = words.next().and_then(|word| word.parse::<libc::c_long>().ok()).filter(|number| *number >= 0) else {
            return (None, None);
        };
        let known = CALLS.iter().position(|(call, _)| *call == number);
        let first = words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        let fd = first.filter(|_| known.is_some_and(|at| at < CALLS_WITH_FD)).and_then(|fd| i32::try_from(fd).ok());
        let name = known.and_then(|at| CALLS.get(at)).map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned());
        (Some(name), fd)
    }

    /// The path of a descriptor, as the kernel knows it: nothing is looked up in the file system.
    fn file(&self, pid: u32, tid: u32, fd: i32) -> Option<String> {
        let link = std::fs::read_link(self.root.join(format!("proc/{pid}/task/{tid}/fd/{fd}"))).ok()?;
        Some(bounded(&link.to_string_lossy(), FRAME_MAX).to_owned())
    }

    /// Time on a CPU, ns: exact where the accounting of user and system time is by clock ticks.
    fn ran(&self, pid: u32, tid: u32) -> Option<u64> {
        let line = self.line(format!("proc/{pid}/task/{tid}/schedstat"))?;
        line.split_ascii_whitespace().next()?.parse().ok().filter(|ns| *ns > 0)
    }
}

/// "[<0>] uvm_spin_loop+0x1c/0x90 [nvidia_uvm]" -> "uvm_spin_loop+0x1c/0x90 [nvidia_uvm]".
fn frame(line: &str) -> String {
    let line = line.trim();
    let symbol = match line.strip_prefix("[<").and_then(|rest| rest.split_once(">]")) {
        Some((_, symbol)) => symbol.trim_start(),
        None => line,
    };
    bounded(symbol, FRAME_MAX).to_owned()
}
