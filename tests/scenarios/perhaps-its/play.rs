//! Memory that NVML charges to nobody, while a program that uses the GPU lives which may have it or not.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner("user", &[], &[])?;
    stage.books.lose(2_048)
}
