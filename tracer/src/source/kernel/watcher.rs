//! What happens from now on: loads and attaches the watching programs, and drains their ring.
//!
//! Always true: a hook that cannot be attached is reported and left out, never a reason to stop; draining does not
//! block.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use aya::maps::{HashMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::kprobe::KProbeLinkId;
use aya::programs::trace_point::{TracePointError, TracePointLinkId};
use aya::programs::{KProbe, Program, ProgramError, RawTracePoint, TracePoint};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use aya_log::EbpfLogger;
use outlive_ebpf::limits::Lost;
use outlive_ebpf::record::{Tracked, flag};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::hooks::{self, Attach, Group, Spec};
use super::symbols::{self, Symbols};
use super::{Constants, KernelError, Wanted, bpf, number_of};
use crate::event::{DeviceNode, Hook, ProcessId};
use crate::sys;

/// `BPF_ANY` and `BPF_NOEXIST` (include/uapi/linux/bpf.h).
const REPLACE: u64 = 0;
const KEEP: u64 = 1;
/// Runs that the kernel left out since they came in the middle of another program's.
const NESTED: &str = "nested";
/// The group of the hooks that every watcher has.
const ALWAYS: &str = "always";
/// Longest text that is kept of why a hook is not attached.
const REASON_MAX: usize = 400;

/// The attached programs and their maps.
pub(super) struct Watcher {
    /// Owns the programs; they are detached when it goes.
    programs: Ebpf,
    /// The device numbers that count.
    known: HashMap<MapData, u32, u32>,
    /// What is attached, by the group of hooks that it belongs to.
    links: BTreeMap<&'static str, Vec<Link>>,
    /// Which hooks are asked for.
    wanted: Wanted,
    /// The tracepoint of Xids is, too.
    xid: bool,
    ring: RingBuf<MapData>,
    tracked: HashMap<MapData, u32, [u64; 2]>,
    lost: PerCpuArray<MapData, u64>,
    lost_before: BTreeMap<&'static str, u64>,
    /// Processes that did not fit into `TRACKED`.
    untracked: u64,
    ready: Option<AsyncFd<OwnedFd>>,
    /// Passes on what the programs say through aya-log (rare: a full map) to the `log` crate's logger.
    say: Option<Box<dyn FnMut() + Send>>,
}

/// What became of the hooks.
#[derive(Debug, Default)]
pub(super) struct Attached {
    pub(super) hooks: Vec<Hook>,
    /// (what is missing, what that voids).
    pub(super) limits: Vec<(String, String)>,
    /// How each group of hooks is attached.
    pub(super) views: Vec<View>,
}

/// What a group of hooks sees, and how it is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// "opens", ...
    pub sees: &'static str,
    /// How.
    pub way: Way,
    /// Why not by kprobes, where there is a reason.
    pub why: Option<String>,
}

/// How a group of hooks is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By kprobes.
    Driver,
    /// By tracepoints of system calls.
    Syscall,
    /// By kprobes, as soon as the driver is loaded.
    Waiting,
}

impl Attached {
    /// Nothing, for this reason.
    pub(super) fn none(why: &str) -> Attached {
        let mut attached = Attached::default();
        for spec in hooks::BOTH.iter().chain([&hooks::XID]).chain(hooks::GROUPS.iter().flat_map(|group| group.syscall)) {
            attached.add(spec, Err(Failure { reason: why.to_owned(), absent: false }));
        }
        attached
    }

    fn view(&mut self, group: &Group, way: Way, why: Option<String>) {
        self.views.push(View { sees: group.sees, way, why });
    }

    fn add(&mut self, spec: &Spec, result: Result<String, Failure>) {
        let why = match result {
            Ok(name) => return self.hooks.push(Hook { name, attached: true, why_not: None }),
            Err(why) => why,
        };
        let is_ordinary = spec.may_be_absent && why.absent;
        if !is_ordinary {
            self.limits.push((spec.full_name(), spec.voids.to_owned()));
        }
        // A function of a module that is not loaded is nothing that anybody misses.
        if !is_ordinary || spec.functions().is_empty() {
            self.hooks.push(spec.report(Some(why.reason)));
        }
    }
}

