//! The sampling thread: loads NVML, asks, sends what changed.
//!
//! Always true: between two samples it waits on the shared condition, so that a change of rate, a wish for a sample
//! and the end take effect at once; a waiter's ticket is done also when the sample failed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, ProcessInfo};
use nvml_wrapper::{Device, Nvml};
use tokio::sync::mpsc;

use super::{Options, Rate, Shared, failure, health, limit};
use crate::event::{Event, GpuProcess, GpuUse, What};
use crate::sys;

/// NVML that could not be initialised is tried again this often.
const RETRY: Duration = Duration::from_secs(10);
/// A list that grows while it is read is read again this often.
const LIST_TRIES: usize = 4;
const NAME_MAX: usize = 256;
/// A GPU's health changes rarely: it is asked for no more often than this.
const HEALTH_EVERY: Duration = Duration::from_secs(5);

/// Where the library is when the loader does not find it by name: WSL, NixOS, GKE, the GPU operator.
const LIBRARIES: [&str; 6] = [
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
];

pub(super) fn run(options: &Options, sender: mpsc::Sender<Event>, shared: &Shared) {
    let mut out = Out {
        sender,
        dropped: 0,
        said: BTreeSet::new(),
    };
    let mut known = Known::default();
    while !shared.lock().stop && !out.sender.is_closed() {
        match connect(options.library.as_deref(), shared) {
            Ok(nvml) => {
                sample_until_lost(&nvml, options, shared, &mut known, &mut out);
                shared.call("nvmlShutdown", || drop(nvml));
            }
            Err((error, library)) => out.limit(failure::unavailable(&error, &library)),
        }
        let wanted = shared.lock().wanted;
        shared.change(|state| state.done = wanted);
        pause(shared, |_| RETRY, |state| state.wanted > wanted);
    }
}

/// Loads and initialises NVML.
pub(super) fn connect(
    library: Option<&Path>,
    shared: &Shared,
) -> Result<Nvml, (NvmlError, PathBuf)> {
    let candidates: Vec<&Path> = library.map_or_else(
        || LIBRARIES.iter().map(Path::new).collect(),
        |named| vec![named],
    );
    let began = Instant::now();
    let mut first = None;
    for path in candidates {
        match shared.call("nvmlInit", || {
            Nvml::builder().lib_path(path.as_os_str()).init()
        }) {
            Ok(nvml) => {
                shared.change(|state| state.init_took = Some(began.elapsed()));
                return Ok(nvml);
            }
            Err(error) => {
                let absent = matches!(error, NvmlError::LibloadingError(_));
                first.get_or_insert((error, path.to_path_buf()));
                if !absent {
                    break;
                }
            }
        }
    }
    Err(first.unwrap_or((NvmlError::LibraryNotFound, PathBuf::new())))
}

/// At rest, the time between two samples is at least this many times what one takes, up to [`REST_MAX`].
const REST_COST: u32 = 2_000;
const REST_MAX: Duration = Duration::from_secs(60);

