//! `outlive demo`: explains a recorded incident of a real H200.

use super::output;
use crate::cli::{Common, Demo};
use crate::explanation;
use crate::offline::{self, Moment};
use crate::report::text;
use anyhow::Result;

/// Recorded on a host with one NVIDIA H200: a training process was killed, a child that it had forked lives on.
const RECORDING: &[u8] = include_bytes!("../../demo/h200-inherited.jsonl.zst");

pub(super) fn run(args: &Demo, common: &Common) -> Result<u8> {
    let world = offline::world_from_bytes(RECORDING, Moment::End)?;
    let answer = crate::explain::explain(&world);
    if args.json {
        output::print_json(&answer)?;
    } else {
        let style = output::style(common);
        let about = "A recording of a real incident: one NVIDIA H200, a process killed with SIGKILL, and a child \
                     that it had forked. This is what `outlive explain` said while it lasted.";
        output::print(&crate::report::layout::wrap(about, style.width, "", ""))?;
        output::print("\n")?;
        output::print(&text::explanation(&answer, &style))?;
    }
    Ok(answer.exit_code())
}
