//! A broker collects the descriptors of two trainers; both die.

use std::io;

use crate::stage::{OWNED_MIB, Stage};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.start("receiver", "receives-from", &["first", "second"])?;
    for (owner, mib) in [("first", OWNED_MIB), ("second", 1_542)] {
        stage.enter(owner, "sends", &[owner])?;
        stage.charge(owner, mib)?;
    }
    stage.meet(&["receiver"])?;
    stage.kill_and_reap("first")?;
    stage.kill_and_reap("second")
}
