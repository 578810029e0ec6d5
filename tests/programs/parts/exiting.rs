//! Owners on their way out: dumping core, or stuck in kernel code that has nothing to do with the GPU.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::OWNED_MIB;
use crate::actor::{Actor, say, until_end};
use crate::fuse::{Hang, Server};
use crate::stage::{Stage, until};
use crate::sys;

const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";
/// The kernel keeps no more of a core pattern (CORENAME_MAX_SIZE).
const PATTERN_MAX: usize = 127;
/// Longest that a core dump is held up.
const SINK_PATIENCE: Duration = Duration::from_secs(120);

/// An owner aborts, and the program that takes its core is slow.
///
/// The host's core_pattern is changed only until the dump has begun: the kernel reads it once, at the start.
pub(super) fn core_dump(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.enter("owner", "dumps-core", &[])?;
    stage.charge("owner", OWNED_MIB)?;
    let program = std::env::current_exe()?;
    let pattern = format!("|{} core-sink %P {}", program.display(), stage.path("").display());
    if pattern.len() > PATTERN_MAX || pattern.matches(' ').count() != 3 {
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
    let sink = stage.path("core-sink-runs");
    let dumping = until("the core dump to begin", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(sink.exists() && status.contains("CoreDumping:\t1"))
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

/// Serves FUSE over the file "remote"; returns when it is mounted.
fn enter_fuse(stage: &mut Stage, hang: &str) -> io::Result<bool> {
    if !Path::new("/dev/fuse").exists() {
        stage.skip("this host has no FUSE");
        return Ok(false);
    }
    let target = stage.path("remote");
    File::create(&target)?;
    stage.enter("server", "serves-fuse", &[hang])?;
    stage.at_end(move || sys::unmount(&target));
    Ok(true)
}

fn state(pid: u32) -> io::Result<Option<char>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()))
}

/// The owner waits for a network file system that does not answer, and SIGKILL cannot end that wait.
pub(super) fn killed_in_fuse_read(stage: &mut Stage) -> io::Result<()> {
    if !enter_fuse(stage, "read")? {
        return Ok(());
    }
    let pid = stage.enter("owner", "reads-fuse", &[])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.meet_handler()?; // The server has the request.
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner to wait unkillably", || Ok(state(pid)? == Some('D')))
}

/// The killed owner exits, and its memory map's last page is for a file system that does not answer.
pub(super) fn exit_in_fuse(stage: &mut Stage) -> io::Result<()> {
    if !enter_fuse(stage, "write")? {
        return Ok(());
    }
    let pid = stage.enter("owner", "exits-in-fuse", &[])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.signal("owner", libc::SIGKILL)?;
    let mut last = None;
    until("the owner's exit to stick", || {
        last = state(pid)?;
        Ok(matches!(last, Some('D' | 'Z')))
    })?;
    if last == Some('Z') {
        stage.skip("this kernel does not wait for FUSE when a memory map goes");
    } else {
        stage.meet_handler()?;
    }
    Ok(())
}

/// Uses the GPU and may dump core.
pub(super) fn dumps_core(actor: &mut Actor) -> io::Result<()> {
    sys::allow_core()?;
    super::living::user(actor)
}

/// Mounts and serves; says so when a request is left hanging. The argument: "read" or "write".
pub(super) fn serves_fuse(actor: &mut Actor) -> io::Result<()> {
    let hang = if actor.arg(0)? == "read" { Hang::Read } else { Hang::Write };
    let mut server = Server::mount(&actor.path("remote"), hang)?;
    actor.ready()?;
    thread::spawn(|| sys::exit_now(i32::from(until_end().is_err())));
    server.serve(|| say(&serde_json::json!({"handled": true})))
}

/// Uses the GPU and reads from the remote file.
pub(super) fn reads_fuse(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let mut file = File::open(actor.path("remote"))?;
    actor.ready()?;
    file.read(&mut [0]).map(drop)
}

/// Uses the GPU and has written to a shared map of the remote file.
pub(super) fn exits_in_fuse(actor: &mut Actor) -> io::Result<()> {
    actor.open_gpu()?;
    let file = OpenOptions::new().read(true).write(true).open(actor.path("remote"))?;
    // The kernel learns the file's size from this, and refuses to map pages beyond it.
    file.metadata()?;
    sys::dirty_shared_map(file.as_raw_fd())?;
    actor.wait()
}
