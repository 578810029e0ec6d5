//! The driver never finishes the release of a killed owner's files: it spins, on a processor that another program wants too.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};
use crate::sys;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.owner("user", &[], &[])?;
    stage.enter("other", "computes", &[])?;
    // A thread shows its stack only while it is off its processor, which is then every other moment.
    sys::pin(pid)?;
    stage.knob("release_spin", "1")?;
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner's exit to stick", || Ok(actor::is_exiting(pid) && actor::state(pid) == Some('R')))
}
