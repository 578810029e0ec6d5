//! The driver leaves the release to a kernel thread, which never finishes it; the owner is gone.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[])?;
    stage.knob("release_sleep", "1")?;
    stage.knob("defer_ms", "1")?;
    stage.kill_and_reap("owner")?;
    // The kernel thread's turn has come.
    std::thread::sleep(std::time::Duration::from_millis(500));
    Ok(())
}
