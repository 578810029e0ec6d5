//! The driver gives a large memory back slowly.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[])?;
    stage.knob("release_ms", "24000")?;
    stage.signal("owner", libc::SIGKILL)?;
    // Into the middle of it.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    Ok(())
}