impl Watcher {
    /// Loads the object and attaches all it can.
    pub(super) fn attach(
        object: &[u8],
        constants: &Constants,
        devices: &[DeviceNode],
        wanted: Wanted,
        xid: bool,
    ) -> Result<(Watcher, Attached), KernelError> {
        let mut programs = load(object, constants)?;
        // Before anything runs: the devices are the filter, and PID 1 (any start) adopts orphans and must be seen waiting.
        // The programs name maps by descriptor until they are loaded, so all of these live to the end of this function.
        let known: HashMap<_, u32, u32> = take(&mut programs, "DEVICES")?;
        // An object without log statements has no map for them: then there is nothing to pass on.
        let say = EbpfLogger::init(&mut programs).ok().map(|mut logger| {
            let say: Box<dyn FnMut() + Send> = Box::new(move || logger.flush());
            say
        });
        let ring = take(&mut programs, "EVENTS")?;
        let lost = take(&mut programs, "LOST")?;
        let mut tracked: HashMap<MapData, u32, [u64; 2]> = take(&mut programs, "TRACKED")?;
        let init = value(Tracked { start: 0, flags: 0, pad: 0 });
        tracked.insert(1, init, REPLACE).map_err(|error| map_error("TRACKED", &error))?;

        let (lost_before, links) = (BTreeMap::new(), BTreeMap::new());
        let mut watcher =
            Watcher { programs, known, ring, tracked, lost, lost_before, untracked: 0, ready: None, say, links, wanted, xid };
        watcher.knows(devices)?;
        let attached = watcher.attach_all(devices);
        Ok((watcher, attached))
    }

    /// These devices count from now on.
    pub(super) fn knows(&mut self, devices: &[DeviceNode]) -> Result<(), KernelError> {
        for node in devices {
            self.known.insert(node.dev.0, number_of(node.node()), REPLACE).map_err(|error| map_error("DEVICES", &error))?;
        }
        Ok(())
    }

    fn attach_all(&mut self, devices: &[DeviceNode]) -> Attached {
        let mut attached = Attached::default();
        for spec in hooks::BOTH {
            attached.add(spec, self.attach_one(ALWAYS, spec, &Symbols::default()));
        }
        let why_not = self.why_no_probes(devices);
        let symbols = if why_not.is_none() { Symbols::read() } else { Symbols::default() };
        for group in hooks::GROUPS {
            self.attach_group(group, why_not.as_deref(), &symbols, &mut attached);
        }
        if self.xid {
            attached.add(&hooks::XID, self.attach_one(hooks::XID.name, &hooks::XID, &symbols));
        }
        attached
    }

    /// The driver was loaded, unloaded, or both since the hooks of its functions were attached: detaches what is left of them, or what
    /// took their place, and attaches them anew. The kernel's own functions stay hooked.
    pub(super) fn attach_driver(&mut self, devices: &[DeviceNode]) -> Attached {
        let mut attached = Attached::default();
        let why_not = self.why_no_probes(devices);
        let symbols = if why_not.is_none() { Symbols::read() } else { Symbols::default() };
        for group in hooks::GROUPS.iter().filter(|group| group.of_driver && why_not.is_none()) {
            self.detach(group.sees);
            self.attach_group(group, None, &symbols, &mut attached);
        }
        if self.xid {
            self.detach(hooks::XID.name);
            attached.add(&hooks::XID, self.attach_one(hooks::XID.name, &hooks::XID, &symbols));
        }
        attached
    }

    /// Why kprobes are not used at all.
    fn why_no_probes(&self, devices: &[DeviceNode]) -> Option<String> {
        let strange = devices.iter().find(|node| !symbols::is_of_driver(node.dev));
        match self.wanted {
            Wanted::Syscall => Some("--hooks syscall".to_owned()),
            Wanted::Auto if !symbols::has_kprobes() => Some("this kernel has no kprobes".to_owned()),
            Wanted::Auto => strange.map(|node| format!("{} is not a device of NVIDIA's driver", node.path)),
            Wanted::Driver => None,
        }
    }

    fn attach_group(&mut self, group: &'static Group, why_not: Option<&str>, symbols: &Symbols, attached: &mut Attached) {
        if why_not.is_none() && group.of_driver && !symbols.has_driver() {
            attached.view(group, Way::Waiting, None);
            return;
        }
        let mut why_not = why_not.map(str::to_owned);
        if why_not.is_none() {
            let mut tried = Attached::default();
            for spec in group.driver {
                tried.add(spec, self.attach_one(group.sees, spec, symbols));
            }
            if tried.limits.is_empty() || self.wanted == Wanted::Driver {
                attached.hooks.extend(tried.hooks);
                attached.limits.extend(tried.limits);
                attached.view(group, Way::Driver, None);
                return;
            }
            // Half of them would see half of it.
            self.detach(group.sees);
            why_not = tried.hooks.iter().find_map(|hook| Some(format!("{}: {}", hook.name, hook.why_not.as_deref()?)));
        }
        for spec in group.syscall {
            attached.add(spec, self.attach_one(group.sees, spec, symbols));
        }
        attached.view(group, Way::Syscall, why_not);
    }

