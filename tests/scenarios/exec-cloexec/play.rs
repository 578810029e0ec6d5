//! The child of a dead owner has executed a program: close-on-exec closed everything.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks-exec", &["cloexec"], &["child"])?;
    stage.books.free("owner")
}
