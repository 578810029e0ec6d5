//! A PyTorch training at work.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.cuda(&["train.py"]).map(drop)
}
