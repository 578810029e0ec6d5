//! A GPU process ends and is reaped.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("user", &[], &[])?;
    stage.books.free("owner")
}
