//! `exit_blocked_in_driver` and `exit_blocked_elsewhere`: the owner should be dead, and a thread of it cannot leave the
//! kernel.
//!
//! A process dies only when each of its threads comes back from the kernel. One that sleeps uninterruptibly (D) or
//! spins there keeps everything, and SIGKILL waits. A frame of the NVIDIA modules on the stack says that the driver
//! has it; otherwise (FUSE, NFS, a disk) the GPU is innocent, also where the driver only called what waits. A process whose
//! main thread is a zombie is meant too, while a thread of it is left; and so is a thread of the kernel itself
//! that has been releasing the memory of a dead owner and does not get on.
//!
//! * **Must be seen:** the owner is exiting, or a signal that must end it is pending; a thread's kernel stack, or for want of
//!   one the function that it sleeps in or its system call; used memory not falling; the exit not younger than five seconds.
//! * **Would refute it:** falling memory (`teardown_running`); a thread that runs user code.
//! * **Confidence:** exact when memory was watched and stayed; inferred from a single look, without a stack, and of kernel threads.
//! * **Remedy:** no signal helps. In the driver: read the kernel log (Xid), end who holds its lock, reload nvidia_uvm or reset the GPU
//!   where that can work, else reboot. Elsewhere: repair what the thread waits for, or abort it (a FUSE connection, an NFS mount).

use super::case::{Case, PATIENCE_NS};
use super::evidence::{confidence, note};
use super::threads::{self, By, Where};
use super::{Note, Verdict, deferred, ending, health, remedy, way_out, words};
use crate::event::{Mount, MountBy, StuckThread};
use crate::explanation::{Confidence, Remedy};
use crate::stack::Wait;
use crate::world::process::Process;

/// Holders of a lock that are named.
const HOLDERS_NAMED: usize = 3;
/// Mounts for which a command is offered.
const MOUNTS_OFFERED: usize = 3;

/// Whether a thread is stuck in the NVIDIA driver.
#[must_use]
pub fn judge_in_driver(case: &Case<'_>) -> Option<Verdict> {
    let Some(ending) = stuck(case) else { return kernel_thread(case) };
    let (thread, found) = in_driver(case, &ending)?;
    let (mut notes, lockers) = lock(case, &ending, thread, &found);
    let name = format!("{} of {}", threads::name(ending.process, thread), words::process(ending.process));
    let (steps, why_not) = way_out::steps(case, ends(case, &lockers), Some(&name));
    notes.extend(why_not);
    if found.by != By::Stack {
        let thread = threads::name(ending.process, thread);
        notes.push(note(None, format!("That {thread} is in the driver is deduced: {}", deduced(&found))));
    }
    let mut remedies = vec![remedy::wait("a signal cannot help: the thread must come back from the driver", None)];
    remedies.extend(steps);
    Some(verdict(case, &ending, thread, &found, "inside the NVIDIA driver", (notes, remedies)))
}

/// Ending those who may hold the lock, and those who would keep the memory after that; neither gives anything back by itself.
fn ends(case: &Case<'_>, lockers: &[&Process]) -> Vec<Remedy> {
    let others: Vec<&Process> = case.others()
        .map(|holder| holder.process)
        .filter(|process| ending::of_process(process).is_none() && lockers.iter().all(|locker| locker.id() != process.id()))
        .collect();
    let of = |targets: &[&Process], why: &str| -> Vec<Remedy> {
        let ends = remedy::end_all(case, targets);
        ends.into_iter().map(|end| Remedy { effect: format!("{}, {why}", end.effect), frees_bytes: None, ..end }).collect()
    };
    let mut ends = of(lockers, "in case it is what holds the lock");
    ends.extend(of(&others, "lest it keep these files after that"));
    ends
}

