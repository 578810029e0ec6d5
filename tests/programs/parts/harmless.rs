//! What looks like a leak and is none: zombies hold nothing, exec closes, O_PATH opens nothing, a clean end is clean.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use super::OWNED_MIB;
use crate::actor::Actor;
use crate::devices::Device;
use crate::stage::Stage;

/// A child that never touched the GPU, dead, of a parent that never waits.
pub(super) fn zombie_only(stage: &mut Stage) -> io::Result<()> {
    stage.enter("parent", "never-waits", &[])?;
    stage.meet(&["zombie"])?;
    let zombie = stage.pid("zombie")?;
    crate::stage::until("the child to be a zombie", || {
        let stat = std::fs::read_to_string(format!("/proc/{zombie}/stat"))?;
        Ok(stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
    })
}

/// A GPU process was killed and is not reaped: its memory is free all the same.
pub(super) fn zombie_gpu(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "user", &[])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill("owner")?;
    stage.books.free("owner")
}

/// The child of a dead owner has executed a program: close-on-exec closed everything.
pub(super) fn exec_cloexec(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "forks-exec", &["cloexec"])?;
    stage.meet(&["child"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")?;
    stage.books.free("owner")
}

/// The child of a dead owner has the device node only as a path.
pub(super) fn opath_only(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "forks-opath", &[])?;
    stage.meet(&["child"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")?;
    stage.books.free("owner")
}

/// A GPU process ends and is reaped.
pub(super) fn clean_exit(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "user", &[])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")?;
    stage.books.free("owner")
}

/// Forks a child that exits, and never waits for it.
pub(super) fn never_waits(actor: &mut Actor) -> io::Result<()> {
    actor.fork("zombie", |child| child.ready())?;
    actor.wait()
}

/// Opens the GPU and forks a child that keeps only an O_PATH descriptor of its own.
pub(super) fn forks_opath(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    actor.fork("child", |child| {
        child.close_all();
        let path = child.path(Device::Gpu.name());
        let _node = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
        child.wait()
    })?;
    actor.wait()
}
