//! An exported handle sits unread in a unix socket; the exporter is killed.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["in-flight", "2048"])? {
        return Ok(());
    }
    stage.kill_and_reap("owner")
}
