//! Managed memory, on the GPU.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.cuda(&["managed", "2048"]).map(drop)
}
