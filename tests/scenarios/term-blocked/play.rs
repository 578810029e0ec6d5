//! SIGTERM is blocked and stays pending.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("blocks-term", &[], &[])?;
    stage.signal("owner", libc::SIGTERM)
}
