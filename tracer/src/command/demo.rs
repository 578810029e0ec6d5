//! `outlive demo`: explains a recorded incident of a real H200.

use super::output;
use crate::cli::{Common, Demo};
use crate::offline::{self, Moment};
use crate::report::text;
use anyhow::Result;

/// Recorded on a host with one NVIDIA H200: a PyTorch trainer was killed, its DataLoader workers live on (demo/README.md).
const RECORDING: &[u8] = include_bytes!("../../demo/h200-dataloader.jsonl.zst");

pub(super) fn run(args: &Demo, common: &Common) -> Result<u8> {
    let world = offline::world_from_bytes(RECORDING, Moment::End)?;
    let answer = crate::explanation::explain(&world);
    if args.json {
        output::print_json(&answer)?;
    } else {
        let style = output::style(common);
        let about = "A recording of a real NVIDIA H200. A PyTorch trainer was killed with SIGKILL while its DataLoader \
                     workers were stuck in I/O; nvidia-smi said \"No running processes found\". What `outlive explain` \
                     says of it:";
        output::print(&crate::report::layout::wrap(about, style.width, "", ""))?;
        output::print("\n")?;
        output::print(&text::explanation(&answer, &style))?;
    }
    Ok(answer.exit_code())
}
