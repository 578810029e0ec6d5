//! What ends a driver's trouble, in the order of least harm: end who blocks it, reload nvidia_uvm, reset the GPU, reboot.
//!
//! Always true: a step that cannot work is not offered, and a note says why. A reset is refused while anything has the GPU open
//! (nvidia-smi: "In use by another client"), and a thread that cannot leave the kernel keeps it open; a module can be
//! unloaded only when nothing uses it.

use super::case::Case;
use super::evidence::note;
use super::xid::WayOut;
use super::{Note, ending, health, remedy, threads, words};
use crate::event::{Node, ProcessId};
use crate::explanation::Remedy;
use crate::stack;
use crate::world::process::Process;
use std::collections::BTreeMap;

/// Processes named in one sentence.
const NAMED_MAX: usize = 6;

/// Services that hold a GPU for good, by comm (15 characters of it), and what stops them.
const SERVICES: &[(&str, &str)] = &[
    ("nvidia-persiste", "systemctl stop nvidia-persistenced"),
    ("nv-hostengine", "systemctl stop nvidia-dcgm"),
    ("dcgm-exporter", "stop the DCGM exporter"),
    ("nvidia-cuda-mps", "echo quit | nvidia-cuda-mps-control"),
    ("nv-fabricmanage", "systemctl stop nvidia-fabricmanager"),
    ("Xorg", "systemctl isolate multi-user.target"),
    ("Xwayland", "systemctl isolate multi-user.target"),
    ("gnome-shell", "systemctl isolate multi-user.target"),
];

/// The driver's own words come first in every case.
#[must_use]
pub fn read_log() -> Remedy {
    remedy::command(
        "dmesg --time-format iso | grep -iE 'xid|nvrm|nvidia'".to_owned(),
        "shows what the driver says of this GPU; an Xid decides between waiting, reset and reboot",
        None,
        "none",
    )
}

/// Steps for memory that the driver does not give back. `ends` are those that end who holds it up; `stuck` names what is in the
/// driver and cannot be ended.
#[must_use]
pub fn steps(case: &Case<'_>, ends: Vec<Remedy>, stuck: Option<&str>) -> (Vec<Remedy>, Vec<Note>) {
    let (mut remedies, mut notes) = (vec![read_log()], Vec::new());
    remedies.extend(ends);
    match reload(case) {
        Ok(remedy) => remedies.extend(remedy),
        Err(why) => notes.push(note(None, why)),
    }
    match reset(case, stuck) {
        Ok(remedy) => remedies.push(remedy),
        Err(why) => notes.push(note(None, why)),
    }
    remedies.push(reboot(case, stuck.is_some()));
    (remedies, notes)
}

/// Unloading nvidia_uvm gives back what it has lost track of. Nothing when it is not loaded, or nobody knows.
fn reload(case: &Case<'_>) -> Result<Option<Remedy>, String> {
    let Some(users) = case.world.host().modules.get("nvidia_uvm").copied() else { return Ok(None) };
    let inside = |frames: &[String]| frames.iter().any(|frame| stack::module(frame) == Some("nvidia_uvm"));
    if threads::kernel(case.world).any(|found| inside(&found.thread.stack)) {
        return Err("Reloading nvidia_uvm is no way out: a kernel thread is inside it".to_owned());
    }
    if users > 0 {
        let users = words::count(users as usize, "open file or module uses it", "open files or modules use it");
        return Err(format!("Reloading nvidia_uvm is no way out: {users}"));
    }
    Ok(Some(remedy::command(
        "modprobe -r nvidia_uvm && modprobe nvidia_uvm".to_owned(),
        "reloads the unified memory module, which nothing uses now; what it has lost track of is freed",
        case.bytes,
        "no CUDA program can start in between",
    )))
}

