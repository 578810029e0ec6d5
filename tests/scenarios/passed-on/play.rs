//! The broker passed them on to a third process and closed its own.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.start("middle", "receives-and-sends", &["first", "second"])?;
    stage.start("receiver", "receives", &["second", "cloexec"])?;
    stage.owner_dies("sends", &["first"], &["middle", "receiver"])
}
