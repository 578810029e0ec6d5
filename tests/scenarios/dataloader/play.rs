//! A PyTorch trainer with DataLoader workers is killed.

use std::io;

use crate::stage::Stage;

pub(crate) fn play(stage: &mut Stage) -> io::Result<()> {
    if !stage.cuda(&["dataloader.py"])? {
        return Ok(());
    }
    stage.kill_and_reap("owner")?;
    // A worker that was not in its storage when its parent ended may notice, and end too.
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    Ok(())
}
