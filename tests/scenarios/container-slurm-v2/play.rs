//! A trainer in a Slurm step (cgroup v2).

use std::io;

use crate::cgroup::Cgroup;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(group) = Cgroup::unified(stage, "system.slice/slurmstepd.scope/job_4711/step_0/user/task_0")? else { return Ok(()) };
    group.at_end(stage, None);
    stage.enters(&group);
    stage.owner_dies("forks", &["child:all"], &["child"])
}
