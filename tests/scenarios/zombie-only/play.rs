//! A child that never touched the GPU, dead, of a parent that never waits.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.enter("parent", "never-waits", &[])?;
    stage.meet(&["zombie"])?;
    let zombie = stage.pid("zombie")?;
    until("the child to be a zombie", || Ok(actor::state(zombie) == Some('Z')))
}
