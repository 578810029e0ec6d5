//! What one scan of the host saw, and which events that makes of it given what is already known.
//!
//! Always true: plain data and a pure function. The I/O that fills a [`Snapshot`] (BPF iterators, /proc) is in
//! [`crate::source`]; turning it into events is [`Snapshot::events`], which emits only what the world does not
//! know yet, so a scan of an unchanged host costs one event.

use crate::event::{BootNs, Hold, ProcessId, ProcessInfo, ProcessState, Token};

/// One thread, from `iter/task`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskLine {
    /// Its process.
    pub id: ProcessId,
    /// Thread id.
    pub tid: u32,
    /// comm of this thread.
    pub comm: String,
    /// `real_parent`'s process.
    pub parent: ProcessId,
    /// ptracer, if any.
    pub tracer: Option<ProcessId>,
    /// Credentials token.
    pub cred: Token,
    /// Files table token; 0 when gone.
    pub files: Token,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// `__state` bits.
    pub state: u32,
    /// `exit_state` bits.
    pub exit_state: u32,
    /// `flags` bits (PF_*).
    pub flags: u32,
    /// wait status.
    pub exit_code: u32,
    /// `signal->live`.
    pub live: u32,
    /// `jobctl` bits.
    pub jobctl: u32,
    /// Uid.
    pub uid: u32,
    /// Innermost PID.
    pub ns_pid: u32,
    /// Namespace depth.
    pub ns_level: u32,
    /// Session.
    pub session: u32,
    /// Process group.
    pub pgrp: u32,
}

/// Everything that one scan saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// When the scan began, boottime ns.
    pub began: BootNs,
    /// When it ended.
    pub ended: BootNs,
    /// Every thread of the host.
    pub tasks: Vec<TaskLine>,
    /// Every holding of an NVIDIA file, in-flight and io_uring ones included (`via` set for these).
    pub holds: Vec<Hold>,
    /// Details of the processes that matter (read from /proc): cmdline, cgroup.
    pub infos: Vec<ProcessInfo>,
    /// How they stand.
    pub states: Vec<ProcessState>,
    /// Zombies, threads and tables could all be read.
    pub complete: bool,
}

