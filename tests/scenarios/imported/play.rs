//! CUDA IPC: the exporter is killed, and the importer lives on.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["ipc", "2048"])? {
        return Ok(());
    }
    stage.end("owner")?;
    // What it had beside the exported memory goes at once, but not in no time.
    std::thread::sleep(std::time::Duration::from_secs(1));
    Ok(())
}
