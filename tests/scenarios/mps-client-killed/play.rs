//! A client of an MPS server is killed; its memory goes with it, and what the server has for itself stays.

use std::io;

use crate::programs::Mps;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(mps) = Mps::start(stage)? else { return Ok(()) };
    if !stage.cuda(&["hold", "2048"])? {
        return Ok(());
    }
    let server = mps.server()?;
    stage.cast("server", server)?;
    stage.books.charge("server", server, 0)?;
    stage.kill_and_reap("owner")?;
    stage.books.free("owner")
}
