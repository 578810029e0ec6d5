//! The kernel's view: loads the embedded eBPF object and gives out what it sees, as events and as scans.
//!
//! Always true: nothing here changes what another process does. What cannot be attached is a reported [`Hook`] and a
//! limit, and only "nothing works" is an error. PIDs are those of the initial PID namespace. Kernel addresses do not
//! leave [`decode`].
//!
//! Two loaders, for two needs. A live explanation must be ready in 50 ms on a host with 10,000 processes, so
//! `scanner` loads just the two iterators with the few bpf(2) calls that takes. Watching starts once, and goes
//! through aya (`watcher`).

pub mod abi;
pub mod btf;
pub mod decode;
pub mod facts;

mod bpf;
mod hooks;
mod key;
mod scanner;
mod symbols;
mod uring;
mod watcher;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;

pub use facts::Facts;
pub use scanner::ScanPart;
pub use watcher::{View, Way};

use outlive_ebpf::abi::Abi;
use outlive_ebpf::ioctl::node;
use outlive_ebpf::record::Kind;

use super::{devices, procfs};
use crate::event::{BootNs, DeviceNode, Event, Hook, Node, ProcessId, What};
use crate::sys;
use btf::{BtfError, Resolved};
use decode::{Decoded, Tokens};
use scanner::Scanner;
use symbols::Loading;
use uring::Operations;
use watcher::{Attached, Watcher};

/// The programs, as `cargo xtask ebpf` built them.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../ebpf/outlive.bpf.o");

/// After a driver was loaded its GPUs are found and their device nodes made one by one.
const SETTLING_NS: BootNs = 10_000_000_000;

/// Signals that say nothing about why a process ended or did not.
const NOISE: &[i32] = &[
    libc::SIGCHLD,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGIO,
    libc::SIGPROF,
    libc::SIGVTALRM,
    libc::SIGALRM,
];
/// First of the signals that have no name of their own; real-time ones are the C library's and the program's affair.
const FIRST_UNNAMED: i32 = 32;

/// Why the kernel's view is not available.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Not allowed to.
    #[error("{0}; run as root, or explain a trace file, which needs no privilege")]
    NotPermitted(&'static str),
    /// Driver hooks alone are wanted, and there are none.
    #[error("--hooks driver: this kernel has no kprobes (no /sys/bus/event_source/devices/kprobe); use --hooks auto or syscall")]
    NoProbes,
    /// The kernel's types.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The embedded object and this version do not fit each other.
    #[error("the embedded eBPF object cannot be used: {0}")]
    Object(String),
    /// A map.
    #[error("the kernel refuses the eBPF map {map}: {source}")]
    Map {
        /// Its name.
        map: String,
        /// Why.
        source: io::Error,
    },
    /// A program.
    #[error("the kernel refuses the eBPF program {program}: {source}")]
    Refused {
        /// Its name.
        program: String,
        /// Why, with the end of the verifier's log.
        source: io::Error,
    },
    /// Neither iterators nor hooks.
    #[error("nothing can be seen on this kernel: {iterators}, and none of the {hooks} hooks can be attached ({first})")]
    Nothing {
        /// What the iterators met.
        iterators: Box<KernelError>,
        /// How many hooks were tried.
        hooks: usize,
        /// Why the first one failed.
        first: String,
    },
    /// A scan failed.
    #[error("cannot read the kernel's list of {what}: {source}")]
    Scan {
        /// What was being listed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Which hooks to use where there is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Kprobes on the driver's own functions where they can be attached, else tracepoints of system calls.
    #[default]
    Auto,
    /// Kprobes only; what they cannot show is a limit.
    Driver,
    /// Tracepoints only.
    Syscall,
}

/// What to watch.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which hooks.
    pub hooks: Wanted,
    /// Xids by the driver's tracepoint, which keeps its module from being unloaded meanwhile: only where the kernel log cannot be read.
    pub xid_tracepoint: bool,
    /// What counts as an NVIDIA file.
    pub devices: Vec<DeviceNode>,
    /// Where to look for more of them when the driver is loaded later (`--devices`).
    pub pattern: Option<String>,
    /// For addresses; share it to compare tokens of one trace file.
    pub tokens: Tokens,
    /// How the driver's requests are laid out.
    pub abi: Abi,
    /// What is not known about that: (what is missing, what that voids).
    pub abi_limit: Option<(String, String)>,
}

