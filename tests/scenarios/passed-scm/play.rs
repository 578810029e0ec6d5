//! A broker received all descriptors over a unix socket. It never had anything to do with the owner.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.start("receiver", "receives", &["socket", "plain"])?;
    stage.owner_dies("sends", &["socket"], &["receiver"])
}
