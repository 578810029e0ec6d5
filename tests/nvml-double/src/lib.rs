//! Test double of NVML: a library that answers what a JSON file says. Used only in tests, never installed.
//!
//! It exports the few functions that outlive uses, under NVML's names and ABI (nvml.h), and reads its answers from the
//! file named by the environment variable `OUTLIVE_NVML_DOUBLE`, again whenever the file changes (replace it by a
//! rename, or a half-written file is read, which answers "unknown error"; a file without a length, as in /proc, is read
//! at every call):
//!
//! ```json
//! {
//!   "driver": "580.0-double",
//!   "gpus": [{
//!     "name": "NVIDIA Double", "uuid": "GPU-double-0", "minor": 0, "pci": "00000000:0B:00.0",
//!     "total": 1000, "reserved": 100, "used": 300,
//!     "processes": [{"pid": 1, "bytes": 200, "use": "compute", "name": "python3"}]
//!   }],
//!   "used_includes_reserved": false,
//!   "errors": {"nvmlDeviceGetMemoryInfo_v2": 15},
//!   "hang": {"nvmlDeviceGetMemoryInfo_v2": 1.5}
//! }
//! ```
//!
//! Everything but `total` is optional. `use` is "compute", "graphics" or "mps"; `bytes` may be null (NVML's "not
//! available"); a process without a `name` is not found by name. `errors` gives a function an `nvmlReturn_t` to fail
//! with; `hang` makes it sleep that many seconds first. `used_includes_reserved` reports version 2 memory the way that
//! nvml.h describes rather than the way that drivers do. Without the variable, initialising fails as if no driver were
//! loaded; with a file that cannot be read, as unknown error. The driver version always says that it is a double.

#![expect(
    unsafe_code,
    reason = "C ABI: the caller's pointers are written through"
)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const DRIVER_NOT_LOADED: c_int = 9;
const UNKNOWN: c_int = 999;
/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Answers {
    driver: Option<String>,
    gpus: Vec<Gpu>,
    used_includes_reserved: bool,
    errors: BTreeMap<String, c_int>,
    hang: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gpu {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    uuid: Option<String>,
    #[serde(default)]
    minor: u32,
    #[serde(default)]
    pci: Option<String>,
    total: u64,
    #[serde(default)]
    reserved: u64,
    #[serde(default)]
    used: u64,
    #[serde(default)]
    processes: Vec<Process>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    pid: u32,
    bytes: Option<u64>,
    #[serde(rename = "use", default)]
    usage: Use,
    #[serde(default)]
    name: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Use {
    #[default]
    Compute,
    Graphics,
    Mps,
}

/// Time, inode and length of the file.
type Stamp = (SystemTime, u64, u64);

/// The file's stamp and content, as last read.
static LAST: Mutex<Option<(Stamp, Answers)>> = Mutex::new(None);

/// What the file says now, or the error that NVML would give.
fn answers() -> Result<Answers, c_int> {
    let path = std::env::var_os("OUTLIVE_NVML_DOUBLE").ok_or(DRIVER_NOT_LOADED)?;
    let meta = std::fs::metadata(&path).map_err(|_| UNKNOWN)?;
    let stamp = (
        meta.modified().map_err(|_| UNKNOWN)?,
        meta.ino(),
        meta.len(),
    );
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, answers)) = &*last
        && *at == stamp
        && stamp.2 != 0
    {
        return Ok(answers.clone());
    }
    let text = std::fs::read(&path).map_err(|_| UNKNOWN)?;
    let answers: Answers = serde_json::from_slice(&text).map_err(|_| UNKNOWN)?;
    *last = Some((stamp, answers.clone()));
    Ok(answers)
}

/// Answers one call of `function`: hangs and fails as the file says, else runs `answer`.
fn call(function: &str, answer: impl FnOnce(&Answers) -> Result<(), c_int>) -> c_int {
    let result = answers().and_then(|answers| {
        if let Some(seconds) = answers.hang.get(function) {
            std::thread::sleep(Duration::try_from_secs_f64(*seconds).unwrap_or(Duration::MAX));
        }
        match answers.errors.get(function) {
            Some(code) if *code != SUCCESS => Err(*code),
            _ => answer(&answers),
        }
    });
    result.err().unwrap_or(SUCCESS)
}

/// Handles are index + 1, so that none is null.
fn gpu(answers: &Answers, device: *mut c_void) -> Result<(usize, &Gpu), c_int> {
    let index = (device as usize).checked_sub(1).ok_or(INVALID_ARGUMENT)?;
    answers
        .gpus
        .get(index)
        .map(|gpu| (index, gpu))
        .ok_or(INVALID_ARGUMENT)
}

