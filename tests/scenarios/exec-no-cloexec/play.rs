//! The owner opened its files without close-on-exec, and the child runs another program.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks-exec", &["inheritable"], &["child"])
}
