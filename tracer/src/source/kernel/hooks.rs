//! The hooks of the watching programs, in order of attachment, and what is not seen without each.
//!
//! Two ways lead to the same events. **Syscall hooks** are tracepoints: they work everywhere, and each enabled one costs every system
//! call of every process some tens to three hundred ns. **Driver hooks** are kprobes on the driver's own functions, and on a few functions of the kernel
//! that only passing descriptors, copying them and collecting children come through: who does none of that pays nothing. What both
//! need ([`BOTH`]) is attached always; of each [`Group`] one way.
//!
//! Always true: one row per program of the embedded object; names are those of the kernel's tracepoints and functions.

use crate::event::Hook;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    /// Raw tracepoint: works without tracefs.
    Raw,
    /// Tracepoint of this category, through tracefs.
    Tracepoint(&'static str),
    /// Entry of the first of these functions that the kernel has.
    Entry(&'static [&'static str]),
    /// Return from it.
    Return(&'static [&'static str]),
}

/// One hook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    /// Name of the program and, of a tracepoint's, of that.
    pub(super) name: &'static str,
    pub(super) attach: Attach,
    /// What cannot be concluded without it; empty when something else shows the same.
    pub(super) voids: &'static str,
    /// Hosts without it are ordinary: its absence (not a failure to attach) is no limit.
    pub(super) may_be_absent: bool,
}

/// Two ways to see the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// What they see: "opens", ...
    pub(super) sees: &'static str,
    /// By kprobes. Of closes they see only a file's last one, its release: the next scan tells of others.
    pub(super) driver: &'static [Spec],
    /// By tracepoints of system calls.
    pub(super) syscall: &'static [Spec],
    /// The functions are the driver's, so there are none while it is not loaded.
    pub(super) of_driver: bool,
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

