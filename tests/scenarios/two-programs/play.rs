//! Two programs hold memory at once, the second half as much.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.cuda(&["two", "2048"])?;
    let other = stage.pid("other")?;
    stage.books.charge("other", other, 0)
}