impl Options {
    /// These devices, and tokens of this boot's key, so that a look can be compared with a recording; of a new random key
    /// where none can be kept.
    #[must_use]
    pub fn new(devices: Vec<DeviceNode>) -> Options {
        let tokens = key::of_this_boot().map_or_else(Tokens::random, Tokens::with_key);
        let (abi, abi_limit) = abi::of_driver(procfs::Proc::default().driver().as_deref());
        Options { hooks: Wanted::Auto, xid_tracepoint: false, devices, pattern: None, tokens, abi, abi_limit }
    }
}

/// The programs' number for what a device node is.
const fn number_of(node: Node) -> u32 {
    match node {
        Node::Other => node::OTHER,
        Node::Control => node::CONTROL,
        Node::Gpu => node::GPU,
        Node::Uvm => node::UVM,
    }
}

/// The loaded programs.
pub struct Kernel {
    options: Options,
    facts: Facts,
    scanner: Result<Scanner, KernelError>,
    watcher: Option<Watcher>,
    hooks: Vec<Hook>,
    limits: Vec<(String, String)>,
    watching_since: Option<BootNs>,
    /// The driver that the hooks are attached to.
    loading: Loading,
    /// Until then its device nodes may still be made.
    settles_at: BootNs,
    /// How each group of hooks is attached.
    views: Vec<View>,
    /// Processes whose descriptors changed in a way that only a scan can follow.
    changed: BTreeSet<ProcessId>,
    /// Records that could not be decoded, since last reported.
    unknown: u64,
}

impl Kernel {
    /// Loads the iterators only: for one scan.
    ///
    /// # Errors
    /// Not permitted, no usable BTF, or the kernel refuses them.
    pub fn for_scan(options: Options) -> Result<Kernel, KernelError> {
        let (mut kernel, _) = Kernel::start(options)?;
        kernel.scanner = Ok(kernel.scanner?);
        Ok(kernel)
    }

    /// Loads the iterators and attaches every hook that this kernel has. Call [`sys::private_tracefs`] before.
    ///
    /// # Errors
    /// As [`Kernel::for_scan`], but only if nothing at all works.
    pub fn for_watching(options: Options) -> Result<Kernel, KernelError> {
        if options.hooks == Wanted::Driver && !symbols::has_kprobes() {
            return Err(KernelError::NoProbes);
        }
        let (mut kernel, constants) = Kernel::start(options)?;
        let (watcher, attached) = match Watcher::attach(OBJECT, &constants, &kernel.options.devices, kernel.options.hooks, kernel.options.xid_tracepoint) {
            Ok((watcher, attached)) => (Some(watcher), attached),
            Err(why) => (None, Attached::none(&why.to_string())),
        };
        let works = attached.hooks.iter().any(|hook| hook.attached);
        if !works {
            let first = attached.hooks.first().and_then(|hook| hook.why_not.clone()).unwrap_or_default();
            kernel.scanner = Ok(kernel.scanner.map_err(|iterators| KernelError::Nothing {
                iterators: Box::new(iterators),
                hooks: attached.hooks.len(),
                first,
            })?);
        }
        kernel.watcher = watcher;
        kernel.hooks.extend(attached.hooks);
        kernel.limits.extend(attached.limits);
        kernel.views = attached.views;
        kernel.watching_since = works.then(sys::boottime_ns);
        Ok(kernel)
    }

