//! Owners that are stopped: by job control, a debugger or a freezer. They keep everything and cannot even die of SIGTERM.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::OWNED_MIB;
use crate::actor::Actor;
use crate::stage::{Stage, until};
use crate::sys;

fn owner(stage: &mut Stage) -> io::Result<u32> {
    let pid = stage.enter("owner", "user", &[])?;
    stage.charge("owner", OWNED_MIB)?;
    Ok(pid)
}

/// Ctrl+Z.
pub(super) fn tstp(stage: &mut Stage) -> io::Result<()> {
    owner(stage)?;
    stage.signal("owner", libc::SIGTSTP)?;
    stage.until_child("owner", libc::WSTOPPED | libc::WNOWAIT)
}

/// SIGSTOP, and then a SIGTERM that cannot be delivered.
pub(super) fn stop_then_term(stage: &mut Stage) -> io::Result<()> {
    owner(stage)?;
    stage.signal("owner", libc::SIGSTOP)?;
    stage.until_child("owner", libc::WSTOPPED | libc::WNOWAIT)?;
    stage.signal("owner", libc::SIGTERM)
}

/// A debugger has stopped it.
pub(super) fn ptrace(stage: &mut Stage) -> io::Result<()> {
    let owner = owner(stage)?.to_string();
    stage.enter("debugger", "traces", &[&owner]).map(drop)
}

/// cgroup v2 freezer.
pub(super) fn frozen_v2(stage: &mut Stage) -> io::Result<()> {
    let parent = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new)
        .into_iter().find(|path| path.join("cgroup.controllers").exists());
    let Some(parent) = parent else {
        stage.skip("cgroup v2 is not mounted under /sys/fs/cgroup");
        return Ok(());
    };
    let group = group(stage, parent)?;
    fs::write(group.join("cgroup.procs"), owner(stage)?.to_string())?;
    thaw_at_end(stage, &group, "cgroup.freeze", "0");
    fs::write(group.join("cgroup.freeze"), "1")?;
    until("the cgroup to be frozen", || Ok(fs::read_to_string(group.join("cgroup.events"))?.contains("frozen 1")))
}

/// cgroup v1 freezer.
pub(super) fn frozen_v1(stage: &mut Stage) -> io::Result<()> {
    let parent = Path::new("/sys/fs/cgroup/freezer");
    if !parent.join("cgroup.procs").exists() {
        stage.skip("the cgroup v1 freezer is not mounted at /sys/fs/cgroup/freezer");
        return Ok(());
    }
    let group = group(stage, parent)?;
    fs::write(group.join("cgroup.procs"), owner(stage)?.to_string())?;
    thaw_at_end(stage, &group, "freezer.state", "THAWED");
    fs::write(group.join("freezer.state"), "FROZEN")?;
    until("the cgroup to be frozen", || Ok(fs::read_to_string(group.join("freezer.state"))?.trim() == "FROZEN"))
}

/// Makes a cgroup of our own, removed when it is empty again.
fn group(stage: &mut Stage, parent: &Path) -> io::Result<PathBuf> {
    let group = parent.join(format!("outlive-scenario-{}", std::process::id()));
    fs::create_dir(&group)?;
    stage.fact("cgroup", group.display().to_string());
    Ok(group)
}

/// A frozen process cannot be killed (v1): thaw first, kill, and remove the group when it is empty.
fn thaw_at_end(stage: &mut Stage, group: &Path, file: &'static str, thawed: &'static str) {
    let group = group.to_owned();
    stage.at_end(move || {
        fs::write(group.join(file), thawed)?;
        for pid in fs::read_to_string(group.join("cgroup.procs"))?.lines().filter_map(|line| line.parse().ok()) {
            sys::kill(pid, libc::SIGKILL)?;
        }
        // Busy until its last task has left.
        until("the cgroup to be empty", || match fs::remove_dir(&group) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
            Err(error) => Err(error),
        })
    });
}

/// Stops the process that the argument names, as a debugger does.
pub(super) fn traces(actor: &mut Actor) -> io::Result<()> {
    let pid: u32 = actor.arg(0)?.parse().map_err(io::Error::other)?;
    sys::trace_and_stop(pid)?;
    until("the tracee to stop", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Ok(stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('t')))
    })?;
    actor.wait()
}
