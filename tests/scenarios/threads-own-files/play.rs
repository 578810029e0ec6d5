//! One thread has a descriptor table of its own, and opened the GPU in it.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("thread-owns", &[], &[]).map(drop)
}
