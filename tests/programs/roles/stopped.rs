//! Roles of those who stop others.

use std::io;

use crate::actor::{self, Actor};
use crate::stage::until;
use crate::sys;

/// Stops the process that the argument names, as a debugger does.
pub(crate) fn traces(actor: &mut Actor) -> io::Result<()> {
    let pid: u32 = actor.arg(0)?.parse().map_err(io::Error::other)?;
    sys::trace_and_stop(pid)?;
    until("the tracee to stop", || Ok(actor::state(pid) == Some('t')))?;
    actor.wait()
}
