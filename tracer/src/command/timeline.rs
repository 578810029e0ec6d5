//! `outlive timeline`: how processes ended, step by step, from a trace.

use super::output;
use crate::cli::{Common, Timeline};
use crate::offline::{self, Moment};
use crate::{report, timeline};
use anyhow::{Result, bail};

pub(super) fn run(args: &Timeline, common: &Common) -> Result<u8> {
    let world = offline::world(&[&args.file], Moment::End)?;
    let timelines = timeline::timelines(&world, args.pid);
    if let (Some(pid), true) = (args.pid, timelines.is_empty()) {
        bail!("{} has nothing about PID {pid}; `outlive timeline {0}` lists the processes that it knows", args.file.display());
    }
    if args.json {
        output::print_json(&timelines)?;
    } else {
        output::print(&report::timeline::text(&timelines, &output::style(common)))?;
    }
    Ok(0)
}
