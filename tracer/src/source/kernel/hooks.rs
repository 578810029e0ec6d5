//! The hooks of the watching programs, in order of attachment, and what is not seen without each.
//!
//! Always true: one row per program of the embedded object; names are those of the kernel's tracepoints.

use crate::event::Hook;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    /// Raw tracepoint: works without tracefs.
    Raw,
    /// Tracepoint of this category, through tracefs.
    Tracepoint(&'static str),
}

/// One hook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    /// Name of the program and of the tracepoint.
    pub(super) name: &'static str,
    pub(super) attach: Attach,
    /// What cannot be concluded without it; empty when something else shows the same.
    pub(super) voids: &'static str,
    /// Hosts without it are ordinary: its absence (not a failure to attach) is no limit.
    pub(super) may_be_absent: bool,
}

const fn raw(name: &'static str, voids: &'static str) -> Spec {
    Spec { name, attach: Attach::Raw, voids, may_be_absent: false }
}

const fn call(name: &'static str, voids: &'static str) -> Spec {
    Spec { name, attach: Attach::Tracepoint("syscalls"), voids, may_be_absent: false }
}

/// A system call that some architectures or kernels lack: open, creat and dup2 on arm64, close_range before 5.9.
const fn some_call(name: &'static str, voids: &'static str) -> Spec {
    Spec { may_be_absent: true, ..call(name, voids) }
}

const OPENED: &str = "who opened an NVIDIA file, and when";
const PASSED: &str = "how a process came to an NVIDIA file that it did not open";
const REAPED: &str = "when a zombie was collected, and by whom";

const ASKED: &str = "how much memory each client allocated, who imported it, and what an exported handle keeps";

/// Fork, exec and exit come first: what follows relies on their bookkeeping.
pub(super) const ALL: &[Spec] = &[
    raw("sched_process_fork", "which processes inherited an NVIDIA file by fork"),
    raw("sched_process_exec", "what a process executed, and that its close-on-exec files were closed"),
    raw("sched_process_exit", "when, and with which status, a thread exited"),
    raw("sched_process_free", "when a process was collected by an ancestor that is not watched"),
    raw("signal_generate", "who sent which signal, and when a process became a zombie"),
    raw("signal_deliver", "whether a signal was delivered, and with which action"),
    some_call("sys_exit_open", OPENED),
    call("sys_exit_openat", OPENED),
    some_call("sys_exit_openat2", OPENED),
    some_call("sys_exit_creat", OPENED),
    call("sys_exit_dup", "duplicates of a descriptor between two scans"),
    some_call("sys_exit_dup2", "duplicates of a descriptor between two scans"),
    call("sys_exit_dup3", "duplicates of a descriptor between two scans"),
    call("sys_exit_fcntl", "duplicates of a descriptor between two scans"),
    call("sys_enter_close", "when a descriptor was closed"),
    some_call("sys_exit_close_range", "when descriptors were closed by close_range"),
    // The return first: an entry whose return is not seen would be left over.
    call("sys_exit_ioctl", ASKED),
    call("sys_enter_ioctl", ASKED),
    call("sys_exit_sendmsg", "who put an NVIDIA file into a unix socket"),
    call("sys_exit_sendmmsg", "who put an NVIDIA file into a unix socket"),
    call("sys_exit_recvmsg", PASSED),
    call("sys_exit_recvmmsg", PASSED),
    some_call("sys_exit_pidfd_getfd", PASSED),
    call("sys_exit_wait4", REAPED),
    call("sys_exit_waitid", REAPED),
    Spec { name: "mark_victim", attach: Attach::Tracepoint("oom"), voids: "that the OOM killer chose a process", may_be_absent: false },
    Spec {
        name: "nvidia_dev_xid",
        attach: Attach::Tracepoint("nvidia"),
        voids: "Xid errors, except those that /dev/kmsg shows",
        may_be_absent: true,
    },
];

impl Spec {
    /// "sched:sched_process_exit".
    pub(super) fn full_name(&self) -> String {
        let category = match self.attach {
            Attach::Tracepoint(category) => category,
            Attach::Raw if self.name.starts_with("sched_") => "sched",
            Attach::Raw => "signal",
        };
        format!("{category}:{}", self.name)
    }

    /// The hook as reported: `failure` is why it is not attached.
    pub(super) fn report(&self, failure: Option<String>) -> Hook {
        Hook { name: self.full_name(), attached: failure.is_none(), why_not: failure }
    }
}
