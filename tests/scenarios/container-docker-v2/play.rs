//! A trainer in a docker container (cgroup v2, systemd driver) is killed and its worker is not.

use std::io;

use crate::cgroup::Cgroup;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(group) = Cgroup::unified(stage, "system.slice/docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope")? else { return Ok(()) };
    group.at_end(stage, None);
    stage.enters(&group);
    stage.owner_dies("forks", &["child:all"], &["child"])
}
