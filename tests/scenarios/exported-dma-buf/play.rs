//! Memory was exported as a dma-buf to a program which never used CUDA; the exporter is killed.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["dma-buf", "2048"])? {
        return Ok(());
    }
    stage.kill_and_reap("owner")
}
