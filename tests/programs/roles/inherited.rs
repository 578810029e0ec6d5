//! Roles of owners that fork: with and without exec, once, twice, or each one the next.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::process::Command;

use crate::actor::{Actor, until_end};
use crate::devices::Device;
use crate::stage::until;

/// Some 250 bytes of events for each: more than twice the ring buffer (outlive_ebpf::limits::RING_BYTES).
const LOAD: u32 = 150_000;

/// Opens the GPU and forks a child for each argument "name:keep".
pub(crate) fn forks(actor: &mut Actor) -> io::Result<()> {
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
pub(crate) fn forks_twice(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let middle = actor.fork("middle", |middle| middle.fork("grandchild", |child| child.wait()).map(drop))?;
    until("the middle process to exit", || crate::sys::wait_child(middle, libc::WEXITED))?;
    actor.wait()
}

/// Opens the GPU and forks the next of the names, which does the same; the last one opens nothing.
pub(crate) fn chain(actor: &mut Actor) -> io::Result<()> {
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
pub(crate) fn forks_exec(actor: &mut Actor) -> io::Result<()> {
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

/// Opens the GPU and forks the named workers, which write into one pipe until it is full. Everybody has both ends of it.
pub(crate) fn forks_into_pipe(actor: &mut Actor) -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    actor.open_gpu()?;
    for name in actor.args().to_vec() {
        actor.fork(&name, |child| {
            child.ready()?;
            // It would not notice the end of the play.
            std::thread::spawn(|| crate::sys::exit_now(i32::from(until_end().is_err())));
            loop {
                (&writer).write_all(&[0; 4_096])?;
            }
        })?;
    }
    // Open for as long as we are.
    let _reader = reader.as_raw_fd();
    actor.wait()
}

/// Opens and closes an NVIDIA file more often than a recorder's buffers can hold, then forks the named child, and does it again.
pub(crate) fn forks_under_load(actor: &mut Actor) -> io::Result<()> {
    let (node, name) = (actor.node(Device::Gpu), actor.arg(0)?.to_owned());
    let load = || (0..LOAD).try_for_each(|_| std::fs::File::open(&node).map(drop));
    load()?;
    actor.open_gpu()?;
    actor.fork(&name, |child| child.wait())?;
    load()?;
    actor.wait()
}
