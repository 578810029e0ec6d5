//! Roles of owners that go on living, or of which a part does.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use crate::actor::{Actor, say, until_end};
use crate::devices::Device;
use crate::gpu;
use crate::rm;
use crate::stage::until;
use crate::sys;

/// Uses no GPU; the arguments are descriptors of `owner` that it was started with.
pub(crate) fn idle(actor: &mut Actor) -> io::Result<()> {
    let fds: Vec<i32> = actor.args().iter().filter_map(|arg| arg.parse().ok()).collect();
    if !fds.is_empty() {
        actor.adopt("owner", fds);
    }
    actor.wait()
}

/// Uses the GPU.
pub(crate) fn user(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    actor.wait()
}

/// Uses the GPU, and has memory that only a mapping keeps, which is charged to nobody.
pub(crate) fn maps(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu_by(gpu::allocate_unlisted)?;
    actor.wait()
}

/// A worker thread stays when the main thread exits.
pub(crate) fn leader_exits(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    actor.ready()?;
    thread::spawn(|| sys::exit_now(i32::from(until_end().is_err())));
    sys::exit_thread()
}

/// A thread unshares its descriptor table and opens the GPU in it.
pub(crate) fn thread_owns(actor: &mut Actor) -> io::Result<()> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            sys::unshare(libc::CLONE_FILES)?;
            actor.open_gpu()?;
            actor.wait()
        });
        worker.join().unwrap_or_else(|_| Err(io::Error::other("the worker thread panicked")))
    })
}

/// Asks the driver for something until it is not answered.
pub(crate) fn asks_driver(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    actor.ready()?;
    ask(actor)
}

/// The same in a thread beside the main one.
pub(crate) fn thread_asks_driver(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    actor.ready()?;
    thread::scope(|scope| scope.spawn(|| ask(actor)).join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked"))))
}

fn ask(actor: &Actor) -> io::Result<()> {
    let control = actor.fds(Device::Control).first().copied().ok_or_else(|| io::Error::other("no /dev/nvidiactl"))?;
    until("the driver to be slow", gpu::is_stuck)?;
    say(&serde_json::json!({"handled": true}))?;
    rm::client(control).map(drop)
}

/// Starts a GPU user (fork and exec) in its own process group.
pub(crate) fn launches(actor: &mut Actor) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["play", "user", actor.arg(0)?]).arg(actor.path(""));
    actor.fork("spawned", |_| Err(command.exec()))?;
    actor.wait()
}

/// SIGTERM runs a handler.
pub(crate) fn handles_term(actor: &mut Actor) -> io::Result<()> {
    sys::handle_signal(libc::SIGTERM)?;
    user(actor)
}

/// SIGTERM is ignored.
pub(crate) fn ignores_term(actor: &mut Actor) -> io::Result<()> {
    sys::ignore_signal(libc::SIGTERM)?;
    user(actor)
}

/// SIGTERM is blocked.
pub(crate) fn blocks_term(actor: &mut Actor) -> io::Result<()> {
    sys::block_signal(libc::SIGTERM)?;
    user(actor)
}
