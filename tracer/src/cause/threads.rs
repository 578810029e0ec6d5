//! What one stuck thread says: where it is, how that is known, what it waits for, and in which words that is told.
//!
//! Always true: pure. A stack goes before the function that a thread sleeps in, that before its system call; what is only
//! deduced says so. Names from the host are made plain.

use super::case::PATIENCE_NS;
use super::words;
use crate::event::{BootNs, KernelThread, Mount, MountBy, StuckThread};
use crate::stack::{self, Wait};
use crate::world::World;
use crate::world::process::Process;

/// Frames told of a stack.
const FRAMES_TOLD: usize = 16;
/// Mounts told.
const MOUNTS_TOLD: usize = 2;

/// Who has the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The NVIDIA driver.
    Driver,
    /// Other kernel code.
    Outside,
    /// That cannot be told.
    Unknown,
}

/// How that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Its stack.
    Stack,
    /// The function that it sleeps in.
    Wchan,
    /// The file of its system call.
    Call,
    /// Nothing.
    Nothing,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Where<'a> {
    /// Who has it.
    pub place: Place,
    /// What it waits for, when that is known.
    pub wait: Option<Wait>,
    /// The function that says it.
    pub frame: Option<&'a str>,
    /// How that is known.
    pub by: By,
}

/// Where this thread is.
#[must_use]
pub fn locate(thread: &StuckThread) -> Where<'_> {
    let innermost = thread.stack.first().map(String::as_str);
    if innermost.is_some() {
        let found = stack::wait(&thread.stack);
        let place = if stack::is_in_driver(&thread.stack) { Place::Driver } else { Place::Outside };
        // Without a known function: the driver's innermost one, else the innermost of all.
        let own = thread.stack.iter().find(|frame| place == Place::Driver && stack::is_driver(frame)).map(String::as_str);
        let frame = found.map(|(_, frame)| frame).or(own).or(innermost);
        return Where { place, wait: found.map(|(wait, _)| wait), frame, by: By::Stack };
    }
    if let Some(name) = &thread.wchan {
        let wait = stack::wait(std::slice::from_ref(name)).map(|(wait, _)| wait);
        let driver = stack::is_driver_name(name);
        if driver || wait.is_some_and(Wait::is_outside) {
            let place = if driver { Place::Driver } else { Place::Outside };
            return Where { place, wait, frame: Some(name), by: By::Wchan };
        }
    }
    let on_gpu = thread.file.as_deref().is_some_and(|file| file.starts_with("/dev/nvidia"));
    match thread.syscall.as_deref() {
        Some("ioctl") if on_gpu && !thread.exiting => Where { place: Place::Driver, wait: None, frame: None, by: By::Call },
        _ => Where { place: Place::Unknown, wait: None, frame: None, by: By::Nothing },
    }
}

/// It uses a CPU.
#[must_use]
pub fn spins(thread: &StuckThread) -> bool {
    match thread.ran {
        Some(ran) => ran.spins(),
        None => thread.state == "R",
    }
}

/// What it does, as the beginning of "... inside the NVIDIA driver", or of "... inside the NVIDIA driver for 30 s".
#[must_use]
pub fn doing(thread: &StuckThread, is_timed: bool) -> &'static str {
    match (spins(thread), is_timed) {
        (true, true) => "has been spinning",
        (true, false) => "spins",
        (false, true) => "has been stuck",
        (false, false) => "is stuck",
    }
}

/// "thread 577", "thread 577 (cuda-EvtHandlr)".
#[must_use]
pub fn name(process: &Process, thread: &StuckThread) -> String {
    match thread.comm.as_deref().filter(|comm| *comm != process.comm() && !comm.is_empty()) {
        Some(comm) => format!("thread {} ({})", thread.tid, words::plain(comm)),
        None => format!("thread {}", thread.tid),
    }
}

