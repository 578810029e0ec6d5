//! The one currency: everything that outlive learns, from whatever source, becomes an [`Event`].
//!
//! Always true: an event is plain data (no clock, no I/O), serialises to one JSON line and back without loss, and
//! is all that passes from the sources to the [`World`](crate::world::World). A trace file is a list of events.
//!
//! Wire form: `{"t": <boottime ns>, "e": {"<kind>": {...}}}`. Kinds and fields are only ever added; a reader
//! skips kinds and fields that it does not know. Optional fields are left out when absent.
//!
//! Kernel addresses (files, credentials) never leave the decoder: they are replaced by [`Token`]s, which are equal
//! exactly when the addresses are.

mod process;
pub mod rm;

pub use process::{Container, KernelThread, Mount, MountBy, PidsLimit, ProcessInfo, ProcessState, Ran, StuckThread};
pub use rm::{Rm, Role};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Nanoseconds of CLOCK_BOOTTIME of the host that was watched.
pub type BootNs = u64;

/// A process: thread-group id in the initial PID namespace, and when its leader started.
///
/// `start` is `group_leader->start_boottime` in ns; 0 when only a number is known (NVML gives no more), so such an
/// id is never equal to a process that was seen. Serialised as `[tgid, start]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId(pub u32, pub BootNs);

impl ProcessId {
    /// The thread-group id ("PID" everywhere people read).
    #[must_use]
    pub const fn tgid(self) -> u32 {
        self.0
    }
    /// Start time, ns of boottime; 0 when unknown.
    #[must_use]
    pub const fn start(self) -> BootNs {
        self.1
    }
}

/// A 48-bit stand-in for a kernel address; equal exactly when the addresses are equal, within one boot and one file.
pub type Token = u64;

/// A device number as the kernel's `dev_t`: major << 20 | minor. Serialised as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Dev(pub u32);

impl Dev {
    /// Stands for a device number: a dma-buf that the NVIDIA driver exported.
    pub const DMA_BUF: Dev = Dev(u32::MAX);

    /// From the two numbers that `ls -l` prints.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Dev {
        Dev(major << 20 | (minor & 0xf_ffff))
    }
    /// Major number.
    #[must_use]
    pub const fn major(self) -> u32 {
        self.0 >> 20
    }
    /// What it is for, by NVIDIA's own numbers (nv-chardev-numbers.h); UVM's major is another on each host.
    #[must_use]
    pub const fn node(self) -> Node {
        match (self.major(), self.minor()) {
            (195, 255) => Node::Control,
            (195, 0..=247) => Node::Gpu,
            _ => Node::Other,
        }
    }
    /// Minor number.
    #[must_use]
    pub const fn minor(self) -> u32 {
        self.0 & 0xf_ffff
    }
}

/// One thing that happened or was seen, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, ns of boottime.
    #[serde(rename = "t")]
    pub at: BootNs,
    /// What.
    #[serde(rename = "e")]
    pub what: What,
}

/// How a process came to hold an open file description. The JSON contract's `via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// It opened it itself.
    Opened,
    /// It was forked from a process that had it.
    Fork,
    /// It received it over a unix socket.
    ScmRights,
    /// It took it with pidfd_getfd.
    PidfdGetfd,
    /// It is registered in an io_uring of this process.
    IoUring,
    /// It waits, unread, in a unix socket of this process.
    InFlight,
    /// It imported the memory object.
    Import,
    /// It holds an exported handle.
    ExportFd,
    /// A thread holds it although the leader exited.
    Thread,
}

/// What NVML says a process uses a GPU for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuUse {
    /// Compute list.
    Compute,
    /// Graphics list.
    Graphics,
    /// MPS compute list.
    Mps,
}

/// One line of an NVML process list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// The PID that created the client, in the caller's namespace; perhaps dead or recycled.
    pub pid: u32,
    /// Bytes that NVML charges to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Which list.
    pub usage: GpuUse,
    /// `nvmlSystemGetProcessName`, when it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Disposition of a delivered signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The default action is taken.
    Default,
    /// Ignored.
    Ignored,
    /// A handler runs.
    Handled,
}

/// What `signal_generate` says became of a signal (TRACE_SIGNAL_*, include/trace/events/signal.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalResult {
    /// Queued for delivery.
    Queued,
    /// Dropped: ignored by the target, or the target cannot be killed.
    Ignored,
    /// The same signal was already pending.
    AlreadyPending,
    /// The queue was full: lost.
    Overflow,
    /// Queued, but without the sender's details.
    LostInfo,
}

/// A step of the driver's release of a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseStep {
    /// The driver's release function was entered.
    Begin,
    /// It has returned: done, or put off to a thread of the driver's.
    End,
    /// A thread of the driver's begins what was put off.
    DeferredBegin,
    /// It has done that.
    DeferredEnd,
}

/// One hook that was tried at start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Attach point: "sched:sched_process_exit", "iter/task_file", ...
    pub name: String,
    /// It is attached.
    pub attached: bool,
    /// Why not, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// A device node that counts as an NVIDIA file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Its number.
    pub dev: Dev,
    /// Its path, or "nvidia-uvm" and the like when only the number is known.
    pub path: String,
}