    /// What both have in common: rights, offsets, iterators.
    fn start(options: Options) -> Result<(Kernel, Constants), KernelError> {
        let facts = Facts::gather();
        if !facts.can_load {
            return Err(KernelError::NotPermitted("loading eBPF programs needs CAP_BPF"));
        }
        if !facts.can_trace {
            return Err(KernelError::NotPermitted("reading kernel structures needs CAP_PERFMON"));
        }
        let resolved = btf::running_kernel()?;
        let mut limits = Vec::new();
        for (wanted, problem) in &resolved.missing {
            let missing = format!("{}.{} {problem}", wanted.structure, wanted.member);
            let voids = match wanted.structure {
                // A kernel that does not know dma-bufs has none.
                "dma_buf" => continue,
                "super_block" | "inode" => "who holds GPU memory as a dma-buf",
                _ => "NVIDIA files that wait unread in unix sockets",
            };
            limits.push((missing, voids.to_owned()));
        }
        let operations = ring_operations(&resolved);
        if let Err(why) = &operations {
            let voids = "NVIDIA files that are registered in an io_uring".to_owned();
            limits.push((format!("the address of io_uring's file operations ({why})"), voids));
        }
        limits.extend(options.abi_limit.clone());
        let constants = Constants::new(&resolved, operations.ok(), &options.abi);
        let scanner = Scanner::load(OBJECT, &resolved, &constants, &options.devices);
        let why_not = scanner.as_ref().err().map(ToString::to_string);
        let hooks = ["iter/task", "iter/task_file"];
        let hooks = hooks.map(|name| Hook { name: name.to_owned(), attached: why_not.is_none(), why_not: why_not.clone() });
        if why_not.is_some() {
            let voids = "who holds an NVIDIA file now, beyond what /proc shows".to_owned();
            limits.push(("iter/task_file".to_owned(), voids));
        }
        let kernel = Kernel {
            options,
            facts,
            scanner,
            watcher: None,
            hooks: hooks.to_vec(),
            limits,
            watching_since: None,
            loading: Loading::now(),
            settles_at: 0,
            views: Vec::new(),
            changed: BTreeSet::new(),
            unknown: 0,
        };
        Ok((kernel, constants))
    }

    /// What was true at the start.
    #[must_use]
    pub const fn facts(&self) -> Facts {
        self.facts
    }

    /// Every hook that was tried.
    #[must_use]
    pub fn hooks(&self) -> &[Hook] {
        &self.hooks
    }

    /// What cannot be seen, and which conclusions that voids.
    #[must_use]
    pub fn limits(&self) -> &[(String, String)] {
        &self.limits
    }

    /// When the last hook was attached: nothing earlier was seen. `None` when nothing is watched.
    #[must_use]
    pub const fn watching_since(&self) -> Option<BootNs> {
        self.watching_since
    }

    /// Appends everything that is in the ring, in the order of the ring. Does not block.
    pub fn drain(&mut self, events: &mut Vec<Event>) {
        let (ours, tokens) = (self.ours(), self.options.tokens);
        let (changed, unknown) = (&mut self.changed, &mut self.unknown);
        let Some(watcher) = &mut self.watcher else { return };
        watcher.drain(|record| {
            // What we do ourselves (NVML opens NVIDIA files) is nobody's concern; what our children do is.
            if decode::kind_of(record).is_some_and(|(kind, who)| is_own_doing(kind) && Some(who.tgid()) == ours) {
                return;
            }
            match decode::ring(record, tokens) {
                Decoded::Event(event) => events.push(event),
                Decoded::FilesChanged(id) => {
                    changed.insert(id);
                }
                Decoded::Unknown => *unknown += 1,
            }
        });
    }

    /// Waits until the kernel wakes the reader, which it does at most once in
    /// [`outlive_ebpf::limits::RING_WAKE_NS`] and CPU: drain again a little later. Never returns when nothing is watched.
    ///
    /// # Errors
    /// The ring's descriptor cannot be polled (or there is no tokio runtime with I/O).
    pub async fn readable(&mut self) -> io::Result<()> {
        match &mut self.watcher {
            Some(watcher) => watcher.readable().await,
            None => std::future::pending().await,
        }
    }

