//! A handle of `cuMemCreate` is imported by a child program, whose descriptor is closed; the exporter, its parent,
//! is killed.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["mem-imported", "2048"])? {
        return Ok(());
    }
    stage.kill_and_reap("owner")?;
    // What it had beside the exported memory goes at once, but not in no time.
    std::thread::sleep(std::time::Duration::from_secs(1));
    Ok(())
}
