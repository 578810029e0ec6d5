//! A crash with a core of 16 GiB, which takes seconds to write.

use std::io;

use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["crash", "2048"])? {
        return Ok(());
    }
    let pid = stage.pid("owner")?;
    until("the core dump to begin", || {
        Ok(std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("CoreDumping:\t1")))
    })
}
