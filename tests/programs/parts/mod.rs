//! All parts (what the stage does) and roles (what an actor does), by name.
//!
//! Always true: a part's function returns when the incident is on, with the stage's books telling NVML's truth.

pub(crate) mod exiting;
mod harmless;
mod inherited;
mod living;
mod passed;
mod stopped;

use std::io;

use crate::actor::Actor;
use crate::stage::Stage;

type Part = fn(&mut Stage) -> io::Result<()>;
type Role = fn(&mut Actor) -> io::Result<()>;

/// What an owner allocates: the context of a CUDA program and 2 GiB, as measured on an H200.
const OWNED_MIB: u64 = 2_566;

/// Every part.
pub(crate) const PARTS: &[(&str, Part)] = &[
    ("inherit", inherited::inherit),
    ("inherit-zombie", inherited::inherit_zombie),
    ("inherit-grandchild", inherited::inherit_grandchild),
    ("inherit-uvm-only", inherited::inherit_uvm_only),
    ("inherit-ctl-only", inherited::inherit_ctl_only),
    ("two-owners", inherited::two_owners),
    ("one-owner-several-holders", inherited::several_holders),
    ("exec-no-cloexec", inherited::exec_no_cloexec),
    ("recycled-pid", inherited::recycled_pid),
    ("passed-scm", passed::passed_scm),
    ("passed-getfd", passed::passed_getfd),
    ("passed-on", passed::passed_on),
    ("in-flight", passed::in_flight),
    ("in-flight-queue", passed::in_flight_queue),
    ("io-uring-registered", passed::io_uring_registered),
    ("alive", living::alive),
    ("alive-with-workers", living::alive_with_workers),
    ("leader-exited", living::leader_exited),
    ("threads-own-files", living::threads_own_files),
    ("orphaned", living::orphaned),
    ("wrapper-killed", living::wrapper_killed),
    ("term-handled", living::term_handled),
    ("term-ignored", living::term_ignored),
    ("term-blocked", living::term_blocked),
    ("stopped-tstp", stopped::tstp),
    ("stopped-then-term", stopped::stop_then_term),
    ("ptrace-stopped", stopped::ptrace),
    ("frozen-v1", stopped::frozen_v1),
    ("frozen-v2", stopped::frozen_v2),
    ("core-dump", exiting::core_dump),
    ("killed-in-fuse-read", exiting::killed_in_fuse_read),
    ("exit-in-fuse", exiting::exit_in_fuse),
    ("zombie-only", harmless::zombie_only),
    ("zombie-gpu", harmless::zombie_gpu),
    ("exec-cloexec", harmless::exec_cloexec),
    ("opath-only", harmless::opath_only),
    ("clean-exit", harmless::clean_exit),
];

/// Every role.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("idle", living::idle),
    ("user", living::user),
    ("forks", inherited::forks),
    ("forks-twice", inherited::forks_twice),
    ("chain", inherited::chain),
    ("forks-exec", inherited::forks_exec),
    ("sends", passed::sends),
    ("sends-later", passed::sends_later),
    ("receives", passed::receives),
    ("receives-and-sends", passed::receives_and_sends),
    ("steals", passed::steals),
    ("leaves-in-flight", passed::leaves_in_flight),
    ("never-reads", passed::never_reads),
    ("registers", passed::registers),
    ("leader-exits", living::leader_exits),
    ("thread-owns", living::thread_owns),
    ("launches", living::launches),
    ("handles-term", living::handles_term),
    ("ignores-term", living::ignores_term),
    ("blocks-term", living::blocks_term),
    ("traces", stopped::traces),
    ("dumps-core", exiting::dumps_core),
    ("serves-fuse", exiting::serves_fuse),
    ("reads-fuse", exiting::reads_fuse),
    ("exits-in-fuse", exiting::exits_in_fuse),
    ("never-waits", harmless::never_waits),
    ("forks-opath", harmless::forks_opath),
];
