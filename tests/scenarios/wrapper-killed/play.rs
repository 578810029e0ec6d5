//! `sh -c 'trainer & wait'` is killed, in the process group of the script that started it.

use std::io;
use std::process::Command;

use crate::stage::{OWNED_MIB, Stage};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let trainer = stage.command("owner", "user", &[])?;
    let mut wrapper = Command::new("sh");
    // The shell gives a background job /dev/null for input unless told otherwise.
    wrapper.args(["-c", "exec 3<&0; \"$@\" <&3 3<&- & wait", "wrapper"]).arg(trainer.get_program()).args(trainer.get_args());
    stage.direct(&mut wrapper)?;
    let pid = wrapper.spawn()?.id();
    stage.cast("wrapper", pid)?;
    stage.meet(&["owner"])?;
    stage.charge("owner", OWNED_MIB)?;
    stage.kill_and_reap("wrapper")
}
