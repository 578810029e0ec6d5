//! One sits behind other data in the socket of a server that does not read; only /dev/nvidia-uvm, so NVML is
//! silent.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.start("keeper", "never-reads", &["socket"])?;
    stage.owner_dies("sends-later", &["socket"], &["keeper"])?;
    stage.books.unlist("owner")
}
