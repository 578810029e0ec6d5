//! SIGTERM is ignored.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("ignores-term", &[], &[])?;
    stage.signal("owner", libc::SIGTERM)
}
