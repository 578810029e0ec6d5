//! A killed owner whose request the driver never answers: it spins there.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.owner("asks-driver", &[], &[])?;
    stage.knob("ioctl_spin", "1")?;
    stage.meet_handler()?; // It is about to ask.
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner to be stuck", || Ok(actor::state(pid) == Some('R')))
}