/// The whole of what was seen of a thread, after its name: "is in state D, asleep (0 % of a CPU over 1.0 s): f <- g".
#[must_use]
pub fn seen(world: &World, thread: &StuckThread) -> String {
    let used = thread.ran.map(|ran| {
        let doing = if ran.spins() { "busy" } else { "asleep" };
        format!(", {doing} ({} % of a CPU over {})", ran.percent(), words::duration(ran.over_ns))
    });
    let since = thread.same_since.map(|at| format!(", in the same place{}", words::at(world, Some(at)).replace(" at ", " since "))).unwrap_or_default();
    let frames: Vec<String> = thread.stack.iter().take(FRAMES_TOLD).map(|frame| words::plain(frame)).collect();
    let place = match (frames.is_empty(), &thread.wchan) {
        (false, _) => frames.join(" <- "),
        (true, Some(wchan)) => format!("its kernel stack could not be read; it sleeps in {}", words::plain(wchan)),
        (true, None) if thread.state == "R" => "it runs, and the kernel shows no stack of a thread that is on a CPU".to_owned(),
        (true, None) => "its kernel stack could not be read".to_owned(),
    };
    let call = match (&thread.syscall, &thread.file) {
        (Some(call), Some(file)) => format!("; its system call is {} on {}", words::plain(call), words::plain(file)),
        (Some(call), None) => format!("; its system call is {}", words::plain(call)),
        (None, _) => String::new(),
    };
    format!("is in state {}{}{since}: {place}{call}", words::plain(&thread.state), used.unwrap_or_default())
}

/// " and waits for the GPU to finish its work": the clause of a sentence; empty when that is not known.
#[must_use]
pub fn purpose(found: &Where<'_>, thread: &StuckThread) -> String {
    let Some(wait) = found.wait else {
        return if found.place == Place::Driver && found.by == By::Call { " in a request to the driver".to_owned() } else { String::new() };
    };
    let what = match wait {
        Wait::Gpu => "the GPU to finish its work".to_owned(),
        Wait::Firmware => "the GPU's own firmware (GSP), which does not answer".to_owned(),
        Wait::DriverLock => "a lock of the driver that another thread holds".to_owned(),
        Wait::Lock => "a lock of the kernel that another thread holds".to_owned(),
        Wait::Deferred => "work that was handed to a kernel thread".to_owned(),
        Wait::Unmapping => return " and unmaps host memory".to_owned(),
        Wait::Fuse => format!("the FUSE server{}", of_mounts(thread)),
        Wait::Nfs => format!("the NFS server{}", of_mounts(thread)),
        Wait::RemoteFs => format!("the server of a network file system{}", of_mounts(thread)),
        Wait::Disk => format!("the disk{}", of_mounts(thread)),
        Wait::Namespace => "the other processes of its PID namespace, which must end first".to_owned(),
        Wait::IoUring => "requests in its io_uring".to_owned(),
    };
    format!(" and waits for {what}")
}

/// " of /mnt/data (rclone)", " of /mnt/a (x) or /mnt/b (y)".
fn of_mounts(thread: &StuckThread) -> String {
    let names: Vec<String> = thread.mounts.iter().take(MOUNTS_TOLD).map(mount).collect();
    let more = thread.mounts.len().saturating_sub(MOUNTS_TOLD);
    // Only the file of the system call says which.
    let of = if thread.mounts.first().is_some_and(|mount| mount.by == MountBy::Syscall) { " of" } else { ", perhaps of" };
    match names.len() {
        0 => String::new(),
        _ if more > 0 => format!("{of} {} or {more} others", names.join(" or ")),
        _ => format!("{of} {}", names.join(" or ")),
    }
}

/// "/mnt/data (fuse.rclone, remote:)".
#[must_use]
pub fn mount(mount: &Mount) -> String {
    // Many file systems call their source what they are.
    let source = if mount.source.is_empty() || mount.source == mount.kind { String::new() } else { format!(", {}", words::plain(&mount.source)) };
    format!("{} ({}{source})", words::plain(&mount.point), words::plain(&mount.kind))
}

