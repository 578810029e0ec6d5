//! One scan of the host, as events that the world does not know yet: the piece that a look and a recording share.
//!
//! Always true: only processes that matter are read in /proc.

use crate::event::{BootNs, DeviceNode, Event, Header, What};
use crate::snapshot::{self, Snapshot};
use crate::source::kernel::{Kernel, ScanPart};
use crate::source::procfs::Proc;
use crate::sys;
use crate::world::World;

/// What a scan says that `world` does not know.
#[must_use]
pub(crate) fn compare(part: ScanPart, proc: &Proc, world: &World) -> Vec<Event> {
    let worth_reading = snapshot::worth_reading(world, &part.tasks, &part.holds);
    let (infos, states) = proc.describe(&part.tasks, &worth_reading);
    let ScanPart { began, ended, tasks, holds, complete, .. } = part;
    // Reading the kernel's threads and modules is worth it only where something should be released.
    let dying = states.iter().any(|state| state.must_die() && world.uses_gpu(state.id));
    let wanted = dying || world.wants_kernel_threads();
    let kernel_threads = wanted.then(|| proc.kernel_threads(&tasks));
    let modules = wanted.then(|| proc.modules());
    Snapshot { began, ended, tasks, holds, infos, states, kernel_threads, modules, complete }.events(world)
}

/// First event of a trace and of a look: what host this is and what is attached.
#[must_use]
pub(crate) fn header(proc: &Proc, kernel: &Kernel, devices: Vec<DeviceNode>, watching_since: Option<BootNs>) -> Event {
    let mut header = Header {
        schema: crate::trace::SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        hooks: kernel.hooks().to_vec(),
        devices,
        watching_since,
        ..Header::default()
    };
    proc.host().fill(&mut header);
    let at = sys::boottime_ns();
    header.real_ns = u64::try_from(i128::from(at) + sys::wall_offset_ns()).unwrap_or(0);
    Event { at, what: What::Header(Box::new(header)) }
}

/// What the kernel side cannot see, as events.
pub(crate) fn limits(kernel: &Kernel) -> impl Iterator<Item = Event> + '_ {
    let at = sys::boottime_ns();
    kernel.limits().iter().map(move |(missing, voids)| {
        let what = What::Limit { missing: missing.clone(), voids: voids.clone() };
        Event { at, what }
    })
}
