//! One descriptor of /dev/nvidiactl is enough.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks", &["child:ctl"], &["child"])
}
