//! A shell's Ctrl+Z.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[])?;
    stage.signal("owner", libc::SIGTSTP)?;
    stage.until_child("owner", libc::WSTOPPED | libc::WNOWAIT)
}
