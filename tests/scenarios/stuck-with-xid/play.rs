//! The GPU fell off the bus (Xid 79), and the release of a killed owner never ends.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.owner("user", &[], &[])?;
    stage.knob("release_sleep", "1")?;
    crate::gpu::knob("xid", &format!("79 {pid} scenario GPU has fallen off the bus."))?;
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner's exit to stick", || Ok(actor::is_exiting(pid) && actor::state(pid) == Some('D')))
}
