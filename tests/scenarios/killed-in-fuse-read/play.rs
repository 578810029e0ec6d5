//! The owner waits for a network file system that does not answer, and SIGKILL cannot end that wait.

use std::io;

use crate::actor;
use crate::roles::exiting;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !exiting::enter_fuse(stage, "read")? {
        return Ok(());
    }
    let pid = stage.owner("reads-fuse", &[], &[])?;
    stage.meet_handler()?; // The server has the request.
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner to wait unkillably", || Ok(actor::state(pid) == Some('D')))
}
