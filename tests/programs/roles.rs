//! All roles (what an actor does), by name.
//!
//! Always true: a role says "ready" when everything that it promises is so, and then waits until the play ends.

mod contained;
pub(crate) mod exiting;
mod harmless;
mod inherited;
mod living;
mod passed;
mod stopped;

use std::io;

use crate::actor::Actor;

type Role = fn(&mut Actor) -> io::Result<()>;

/// Every role.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("idle", living::idle),
    ("user", living::user),
    ("maps", living::maps),
    ("forks", inherited::forks),
    ("forks-twice", inherited::forks_twice),
    ("chain", inherited::chain),
    ("forks-into-pipe", inherited::forks_into_pipe),
    ("forks-under-load", inherited::forks_under_load),
    ("contains", contained::contains),
    ("forks-exec", inherited::forks_exec),
    ("sends", passed::sends),
    ("sends-later", passed::sends_later),
    ("receives", passed::receives),
    ("receives-and-sends", passed::receives_and_sends),
    ("receives-from", passed::receives_from),
    ("receives-and-forks", passed::receives_and_forks),
    ("steals", passed::steals),
    ("leaves-in-flight", passed::leaves_in_flight),
    ("never-reads", passed::never_reads),
    ("registers", passed::registers),
    ("leader-exits", living::leader_exits),
    ("thread-owns", living::thread_owns),
    ("asks-driver", living::asks_driver),
    ("thread-asks-driver", living::thread_asks_driver),
    ("launches", living::launches),
    ("handles-term", living::handles_term),
    ("ignores-term", living::ignores_term),
    ("blocks-term", living::blocks_term),
    ("traces", stopped::traces),
    ("dumps-core", exiting::dumps_core),
    ("dumps-remote-page", exiting::dumps_remote_page),
    ("serves-fuse", exiting::serves_fuse),
    ("reads-fuse", exiting::reads_fuse),
    ("exits-in-fuse", exiting::exits_in_fuse),
    ("never-waits", harmless::never_waits),
    ("computes", harmless::computes),
    ("forks-opath", harmless::forks_opath),
];
