//! The dead owner's PID, which NVML still lists, now belongs to an innocent process.

use std::fs;
use std::io;

use crate::stage::{OWNED_MIB, Stage, until};

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    // A PID is not free while it is the number of a process group: no group may be named after the owner.
    stage.command("owner", "forks", &["child:all"])?.spawn()?;
    stage.meet(&["owner", "child"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("owner")?;
    let wanted = stage.pid("owner")?;
    if fs::metadata(LAST_PID).is_err() {
        stage.skip("the kernel has no ns_last_pid (CONFIG_CHECKPOINT_RESTORE)");
        return Ok(());
    }
    // Far enough apart for /proc to show different start times.
    std::thread::sleep(std::time::Duration::from_millis(100));
    // Any other fork on the host may take the PID first: try again.
    until("the owner's PID to be used again", || {
        fs::write(LAST_PID, (wanted - 1).to_string())?;
        let mut command = stage.command("innocent", "idle", &[])?;
        let pid = command.spawn()?.id();
        if pid == wanted {
            return Ok(true);
        }
        crate::sys::kill(pid, libc::SIGKILL)?;
        until("a process to end", || crate::sys::wait_child(pid, libc::WEXITED))?;
        Ok(false)
    })?;
    stage.meet(&["innocent"])
}
