//! Roles of those who pass descriptors, receive them, take them, leave them unread or register them in an io_uring.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::actor::Actor;
use crate::devices::Device;
use crate::stage::until;
use crate::sys;

/// Connects as soon as somebody listens.
fn connect(actor: &Actor, socket: &str) -> io::Result<UnixStream> {
    let path = actor.path(socket);
    let mut connected = None;
    until("somebody to listen", || {
        connected = UnixStream::connect(&path).ok();
        Ok(connected.is_some())
    })?;
    connected.ok_or_else(|| io::Error::other("not connected"))
}

fn accept(actor: &Actor, socket: &str) -> io::Result<UnixStream> {
    UnixListener::bind(actor.path(socket))?.accept().map(|(stream, _)| stream)
}

/// Opens the GPU and sends every descriptor to whoever listens.
pub(crate) fn sends(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    sys::send_fds(connect(actor, actor.arg(0)?)?.as_raw_fd(), &actor.all_fds())?;
    actor.wait()
}

/// Sends bytes first and one descriptor of /dev/nvidia-uvm after them.
pub(crate) fn sends_later(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let mut stream = connect(actor, actor.arg(0)?)?;
    stream.write_all(b"here it comes")?;
    let first: Vec<_> = actor.fds(Device::Uvm).into_iter().take(1).collect();
    sys::send_fds(stream.as_raw_fd(), &first)?;
    actor.wait()
}

/// Receives descriptors; the second argument says whether they become close-on-exec.
pub(crate) fn receives(actor: &mut Actor) -> io::Result<()> {
    let flags = if actor.arg(1)? == "cloexec" { libc::MSG_CMSG_CLOEXEC } else { 0 };
    let fds = sys::receive_fds(accept(actor, actor.arg(0)?)?.as_raw_fd(), flags)?;
    actor.adopt("owner", fds);
    actor.wait()
}

/// Receives descriptors, passes them on and closes them.
pub(crate) fn receives_and_sends(actor: &mut Actor) -> io::Result<()> {
    let fds = sys::receive_fds(accept(actor, actor.arg(0)?)?.as_raw_fd(), libc::MSG_CMSG_CLOEXEC)?;
    actor.adopt("owner", fds);
    sys::send_fds(connect(actor, actor.arg(1)?)?.as_raw_fd(), &actor.all_fds())?;
    actor.close_all();
    actor.wait()
}

/// Receives descriptors of each of the named owners, from a socket of that name.
pub(crate) fn receives_from(actor: &mut Actor) -> io::Result<()> {
    for owner in actor.args().to_vec() {
        let fds = sys::receive_fds(accept(actor, &owner)?.as_raw_fd(), libc::MSG_CMSG_CLOEXEC)?;
        actor.adopt(&owner, fds);
    }
    actor.wait()
}

/// Receives descriptors and forks a child (argument 2) that keeps them.
pub(crate) fn receives_and_forks(actor: &mut Actor) -> io::Result<()> {
    let fds = sys::receive_fds(accept(actor, actor.arg(0)?)?.as_raw_fd(), libc::MSG_CMSG_CLOEXEC)?;
    actor.adopt("owner", fds);
    let name = actor.arg(1)?.to_owned();
    actor.fork(&name, |child| child.wait())?;
    actor.wait()
}

/// Takes descriptor (argument 2) out of the process (argument 1).
pub(crate) fn steals(actor: &mut Actor) -> io::Result<()> {
    let pid = actor.arg(0)?.parse().map_err(io::Error::other)?;
    let fd = actor.arg(1)?.parse().map_err(io::Error::other)?;
    let stolen = sys::steal_fd(pid, fd)?;
    actor.adopt("owner", [stolen]);
    actor.wait()
}

/// Forks a keeper of a socket, then opens the GPU and sends the control descriptor into that socket.
pub(crate) fn leaves_in_flight(actor: &mut Actor) -> io::Result<()> {
    let (to, from) = UnixStream::pair()?;
    let to = to.into_raw_fd();
    actor.fork("keeper", |keeper| {
        sys::close(to);
        keeper.adopt("owner", [from.as_raw_fd()]);
        keeper.wait()
    })?;
    drop(from);
    actor.open_gpu()?;
    sys::send_fds(to, &actor.fds(Device::Control))?;
    actor.wait()
}

/// Accepts one connection and never reads from it.
pub(crate) fn never_reads(actor: &mut Actor) -> io::Result<()> {
    let stream = accept(actor, actor.arg(0)?)?;
    actor.adopt("owner", [stream.as_raw_fd()]);
    actor.wait()
}

/// Registers the control descriptor in an io_uring and forks a child that keeps only the ring.
pub(crate) fn registers(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let control = actor.fds(Device::Control).first().copied();
    let ring = control.map(sys::register_in_ring).transpose()?.flatten()
        .ok_or_else(|| io::Error::other("no io_uring"))?;
    actor.fork("child", |child| {
        child.close_all();
        child.adopt("owner", [ring]);
        child.wait()
    })?;
    actor.wait()
}
