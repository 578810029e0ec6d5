//! A child closed every descriptor, but has the owner's io_uring, in which one is registered.

use std::io;

use crate::stage::Stage;
use crate::sys;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(ring) = sys::register_in_ring(0)? else {
        stage.skip("io_uring is not permitted here");
        return Ok(());
    };
    sys::close(ring);
    stage.owner_dies("registers", &[], &["child"])
}
