//! Two workers of a killed trainer are blocked in a full pipe: they hold both of its ends, so nobody tells them
//! that the reader is dead.

use std::fs;
use std::io;

use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("forks-into-pipe", &["first", "second"], &["first", "second"])?;
    for worker in ["first", "second"] {
        let pid = stage.pid(worker)?;
        until("a worker to block in the pipe", || Ok(fs::read_to_string(format!("/proc/{pid}/wchan")).map_or(true, |at| at == "0" || at.contains("pipe"))))?;
    }
    stage.kill_and_reap("owner")
}
