//! Memory by `cuMemCreate` and `cuMemMap`.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.cuda(&["vmm", "2048"]).map(drop)
}
