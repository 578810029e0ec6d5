//! An API server is killed; its engine process, with a context of its own, lives on.

use std::io;

use crate::stage::{OWNED_MIB, Stage};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.enter("launcher", "launches", &["worker"])?;
    stage.meet(&["worker"])?;
    stage.charge("worker", OWNED_MIB)?;
    stage.kill_and_reap("launcher")
}
