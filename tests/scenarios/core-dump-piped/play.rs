//! An owner aborts, and the program that takes its core is slow.

use std::io;

use crate::roles::exiting;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("dumps-core", &[], &[])?;
    let program = std::env::current_exe()?;
    let pattern = format!("|{} core-sink %P {}", program.display(), stage.path("").display());
    let sink = stage.path("core-sink-runs");
    exiting::dump_core(stage, &pattern, || sink.exists())
}
