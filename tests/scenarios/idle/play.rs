//! An idle GPU: nothing but what the driver keeps for itself.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.books.idle()
}
