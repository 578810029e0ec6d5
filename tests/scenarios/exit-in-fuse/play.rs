//! The killed owner exits, and its memory map's last page is for a file system that does not answer.

use std::io;

use crate::actor;
use crate::roles::exiting;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !exiting::enter_fuse(stage, "write")? {
        return Ok(());
    }
    let pid = stage.owner("exits-in-fuse", &[], &[])?;
    stage.signal("owner", libc::SIGKILL)?;
    let mut last = None;
    until("the owner's exit to stick", || {
        last = actor::state(pid);
        Ok(matches!(last, Some('D' | 'Z')))
    })?;
    if last == Some('Z') {
        stage.skip("this kernel does not wait for FUSE when a memory map goes");
        return Ok(());
    }
    stage.meet_handler()
}