    fn detach(&mut self, group: &str) {
        for link in self.links.remove(group).into_iter().flatten() {
            link.detach(&mut self.programs);
        }
    }

    /// Attaches one hook of a group; its name with where it was attached.
    fn attach_one(&mut self, group: &'static str, spec: &Spec, symbols: &Symbols) -> Result<String, Failure> {
        let program = self.programs.program_mut(spec.name).ok_or_else(|| Failure {
            reason: "the embedded object has no such program".to_owned(),
            absent: false,
        })?;
        let result = match spec.attach {
            Attach::Raw => attach_raw(program, spec.name).map(|()| spec.full_name()),
            Attach::Tracepoint(_) if !sys::tracefs_is_mounted() => {
                return Err(Failure { reason: "tracefs is not mounted and could not be mounted privately".to_owned(), absent: false });
            }
            Attach::Tracepoint(category) => attach_tracepoint(program, category, spec.name).map(|link| {
                self.links.entry(group).or_default().push(Link::Tracepoint(spec.name, link));
                spec.full_name()
            }),
            Attach::Entry(functions) | Attach::Return(functions) => {
                let Some(function) = symbols.first_of(functions) else {
                    return Err(Failure { reason: "no such function in this kernel".to_owned(), absent: true });
                };
                attach_probe(program, function).map(|link| {
                    self.links.entry(group).or_default().push(Link::Probe(spec.name, link));
                    spec.named(function)
                })
            }
        };
        result.map_err(|error| failure(&error))
    }

    /// Hands every record that is there to `each`, and no more than the ring can hold at once, so that a flood cannot
    /// keep the caller here.
    pub(super) fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        let most = outlive_ebpf::limits::RING_BYTES as usize / size_of::<outlive_ebpf::record::Header>();
        for _ in 0..most {
            let Some(record) = self.ring.next() else { break };
            each(&record);
        }
    }

    /// Waits until the kernel says that the ring is worth draining.
    pub(super) async fn readable(&mut self) -> io::Result<()> {
        let ready = match &mut self.ready {
            Some(ready) => ready,
            None => self.ready.insert(pollable(self.ring.as_fd().try_clone_to_owned()?)?),
        };
        ready.readable().await?.clear_ready();
        Ok(())
    }

    /// How many instructions the verifier went through for each loaded program.
    pub(super) fn verified(&self) -> Vec<(String, u32)> {
        let count = |program: &Program| program.info().ok()?.verified_instruction_count();
        self.programs.programs().filter_map(|(name, program)| Some((name.to_owned(), count(program)?))).collect()
    }

    /// Losses since last asked, by cause. Passes on the programs' own words about them too.
    pub(super) fn losses(&mut self) -> Vec<(&'static str, u64)> {
        if let Some(say) = &mut self.say {
            say();
        }
        let mut new = Vec::new();
        for cause in Lost::ALL {
            let Ok(values) = self.lost.get(&(cause as u32), 0) else { continue };
            let sum = values.iter().fold(0_u64, |sum, value| sum.wrapping_add(*value));
            let before = self.lost_before.insert(cause.name(), sum).unwrap_or(0);
            new.push((cause.name(), sum.wrapping_sub(before)));
        }
        new.push((Lost::TrackedFull.name(), std::mem::take(&mut self.untracked)));
        let misses: u64 = self.programs.programs().filter_map(|(_, program)| bpf::misses(program.fd().ok()?.as_fd()).ok()).sum();
        let before = self.lost_before.insert(NESTED, misses).unwrap_or(0);
        new.push((NESTED, misses.saturating_sub(before)));
        new.retain(|(_, count)| *count > 0);
        new
    }

    /// Follows these processes. An ancestor never replaces a GPU user that lives.
    pub(super) fn track(&mut self, processes: &[(ProcessId, bool)]) {
        for (id, gpu_user) in processes {
            let (flags, mode) = if *gpu_user { (flag::GPU_USER, REPLACE) } else { (0, KEEP) };
            let entry = value(Tracked { start: id.start(), flags, pad: 0 });
            // An entry of an earlier process with this number is in nobody's way.
            let stale = self.tracked.get(&id.tgid(), 0).is_ok_and(|[start, _]| start != 0 && start != id.start());
            let mode = if stale { REPLACE } else { mode };
            let result = self.tracked.insert(id.tgid(), entry, mode);
            let known = matches!(&result, Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::AlreadyExists);
            if result.is_err() && !known {
                self.untracked += 1;
            }
        }
    }
}

