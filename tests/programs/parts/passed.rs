//! Dead owners whose descriptors were given to other processes: received, stolen, still unread, or in an io_uring.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use super::OWNED_MIB;
use crate::actor::Actor;
use crate::devices::Device;
use crate::stage::{Stage, until};
use crate::sys;

/// A broker received all descriptors over a unix socket. It never had anything to do with the owner.
pub(super) fn passed_scm(stage: &mut Stage) -> io::Result<()> {
    stage.start("receiver", "receives", &["socket", "plain"])?;
    owner_sends_and_dies(stage, "socket", &["receiver"])
}

/// A process took the control descriptor out of the owner (`pidfd_getfd`).
pub(super) fn passed_getfd(stage: &mut Stage) -> io::Result<()> {
    let owner = stage.enter("owner", "user", &[])?.to_string();
    stage.charge("owner", OWNED_MIB)?;
    // The owner opened /dev/nvidiactl first.
    let control = stage.held("owner", "owner").first().map(ToString::to_string).unwrap_or_default();
    stage.enter("thief", "steals", &[&owner, &control])?;
    stage.kill_and_reap("owner")
}

/// The broker passed them on to a third process and closed its own.
pub(super) fn passed_on(stage: &mut Stage) -> io::Result<()> {
    stage.start("middle", "receives-and-sends", &["first", "second"])?;
    stage.start("receiver", "receives", &["second", "cloexec"])?;
    owner_sends_and_dies(stage, "first", &["middle", "receiver"])
}

fn owner_sends_and_dies(stage: &mut Stage, socket: &str, others: &[&str]) -> io::Result<()> {
    stage.enter("owner", "sends", &[socket])?;
    stage.meet(others)?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")
}

/// One descriptor sits unread in a socket that a child kept from before the owner used the GPU.
pub(super) fn in_flight(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "leaves-in-flight", &[])?;
    stage.meet(&["keeper"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")
}

/// One sits behind other data in the socket of a server that does not read; only /dev/nvidia-uvm, so NVML is silent.
pub(super) fn in_flight_queue(stage: &mut Stage) -> io::Result<()> {
    stage.start("keeper", "never-reads", &["socket"])?;
    stage.enter("owner", "sends-later", &["socket"])?;
    stage.meet(&["keeper"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")?;
    stage.books.unlist("owner")
}

/// A child closed every descriptor, but has the owner's io_uring, in which one is registered.
pub(super) fn io_uring_registered(stage: &mut Stage) -> io::Result<()> {
    let Some(ring) = sys::register_in_ring(0)? else {
        stage.skip("io_uring is not permitted here");
        return Ok(());
    };
    sys::close(ring);
    stage.enter("owner", "registers", &[])?;
    stage.meet(&["child"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")
}

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
pub(super) fn sends(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    sys::send_fds(connect(actor, actor.arg(0)?)?.as_raw_fd(), &actor.all_fds())?;
    actor.wait()
}

/// Sends bytes first and one descriptor of /dev/nvidia-uvm after them.
pub(super) fn sends_later(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let mut stream = connect(actor, actor.arg(0)?)?;
    stream.write_all(b"here it comes")?;
    let first: Vec<_> = actor.fds(Device::Uvm).into_iter().take(1).collect();
    sys::send_fds(stream.as_raw_fd(), &first)?;
    actor.wait()
}

/// Receives descriptors; the second argument says whether they become close-on-exec.
pub(super) fn receives(actor: &mut Actor) -> io::Result<()> {
    let flags = if actor.arg(1)? == "cloexec" { libc::MSG_CMSG_CLOEXEC } else { 0 };
    let fds = sys::receive_fds(accept(actor, actor.arg(0)?)?.as_raw_fd(), flags)?;
    actor.adopt("owner", fds);
    actor.wait()
}

/// Receives descriptors, passes them on and closes them.
pub(super) fn receives_and_sends(actor: &mut Actor) -> io::Result<()> {
    let fds = sys::receive_fds(accept(actor, actor.arg(0)?)?.as_raw_fd(), libc::MSG_CMSG_CLOEXEC)?;
    actor.adopt("owner", fds);
    sys::send_fds(connect(actor, actor.arg(1)?)?.as_raw_fd(), &actor.all_fds())?;
    actor.close_all();
    actor.wait()
}

/// Takes descriptor (argument 2) out of the process (argument 1).
pub(super) fn steals(actor: &mut Actor) -> io::Result<()> {
    let pid = actor.arg(0)?.parse().map_err(io::Error::other)?;
    let fd = actor.arg(1)?.parse().map_err(io::Error::other)?;
    let stolen = sys::steal_fd(pid, fd)?;
    actor.adopt("owner", [stolen]);
    actor.wait()
}

/// Forks a keeper of a socket, then opens the GPU and sends the control descriptor into that socket.
pub(super) fn leaves_in_flight(actor: &mut Actor) -> io::Result<()> {
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
pub(super) fn never_reads(actor: &mut Actor) -> io::Result<()> {
    let stream = accept(actor, actor.arg(0)?)?;
    actor.adopt("owner", [stream.as_raw_fd()]);
    actor.wait()
}

/// Registers the control descriptor in an io_uring and forks a child that keeps only the ring.
pub(super) fn registers(actor: &mut Actor) -> io::Result<()> {
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
