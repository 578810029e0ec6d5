//! A process took the control descriptor out of the owner (`pidfd_getfd`).

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let owner = stage.owner("user", &[], &[])?.to_string();
    // The owner opened /dev/nvidiactl first.
    let control = stage.held("owner", "owner").first().map(ToString::to_string).unwrap_or_default();
    stage.enter("thief", "steals", &[&owner, &control])?;
    stage.kill_and_reap("owner")
}