    /// What each group of hooks sees, and how it is attached.
    #[must_use]
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// How many instructions the kernel's verifier went through for each program that is loaded, by name: what grows when a program gets harder
    /// to verify, long before it is refused. For tests; needs CAP_SYS_ADMIN.
    #[must_use]
    pub fn verified(&self) -> Vec<(String, u32)> {
        let mut counts = self.watcher.as_ref().map(Watcher::verified).unwrap_or_default();
        // The newest of each name are ours, unless somebody else has just begun.
        for name in [scanner::TASK, scanner::TASK_FILE] {
            let named = aya::programs::loaded_programs().flatten().filter(|info| info.name_as_str() == Some(name));
            let newest = named.max_by_key(aya::programs::ProgramInfo::id).and_then(|info| info.verified_instruction_count());
            counts.extend(newest.map(|count| (name.to_owned(), count)));
        }
        counts.sort();
        counts
    }

    /// Follows the driver's coming and going: what is loaded while we watch is hooked, and its device numbers count. Cheap while nothing
    /// changes; call it once a second. A scan should follow when there is something.
    pub fn follow_driver(&mut self) -> Vec<Event> {
        let (at, mut news) = (sys::boottime_ns(), Vec::new());
        let loading = Loading::now();
        let changed = loading != self.loading;
        if changed {
            self.loading = loading;
            self.settles_at = at.saturating_add(SETTLING_NS);
        }
        if at >= self.settles_at {
            return news;
        }
        if let Some(Ok(found)) = self.options.pattern.as_deref().map(devices::find)
            && found != self.options.devices
        {
            let known = self.watcher.as_mut().map_or(Ok(()), |watcher| watcher.knows(&found));
            let known = known.map_err(|error| error.to_string());
            let seen = self.scanner.as_ref().map_or(Ok(()), |scanner| scanner.knows(&found)).map_err(|error| error.to_string());
            if let Err(why) = known.and(seen) {
                let missing = format!("device numbers of the driver, which was loaded later: {why}");
                news.push(Event { at, what: What::Limit { missing, voids: "who opens and holds its files".to_owned() } });
            }
            self.options.devices.clone_from(&found);
            news.push(Event { at, what: What::Devices { list: found } });
        }
        if let Some(watcher) = self.watcher.as_mut().filter(|_| changed) {
            let attached = watcher.attach_driver(&self.options.devices);
            self.hooks.retain(|known| attached.hooks.iter().all(|new| new.name != known.name));
            self.hooks.extend(attached.hooks.iter().cloned());
            for view in attached.views {
                self.views.retain(|known| known.sees != view.sees);
                self.views.push(view);
            }
            news.push(Event { at, what: What::Hooks { list: attached.hooks } });
            news.extend(attached.limits.into_iter().map(|(missing, voids)| Event { at, what: What::Limit { missing, voids } }));
        }
        news
    }

    /// What was lost since last asked, one event for each cause.
    pub fn lost(&mut self) -> Vec<Event> {
        let at = sys::boottime_ns();
        let mut losses = self.watcher.as_mut().map(Watcher::losses).unwrap_or_default();
        match std::mem::take(&mut self.unknown) {
            0 => {}
            unknown => losses.push(("unknown_record", unknown)),
        }
        losses.into_iter().map(|(cause, count)| decode::lost(at, cause, count)).collect()
    }

    /// Processes whose descriptors changed since last asked in a way that only a scan shows (close_range).
    pub fn take_changed(&mut self) -> BTreeSet<ProcessId> {
        std::mem::take(&mut self.changed)
    }

    /// Follows processes that a scan found: (who, it uses the GPU itself or descends from one that does).
    pub fn track(&mut self, processes: &[(ProcessId, bool)]) {
        if let Some(watcher) = &mut self.watcher {
            watcher.track(processes);
        }
    }

