//! All descriptors of /dev/nvidia0, and no other.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks", &["child:nvidia0"], &["child"])
}
