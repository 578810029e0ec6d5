//! What could not be seen, and which conclusions that voids.
//!
//! Always true: a conclusion that rests on evidence which is named here is never called exact by a cause: what nobody
//! saw is not in the world, so the cause had to deduce it.

use super::{GpuPart, LimitPart};
use crate::cause::words;
use crate::offline::UNREADABLE;
use crate::world::World;
use crate::world::gpu::NOISE_BYTES;
use std::collections::BTreeSet;

/// `missing` of the limit that no scan was made.
pub(super) const NO_SCAN: &str = "a scan of open files";

/// `missing` of the limit that only one PID namespace was looked at.
pub(super) const OTHER_NAMESPACES: &str = "processes outside this PID namespace";

/// `missing` of the limit that NVML said nothing during a look.
pub(crate) const NO_FIGURES: &str = "NVML's figures of now";

pub(super) fn limits(world: &World, gpus: &[GpuPart]) -> Vec<LimitPart> {
    let mut limits: BTreeSet<LimitPart> = world.host().limits.clone();
    let mut add = |missing: &str, voids: &str| {
        limits.insert(LimitPart { missing: missing.to_owned(), voids: voids.to_owned() });
    };
    let host = world.host();
    match host.scan {
        None => add(NO_SCAN, "who holds GPU files now; that nobody holds them"),
        Some(scan) if !scan.complete => {
            add("files of some processes, which could not be read", "that nobody else holds the files");
        }
        Some(_) => {}
    }
    if world.gpus().is_empty() && !host.limits.iter().any(|limit| limit.missing.starts_with("NVML")) {
        add("NVML", "how many bytes are held, on which GPU, and that memory came back");
    }
    for gpu in gpus.iter().filter(|gpu| is_outdated(world, gpu)) {
        let missing = format!("NVML's word on GPU {} since memory was last allocated", gpu.index);
        add(&missing, "how much memory is used and free: the processes have more than NVML's last figure");
    }
    match (&host.header, host.watching_since()) {
        (Some(_), None) => add(
            "everything before this moment: nothing was watching",
            "who sent which signal, when the owner died, who forked or passed what, which allocations make up a figure, and who imported memory",
        ),
        (Some(_), Some(since)) => {
            let early = world.processes().any(|p| p.held && p.id().start() < since);
            if early {
                let voids = "for processes that started before: who opened, forked or passed what, and what they had allocated (NVML's figure stands in)";
                add("what happened before the recording began", voids);
            }
        }
        (None, _) => {}
    }
    if let Some(header) = &host.header {
        if !header.initial_pid_namespace {
            add(OTHER_NAMESPACES, "that nobody holds the memory; which process a PID of NVML is");
        }
        for hook in header.hooks.iter().filter(|hook| !hook.attached && header.watching_since.is_some()) {
            let why = hook.why_not.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
            add(&format!("hook {}{why}", hook.name), hook_voids(&hook.name));
        }
    }
    // What could not be read of a trace has a limit of its own, with the sizes.
    for (cause, (count, _)) in host.lost.iter().filter(|(cause, _)| *cause != UNREADABLE) {
        add(&format!("{count} events lost ({cause})"), lost_voids(cause));
    }
    if host.xids_forgotten > 0 {
        add(&format!("{} GPU errors (Xids), more than are kept", host.xids_forgotten), "GPU errors before the latest");
    }
    let missed = world.books().missed_processes();
    if missed > 0 {
        let missing = format!("requests of {} to the driver, which could not be believed", words::count(missed, "process", "processes"));
        limits.insert(LimitPart { missing, voids: "how much memory they have, and what they import and export".to_owned() });
    }
    limits.into_iter().collect()
}

/// The processes were seen to have more than NVML says is used, because they allocated it later.
fn is_outdated(world: &World, gpu: &GpuPart) -> bool {
    let (Some(used), Some(account)) = (gpu.used_bytes, &gpu.account) else { return false };
    let sampled_at = world.gpus().get(&gpu.index).map_or(0, |gpu| gpu.sampled_at);
    let all = account.held.iter().fold(account.owners_bytes, |sum, held| sum.saturating_add(held.bytes));
    all > used.saturating_add(NOISE_BYTES) && world.books().newest().is_some_and(|at| at > sampled_at)
}

/// Everything since the start of the watch was seen.
pub(super) fn is_complete(world: &World) -> bool {
    let host = world.host();
    let hooked = host.header.as_ref().is_some_and(|header| header.hooks.iter().all(|hook| hook.attached));
    hooked && host.lost.is_empty() && host.watching_since().is_some() && host.scan.is_some_and(|scan| scan.complete)
}

fn hook_voids(name: &str) -> &'static str {
    const VOIDS: &[(&str, &str)] = &[
        ("signal", "who sent which signal, and what became of it"),
        ("sched_process_fork", "who forked whom, so who inherited what"),
        ("sched_process_exec", "which descriptors exec closed"),
        ("sched_process_exit", "when and how processes ended"),
        ("release_task", "who reaped whom"),
        ("sched_process_free", "when processes were reaped"),
        ("wait", "who reaped whom"),
        ("recv", "who received descriptors"),
        ("receive_fd", "who received descriptors"),
        ("nvidia_close", "when the driver released files"),
        ("frontend_close", "when the driver released files"),
        ("uvm_release", "when the driver released files"),
        ("close_on_exec", "copies of descriptors within a process"),
        ("send", "who sent descriptors"),
        ("pidfd_getfd", "who took descriptors"),
        ("ioctl", "how much memory each client allocated, and who imported it"),
        ("open", "who opened GPU files, and when"),
        ("creat", "who opened GPU files, and when"),
        ("dup", "copies of descriptors within a process"),
        ("close", "when descriptors were closed"),
        ("mark_victim", "that the OOM killer chose a process"),
        ("xid", "GPU errors near the time"),
        ("iter/task_file", "who holds GPU files now"),
        ("iter/task", "processes' states"),
    ];
    VOIDS.iter().find(|(part, _)| name.contains(part)).map_or("what this hook alone shows", |(_, voids)| voids)
}

fn lost_voids(cause: &str) -> &'static str {
    match cause {
        "ring_full" | "queue_full" | "nested" => "how descriptors moved, who sent signals and what was allocated around that time, unless seen otherwise",
        "tracked_full" => "what the processes that were not followed did",
        "truncated" => "descriptors beyond the first of very long messages and queues",
        "compat" => "descriptors that 32-bit programs sent or received",
        "kernel_log_overwritten" => "GPU errors near the time",
        "return_missed" => "what the driver granted, opened or finished releasing around that time",
        _ => "details of single events",
    }
}
