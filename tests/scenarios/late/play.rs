//! A program that allocates and frees; the recording begins when it already runs.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.cuda(&["churn", "2048"]).map(drop)
}
