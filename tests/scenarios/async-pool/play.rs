//! Memory by `cudaMallocAsync`, from a pool.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.cuda(&["async-pool", "2048"]).map(drop)
}