/// How the mounts of a thread are known, as evidence; nothing without any.
#[must_use]
pub fn mounts_note(thread: &StuckThread) -> Option<String> {
    let first = thread.mounts.first()?;
    let of = |wanted: &dyn Fn(MountBy) -> bool| -> Option<String> {
        let names: Vec<String> = thread.mounts.iter().filter(|mount| wanted(mount.by)).map(mount).collect();
        (!names.is_empty()).then(|| words::list(&names, 4))
    };
    let names = of(&|by| by == first.by)?;
    Some(match first.by {
        MountBy::Syscall => format!("The system call of thread {} works on a file of {names}", thread.tid),
        MountBy::Open => {
            let others = of(&|by| by != MountBy::Open).map(|others| format!("; it can see {others} too")).unwrap_or_default();
            format!("The process has files open or mapped of {names}{others}")
        }
        MountBy::Mounted if thread.mounts.len() == 1 => format!("The only file system of its kind that thread {} can see is {names}", thread.tid),
        MountBy::Mounted => format!("Which file thread {} waits for is not known; it can see {names}", thread.tid),
    })
}

/// A thread inside the driver that may hold a lock which another one waits for.
#[derive(Clone, Copy, Debug)]
pub struct LockHolder<'a> {
    /// Whose thread.
    pub process: &'a Process,
    /// The thread.
    pub thread: &'a StuckThread,
    /// It is of the waiting process, or two looks found it in the same place, and not only when the other one had waited for long. Whoever
    /// just passes through is on everybody's host.
    pub is_suspect: bool,
}

/// Who may hold the lock of the driver that the thread `waits` of `waiting` waits for: threads inside the driver that do not wait for one
/// themselves. Those of its own process first, then those that stay where they are.
#[must_use]
pub fn lock_holders<'a>(world: &'a World, waiting: &Process, waits: &StuckThread) -> Vec<LockHolder<'a>> {
    let in_time = |since: BootNs| waits.same_since.is_none_or(|waited| since <= waited.saturating_add(PATIENCE_NS));
    let has = |thread: &&StuckThread| {
        let found = locate(thread);
        found.place == Place::Driver && !matches!(found.wait, Some(Wait::DriverLock | Wait::Lock))
    };
    let of = |process: &'a Process| {
        let stuck = process.state().map_or(&[][..], |state| &state.stuck[..]);
        let own = process.id() == waiting.id();
        stuck.iter().filter(has).map(move |thread| LockHolder { process, thread, is_suspect: own || thread.same_since.is_some_and(in_time) })
    };
    let mut found: Vec<_> = world.processes().filter(|process| process.is_alive()).flat_map(of).collect();
    found.sort_by_key(|holder| (holder.process.id() != waiting.id(), !holder.is_suspect));
    found
}

/// A frame for a sentence: the function and its module; where in the function stands in the evidence.
#[must_use]
pub fn function(frame: &str) -> String {
    let (name, rest) = frame.split_once('+').unwrap_or((frame, ""));
    let module = rest.find('[').and_then(|at| rest.get(at..)).map(|module| format!(" {module}")).unwrap_or_default();
    words::plain(&format!("{name}{module}"))
}

/// The kernel's own threads inside the driver.
pub fn kernel(world: &World) -> impl Iterator<Item = &KernelThread> {
    world.host().kernel_threads.iter().flat_map(|(_, list)| list).filter(|found| stack::is_in_driver(&found.thread.stack))
}

/// "the kernel thread kworker/3:1 (PID 77)".
#[must_use]
pub fn kernel_name(found: &KernelThread) -> String {
    let name = words::named(Some(&found.comm), found.id);
    // A process at the very end of its exit works for the kernel too.
    if found.thread.exiting { format!("the exiting process {name}") } else { format!("the kernel thread {name}") }
}
