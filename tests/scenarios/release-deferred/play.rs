//! The driver leaves the release to a kernel thread, which comes to it later; the owner is gone by then.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[])?;
    stage.knob("defer_ms", "12000")?;
    stage.kill_and_reap("owner")
}
