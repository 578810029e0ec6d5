//! The driver never finishes the release of a killed owner's files: it spins.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.owner("user", &[], &[])?;
    stage.knob("release_spin", "1")?;
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner's exit to stick", || Ok(actor::is_exiting(pid) && actor::state(pid) == Some('R')))
}
