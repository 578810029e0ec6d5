//! A GPU process was killed and is not reaped: its memory is free all the same.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[])?;
    stage.kill("owner")?;
    stage.books.free("owner")
}
