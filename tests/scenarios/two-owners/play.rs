//! The first owner forks the second, which opens its own files and forks the holder; both owners die.

use std::io;

use crate::stage::{OWNED_MIB, Stage};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.enter("first", "chain", &["second", "holder"])?;
    stage.meet(&["second", "holder"])?;
    stage.charge("first", OWNED_MIB)?;
    stage.charge("second", 1_542)?;
    // The second becomes the stage's child when the first is gone.
    stage.kill_and_reap("first")?;
    stage.kill_and_reap("second")
}
