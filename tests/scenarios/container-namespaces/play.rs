//! A trainer in its own PID, mount and user namespaces, with device nodes of its own, is killed; its worker, a
//! grandchild of the container, lives on.

use std::io;

use crate::actor;
use crate::stage::{OWNED_MIB, Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let contained = stage.enter("init", "contains", &["owner", "child"]).and_then(|_| stage.meet(&["owner", "child"]));
    if let Err(error) = contained {
        stage.skip(format!("no container can be made here: {error}"));
        return Ok(());
    }
    stage.charge("owner", OWNED_MIB)?;
    stage.signal("owner", libc::SIGKILL)?;
    // Its parent, PID 1 of the container, reaps it.
    let pid = stage.pid("owner")?;
    until("the container to reap the owner", || Ok(actor::state(pid).is_none()))
}
