//! A trainer at work, with its workers.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("forks", &["first:all", "second:all"], &["first", "second"]).map(drop)
}
