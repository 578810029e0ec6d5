//! cgroup v1 freezer.

use std::io;

use crate::cgroup::Cgroup;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(group) = Cgroup::legacy(stage, "freezer", "outlive-scenario")? else { return Ok(()) };
    group.add(stage.owner("user", &[], &[])?)?;
    group.at_end(stage, Some(("freezer.state", "THAWED")));
    group.write("freezer.state", "FROZEN")?;
    until("the cgroup to be frozen", || Ok(group.read("freezer.state")?.trim() == "FROZEN"))
}
