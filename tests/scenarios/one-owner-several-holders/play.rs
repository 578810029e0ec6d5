//! Three children, one with less.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks", &["first:all", "second:all", "third:ctl"], &["first", "second", "third"])
}