/// Writes `value` where the caller asked.
fn put<T>(to: *mut T, value: T) -> Result<(), c_int> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and NVML's contract is that it points to a writable T.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes `text` and its NUL into a buffer of `room` bytes.
fn put_text(to: *mut c_char, room: c_uint, text: &str) -> Result<(), c_int> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= room as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, and NVML's contract is that `room` bytes are writable; text and NUL fit.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_int {
    call("nvmlInit_v2", |_| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_int {
    call("nvmlInitWithFlags", |_| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(_code: c_int) -> *const c_char {
    c"error of the NVML double".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_int {
    call("nvmlSystemGetDriverVersion", |answers| {
        let named = answers.driver.as_deref().unwrap_or("580.0-double");
        let honest = if named.contains("double") {
            named.to_owned()
        } else {
            format!("{named}-double")
        };
        put_text(version, length, &honest)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) -> c_int {
    call("nvmlSystemGetProcessName", |answers| {
        let mut processes = answers.gpus.iter().flat_map(|gpu| &gpu.processes);
        let found = processes.find_map(|p| {
            if p.pid == pid {
                p.name.as_deref()
            } else {
                None
            }
        });
        put_text(name, length, found.ok_or(NOT_FOUND)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    call("nvmlDeviceGetCount_v2", |answers| {
        put(
            count,
            c_uint::try_from(answers.gpus.len()).unwrap_or(c_uint::MAX),
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) -> c_int {
    call("nvmlDeviceGetHandleByIndex_v2", |answers| {
        let handle = std::ptr::without_provenance_mut(index as usize + 1);
        gpu(answers, handle)?;
        put(device, handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, uuid: *mut c_char, length: c_uint) -> c_int {
    call("nvmlDeviceGetUUID", |answers| {
        let (index, gpu) = gpu(answers, device)?;
        let made_up = format!("GPU-double-{index}");
        put_text(uuid, length, gpu.uuid.as_deref().unwrap_or(&made_up))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: *mut c_void, name: *mut c_char, length: c_uint) -> c_int {
    call("nvmlDeviceGetName", |answers| {
        put_text(
            name,
            length,
            gpu(answers, device)?
                .1
                .name
                .as_deref()
                .unwrap_or("NVIDIA Double"),
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: *mut c_void, minor: *mut c_uint) -> c_int {
    call("nvmlDeviceGetMinorNumber", |answers| {
        put(minor, gpu(answers, device)?.1.minor)
    })
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: *mut c_void, pci: *mut PciInfo) -> c_int {
    call("nvmlDeviceGetPciInfo_v3", |answers| {
        let (index, gpu) = gpu(answers, device)?;
        let bus = c_uint::try_from(index).unwrap_or(0) + 1;
        let made_up = format!("00000000:{bus:02X}:00.0");
        let named = gpu.pci.as_deref().unwrap_or(&made_up);
        let mut bus_id = [0; 32];
        for (to, from) in bus_id[..31].iter_mut().zip(named.bytes()) {
            *to = c_char::from_ne_bytes([from]);
        }
        put(
            pci,
            PciInfo {
                bus_id_legacy: [0; 16],
                domain: 0,
                bus,
                device: 0,
                pci_device_id: 0,
                pci_subsystem_id: 0,
                bus_id,
            },
        )
    })
}

/// `nvmlMemory_t`.
#[repr(C)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: *mut c_void, memory: *mut Memory) -> c_int {
    call("nvmlDeviceGetMemoryInfo", |answers| {
        let gpu = gpu(answers, device)?.1;
        let used = gpu.used.saturating_add(gpu.reserved);
        put(
            memory,
            Memory {
                total: gpu.total,
                free: gpu.total.saturating_sub(used),
                used,
            },
        )
    })
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut MemoryV2) -> c_int {
    call("nvmlDeviceGetMemoryInfo_v2", |answers| {
        let gpu = gpu(answers, device)?.1;
        let version = c_uint::try_from(size_of::<MemoryV2>()).unwrap_or(0) | 2 << 24;
        let taken = gpu.used.saturating_add(gpu.reserved);
        let used = if answers.used_includes_reserved {
            taken
        } else {
            gpu.used
        };
        put(
            memory,
            MemoryV2 {
                version,
                total: gpu.total,
                reserved: gpu.reserved,
                free: gpu.total.saturating_sub(taken),
                used,
            },
        )
    })
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    used_gpu_memory: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

/// One of the three lists, with NVML's protocol for asking how long it is.
fn list(
    function: &str,
    usage: Use,
    device: *mut c_void,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_int {
    call(function, |answers| {
        let processes = gpu(answers, device)?
            .1
            .processes
            .iter()
            .filter(|p| p.usage == usage);
        if count.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and NVML's contract is that it points to the number of elements at `infos`.
        let room = unsafe { count.read() } as usize;
        let needed = processes.clone().count();
        put(count, c_uint::try_from(needed).unwrap_or(c_uint::MAX))?;
        if needed > room || (needed > 0 && infos.is_null()) {
            return Err(INSUFFICIENT_SIZE);
        }
        for (at, process) in processes.enumerate() {
            let used_gpu_memory = process.bytes.unwrap_or(NOT_AVAILABLE);
            let info = ProcessInfo {
                pid: process.pid,
                used_gpu_memory,
                gpu_instance_id: u32::MAX,
                compute_instance_id: u32::MAX,
            };
            // SAFETY: `at < room`, and `infos` has room for `room` elements.
            unsafe { infos.add(at).write(info) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_int {
    list(
        "nvmlDeviceGetComputeRunningProcesses_v3",
        Use::Compute,
        device,
        count,
        infos,
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_int {
    list(
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        Use::Graphics,
        device,
        count,
        infos,
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_int {
    list(
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        Use::Mps,
        device,
        count,
        infos,
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(_set: *mut *mut c_void) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    _device: *mut c_void,
    _types: c_ulonglong,
    _set: *mut c_void,
) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(
    _set: *mut c_void,
    _data: *mut c_void,
    _timeout_ms: c_uint,
) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> c_int {
    SUCCESS
}
