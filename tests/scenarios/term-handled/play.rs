//! A handler runs, and the process goes on.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("handles-term", &[], &[])?;
    stage.signal("owner", libc::SIGTERM)?;
    stage.meet_handler()
}
