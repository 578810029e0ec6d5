//! While the recorder stands still, more happens than its buffers hold: the owner forks a worker and dies in the
//! middle of it.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("forks-under-load", &["child"], &["child"])?;
    stage.kill_and_reap("owner")
}