/// The ring's descriptor for tokio: a duplicate, because the ring owns its own.
#[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor that it polls")]
fn pollable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always returns the same open descriptor, and stays in the AsyncFd until that goes.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// A [`Tracked`] as two words, in memory order.
fn value(tracked: Tracked) -> [u64; 2] {
    let [a, b, c, d] = tracked.flags.to_ne_bytes();
    let [e, f, g, h] = tracked.pad.to_ne_bytes();
    [tracked.start, u64::from_ne_bytes([a, b, c, d, e, f, g, h])]
}

fn load(object: &[u8], constants: &Constants) -> Result<Ebpf, KernelError> {
    let mut loader = EbpfLoader::new();
    loader.btf(None).verifier_log_level(VerifierLogLevel::DISABLE);
    for (name, (bytes, must_exist)) in constants.globals() {
        loader.override_global(name, bytes, must_exist);
    }
    loader.load(object).map_err(|error| KernelError::Object(error.to_string()))
}

fn take<T>(programs: &mut Ebpf, name: &'static str) -> Result<T, KernelError>
where
    T: TryFrom<aya::maps::Map, Error = MapError>,
{
    let map = programs.take_map(name).ok_or_else(|| KernelError::Object(format!("it has no map {name}")))?;
    T::try_from(map).map_err(|error| map_error(name, &error))
}

fn map_error(name: &str, error: &MapError) -> KernelError {
    KernelError::Map { map: name.to_owned(), source: io::Error::other(error.to_string()) }
}

/// Why a hook is not attached.
struct Failure {
    reason: String,
    /// The kernel has no such tracepoint.
    absent: bool,
}

fn attach_raw(program: &mut Program, name: &str) -> Result<(), ProgramError> {
    let program: &mut RawTracePoint = program.try_into()?;
    program.load()?;
    program.attach(name).map(drop)
}

fn attach_tracepoint(program: &mut Program, category: &str, name: &str) -> Result<TracePointLinkId, ProgramError> {
    let program: &mut TracePoint = program.try_into()?;
    load_once(program.load())?;
    program.attach(category, name)
}

fn attach_probe(program: &mut Program, function: &str) -> Result<KProbeLinkId, ProgramError> {
    let program: &mut KProbe = program.try_into()?;
    load_once(program.load())?;
    program.attach(function, 0)
}

/// One program may be attached in several places, and again.
fn load_once(result: Result<(), ProgramError>) -> Result<(), ProgramError> {
    match result {
        Err(ProgramError::AlreadyLoaded) => Ok(()),
        result => result,
    }
}

/// Where a program is attached.
enum Link {
    Probe(&'static str, KProbeLinkId),
    Tracepoint(&'static str, TracePointLinkId),
}

impl Link {
    /// Failures mean that the function has gone with its module.
    fn detach(self, programs: &mut Ebpf) {
        match self {
            Link::Probe(name, link) => {
                if let Some(Program::KProbe(program)) = programs.program_mut(name) {
                    let _gone = program.detach(link);
                }
            }
            Link::Tracepoint(name, link) => {
                if let Some(Program::TracePoint(program)) = programs.program_mut(name) {
                    let _gone = program.detach(link);
                }
            }
        }
    }
}

fn failure(error: &ProgramError) -> Failure {
    let absent = match error {
        ProgramError::TracePointError(TracePointError::FileError { io_error, .. }) => io_error.kind() == io::ErrorKind::NotFound,
        ProgramError::SyscallError(error) => error.call == "bpf_raw_tracepoint_open" && error.io_error.kind() == io::ErrorKind::NotFound,
        _ => false,
    };
    let reason = if absent {
        "this kernel has no such tracepoint".to_owned()
    } else {
        let text = match error {
            ProgramError::SyscallError(error) => format!("{}: {}", error.call, error.io_error),
            other => other.to_string(),
        };
        text.chars().take(REASON_MAX).collect()
    };
    Failure { reason, absent }
}
