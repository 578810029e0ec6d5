//! What happens from now on: loads and attaches the watching programs, and drains their ring.
//!
//! Always true: a hook that cannot be attached is reported and left out, never a reason to stop; draining does not
//! block.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use aya::maps::{HashMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::trace_point::TracePointError;
use aya::programs::{Program, ProgramError, RawTracePoint, TracePoint};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use aya_log::EbpfLogger;
use outlive_ebpf::limits::Lost;
use outlive_ebpf::record::{Tracked, flag};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::hooks::{self, Attach, Spec};
use super::{Constants, KernelError, number_of};
use crate::event::{DeviceNode, Hook, ProcessId};
use crate::sys;

/// `BPF_ANY` and `BPF_NOEXIST` (include/uapi/linux/bpf.h).
const REPLACE: u64 = 0;
const KEEP: u64 = 1;
/// Longest text that is kept of why a hook is not attached.
const REASON_MAX: usize = 400;

/// The attached programs and their maps.
pub(super) struct Watcher {
    /// Owns the programs; they are detached when it goes.
    _programs: Ebpf,
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
}

impl Attached {
    /// Nothing, for this reason.
    pub(super) fn none(why: &str) -> Attached {
        let mut attached = Attached::default();
        for spec in hooks::ALL {
            attached.add(spec, Some(Failure { reason: why.to_owned(), absent: false }));
        }
        attached
    }

    fn add(&mut self, spec: &Spec, failure: Option<Failure>) {
        if failure.as_ref().is_some_and(|why| !(spec.may_be_absent && why.absent)) {
            self.limits.push((spec.full_name(), spec.voids.to_owned()));
        }
        self.hooks.push(spec.report(failure.map(|why| why.reason)));
    }
}

impl Watcher {
    /// Loads the object and attaches all it can.
    pub(super) fn attach(
        object: &[u8],
        constants: &Constants,
        devices: &[DeviceNode],
    ) -> Result<(Watcher, Attached), KernelError> {
        let mut programs = load(object, constants)?;
        // Before anything runs: the devices are the filter, and PID 1 (any start) adopts orphans and must be seen waiting.
        // The programs name maps by descriptor until they are loaded, so all of these live to the end of this function.
        let mut known: HashMap<_, u32, u32> = take(&mut programs, "DEVICES")?;
        for node in devices {
            known.insert(node.dev.0, number_of(node.node()), REPLACE).map_err(|error| map_error("DEVICES", &error))?;
        }
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

        let mut attached = Attached::default();
        for spec in hooks::ALL {
            attached.add(spec, attach(&mut programs, spec).err());
        }
        let lost_before = BTreeMap::new();
        let watcher = Watcher { _programs: programs, ring, tracked, lost, lost_before, untracked: 0, ready: None, say };
        Ok((watcher, attached))
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

fn attach(programs: &mut Ebpf, spec: &Spec) -> Result<(), Failure> {
    let program = programs.program_mut(spec.name).ok_or_else(|| Failure {
        reason: "the embedded object has no such program".to_owned(),
        absent: false,
    })?;
    match spec.attach {
        Attach::Raw => attach_raw(program, spec.name),
        Attach::Tracepoint(_) if !sys::tracefs_is_mounted() => {
            return Err(Failure { reason: "tracefs is not mounted and could not be mounted privately".to_owned(), absent: false });
        }
        Attach::Tracepoint(category) => attach_tracepoint(program, category, spec.name),
    }
    .map_err(|error| failure(&error))
}

fn attach_raw(program: &mut Program, name: &str) -> Result<(), ProgramError> {
    let program: &mut RawTracePoint = program.try_into()?;
    program.load()?;
    program.attach(name).map(drop)
}

fn attach_tracepoint(program: &mut Program, category: &str, name: &str) -> Result<(), ProgramError> {
    let program: &mut TracePoint = program.try_into()?;
    program.load()?;
    program.attach(category, name).map(drop)
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
