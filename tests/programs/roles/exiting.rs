//! Owners on their way out: dumping core, or stuck in kernel code that has nothing to do with the GPU.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::actor::{Actor, say, until_end};
use crate::fuse::{Hang, Server};
use crate::stage::{Stage, until};
use crate::sys;

const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";
/// The kernel keeps no more of a core pattern (CORENAME_MAX_SIZE).
const PATTERN_MAX: usize = 127;
/// Longest that a core dump is held up.
const SINK_PATIENCE: Duration = Duration::from_secs(120);

/// Lets the owner dump core as `pattern` says, and returns when the dump has begun.
///
/// The host's core_pattern is changed only until then: the kernel reads it once, at the start.
pub(crate) fn dump_core(stage: &mut Stage, pattern: &str, begun: impl Fn() -> bool) -> io::Result<()> {
    let pid = stage.pid("owner")?;
    // The kernel splits a command at blanks: program, "core-sink", PID and folder.
    let blanks = if pattern.starts_with('|') { 3 } else { 0 };
    if pattern.len() > PATTERN_MAX || pattern.matches(' ').count() != blanks {
        stage.skip(format!("a core pattern holds {PATTERN_MAX} bytes and no blanks in paths: {pattern}"));
        return Ok(());
    }
    fs::write(stage.path("core-owner"), pid.to_string())?;
    let before = fs::read_to_string(CORE_PATTERN)?;
    let restore = before.trim_end_matches('\n').to_owned();
    stage.fact("core_pattern", restore.clone());
    stage.at_end(move || fs::write(CORE_PATTERN, restore));
    fs::write(CORE_PATTERN, pattern)?;
    stage.signal("owner", libc::SIGABRT)?;
    let dumping = until("the core dump to begin", || {
        Ok(begun() && fs::read_to_string(format!("/proc/{pid}/status"))?.contains("CoreDumping:\t1"))
    });
    fs::write(CORE_PATTERN, before.trim_end_matches('\n'))?;
    dumping
}

/// What the kernel runs for a core dump: reads nothing until the dumping process is gone.
pub(crate) fn core_sink(pid: &str, dir: &Path) -> io::Result<()> {
    // Somebody else's dump in the same moment: not ours to hold up.
    if fs::read_to_string(dir.join("core-owner"))? != pid {
        return Ok(());
    }
    File::create(dir.join("core-sink-runs"))?;
    let since = Instant::now();
    while Path::new("/proc").join(pid).exists() && since.elapsed() < SINK_PATIENCE {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Serves FUSE over the file "remote"; false: not possible here. What hangs: "read", "page" (the read of a page), "write", or "read-brokered", where
/// a process named "broker" has a copy of the connection.
pub(crate) fn enter_fuse(stage: &mut Stage, hang: &str) -> io::Result<bool> {
    if !Path::new("/dev/fuse").exists() {
        stage.skip("this host has no FUSE");
        return Ok(false);
    }
    let target = stage.path("remote");
    File::create(&target)?;
    stage.fact("mount", target.display().to_string());
    stage.enter("server", "serves-fuse", &[hang])?;
    stage.at_end(move || sys::unmount(&target));
    Ok(true)
}

/// Uses the GPU and may dump core.
pub(crate) fn dumps_core(actor: &mut Actor) -> io::Result<()> {
    sys::allow_core()?;
    super::living::user(actor)
}

/// Uses the GPU, and its core has a page of the remote file.
pub(crate) fn dumps_remote_page(actor: &mut Actor) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(actor.path("remote"))?;
    // The kernel learns the file's size from this, and dumps no pages beyond it.
    file.metadata()?;
    sys::map_shared(file.as_raw_fd())?;
    // All kinds of mappings: core(5).
    fs::write("/proc/self/coredump_filter", "0x7f")?;
    dumps_core(actor)
}

/// Mounts and serves; says so when a request is left hanging. The argument: see [`enter_fuse`].
pub(crate) fn serves_fuse(actor: &mut Actor) -> io::Result<()> {
    let hang = match actor.arg(0)? {
        "write" => Hang::Write,
        "page" => Hang::Page,
        _ => Hang::Read,
    };
    let mut server = Server::mount(&actor.path("remote"), hang)?;
    if actor.arg(0)? == "read-brokered" {
        actor.fork("broker", |broker| broker.wait())?;
    }
    actor.ready()?;
    thread::spawn(|| sys::exit_now(i32::from(until_end().is_err())));
    server.serve(|| say(&serde_json::json!({"handled": true})))
}

/// Uses the GPU and reads from the remote file.
pub(crate) fn reads_fuse(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let mut file = File::open(actor.path("remote"))?;
    actor.ready()?;
    file.read(&mut [0]).map(drop)
}

/// Uses the GPU and has written to a shared map of the remote file.
pub(crate) fn exits_in_fuse(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let file = OpenOptions::new().read(true).write(true).open(actor.path("remote"))?;
    // The kernel learns the file's size from this, and refuses to map pages beyond it.
    file.metadata()?;
    sys::dirty_shared_map(file.as_raw_fd())?;
    actor.wait()
}
