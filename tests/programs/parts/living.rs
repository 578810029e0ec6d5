//! Owners that live: nobody was killed, the wrong one was, or the signal did not end it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use super::OWNED_MIB;
use crate::actor::{Actor, until_end};
use crate::stage::Stage;
use crate::sys;

/// A notebook kernel that nobody ended.
pub(super) fn alive(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "user", &[])?;
    stage.charge("owner", OWNED_MIB)
}

/// A trainer at work, with its workers.
pub(super) fn alive_with_workers(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "forks", &["first:all", "second:all"])?;
    stage.meet(&["first", "second"])?;
    stage.charge("owner", OWNED_MIB)
}

/// The main thread has exited, a worker thread lives.
pub(super) fn leader_exited(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.enter("owner", "leader-exits", &[])?;
    stage.charge("owner", OWNED_MIB)?;
    crate::stage::until("the leader to be a zombie", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Ok(stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
    })
}

/// One thread has a descriptor table of its own, and opened the GPU in it.
pub(super) fn threads_own_files(stage: &mut Stage) -> io::Result<()> {
    stage.enter("owner", "thread-owns", &[])?;
    stage.charge("owner", OWNED_MIB)
}

/// An API server is killed; its engine process, with a context of its own, lives on.
pub(super) fn orphaned(stage: &mut Stage) -> io::Result<()> {
    stage.enter("launcher", "launches", &["worker"])?;
    stage.meet(&["worker"])?;
    stage.charge("worker", OWNED_MIB)?;
    stage.kill_and_reap("launcher")
}

/// `sh -c 'trainer & wait'` is killed, in the process group of the script that started it.
pub(super) fn wrapper_killed(stage: &mut Stage) -> io::Result<()> {
    let trainer = stage.command("owner", "user", &[])?;
    let mut wrapper = Command::new("sh");
    // The shell gives a background job /dev/null for input unless told otherwise.
    wrapper.args(["-c", "exec 3<&0; \"$@\" <&3 3<&- & wait", "wrapper"]).arg(trainer.get_program()).args(trainer.get_args());
    stage.direct(&mut wrapper)?;
    let pid = wrapper.spawn()?.id();
    stage.cast("wrapper", pid)?;
    stage.meet(&["owner"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("wrapper")
}

fn term(stage: &mut Stage, role: &str) -> io::Result<()> {
    stage.enter("owner", role, &[])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.signal("owner", libc::SIGTERM)
}

/// A handler runs, and the process goes on.
pub(super) fn term_handled(stage: &mut Stage) -> io::Result<()> {
    term(stage, "handles-term")?;
    stage.meet_handler()
}

/// SIGTERM is ignored.
pub(super) fn term_ignored(stage: &mut Stage) -> io::Result<()> {
    term(stage, "ignores-term")
}

/// SIGTERM is blocked and stays pending.
pub(super) fn term_blocked(stage: &mut Stage) -> io::Result<()> {
    term(stage, "blocks-term")
}

/// Uses no GPU; the arguments are descriptors of `owner` that it was started with.
pub(super) fn idle(actor: &mut Actor) -> io::Result<()> {
    let fds: Vec<i32> = actor.args().iter().filter_map(|arg| arg.parse().ok()).collect();
    if !fds.is_empty() {
        actor.adopt("owner", fds);
    }
    actor.wait()
}

/// Uses the GPU.
pub(super) fn user(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    actor.wait()
}

/// A worker thread stays when the main thread exits.
pub(super) fn leader_exits(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    actor.ready()?;
    thread::spawn(|| sys::exit_now(i32::from(until_end().is_err())));
    sys::exit_thread()
}

/// A thread unshares its descriptor table and opens the GPU in it.
pub(super) fn thread_owns(actor: &mut Actor) -> io::Result<()> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            sys::unshare_files()?;
            actor.open_gpu()?;
            actor.wait()
        });
        worker.join().unwrap_or_else(|_| Err(io::Error::other("the worker thread panicked")))
    })
}

/// Starts a GPU user (fork and exec) in its own process group.
pub(super) fn launches(actor: &mut Actor) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["play", "user", actor.arg(0)?]).arg(actor.path(""));
    actor.fork("spawned", |_| Err(command.exec()))?;
    actor.wait()
}

/// SIGTERM runs a handler.
pub(super) fn handles_term(actor: &mut Actor) -> io::Result<()> {
    sys::handle_signal(libc::SIGTERM)?;
    user(actor)
}

/// SIGTERM is ignored.
pub(super) fn ignores_term(actor: &mut Actor) -> io::Result<()> {
    sys::ignore_signal(libc::SIGTERM)?;
    user(actor)
}

/// SIGTERM is blocked.
pub(super) fn blocks_term(actor: &mut Actor) -> io::Result<()> {
    sys::block_signal(libc::SIGTERM)?;
    user(actor)
}
