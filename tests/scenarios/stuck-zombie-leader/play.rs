//! The main thread of a killed owner is a zombie; another thread is stuck in the driver.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.owner("thread-asks-driver", &[], &[])?;
    stage.knob("ioctl_sleep", "1")?;
    stage.meet_handler()?; // It is about to ask.
    stage.signal("owner", libc::SIGKILL)?;
    until("the leader to be a zombie", || Ok(actor::state(pid) == Some('Z')))
}