const fn entry(name: &'static str, functions: &'static [&'static str], voids: &'static str) -> Spec {
    Spec { name, attach: Attach::Entry(functions), voids, may_be_absent: false }
}

const fn leave(name: &'static str, functions: &'static [&'static str], voids: &'static str) -> Spec {
    Spec { name, attach: Attach::Return(functions), voids, may_be_absent: false }
}

/// Where unified memory's module is not loaded, or has no such function, nothing uses it.
const fn some(spec: Spec) -> Spec {
    Spec { may_be_absent: true, ..spec }
}

const OPENED: &str = "who opened an NVIDIA file, and when";
const PASSED: &str = "how a process came to an NVIDIA file that it did not open";
const SENT: &str = "who put an NVIDIA file into a unix socket";
const REAPED: &str = "when a zombie was collected, and by whom";
const COPIED: &str = "duplicates of a descriptor between two scans";
const ASKED: &str = "how much memory each client allocated, who imported it, and what an exported handle keeps";
const RELEASED: &str = "when, and by which thread, the driver released a file";
const DEFERRED: &str = "which releases the driver put off to a thread of its own";

/// The driver's entry points: since 545 and before (kernel-open/nvidia/nv.c, nv-frontend.c).
const OPEN: &[&str] = &["nvidia_open", "nvidia_frontend_open"];
const CLOSE: &[&str] = &["nvidia_close", "nvidia_frontend_close"];
const IOCTL: &[&str] = &["nvidia_unlocked_ioctl", "nvidia_frontend_unlocked_ioctl"];
const CLOSE_DEFERRED: &[&str] = &["nvidia_close_deferred"];
/// Unified memory's (nvidia-uvm/uvm.c).
const UVM_OPEN: &[&str] = &["uvm_open_entry"];
const UVM_RELEASE: &[&str] = &["uvm_release_entry"];
const UVM_IOCTL: &[&str] = &["uvm_unlocked_ioctl_entry"];
const UVM_RELEASE_DEFERRED: &[&str] = &["uvm_release_deferred"];

/// Fork, exec and exit come first: what follows relies on their bookkeeping.
pub(super) const BOTH: &[Spec] = &[
    raw("sched_process_fork", "which processes inherited an NVIDIA file by fork"),
    raw("sched_process_exec", "what a process executed, and that its close-on-exec files were closed"),
    raw("sched_process_exit", "when, and with which status, a thread exited"),
    raw("sched_process_free", "when a process was collected by an ancestor that is not watched"),
    raw("signal_generate", "who sent which signal, and when a process became a zombie"),
    raw("signal_deliver", "whether a signal was delivered, and with which action"),
    Spec { name: "mark_victim", attach: Attach::Tracepoint("oom"), voids: "that the OOM killer chose a process", may_be_absent: false },
];

/// Belongs to the driver's module, and keeps that from being unloaded: only used where the kernel log cannot be read.
pub(super) const XID: Spec = Spec {
    name: "nvidia_dev_xid",
    attach: Attach::Tracepoint("nvidia"),
    voids: "Xid errors, except those that /dev/kmsg shows",
    may_be_absent: true,
};

/// Returns come before entries: an entry whose return is not seen would be left over.
pub(super) const GROUPS: &[Group] = &[
    Group {
        sees: "opens",
        driver: &[
            leave("driver_opened", OPEN, OPENED),
            entry("driver_open", OPEN, OPENED),
            some(leave("driver_opened", UVM_OPEN, OPENED)),
            some(entry("driver_open", UVM_OPEN, OPENED)),
        ],
        syscall: &[
            some_call("sys_exit_open", OPENED),
            call("sys_exit_openat", OPENED),
            some_call("sys_exit_openat2", OPENED),
            some_call("sys_exit_creat", OPENED),
        ],
        of_driver: true,
    },
    Group {
        sees: "requests",
        driver: &[
            leave("driver_ioctl_done", IOCTL, ASKED),
            entry("driver_ioctl", IOCTL, ASKED),
            some(leave("driver_ioctl_done", UVM_IOCTL, ASKED)),
            some(entry("driver_ioctl", UVM_IOCTL, ASKED)),
        ],
        syscall: &[call("sys_exit_ioctl", ASKED), call("sys_enter_ioctl", ASKED)],
        of_driver: true,
    },
    Group {
        sees: "releases and closes",
        driver: &[
            leave("driver_released", CLOSE, RELEASED),
            entry("driver_release", CLOSE, RELEASED),
            some(leave("driver_released", UVM_RELEASE, RELEASED)),
            some(entry("driver_release", UVM_RELEASE, RELEASED)),
            some(leave("driver_deferred_done", CLOSE_DEFERRED, DEFERRED)),
            some(entry("driver_deferred", CLOSE_DEFERRED, DEFERRED)),
            some(leave("driver_deferred_done", UVM_RELEASE_DEFERRED, DEFERRED)),
            some(entry("driver_deferred", UVM_RELEASE_DEFERRED, DEFERRED)),
        ],
        syscall: &[call("sys_enter_close", "when a descriptor was closed")],
        of_driver: true,
    },
    Group {
        sees: "copies of descriptors",
        driver: &[
            leave("duplicated", &["__x64_sys_dup"], COPIED),
            some(leave("replaced", &["__x64_sys_dup2"], COPIED)),
            leave("replaced", &["__x64_sys_dup3"], COPIED),
            leave("duplicated", &["f_dupfd"], COPIED),
            leave("exec_flag_set", &["set_close_on_exec"], COPIED),
            some(leave("range_closed", &["__x64_sys_close_range"], "when descriptors were closed by close_range")),
        ],
        syscall: &[
            call("sys_exit_dup", COPIED),
            some_call("sys_exit_dup2", COPIED),
            call("sys_exit_dup3", COPIED),
            call("sys_exit_fcntl", COPIED),
            some_call("sys_exit_close_range", "when descriptors were closed by close_range"),
        ],
        of_driver: false,
    },
    Group {
        sees: "descriptors sent",
        driver: &[leave("scm_sent", &["__scm_send"], SENT), entry("scm_send", &["__scm_send"], SENT)],
        syscall: &[call("sys_exit_sendmsg", SENT), call("sys_exit_sendmmsg", SENT)],
        of_driver: false,
    },
    Group {
        sees: "descriptors received",
        // Linux 6.8 merged the two functions.
        driver: &[leave("received_fd", &["__receive_fd", "receive_fd"], PASSED), leave("stolen_fd", &["receive_fd"], PASSED)],
        syscall: &[call("sys_exit_recvmsg", PASSED), call("sys_exit_recvmmsg", PASSED), some_call("sys_exit_pidfd_getfd", PASSED)],
        of_driver: false,
    },
    Group {
        sees: "reaps",
        driver: &[entry("task_released", &["release_task"], REAPED)],
        syscall: &[call("sys_exit_wait4", REAPED), call("sys_exit_waitid", REAPED)],
        of_driver: false,
    },
];

impl Spec {
    /// "sched:sched_process_exit", "kprobe:nvidia_close", "kretprobe:nvidia_close".
    pub(super) fn full_name(&self) -> String {
        self.named(self.functions().first().copied().unwrap_or(self.name))
    }

    /// The name with the function or tracepoint that it is attached to.
    pub(super) fn named(&self, place: &str) -> String {
        let category = match self.attach {
            Attach::Tracepoint(category) => category,
            Attach::Raw if self.name.starts_with("sched_") => "sched",
            Attach::Raw => "signal",
            Attach::Entry(_) => "kprobe",
            Attach::Return(_) => "kretprobe",
        };
        format!("{category}:{place}")
    }

    /// Functions that it may be attached to; none for a tracepoint.
    pub(super) fn functions(&self) -> &'static [&'static str] {
        match self.attach {
            Attach::Entry(functions) | Attach::Return(functions) => functions,
            Attach::Raw | Attach::Tracepoint(_) => &[],
        }
    }

    /// The hook as reported: `failure` is why it is not attached.
    pub(super) fn report(&self, failure: Option<String>) -> Hook {
        Hook { name: self.full_name(), attached: failure.is_none(), why_not: failure }
    }
}
