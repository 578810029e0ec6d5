//! A killed owner whose request the driver never answers: it spins there.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};

/// More than the way there takes.
const SPUN_TICKS: u64 = 10;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.owner("asks-driver", &[], &[])?;
    stage.knob("ioctl_spin", "1")?;
    stage.meet_handler()?; // It is about to ask.
    let before = actor::kernel_ticks(pid);
    until("the owner to spin in the driver", || Ok(actor::kernel_ticks(pid) >= before + SPUN_TICKS))?;
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner to be stuck", || Ok(actor::state(pid) == Some('R')))
}