/// What a device node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// /dev/nvidiactl: clients belong to its descriptions.
    Control,
    /// /dev/nvidiaN.
    Gpu,
    /// /dev/nvidia-uvm: unified memory.
    Uvm,
    /// Anything else: nvidia-modeset, nvidia-caps, ...
    Other,
}

impl DeviceNode {
    /// By its name, and by its number where the name says nothing.
    #[must_use]
    pub fn node(&self) -> Node {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let is_numbered = |name: &str| {
            name.strip_prefix("nvidia").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
        };
        match name {
            "nvidiactl" => Node::Control,
            "nvidia-uvm" => Node::Uvm,
            name if is_numbered(name) => Node::Gpu,
            name if name.starts_with("nvidia") => Node::Other,
            _ => self.dev.node(),
        }
    }
}

/// First event of every trace file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// "outlive.trace/1".
    pub schema: String,
    /// Version of outlive that wrote it.
    pub version: String,
    /// Host name.
    pub hostname: String,
    /// `uname -r`.
    pub kernel: String,
    /// /proc/sys/kernel/random/boot_id.
    pub boot_id: String,
    /// NVIDIA driver version, when known.
    pub driver: Option<String>,
    /// Wall-clock time of this event, ns since 1970.
    pub real_ns: u64,
    /// /proc/sys/kernel/pid_max.
    pub pid_max: Option<u32>,
    /// outlive ran in the initial PID namespace.
    pub initial_pid_namespace: bool,
    /// What was attached.
    pub hooks: Vec<Hook>,
    /// What counts as an NVIDIA file.
    pub devices: Vec<DeviceNode>,
    /// When the programs were attached, ns of boottime: nothing earlier was seen. `None` for a pure snapshot.
    pub watching_since: Option<BootNs>,
}