/// Waits for `period` (recomputed when something changes), the end, or `until`.
fn pause(
    shared: &Shared,
    period: impl Fn(Rate) -> Duration,
    until: impl Fn(&super::State) -> bool,
) {
    let began = Instant::now();
    let mut state = shared.lock();
    while !state.stop && !until(&state) {
        let Some(left) = period(state.rate)
            .checked_sub(began.elapsed())
            .filter(|left| !left.is_zero())
        else {
            return;
        };
        state = shared
            .changed
            .wait_timeout(state, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

fn sample_until_lost(
    nvml: &Nvml,
    options: &Options,
    shared: &Shared,
    known: &mut Known,
    out: &mut Out,
) {
    loop {
        let (wanted, done) = {
            let state = shared.lock();
            (state.wanted, state.done)
        };
        let began = Instant::now();
        let result = sample(nvml, wanted > done, shared, known, out);
        // At rest a sample may cost 1 ms in 2 s; on an H200 one costs some 25 ms of the driver's time.
        let rest = (began.elapsed() * REST_COST).clamp(options.rest, REST_MAX.max(options.rest));
        shared.change(|state| state.done = wanted);
        if let Err(error) = result {
            let library = options
                .library
                .as_deref()
                .unwrap_or(Path::new(LIBRARIES[0]));
            out.limit(failure::unavailable(&error, library));
            return;
        }
        let period = |rate| {
            if rate == Rate::Fast {
                options.fast
            } else {
                rest
            }
        };
        pause(shared, period, |state| state.wanted > state.done);
        if shared.lock().stop || out.sender.is_closed() {
            return;
        }
    }
}

/// Sends events, and says each limit once until a sample is complete again.
struct Out {
    sender: mpsc::Sender<Event>,
    dropped: u64,
    said: BTreeSet<String>,
}

impl Out {
    fn send(&mut self, what: What) {
        let at = sys::boottime_ns();
        if self.dropped > 0 {
            let lost = What::Lost {
                cause: "queue_full".to_owned(),
                count: self.dropped,
            };
            if self.sender.try_send(Event { at, what: lost }).is_ok() {
                self.dropped = 0;
            }
        }
        if self.sender.try_send(Event { at, what }).is_err() {
            self.dropped += 1;
        }
    }

    fn limit(&mut self, sentence: (String, String)) {
        if self.said.insert(sentence.0.clone())
            && let Event { what, .. } = limit(sentence)
        {
            self.send(what);
        }
    }
}

/// What was sent of each GPU.
#[derive(Default)]
struct Known {
    gpus: BTreeMap<u32, What>,
    memory: BTreeMap<u32, What>,
    lists: BTreeMap<u32, Vec<GpuProcess>>,
    health: BTreeMap<u32, What>,
    /// When a GPU's health was last asked for.
    health_at: BTreeMap<u32, Instant>,
}

impl Known {
    /// Says how a GPU is when that is news.
    fn health(&mut self, gpu: u32, whole: bool, now: What, out: &mut Out) {
        let before = self.health.get(&gpu);
        if (before.is_some() || !health::is_silent(&now)) && (whole || before != Some(&now)) {
            out.send(now.clone());
            self.health.insert(gpu, now);
        }
    }
}

/// One sample of everything; an error means that NVML must be initialised anew.
fn sample(
    nvml: &Nvml,
    whole: bool,
    shared: &Shared,
    known: &mut Known,
    out: &mut Out,
) -> Result<(), NvmlError> {
    let count = shared.call("nvmlDeviceGetCount", || nvml.device_count())?;
    let mut complete = true;
    for gpu in 0..count {
        match sample_gpu(nvml, gpu, whole, shared, known, out) {
            Ok(()) => {}
            Err((error, _)) if failure::is_fatal(&error) => return Err(error),
            Err((error, question)) => {
                complete = false;
                if let Some(now) = health::failed(&error, gpu) {
                    known.health(gpu, whole, now, out);
                }
                out.limit(failure::gpu(&error, gpu, question));
            }
        }
    }
    for gpu in known.gpus.keys().filter(|gpu| **gpu >= count) {
        complete = false;
        out.limit(failure::gone(*gpu));
    }
    if complete {
        out.said.clear();
    }
    Ok(())
}

type Failed = (NvmlError, &'static str);

fn sample_gpu(
    nvml: &Nvml,
    gpu: u32,
    whole: bool,
    shared: &Shared,
    known: &mut Known,
    out: &mut Out,
) -> Result<(), Failed> {
    let asked = |question: &'static str| move |error| (error, question);
    let device = shared
        .call(format!("for GPU {gpu}"), || nvml.device_by_index(gpu))
        .map_err(asked("handle"))?;
    if whole || !known.gpus.contains_key(&gpu) {
        let identity = shared
            .call(format!("who GPU {gpu} is"), || identity(&device, gpu))
            .map_err(asked("identity"))?;
        if whole || known.gpus.get(&gpu) != Some(&identity) {
            out.send(identity.clone());
            known.gpus.insert(gpu, identity);
        }
    }
    let info = shared
        .call(format!("for the memory of GPU {gpu}"), || {
            device.memory_info()
        })
        .map_err(asked("memory"))?;
    let memory = memory(gpu, &info);
    if whole || known.memory.get(&gpu) != Some(&memory) {
        out.send(memory.clone());
        known.memory.insert(gpu, memory);
    }
    let listed = shared
        .call(format!("for the processes on GPU {gpu}"), || lists(&device))
        .map_err(asked("process lists"))?;
    let before = known.lists.get(&gpu);
    let list = shared.call(format!("for the names of processes on GPU {gpu}"), || {
        named(nvml, listed, before.filter(|_| !whole))
    });
    if whole || before != Some(&list) {
        out.send(What::GpuProcesses {
            gpu,
            list: list.clone(),
        });
        known.lists.insert(gpu, list);
    }
    let asked = known.health_at.get(&gpu);
    if whole || asked.is_none_or(|asked| asked.elapsed() >= HEALTH_EVERY) {
        known.health_at.insert(gpu, Instant::now());
        let now = shared.call(format!("for the health of GPU {gpu}"), || {
            health::of(&device, gpu)
        });
        known.health(gpu, whole, now, out);
    }
    Ok(())
}

fn identity(device: &Device<'_>, gpu: u32) -> Result<What, NvmlError> {
    Ok(What::Gpu {
        gpu,
        uuid: device.uuid()?,
        name: device.name()?,
        minor: device.minor_number().ok(),
        pci: device.pci_info().ok().map(|pci| address(&pci.bus_id)),
        settled_at: None,
    })
}

/// "00000000:0B:00.0" -> "0000:0b:00.0", as lspci and sysfs write it.
pub(super) fn address(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => lower,
    }
}

/// nvml.h says that version 2 counts the reserve as used; drivers do not. The sum tells which it is.
fn memory(gpu: u32, info: &MemoryInfo) -> What {
    let sum = info
        .reserved
        .saturating_add(info.used)
        .saturating_add(info.free);
    let counted_twice = sum.saturating_sub(info.total) > info.reserved / 2;
    let used = if counted_twice {
        info.used.saturating_sub(info.reserved)
    } else {
        info.used
    };
    What::GpuMemory {
        gpu,
        total: info.total,
        used,
        reserved: Some(info.reserved),
    }
}

/// All three lists, in a fixed order, without ourselves.
fn lists(device: &Device<'_>) -> Result<Vec<GpuProcess>, NvmlError> {
    let mut all = Vec::new();
    add(&mut all, GpuUse::Compute, || {
        device.running_compute_processes()
    })?;
    add(&mut all, GpuUse::Graphics, || {
        device.running_graphics_processes()
    })?;
    add(&mut all, GpuUse::Mps, || {
        device.mps_running_compute_processes()
    })?;
    all.sort_by_key(|p| (p.pid, p.usage));
    Ok(all)
}

fn add(
    all: &mut Vec<GpuProcess>,
    usage: GpuUse,
    read: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<(), NvmlError> {
    for _ in 0..LIST_TRIES {
        match read() {
            Ok(infos) => {
                all.extend(merge(infos, usage, std::process::id()));
                return Ok(());
            }
            Err(NvmlError::InsufficientSize(_)) => {} // It grew between the two calls.
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_))
                if usage != GpuUse::Compute =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Err(NvmlError::InsufficientSize(None))
}

/// One line for each process: MIG instances are added up; a line that is repeated (drivers do that in containers) counts once.
fn merge(infos: Vec<ProcessInfo>, usage: GpuUse, own: u32) -> Vec<GpuProcess> {
    let mut seen = BTreeSet::new();
    let mut lines: BTreeMap<u32, GpuProcess> = BTreeMap::new();
    for info in infos {
        if info.pid == own
            || !seen.insert((info.pid, info.gpu_instance_id, info.compute_instance_id))
        {
            continue;
        }
        let bytes = match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        let line = lines.entry(info.pid).or_insert(GpuProcess {
            pid: info.pid,
            bytes: None,
            usage,
            name: None,
        });
        line.bytes = match (line.bytes, bytes) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
    }
    lines.into_values().collect()
}

/// Adds names: as before where known, else by asking.
fn named(
    nvml: &Nvml,
    mut list: Vec<GpuProcess>,
    before: Option<&Vec<GpuProcess>>,
) -> Vec<GpuProcess> {
    for line in &mut list {
        let known = before.and_then(|before| before.iter().find(|b| b.pid == line.pid));
        line.name = match known {
            Some(known) => known.name.clone(),
            None => nvml
                .sys_process_name(line.pid, NAME_MAX)
                .ok()
                .filter(|name| !name.is_empty()),
        };
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pid: u32, used: UsedGpuMemory, instance: Option<u32>) -> ProcessInfo {
        ProcessInfo {
            pid,
            used_gpu_memory: used,
            gpu_instance_id: instance,
            compute_instance_id: None,
        }
    }

    #[test]
    fn the_reserve_is_never_counted_as_used() {
        let expected = What::GpuMemory {
            gpu: 0,
            total: 1000,
            used: 300,
            reserved: Some(100),
        };
        assert_eq!(
            memory(
                0,
                &MemoryInfo {
                    total: 1000,
                    reserved: 100,
                    used: 300,
                    free: 600,
                    version: 2
                }
            ),
            expected
        );
        assert_eq!(
            memory(
                0,
                &MemoryInfo {
                    total: 1000,
                    reserved: 100,
                    used: 400,
                    free: 600,
                    version: 2
                }
            ),
            expected
        );
    }

    #[test]
    fn instances_are_added_up_repeats_are_not_and_we_are_left_out() {
        let used = UsedGpuMemory::Used;
        let infos = vec![
            info(7, used(1), Some(0)),
            info(7, used(2), Some(1)),
            info(7, used(2), Some(1)),
            info(9, used(5), None),
            info(8, UsedGpuMemory::Unavailable, None),
        ];
        let lines = merge(infos, GpuUse::Compute, 9);
        assert_eq!(
            lines.iter().map(|l| (l.pid, l.bytes)).collect::<Vec<_>>(),
            [(7, Some(3)), (8, None)]
        );
    }

    #[test]
    fn pci_addresses_read_as_in_sysfs() {
        assert_eq!(address("00000000:0B:00.0"), "0000:0b:00.0");
        assert_eq!(address("00010000:0B:00.0"), "00010000:0b:00.0");
    }
}
