//! The same under cgroup v1, cgroupfs driver.

use std::io;

use crate::cgroup::Cgroup;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(group) = Cgroup::legacy(stage, "pids", "docker/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")? else { return Ok(()) };
    group.at_end(stage, None);
    stage.enters(&group);
    stage.owner_dies("forks", &["child:all"], &["child"])
}
