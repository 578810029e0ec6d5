//! The main thread has exited, a worker thread lives.

use std::io;

use crate::actor;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let pid = stage.owner("leader-exits", &[], &[])?;
    until("the leader to be a zombie", || Ok(actor::state(pid) == Some('Z')))
}