/// Whether a thread is stuck in other kernel code.
#[must_use]
pub fn judge_elsewhere(case: &Case<'_>) -> Option<Verdict> {
    let ending = stuck(case)?;
    if in_driver(case, &ending).is_some() {
        return None;
    }
    let (thread, found) = ending.elsewhere()?;
    // What it waits for may be held by a thread that could not be seen, or by the driver's own.
    let clear = found.wait.is_some_and(Wait::is_outside);
    if !clear && (ending.busy_unseen().is_some() || threads::kernel(case.world).next().is_some()) {
        return None;
    }
    let effect = "a signal cannot help: what the thread waits for (see its stack: FUSE, NFS, a disk) must answer or be aborted";
    let mut remedies = vec![remedy::wait(effect, case.bytes)];
    remedies.extend(abort(case, ending.process, thread, &found));
    Some(verdict(case, &ending, thread, &found, "in kernel code outside the NVIDIA driver", (Vec::new(), remedies)))
}

fn stuck<'a>(case: &Case<'a>) -> Option<ending::Ending<'a>> {
    let ending = ending::of(case)?;
    (case.falling().is_none() && !ending.is_young(case.now())).then_some(ending)
}

/// A thread in the driver; or one that is busy, of which nothing could be read, where the GPU is known to be in trouble.
fn in_driver<'a>(case: &Case<'_>, ending: &ending::Ending<'a>) -> Option<(&'a StuckThread, Where<'a>)> {
    ending.in_driver().or_else(|| {
        let explained = ending.elsewhere().is_some_and(|(_, found)| found.wait.is_some_and(Wait::is_outside));
        let thread = ending.busy_unseen().filter(|_| !explained && health::blocking(case).is_some())?;
        Some((thread, threads::locate(thread)))
    })
}

const fn deduced(found: &Where<'_>) -> &'static str {
    match found.by {
        By::Wchan => "its stack could not be read, and it sleeps in a function of the driver",
        By::Call => "its stack could not be read, and its system call is a request to the driver",
        By::Stack | By::Nothing => "it uses a CPU in the kernel, its stack could not be read, and the GPU reported an error that blocks the driver",
    }
}

/// Who may hold the lock that a thread waits for: what is to be said, and which of them can be ended.
fn lock<'a>(case: &Case<'a>, ending: &ending::Ending<'_>, waits: &StuckThread, found: &Where<'_>) -> (Vec<Note>, Vec<&'a Process>) {
    let (mut notes, mut blockers) = (Vec::new(), Vec::new());
    if !matches!(found.wait, Some(Wait::DriverLock | Wait::Lock)) {
        return (notes, blockers);
    }
    for threads::LockHolder { process, thread, is_suspect } in threads::lock_holders(case.world, ending.process, waits).into_iter().take(HOLDERS_NAMED) {
        let at = process.state.as_ref().map(|(at, _)| *at);
        let name = threads::name(process, thread).replacen('t', "T", 1);
        let may = if is_suspect { " and may hold that lock" } else { ", perhaps for a moment only" };
        let what = format!("{name} of {} is inside the driver too{may}: it {}", words::process(process), threads::seen(case.world, thread));
        notes.push(note(at, what));
        // One that is on its way out already cannot be ended; one that was seen there once does its ordinary work.
        if is_suspect && process.id() != ending.process.id() && ending::of_process(process).is_none() {
            blockers.push(process);
        }
    }
    let at = case.world.host().kernel_threads.as_ref().map(|(at, _)| *at);
    for kernel in threads::kernel(case.world).take(HOLDERS_NAMED) {
        let name = threads::kernel_name(kernel).replacen('t', "T", 1);
        notes.push(note(at, format!("{name} is inside the driver too and may hold that lock: it {}", threads::seen(case.world, &kernel.thread))));
    }
    if notes.is_empty() {
        notes.push(note(None, "Who holds that lock was not found: no other thread was seen inside the driver"));
    }
    (notes, blockers)
}

