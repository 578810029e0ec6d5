//! One scan of the host, as events that the world does not know yet: the piece that a look and a recording share.
//!
//! Always true: our own process is left out; only processes that matter are read in /proc.

use crate::event::{BootNs, DeviceNode, Event, Header, What};
use crate::snapshot::{self, Snapshot};
use crate::source::kernel::{Kernel, ScanPart};
use crate::source::procfs::Proc;
use crate::sys;
use crate::world::World;
use anyhow::Result;

/// Runs the iterators; `own` is our own tgid.
///
/// # Errors
/// When an iterator cannot be read.
pub fn scan(kernel: &mut Kernel, own: u32) -> Result<ScanPart> {
    let mut part = kernel.scan()?;
    part.holds.retain(|hold| hold.id.tgid() != own);
    Ok(part)
}

/// What a scan says that `world` does not know.
#[must_use]
pub fn compare(part: ScanPart, proc: &Proc, world: &World) -> Vec<Event> {
    let relevant = snapshot::relevant(world, &part.tasks, &part.holds);
    let (infos, states) = proc.describe(&part.tasks, &relevant);
    let ScanPart { began, ended, tasks, holds, complete, .. } = part;
    Snapshot { began, ended, tasks, holds, infos, states, complete }.events(world)
}

/// First event of a trace and of a look: what host this is and what is attached.
#[must_use]
pub fn header(proc: &Proc, kernel: &Kernel, devices: Vec<DeviceNode>, watching_since: Option<BootNs>) -> Event {
    let mut header = Header {
        schema: crate::trace::SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        real_ns: sys::realtime_ns(),
        hooks: kernel.hooks(),
        devices,
        watching_since,
        ..Header::default()
    };
    proc.host().fill(&mut header);
    Event { at: sys::boottime_ns(), what: What::Header(Box::new(header)) }
}
