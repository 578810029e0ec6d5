//! A DataLoader worker outlives its trainer, and nobody has waited for the trainer yet.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("forks", &["child:all"], &["child"])?;
    stage.kill("owner")
}