/// One holding of one open file description: descriptor `fd` of process `id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The process.
    pub id: ProcessId,
    /// A thread whose files table has it, when that is not the leader's table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// The descriptor (of the socket for `in_flight`, of the ring for `io_uring`).
    pub fd: i32,
    /// The open file description.
    pub file: Token,
    /// Its device number.
    pub dev: Dev,
    /// Credentials of whoever opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cred: Option<Token>,
    /// The descriptor is close-on-exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloexec: Option<bool>,
    /// The description was opened with O_CLOEXEC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_cloexec: Option<bool>,
    /// How it came here, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Via>,
    /// From whom, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ProcessId>,
    /// Who opened the description, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opener: Option<ProcessId>,
    /// Since when, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<BootNs>,
    /// What the driver made of the description, when its private data could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The description that this one keeps open: of /dev/nvidiactl (REGISTER_FD) or of an address space (UVM_MM_INITIALIZE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins: Option<Token>,
    /// Bytes that the description keeps by itself, when the kernel tells: of a dma-buf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Everything that can be learnt. Externally tagged on the wire by its snake_case name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// First event of a file.
    Header(Box<Header>),
    /// A GPU.
    Gpu {
        /// NVML index.
        gpu: u32,
        /// UUID.
        uuid: String,
        /// Product name.
        name: String,
        /// Minor number of /dev/nvidiaN.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        minor: Option<u32>,
        /// PCI address ("0000:0b:00.0").
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pci: Option<String>,
        /// Last time that all used memory was charged to somebody, when a recording tells it again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settled_at: Option<BootNs>,
    },
    /// Memory of a GPU. total = reserved + used + free (NVML v2).
    GpuMemory {
        /// NVML index.
        gpu: u32,
        /// Total bytes.
        total: u64,
        /// Bytes used by clients, the driver's reserve left out when `reserved` is known.
        used: u64,
        /// The driver's and firmware's reserve, bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reserved: Option<u64>,
    },
    /// NVML's process lists of a GPU, whole (all three lists), our own process left out. Sent when they change.
    GpuProcesses {
        /// NVML index.
        gpu: u32,
        /// All lines.
        list: Vec<GpuProcess>,
    },
    /// Something is learnt about a process.
    Process(Box<ProcessInfo>),
    /// How a process stands.
    State(Box<ProcessState>),
    /// A scan no longer finds a process that was known (it was reaped unseen).
    ProcessGone {
        /// Who.
        id: ProcessId,
    },
    /// `parent` forked `child`, which now shares all its open file descriptions.
    Fork {
        /// The parent.
        parent: ProcessId,
        /// The child.
        child: ProcessId,
        /// The child's comm.
        comm: String,
        /// The child's credentials.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cred: Option<Token>,
    },
    /// A process executed a program; close-on-exec descriptors are closed.
    Exec {
        /// Who.
        id: ProcessId,
        /// New comm.
        comm: String,
        /// Program.
        path: String,
        /// New credentials.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cred: Option<Token>,
    },
    /// A thread exits (`sched_process_exit`).
    Exit {
        /// Process.
        id: ProcessId,
        /// Thread.
        tid: u32,
        /// Wait status of the thread.
        code: u32,
        /// Wait status of the group, when it was told to exit as a whole.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group_code: Option<u32>,
        /// Threads still alive.
        live: u32,
        /// This was the last one.
        last: bool,
        /// Who must wait for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<ProcessId>,
    },
    /// The whole process has exited, its files are released, and its parent was told: it is a zombie.
    Zombie {
        /// Who.
        id: ProcessId,
        /// Who was told and must wait.
        parent: ProcessId,
    },
    /// A parent collected a child.
    Reap {
        /// Who waited.
        by: ProcessId,
        /// Its comm.
        comm: String,
        /// The child's PID in `by`'s PID namespace.
        child: u32,
    },
    /// The reaped leader's task_struct is freed.
    Free {
        /// Who.
        id: ProcessId,
    },
    /// A signal was generated.
    Signal {
        /// Target.
        to: ProcessId,
        /// Target thread, when directed at one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tid: Option<u32>,
        /// Number.
        sig: i32,
        /// Sender; absent when the kernel sent it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<ProcessId>,
        /// Sender's comm.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        comm: String,
        /// Sender's uid.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
        /// `si_code`.
        code: i32,
        /// What became of it.
        result: SignalResult,
    },
    /// A signal was delivered.
    Deliver {
        /// Receiver.
        id: ProcessId,
        /// Thread.
        tid: u32,
        /// Number.
        sig: i32,
        /// With which action.
        action: Action,
    },
    /// The OOM killer chose this thread's process.
    OomVictim {
        /// PID of the victim (initial namespace).
        pid: u32,
    },
    /// An NVIDIA file was opened, duplicated, received or found by a scan: `via` and `opener` say what is known.
    Hold(Box<Hold>),
    /// A descriptor was closed, or a scan no longer finds it.
    Drop {
        /// The process.
        id: ProcessId,
        /// The thread, when the table is not the leader's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tid: Option<u32>,
        /// The descriptor.
        fd: i32,
        /// The description.
        file: Token,
    },
    /// A process put descriptions into a unix socket.
    Sent {
        /// Sender.
        id: ProcessId,
        /// The description.
        file: Token,
        /// Its device number.
        dev: Dev,
        /// Inode number of the socket that it was sent through.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        socket: Option<u64>,
    },
    /// A scan of all processes is complete: what it did not find is not held.
    Scan {
        /// When it began.
        began: BootNs,
        /// Processes on the host.
        processes: u32,
        /// Zombies on the host.
        zombies: u32,
        /// Every table could be read.
        complete: bool,
    },
    /// A process asked the driver for something that changes who owns or keeps memory, and the driver did it.
    Rm(Box<Rm>),
    /// The driver releases a description whose last reference has gone. Seen with driver hooks only.
    Release {
        /// The process of the thread that does it: whoever let go last, or a kernel thread.
        by: ProcessId,
        /// The thread.
        tid: u32,
        /// Its comm.
        comm: String,
        /// The description; absent for a put-off release whose beginning was not seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<Token>,
        /// Its device number.
        dev: Dev,
        /// What happens.
        step: ReleaseStep,
    },
    /// Device nodes that count as NVIDIA files from now on, all of them: the driver was loaded while recording.
    Devices {
        /// All.
        list: Vec<DeviceNode>,
    },
    /// Hooks that were attached, or could not be, while recording: the driver was loaded. A name that is known is replaced.
    Hooks {
        /// Those that changed.
        list: Vec<Hook>,
    },
    /// The GPU reported an error.
    Xid {
        /// PCI address, as reported.
        pci: String,
        /// Xid number.
        code: u32,
        /// PID of the channel's creator, when the message names one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// The message.
        message: String,
    },
    /// What NVML says of a GPU's health. Sent when it changes.
    GpuHealth {
        /// NVML index.
        gpu: u32,
        /// What NVML asks for (`nvmlDeviceGpuRecoveryAction_t`): 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 both, ...
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recovery: Option<u32>,
        /// NVML_ERROR_GPU_IS_LOST: it fell off the bus.
        #[serde(default)]
        lost: bool,
        /// NVML_ERROR_RESET_REQUIRED.
        #[serde(default)]
        reset_required: bool,
    },
    /// Kernel threads inside the NVIDIA driver now, whole; looked for only when somebody dies or nobody holds memory.
    KernelThreads {
        /// All of them.
        list: Vec<KernelThread>,
    },
    /// How many users each loaded module of the driver has. Sent when it changes, and only when that matters.
    Modules {
        /// Users by module name (/sys/module/NAME/refcnt).
        users: BTreeMap<String, u32>,
    },
    /// Events were lost since the last such report.
    Lost {
        /// `outlive_ebpf::limits::Lost` name, or "nested", "queue_full", "unknown_record", ...
        cause: String,
        /// How many.
        count: u64,
    },
    /// Something cannot be seen on this host.
    Limit {
        /// What is missing.
        missing: String,
        /// Which conclusions that voids.
        voids: String,
    },
    /// Wall clock against boottime; written again when the wall clock steps.
    Clock {
        /// Wall-clock ns since 1970 at `t`.
        real_ns: u64,
    },
    /// The recorder stopped in order.
    Stop {
        /// Why ("signal 15", "duration", "rotation").
        reason: String,
    },
}
