//! Roles of processes that look as if they held GPU memory and do not.

use std::fs::OpenOptions;
use std::hint;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::thread;

use crate::actor::Actor;
use crate::devices::Device;
use crate::sys;

/// Forks a child that exits, and never waits for it.
pub(crate) fn never_waits(actor: &mut Actor) -> io::Result<()> {
    actor.fork("zombie", |child| child.ready())?;
    actor.wait()
}

/// Keeps the first processor busy.
pub(crate) fn computes(actor: &mut Actor) -> io::Result<()> {
    thread::spawn(|| {
        if sys::pin(0).is_ok() {
            loop {
                hint::spin_loop();
            }
        }
    });
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
