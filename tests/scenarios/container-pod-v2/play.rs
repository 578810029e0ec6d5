//! A trainer in a Kubernetes pod, run by containerd (cgroup v2).

use std::io;

use crate::cgroup::Cgroup;
use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    let Some(group) = Cgroup::unified(stage, "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope")? else { return Ok(()) };
    group.at_end(stage, None);
    stage.enters(&group);
    stage.owner_dies("forks", &["child:all"], &["child"])
}