/// ", which thread 900 of python3 (PID 890) may hold": behind the clause of a thread that waits for a lock.
fn held_by(case: &Case<'_>, process: &Process, waits: &StuckThread, found: &Where<'_>) -> String {
    if !matches!(found.wait, Some(Wait::DriverLock | Wait::Lock)) {
        return String::new();
    }
    if let Some(holder) = threads::lock_holders(case.world, process, waits).first().filter(|holder| holder.is_suspect) {
        return format!(", perhaps {} of {}", threads::name(holder.process, holder.thread), words::process(holder.process));
    }
    threads::kernel(case.world).next().map(|found| format!(", perhaps {}", threads::kernel_name(found))).unwrap_or_default()
}

/// What aborts the wait for a file system, milder first.
fn abort(case: &Case<'_>, process: &Process, thread: &StuckThread, found: &Where<'_>) -> Vec<Remedy> {
    let sure = matches!(&thread.mounts[..], [mount] if mount.by == MountBy::Syscall);
    let perhaps = if sure { "" } else { ", if it is this one that the thread waits for" };
    let frees = case.bytes.filter(|_| sure);
    let one = |mount: &Mount| -> Vec<Remedy> {
        let place = threads::mount(mount);
        let check = only_if_unchanged(process, thread, mount);
        // The path of a container's mount means nothing outside of it. The leader may be a zombie, which has no mounts: the thread has.
        let enter = if mount.inside { format!("nsenter -t {} -m ", thread.tid) } else { String::new() };
        let unmount = |options: &str, effect: String, risk: &str| {
            quoted(&mount.point).map(|point| remedy::command(format!("{check}{enter}umount {options} {point}"), effect, frees, risk))
        };
        match found.wait {
            Some(Wait::Fuse) => {
                let abort = abort_file(mount).map(|file| {
                    remedy::command(
                        format!("{check}echo 1 > {file}"),
                        format!("aborts the FUSE connection of {place}: all its requests fail, and the exit goes on{perhaps}"),
                        frees,
                        "whoever uses this mount gets errors; what its server had not written is lost",
                    )
                });
                let risk = "whoever uses this mount gets errors until it is mounted again; what its server had not written is lost";
                let effect = format!("removes the mount {place} and aborts its connection: all its requests fail, and the exit goes on{perhaps}");
                abort.into_iter().chain(unmount("-f -l", effect, risk)).collect()
            }
            Some(Wait::Nfs) => {
                let effect = format!("makes the pending requests to {place} fail, when its server does not come back{perhaps}");
                unmount("-f", effect, "whoever uses this mount gets errors; what was not written is lost").into_iter().collect()
            }
            _ => Vec::new(),
        }
    };
    // Of a container's root there is nothing to take away.
    thread.mounts.iter().filter(|mount| mount.point != "/").take(MOUNTS_OFFERED).flat_map(one).collect()
}

/// The file that aborts a mount's connection: its folder has the number of the device. What a trace says of it is somebody's word.
fn abort_file(mount: &Mount) -> Option<String> {
    let number = u64::from(mount.dev.0) << 20 | u64::from(mount.dev.1);
    mount.abort.is_some().then(|| format!("/sys/fs/fuse/connections/{number}/abort"))
}

/// A check before a command: the process is the one that was seen, and its thread sees this mount. Who repairs a mount mounts it at the
/// same place, and it may get the same number: so the process must still be there, which keeps what it uses from ending. Nothing here asks
/// the file system itself.
fn only_if_unchanged(process: &Process, thread: &StuckThread, mount: &Mount) -> String {
    let (pid, tid, (major, minor)) = (process.id().tgid(), thread.tid, mount.dev);
    // The kernel writes a space with four characters, and a shell or grep may take others for its own.
    let point: String = mount.point.chars().map(|c| if is_harmless(c) { c.to_string() } else { ".*".to_owned() }).collect();
    format!("{}grep -q ' {major}:{minor} [^ ]* {point} ' /proc/{pid}/task/{tid}/mountinfo && ", remedy::only_if_same(process))
}

