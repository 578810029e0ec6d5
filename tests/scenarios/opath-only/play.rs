//! The child of a dead owner has the device node only as a path.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks-opath", &[], &["child"])?;
    stage.books.free("owner")
}
