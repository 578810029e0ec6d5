//! Roles of processes that look as if they held GPU memory and do not.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use crate::actor::Actor;
use crate::devices::Device;

/// Forks a child that exits, and never waits for it.
pub(crate) fn never_waits(actor: &mut Actor) -> io::Result<()> {
    actor.fork("zombie", |child| child.ready())?;
    actor.wait()
}

/// Opens the GPU and forks a child that keeps only an O_PATH descriptor of its own.
pub(crate) fn forks_opath(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    actor.fork("child", |child| {
        child.close_all();
        let path = child.node(Device::Gpu);
        let _node = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
        child.wait()
    })?;
    actor.wait()
}
