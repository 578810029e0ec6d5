//! What an event can say of a process: who it is, and how it stands.
//!
//! Always true: every field but the id may be absent or zero; absent means "not known", never "none".

use super::{BootNs, ProcessId, Token};
use serde::{Deserialize, Serialize};

/// A container, as read from a cgroup path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// "docker", "containerd", "crio", "podman", "slurm", ...
    pub runtime: String,
    /// Container id, job id, ...
    pub id: String,
    /// Kubernetes pod uid, when the path names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// What is known of a process. Every field but `id` may be absent; a later event adds to an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInfo {
    /// Who.
    pub id: ProcessId,
    /// `real_parent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<ProcessId>,
    /// `comm` of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// Arguments joined by spaces, at most 4,096 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    /// Uid in the initial user namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// PID in its innermost namespace, when that is not the initial one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_pid: Option<u32>,
    /// Process group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pgrp: Option<u32>,
    /// Session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u32>,
    /// cgroup path (v2, or the pids controller's on v1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// What that path says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// PF_FORKNOEXEC: it never executed a program of its own since it was forked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub never_execed: Option<bool>,
    /// Its credentials' token: equal to that of the files that it opened itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cred: Option<Token>,
    /// It uses the GPU or descends from a process that does; else it is only an ancestor, or was met by a scan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_user: Option<bool>,
    /// How many processes its cgroup may have; only of a process that has zombies to wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<PidsLimit>,
}

/// How many processes a cgroup has and may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PidsLimit {
    /// The cgroup with the limit: the process's own or one above it.
    pub cgroup: String,
    /// Tasks in it, zombies included until they are reaped.
    pub current: u64,
    /// The most that it may have.
    pub max: u64,
}

impl PidsLimit {
    /// Tasks that it can still take.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.max.saturating_sub(self.current)
    }
}

/// How a process or thread stands now, as a scan saw it. Masks are bit (signal − 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessState {
    /// Who.
    pub id: ProcessId,
    /// State letter of the leader, as `ps` prints it (R S D T t Z X I).
    pub state: String,
    /// Threads that have not exited.
    pub live_threads: u32,
    /// The leader has exited (it shows as a zombie).
    pub leader_exited: bool,
    /// At least one thread has PF_EXITING and is not yet a zombie.
    pub exiting: bool,
    /// A core dump is being written (`CoreDumping: 1`).
    pub dumping_core: bool,
    /// Its ptracer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracer: Option<ProcessId>,
    /// Its cgroup is frozen.
    pub frozen: bool,
    /// The file that thaws it: cgroup.freeze (version 2) or freezer.state (version 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freezer: Option<String>,
    /// Signals pending for the group and the leader.
    pub pending: u64,
    /// Blocked by the leader.
    pub blocked: u64,
    /// Ignored.
    pub ignored: u64,
    /// Caught by a handler.
    pub caught: u64,
    /// CPU time of all threads, ns.
    pub cpu_ns: u64,
    /// wait status of a zombie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u32>,
    /// Threads worth a look: exiting, uninterruptible, or with a fatal signal pending.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<StuckThread>,
}

impl ProcessState {
    /// It is on its way out: its exit has begun, or SIGKILL is pending.
    #[must_use]
    pub const fn must_die(&self) -> bool {
        self.exiting || self.pending & (1 << 8) != 0
    }
}

/// A thread that neither runs user code nor is gone. What could not be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StuckThread {
    /// Thread id.
    pub tid: u32,
    /// comm of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// State letter.
    pub state: String,
    /// It is exiting.
    pub exiting: bool,
    /// Kernel stack, innermost first: "uvm_spin_loop+0x1c/0x90 [nvidia_uvm]". Empty also while the thread is on a CPU.
    pub stack: Vec<String>,
    /// The function that it sleeps in (/proc/PID/task/TID/wchan), where there is no stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// The system call that it is in, where it is not running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<String>,
    /// What the descriptor of that call is: "/dev/nvidia-uvm".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// CPU time of the thread so far, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// What of that it used between the last two looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran: Option<Ran>,
    /// First look that found it in the same place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_since: Option<BootNs>,
    /// File systems that it may be waiting for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

/// CPU time that a thread used, and in how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ran {
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// Time between the two looks, ns.
    pub over_ns: u64,
}

impl Ran {
    /// It was on a CPU for at least half of the time.
    #[must_use]
    pub const fn spins(self) -> bool {
        self.over_ns > 0 && self.cpu_ns.saturating_mul(2) >= self.over_ns
    }

    /// Part of the time that it was on a CPU, per cent.
    #[must_use]
    pub fn percent(self) -> u64 {
        self.cpu_ns.saturating_mul(100).checked_div(self.over_ns).unwrap_or_default()
    }
}

/// A mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mount {
    /// Where.
    pub point: String,
    /// "fuse.rclone", "nfs4", "ext4".
    pub kind: String,
    /// "server:/export", "rclone", "/dev/sda1".
    pub source: String,
    /// Major and minor number of its device.
    pub dev: (u32, u32),
    /// Of a FUSE mount, the file that aborts its connection, where there is one: its folder has the number of the mount's device
    /// (fuse_ctl_add_conn, fs/fuse/control.c), and it is missing where fusectl is not mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<String>,
    /// How it is known that the thread waits for it.
    pub by: MountBy,
    /// `point` is a path in another mount namespace than that of PID 1: of a container.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inside: bool,
}

/// Why a mount is in a list, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountBy {
    /// The thread's system call works on a file of it.
    Syscall,
    /// The process has a file of it open or mapped.
    Open,
    /// It is mounted where the process can see it.
    #[default]
    #[serde(other)]
    Mounted,
}

/// A thread of the kernel itself that is inside the NVIDIA driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelThread {
    /// Who.
    pub id: ProcessId,
    /// "kworker/3:1", "nv_queue", "UVM deferred release queue".
    pub comm: String,
    /// Where it is.
    pub thread: StuckThread,
}
