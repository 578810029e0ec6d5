//! SIGSTOP, and then a SIGTERM that cannot be delivered.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[])?;
    stage.signal("owner", libc::SIGSTOP)?;
    stage.until_child("owner", libc::WSTOPPED | libc::WNOWAIT)?;
    stage.signal("owner", libc::SIGTERM)
}
