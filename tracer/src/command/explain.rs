//! `outlive explain`: why is memory held, now or at a moment of a trace.

use super::output;
use crate::cli::{Common, Explain};
use crate::explanation::Explanation;
use crate::live;
use crate::offline::{self, Moment};
use crate::report::text;
use crate::source::procfs::Proc;
use crate::world::World;
use anyhow::{Result, ensure};
use std::path::Path;

pub(super) fn run(args: &Explain, common: &Common) -> Result<u8> {
    let mut answer = match &args.trace {
        Some(path) => {
            let moment = args.at.unwrap_or(Moment::End);
            crate::explanation::explain(&offline::world(&[path], moment)?)
        }
        None => look(args, common)?,
    };
    super::ensure_gpu(&answer, args.gpu)?;
    only(&mut answer, args.gpu, args.pid);
    if args.json {
        output::print_json(&answer)?;
    } else if let Some(pid) = args.pid.filter(|_| answer.holdings.is_empty() && answer.zombies.is_empty()) {
        let exists = args.trace.is_some() || Proc::default().start_ticks(pid).is_some();
        let who = if exists { format!("PID {pid}") } else { format!("PID {pid}, which no process has now,") };
        output::print(&text::nothing_of(&who, &answer, &output::style(common)))?;
    } else {
        output::print(&text::explanation(&answer, &output::style(common)))?;
    }
    Ok(answer.exit_code())
}

/// Looks at the running host.
fn look(args: &Explain, common: &Common) -> Result<Explanation> {
    let history = match &args.history {
        Some(path) => of_this_boot(path, offline::world(&[path], Moment::End)?)?,
        None => World::default(),
    };
    let live = live::look(common, history)?;
    Ok(crate::explanation::explain(&live))
}

/// PIDs, times and tokens of another boot mean nothing here.
fn of_this_boot(path: &Path, world: World) -> Result<World> {
    let here = Proc::default().host().boot_id;
    let there = world.host().header.as_deref().map(|h| h.boot_id.as_str()).unwrap_or_default();
    ensure!(
        there == here,
        "{} was recorded in another boot of this host, or on another host; `outlive explain --trace` reads it alone",
        path.display()
    );
    Ok(world)
}

/// Leaves out what was not asked for: no cause changes, and the exit code is about what is left.
fn only(answer: &mut Explanation, gpu: Option<u32>, pid: Option<u32>) {
    if let Some(gpu) = gpu {
        answer.gpus.retain(|g| g.index == gpu);
        answer.holdings.retain(|h| h.gpu.is_none_or(|g| g == gpu));
    }
    if let Some(pid) = pid {
        answer.holdings.retain(|h| {
            h.owner.as_ref().is_some_and(|o| o.pid == pid) || h.holders.iter().any(|holder| holder.pid == pid)
        });
        answer.zombies.retain(|z| z.pid == pid || z.parent.as_ref().is_some_and(|p| p.pid == pid));
    }
}
