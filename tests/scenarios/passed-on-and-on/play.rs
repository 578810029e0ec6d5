//! Descriptors go through three brokers, each of which closes its own and lives on, or is killed.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    for (name, from, to) in [("one", "a", "b"), ("two", "b", "c"), ("three", "c", "d")] {
        stage.start(name, "receives-and-sends", &[from, to])?;
    }
    stage.start("receiver", "receives", &["d", "cloexec"])?;
    stage.owner("sends", &["a"], &["one", "two", "three", "receiver"])?;
    stage.kill_and_reap("two")?;
    stage.kill_and_reap("owner")
}
