//! A DataLoader worker outlives its trainer.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks", &["child:all"], &["child"])
}
