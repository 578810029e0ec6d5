//! Dead owners whose descriptions live on in processes that were forked from them.

use std::fs;
use std::io;
use std::process::Command;

use super::OWNED_MIB;
use crate::actor::Actor;
use crate::stage::{Stage, until};

/// `owner` plays `role` with `args`, allocates, and is killed and reaped, while `others` live on.
fn owner_dies(stage: &mut Stage, role: &str, args: &[&str], others: &[&str]) -> io::Result<()> {
    stage.enter("owner", role, args)?;
    stage.meet(others)?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")
}

/// A DataLoader worker outlives its trainer.
pub(super) fn inherit(stage: &mut Stage) -> io::Result<()> {
    owner_dies(stage, "forks", &["child:all"], &["child"])
}

/// The same, and nobody has waited for the trainer yet.
pub(super) fn inherit_zombie(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "forks", &["child:all"])?;
    stage.meet(&["child"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill("owner")
}

/// The process between the owner and the survivor has gone before.
pub(super) fn inherit_grandchild(stage: &mut Stage) -> io::Result<()> {
    owner_dies(stage, "forks-twice", &[], &["grandchild"])
}

/// Only /dev/nvidia-uvm is left: NVML names nobody.
pub(super) fn inherit_uvm_only(stage: &mut Stage) -> io::Result<()> {
    owner_dies(stage, "forks", &["child:uvm"], &["child"])?;
    stage.books.unlist("owner")
}

/// One descriptor of /dev/nvidiactl is enough.
pub(super) fn inherit_ctl_only(stage: &mut Stage) -> io::Result<()> {
    owner_dies(stage, "forks", &["child:ctl"], &["child"])
}

/// Three children, one with less.
pub(super) fn several_holders(stage: &mut Stage) -> io::Result<()> {
    let children = ["first:all", "second:all", "third:ctl"];
    owner_dies(stage, "forks", &children, &["first", "second", "third"])
}

/// The first owner forks the second, which opens its own files and forks the holder; both owners die.
pub(super) fn two_owners(stage: &mut Stage) -> io::Result<()> {
    stage.enter("first", "chain", &["second", "holder"])?;
    stage.meet(&["second", "holder"])?;
    stage.charge("first", OWNED_MIB)?;
    stage.charge("second", 1_542)?;
    // The second becomes the stage's child when the first is gone.
    stage.kill_and_reap("first")?;
    stage.kill_and_reap("second")
}

/// The owner opened its files without close-on-exec, and the child runs another program.
pub(super) fn exec_no_cloexec(stage: &mut Stage) -> io::Result<()> {
    owner_dies(stage, "forks-exec", &["inheritable"], &["child"])
}

/// The dead owner's PID, which NVML still lists, now belongs to an innocent process.
pub(super) fn recycled_pid(stage: &mut Stage) -> io::Result<()> {
    const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
    // A PID is not free while it is the number of a process group: no group may be named after the owner.
    stage.command("owner", "forks", &["child:all"])?.spawn()?;
    stage.meet(&["owner", "child"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")?;
    let wanted = stage.pid("owner")?;
    if fs::metadata(LAST_PID).is_err() {
        stage.skip("the kernel has no ns_last_pid (CONFIG_CHECKPOINT_RESTORE)");
        return Ok(());
    }
    // Far enough apart for /proc to show different start times.
    std::thread::sleep(std::time::Duration::from_millis(100));
    // Any other fork on the host may take the PID first: try again.
    until("the owner's PID to be used again", || {
        fs::write(LAST_PID, (wanted - 1).to_string())?;
        let mut command = stage.command("innocent", "idle", &[])?;
        let pid = command.spawn()?.id();
        if pid == wanted {
            return Ok(true);
        }
        crate::sys::kill(pid, libc::SIGKILL)?;
        until("a process to end", || crate::sys::wait_child(pid, libc::WEXITED))?;
        Ok(false)
    })?;
    stage.meet(&["innocent"])
}

/// Opens the GPU and forks a child for each argument "name:keep".
pub(super) fn forks(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    for child in actor.args().to_vec() {
        let (name, keep) = child.split_once(':').ok_or_else(|| io::Error::other("expected name:keep"))?;
        actor.fork(name, |child| {
            child.keep_only(keep)?;
            child.wait()
        })?;
    }
    actor.wait()
}

/// Forks a process that forks "grandchild" and exits at once.
pub(super) fn forks_twice(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let middle = actor.fork("middle", |middle| middle.fork("grandchild", |child| child.wait()).map(drop))?;
    until("the middle process to exit", || crate::sys::wait_child(middle, libc::WEXITED))?;
    actor.wait()
}

/// Opens the GPU and forks the next of the names, which does the same; the last one opens nothing.
pub(super) fn chain(actor: &mut Actor) -> io::Result<()> {
    let names = actor.args().to_vec();
    link(actor, &names)
}

fn link(actor: &mut Actor, names: &[String]) -> io::Result<()> {
    if let Some((next, rest)) = names.split_first() {
        actor.open_gpu()?;
        actor.fork(next, |child| link(child, rest))?;
    }
    actor.wait()
}

/// Opens the GPU (argument "inheritable": without close-on-exec) and forks a child that executes a program.
pub(super) fn forks_exec(actor: &mut Actor) -> io::Result<()> {
    if actor.arg(0)? == "inheritable" { actor.open_gpu_inheritable()? } else { actor.open_gpu()? }
    actor.fork("child", |child| {
        let dir = child.path("");
        let held: Vec<String> = match child.arg(0)? {
            "inheritable" => child.all_fds().iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["play", "idle", "child"]).arg(dir).args(held);
        Err(std::os::unix::process::CommandExt::exec(&mut command))
    })?;
    actor.wait()
}
