//! Forty GiB of pinned host memory take seconds to give back after SIGKILL.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["pinned", "40960"])? {
        return Ok(());
    }
    stage.signal("owner", libc::SIGKILL)?;
    // Into the middle of it.
    std::thread::sleep(std::time::Duration::from_millis(300));
    Ok(())
}
