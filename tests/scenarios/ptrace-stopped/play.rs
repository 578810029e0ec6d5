//! A debugger has stopped it.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let owner = stage.owner("user", &[], &[])?.to_string();
    stage.enter("debugger", "traces", &[&owner]).map(drop)
}
