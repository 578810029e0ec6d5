//! A killed owner's release never ends, and some of what is in use NVML charges to nobody any more.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};
use crate::sys;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.owner("maps", &[], &[])?;
    stage.enter("other", "computes", &[])?;
    // A thread shows its stack only while it is off its processor, which is then every other moment.
    sys::pin(pid)?;
    stage.knob("release_spin", "1")?;
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner's release to begin", || Ok(actor::is_exiting(pid) && actor::state(pid) == Some('R')))
}
