//! The owner was killed and nobody holds anything, and yet its memory is in use: a driver that lost it.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("user", &[], &[])
}
