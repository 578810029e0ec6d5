//! cgroup v2 freezer.

use std::io;

use crate::cgroup::Cgroup;
use crate::stage::{Stage, until};

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(group) = Cgroup::unified(stage, "outlive-scenario")? else { return Ok(()) };
    group.add(stage.owner("user", &[], &[])?)?;
    group.at_end(stage, Some(("cgroup.freeze", "0")));
    group.write("cgroup.freeze", "1")?;
    until("the cgroup to be frozen", || Ok(group.read("cgroup.events")?.contains("frozen 1")))
}