    /// Looks at every thread and every descriptor of the host. Our own are left out.
    ///
    /// # Errors
    /// The iterators are not available or cannot be read.
    pub fn scan(&mut self) -> Result<ScanPart, KernelError> {
        let ours = self.ours();
        match &mut self.scanner {
            Ok(scanner) => {
                let mut part = scanner
                    .scan(&self.options.devices, self.options.tokens, ours)
                    .map_err(|source| KernelError::Scan { what: "tasks and files", source })?;
                // The iterators visit the reader's PID namespace only (`task_seq_get_next`, kernel/bpf/task_iter.c).
                part.complete &= self.facts.initial_pid_namespace;
                Ok(part)
            }
            Err(why) => {
                Err(KernelError::Scan { what: "tasks and files", source: io::Error::other(why.to_string()) })
            }
        }
    }

    /// Our own PID, when we know what the kernel calls us.
    fn ours(&self) -> Option<u32> {
        self.facts.initial_pid_namespace.then(std::process::id)
    }
}

/// Is a record of this kind, when it is about ourselves, about what we did?
const fn is_own_doing(kind: Kind) -> bool {
    !matches!(kind, Kind::Fork | Kind::SignalGenerate | Kind::Reap | Kind::Free | Kind::OomVictim | Kind::Xid | Kind::Release)
}

fn ring_operations(resolved: &Resolved) -> io::Result<Operations> {
    let iterator = resolved.iter_task_file.ok_or_else(|| io::Error::other("this kernel has no iter/task_file"))?;
    uring::operations(resolved.offsets.file_op, iterator)
}

/// Values for the object's `.rodata`.
#[derive(Debug)]
struct Constants {
    offsets: Vec<u8>,
    signal_skip_mask: [u8; 8],
    io_uring_fops: [u8; 8],
    abi: Vec<u8>,
    /// Closed when the constants go, which is after the last program is loaded ([`Operations::ring`]).
    _ring: Option<OwnedFd>,
}

impl Constants {
    fn new(resolved: &Resolved, operations: Option<Operations>, abi: &Abi) -> Constants {
        let noise = NOISE.iter().copied().chain(FIRST_UNNAMED..=64);
        let mask = noise.fold(0_u64, |mask, signal| mask | 1 << (signal - 1));
        Constants {
            offsets: resolved.words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            signal_skip_mask: mask.to_ne_bytes(),
            io_uring_fops: operations.as_ref().map_or(0, |operations| operations.address).to_ne_bytes(),
            abi: abi.words().iter().flat_map(|word| word.to_ne_bytes()).collect(),
            _ring: operations.map(|operations| operations.ring),
        }
    }

    /// By symbol, and whether the object must have it: it must, or the two sides do not fit.
    fn globals(&self) -> HashMap<&'static str, (&[u8], bool)> {
        HashMap::from([
            ("OFFSETS", (self.offsets.as_slice(), true)),
            ("SIGNAL_SKIP_MASK", (self.signal_skip_mask.as_slice(), true)),
            ("IO_URING_FOPS", (self.io_uring_fops.as_slice(), true)),
            ("ABI", (self.abi.as_slice(), true)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signals_that_end_or_stop_a_process_are_not_noise() {
        let resolved = Resolved {
            offsets: outlive_ebpf::offsets::Offsets::UNRESOLVED,
            words: Vec::new(),
            missing: Vec::new(),
            iter_task: None,
            iter_task_file: None,
        };
        let mask = u64::from_ne_bytes(Constants::new(&resolved, None, &outlive_ebpf::abi::BRANCHES[0].abi).signal_skip_mask);
        let skipped = |signal: i32| mask >> (signal - 1) & 1 == 1;
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGINT, libc::SIGSTOP, libc::SIGCONT, libc::SIGABRT, libc::SIGSEGV] {
            assert!(!skipped(signal), "{signal}");
        }
        assert!(skipped(libc::SIGCHLD) && skipped(32) && skipped(64));
    }
}
