//! A container's init: PID 1 of a PID namespace, with mounts and users of its own.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::actor::{Actor, until_end};
use crate::gpu::Gpu;
use crate::sys;

/// Forks PID 1 of a new container, which forks the owner (argument 1), which forks a child (argument 2). PID 1 reaps whatever ends.
pub(crate) fn contains(actor: &mut Actor) -> io::Result<()> {
    let (owner, child) = (actor.arg(0)?.to_owned(), actor.arg(1)?.to_owned());
    let name = actor.name().to_owned();
    sys::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS)?;
    actor.fork(&name, |init| {
        init.fork(&owner, |owner| owns(owner, &child))?;
        thread::spawn(|| loop {
            // No children, or none that has ended.
            let _ = sys::reap_any();
            thread::sleep(Duration::from_millis(5));
        });
        init.wait()
    })?;
    until_end()
}

/// Root of a user namespace that uses the GPU. With a real one users stay as they are, and cuInit wants the /proc of its own PID
/// namespace (else error 304); the actors want the host's again.
fn owns(owner: &mut Actor, child: &str) -> io::Result<()> {
    if Gpu::of_play() == Gpu::Real {
        sys::unshare(libc::CLONE_NEWNS)?;
        sys::mount_proc()?;
        let opened = owner.open_gpu();
        sys::unmount(Path::new("/proc"))?;
        opened?;
    } else {
        sys::unshare(libc::CLONE_NEWUSER)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/gid_map", "0 0 1")?;
        fs::write("/proc/self/uid_map", "0 0 1")?;
        owner.open_gpu()?;
    }
    owner.fork(child, |child| child.wait())?;
    owner.wait()
}
