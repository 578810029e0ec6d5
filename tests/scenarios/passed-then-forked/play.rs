//! The broker forks a worker that keeps the descriptors, and is killed like the owner.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.start("receiver", "receives-and-forks", &["socket", "worker"])?;
    stage.owner("sends", &["socket"], &["receiver", "worker"])?;
    stage.kill_and_reap("receiver")?;
    stage.kill_and_reap("owner")
}
