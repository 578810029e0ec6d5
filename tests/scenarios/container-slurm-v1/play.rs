//! A trainer in a Slurm step (cgroup v1).

use std::io;

use crate::cgroup::Cgroup;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(group) = Cgroup::legacy(stage, "pids", "slurm/uid_1000/job_4711/step_0/task_0")? else { return Ok(()) };
    group.at_end(stage, None);
    stage.enters(&group);
    stage.owner_dies("forks", &["child:all"], &["child"])
}
