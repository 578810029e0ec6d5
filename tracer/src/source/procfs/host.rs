//! Facts about the host, for the header of a trace.

use super::{Proc, bounded};
use crate::event::Header;
use std::collections::BTreeMap;

/// The driver's modules, and those that pin its memory.
const MODULES: [&str; 6] = ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "gdrdrv"];

/// Inode number of the initial PID namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// What does not change while we run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Host name.
    pub hostname: String,
    /// `uname -r`.
    pub kernel: String,
    /// Identifies this boot.
    pub boot_id: String,
    /// Largest PID + 1.
    pub pid_max: Option<u32>,
    /// Version of the loaded NVIDIA driver.
    pub driver: Option<String>,
    /// We see the PIDs that the kernel uses.
    pub initial_pid_namespace: bool,
}

impl Host {
    /// Puts these facts into a header.
    pub fn fill(self, header: &mut Header) {
        header.hostname = self.hostname;
        header.kernel = self.kernel;
        header.boot_id = self.boot_id;
        header.pid_max = self.pid_max;
        header.driver = self.driver;
        header.initial_pid_namespace = self.initial_pid_namespace;
    }
}

impl Proc {
    /// Reads them; what cannot be read stays empty.
    #[must_use]
    pub fn host(&self) -> Host {
        let namespace = std::fs::read_link(self.root.join("proc/self/ns/pid"));
        Host {
            hostname: self.line("proc/sys/kernel/hostname").unwrap_or_default(),
            kernel: self.line("proc/sys/kernel/osrelease").unwrap_or_default(),
            boot_id: self
                .line("proc/sys/kernel/random/boot_id")
                .unwrap_or_default(),
            pid_max: self.number("proc/sys/kernel/pid_max"),
            driver: self.driver(),
            initial_pid_namespace: namespace
                .is_ok_and(|link| link.as_os_str() == INITIAL_PID_NAMESPACE),
        }
    }

    /// Users of each loaded module of the driver: open files, and other modules.
    #[must_use]
    pub fn modules(&self) -> BTreeMap<String, u32> {
        let users = |name: &&str| Some(((*name).to_owned(), self.number(format!("sys/module/{name}/refcnt"))?));
        MODULES.iter().filter_map(users).collect()
    }

    /// Version of the loaded NVIDIA driver.
    #[must_use]
    pub fn driver(&self) -> Option<String> {
        let banner = self.text("proc/driver/nvidia/version");
        banner
            .as_deref()
            .and_then(version)
            .or_else(|| self.line("sys/module/nvidia/version"))
            .filter(|v| !v.is_empty())
    }
}

/// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..." -> "580.159.04".
fn version(banner: &str) -> Option<String> {
    let line = banner
        .lines()
        .find(|line| line.starts_with("NVRM version:"))?;
    let is_version = |word: &&str| {
        word.contains('.')
            && word
                .split('.')
                .all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    line.split_ascii_whitespace()
        .find(is_version)
        .map(|word| bounded(word, 64).to_owned())
}
