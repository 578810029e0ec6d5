//! The same with cgroup v1 names.

use std::io;

use crate::cgroup::Cgroup;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(group) = Cgroup::legacy(stage, "pids", "kubepods/burstable/pod11111111-2222-3333-4444-555555555555/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")? else { return Ok(()) };
    group.at_end(stage, None);
    stage.enters(&group);
    stage.owner_dies("forks", &["child:all"], &["child"])
}
