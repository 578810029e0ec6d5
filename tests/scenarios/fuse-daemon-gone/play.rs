//! The daemon of a FUSE file system was killed, but a broker still has its connection, so the kernel goes on
//! waiting for it.

use std::io;

use crate::actor;
use crate::roles::exiting;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !exiting::enter_fuse(stage, "read-brokered")? {
        return Ok(());
    }
    stage.meet(&["broker"])?;
    let pid = stage.owner("reads-fuse", &[], &[])?;
    stage.meet_handler()?; // The server has the request.
    stage.kill_and_reap("server")?;
    stage.signal("owner", libc::SIGKILL)?;
    until("the owner to wait unkillably", || Ok(actor::state(pid) == Some('D')))
}
