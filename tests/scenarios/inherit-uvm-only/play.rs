//! Only /dev/nvidia-uvm is left: NVML names nobody.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    stage.owner_dies("forks", &["child:uvm"], &["child"])?;
    stage.books.unlist("owner")
}