/// A path as one word of a shell; nothing when it has characters that would need care.
fn quoted(path: &str) -> Option<String> {
    let plain = path.starts_with('/') && path.chars().all(|c| is_harmless(c) || c == ' ');
    plain.then(|| if path.contains(' ') { format!("'{path}'") } else { path.to_owned() })
}

/// Neither a shell nor a basic regular expression does anything with it (but that `.` stands for any character).
const fn is_harmless(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ':' | '@' | '=' | ',')
}

type Said = (Vec<Note>, Vec<Remedy>);

fn verdict(case: &Case<'_>, ending: &ending::Ending<'_>, thread: &StuckThread, found: &Where<'_>, place: &str, said: Said) -> Verdict {
    let name = words::process(ending.process);
    let age = |since: u64| words::duration(case.now().saturating_sub(since));
    let how = match (ending.since, ending.exiting) {
        (Some(since), true) => format!("whose exit has not finished in {}", age(since)),
        (Some(since), false) => format!("which has not died in {}", age(since)),
        (None, true) => "whose exit cannot finish".to_owned(),
        (None, false) => "which cannot die".to_owned(),
    };
    let waited = thread.same_since.map(|since| format!(" for at least {}", age(since))).unwrap_or_default();
    let doing = threads::doing(thread, !waited.is_empty());
    let purpose = threads::purpose(found, thread);
    let holder = held_by(case, ending.process, thread, found);
    let frame = found.frame.map(|frame| format!(" ({})", threads::function(frame))).unwrap_or_default();
    let watched = case.gpu().is_some_and(|gpu| gpu.flat_for() >= PATIENCE_NS) || ending.since.is_some();
    let (more, remedies) = said;
    let mut notes = ending.notes(case.world);
    notes.extend(flat(case));
    notes.extend(more);
    Verdict {
        confidence: if watched && found.by == By::Stack { confidence(case) } else { Confidence::Inferred },
        summary: format!(
            "{} belongs to {name}, {how}: {} {doing} {place}{waited}{purpose}{holder}{frame}.",
            case.what(),
            threads::name(ending.process, thread)
        ),
        notes,
        remedies,
    }
}

/// No process is left, and a thread of the kernel does not get on with the release.
fn kernel_thread(case: &Case<'_>) -> Option<Verdict> {
    let deferred = deferred::of(case).filter(|deferred| case.falling().is_none() && !deferred.is_young(case))?;
    let found = threads::locate(&deferred.thread.thread);
    let kernel = threads::kernel_name(deferred.thread);
    let purpose = threads::purpose(&found, &deferred.thread.thread);
    let since = deferred.thread.thread.same_since.map(|since| format!(" for at least {}", words::duration(case.now().saturating_sub(since))));
    let doing = threads::doing(&deferred.thread.thread, since.is_some());
    let frame = found.frame.map(|frame| format!(" ({})", threads::function(frame))).unwrap_or_default();
    let (steps, why_not) = way_out::steps(case, Vec::new(), Some(&kernel));
    let mut notes = vec![deferred.note(case.world)];
    notes.extend(flat(case));
    notes.extend(why_not);
    let mut remedies = vec![remedy::wait("no process is left to signal: the kernel's thread must come back from the driver", None)];
    remedies.extend(steps);
    Some(Verdict {
        confidence: Confidence::Inferred,
        summary: format!(
            "{} {}; {kernel}, which releases files inside the NVIDIA driver, {doing} there{}{purpose}{frame}.",
            case.what(),
            deferred::belonged(case),
            since.unwrap_or_default()
        ),
        notes,
        remedies,
    })
}

/// How long used memory has stayed as it is.
fn flat(case: &Case<'_>) -> Option<Note> {
    let gpu = case.gpu()?;
    let flat = gpu.flat_for();
    let used = gpu.memory.filter(|_| flat > 0)?.used;
    let index = case.gpu?;
    Some(note(Some(gpu.sampled_at), format!("Used memory of GPU {index} has stayed at {} for {}", words::size(used), words::duration(flat))))
}

#[cfg(test)]
mod tests;
