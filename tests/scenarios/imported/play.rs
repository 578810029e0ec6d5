//! CUDA IPC: the exporter is killed, and the importer lives on.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["ipc", "2048"])? {
        return Ok(());
    }
    stage.end("owner")
}
