//! A handle of `cuMemCreate` was exported to a descriptor that a program which never used CUDA received; the
//! exporter is killed.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["exported", "2048"])? {
        return Ok(());
    }
    stage.kill_and_reap("owner")
}
