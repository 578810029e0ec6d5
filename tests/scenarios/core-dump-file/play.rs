//! An owner aborts; its core goes to a file, and one page of it is on a file system that does not answer.

use std::io;

use crate::roles::exiting;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !exiting::enter_fuse(stage, "page")? {
        return Ok(());
    }
    stage.owner("dumps-remote-page", &[], &[])?;
    let pattern = stage.path("core").display().to_string();
    exiting::dump_core(stage, &pattern, || true)?;
    stage.meet_handler() // The server has the request.
}
