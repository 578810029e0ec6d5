//! A notebook kernel that nobody ended.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[]).map(drop)
}
