//! The process between the owner and the survivor has gone before.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks-twice", &[], &["grandchild"])
}
