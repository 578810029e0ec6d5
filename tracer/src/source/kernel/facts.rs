//! What this process may do to this kernel, read from /proc and /sys before anything is tried.
//!
//! Always true: reading facts changes nothing and needs no privilege; a fact that cannot be read counts as absent.

use std::fs;
use std::path::Path;

use super::btf;
use crate::sys::{self, Capability};

/// Inode number of the initial PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// See the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Effective uid 0.
    pub root: bool,
    /// It may load programs: CAP_BPF, or CAP_SYS_ADMIN.
    pub can_load: bool,
    /// Its programs may read kernel memory and it may open tracepoints: CAP_PERFMON, or CAP_SYS_ADMIN.
    pub can_trace: bool,
    /// /sys/kernel/btf/vmlinux exists.
    pub btf: bool,
    /// tracefs is mounted.
    pub tracefs: bool,
    /// tracefs exists in this kernel, and may be mounted privately (CAP_SYS_ADMIN).
    pub tracefs_mountable: bool,
    /// This process is in the initial PID namespace, so that the PIDs it reads in /proc are those that events carry.
    pub initial_pid_namespace: bool,
}

impl Facts {
    /// Of the calling thread.
    #[must_use]
    pub fn gather() -> Facts {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let rights = Rights::parse(&status);
        Facts {
            root: rights.uid == Some(0),
            can_load: rights.has(Capability::Bpf),
            can_trace: rights.has(Capability::Perfmon),
            btf: Path::new(btf::PATH).exists(),
            tracefs: sys::tracefs_is_mounted(),
            tracefs_mountable: rights.has(Capability::SysAdmin) && filesystems.lines().any(|line| line.ends_with("\ttracefs")),
            initial_pid_namespace: namespace.as_os_str() == INITIAL_PID_NAMESPACE,
        }
    }
}

/// From /proc/PID/status.
struct Rights {
    uid: Option<u32>,
    capabilities: u64,
}

impl Rights {
    fn parse(status: &str) -> Rights {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        Rights {
            // Real, effective, saved, filesystem.
            uid: field("Uid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()),
            capabilities: field("CapEff:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0),
        }
    }

    /// CAP_SYS_ADMIN stands for the others, as in the kernel (`bpf_capable`, `perfmon_capable`).
    fn has(&self, capability: Capability) -> bool {
        [capability, Capability::SysAdmin].iter().any(|one| self.capabilities >> (*one as u8) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_from_the_effective_sets() {
        let status = "Name:\tx\nUid:\t1000\t0\t1000\t1000\nCapPrm:\t000001ffffffffff\nCapEff:\t0000008000000000\n";
        let rights = Rights::parse(status);
        assert_eq!(rights.uid, Some(0));
        assert!(rights.has(Capability::Bpf) && !rights.has(Capability::Perfmon));
        assert!(Rights::parse("CapEff:\t0000000000200000\n").has(Capability::Perfmon), "CAP_SYS_ADMIN stands for it");
        assert!(!Rights::parse("nonsense").has(Capability::Bpf));
    }
}
