//! The driver forgets to free the memory of a killed owner.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[])?;
    stage.knob("lose", "1")?;
    stage.kill_and_reap("owner")
}