fn reset(case: &Case<'_>, stuck: Option<&str>) -> Result<Remedy, String> {
    let gpu = case.gpu.ok_or("Which GPU it is, is not known: none can be named for a reset")?;
    if let Some((WayOut::Reboot, who)) = health::way_out(case) {
        return Err(format!("A reset of GPU {gpu} is no way out: {who} says that only a reboot helps"));
    }
    if let Some(stuck) = stuck {
        return Err(format!("A reset of GPU {gpu} is no way out: it is refused while anything has the GPU open, and {stuck} cannot be stopped"));
    }
    let users = users(case, gpu);
    let dying: Vec<String> = users.iter().filter(|process| cannot_stop(process)).map(|process| words::process(process)).collect();
    if !dying.is_empty() {
        let dying = words::list(&dying, NAMED_MAX);
        return Err(format!("A reset of GPU {gpu} is no way out: it is refused while anything has the GPU open, and {dying} cannot be stopped"));
    }
    let stop: Vec<String> = users.iter().map(|process| to_stop(process)).collect();
    let first = match stop.len() {
        0 => "resets the GPU; nothing has it open".to_owned(),
        _ => format!("resets the GPU, once these are stopped, which have it open: {}", words::list(&stop, NAMED_MAX)),
    };
    let pci = case.gpu().and_then(|gpu| gpu.pci.clone());
    let target = pci.filter(|pci| pci.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.')));
    Ok(remedy::command(
        format!("nvidia-smi --gpu-reset -i {}", target.unwrap_or_else(|| gpu.to_string())),
        first,
        case.bytes,
        "every process on this GPU, and on GPUs linked to it, loses its work",
    ))
}

fn reboot(case: &Case<'_>, stuck: bool) -> Remedy {
    let effect = match (health::way_out(case), stuck) {
        (Some((WayOut::Reboot, who)), _) => format!("starts the host anew, which is the only way out, as {who} says"),
        (_, true) => "starts the host anew: the only way out while the thread does not come back by itself".to_owned(),
        _ => "starts the host anew, when nothing above helped".to_owned(),
    };
    let risk = if stuck {
        "everything on this host ends; a thread that is stuck in the kernel can hold up the shutdown, and then only switching the power off helps"
    } else {
        "everything on this host ends"
    };
    remedy::command("systemctl reboot".to_owned(), effect, case.bytes, risk)
}

/// Processes that have the GPU open: its own node; or an address space of unified memory, which keeps its GPUs open
/// (uvm_gpu_retain), where no node says which GPUs these are.
fn users<'a>(case: &Case<'a>, gpu: u32) -> Vec<&'a Process> {
    let minor = case.world.gpus().get(&gpu).and_then(|gpu| gpu.minor);
    // Of each: has this GPU's node, any GPU's node, an address space.
    let mut found: BTreeMap<ProcessId, [bool; 3]> = BTreeMap::new();
    for file in case.world.files() {
        let node = case.world.node_of(file.dev);
        for (id, _) in file.holders.keys() {
            let known = found.entry(*id).or_default();
            known[0] |= node == Node::Gpu && minor.is_none_or(|minor| file.dev.minor() == minor);
            known[1] |= node == Node::Gpu;
            known[2] |= node == Node::Uvm;
        }
    }
    let opens = |[this, any, space]: [bool; 3]| this || (space && !any);
    let ids = found.into_iter().filter(|(_, has)| opens(*has)).map(|(id, _)| id);
    ids.filter_map(|id| case.world.process(id)).filter(|process| process.is_alive()).collect()
}

/// It is on its way out and a thread of it sits in the kernel.
fn cannot_stop(process: &Process) -> bool {
    ending::of_process(process).is_some_and(|ending| ending.in_driver().is_some() || ending.elsewhere().is_some())
}

/// "python3 (PID 574)", "nvidia-persiste (PID 900: systemctl stop nvidia-persistenced)".
fn to_stop(process: &Process) -> String {
    let name = words::process(process);
    match SERVICES.iter().find(|(comm, _)| *comm == process.comm()) {
        Some((_, how)) => format!("{}: {how})", name.trim_end_matches(')')),
        None => name,
    }
}
