//! One descriptor sits unread in a socket that a child kept from before the owner used the GPU.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("leaves-in-flight", &[], &["keeper"])
}
