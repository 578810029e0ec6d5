//! The bpf(2) commands that the scanner needs, with their attributes spelled out.
//!
//! Always true: a descriptor that comes out is owned, a slice that goes in is as long as the kernel reads (the callers'
//! lengths are checked here), and a refused program's log is kept.
//!
//! aya does all of this too, but its loader parses the whole of the kernel's BTF each time it is made (30 ms), which
//! is most of the time that a live explanation has. The watching programs, which are loaded once, go through aya.
#![expect(unsafe_code, reason = "bpf(2) takes a union of structures, which std cannot call")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands (`enum bpf_cmd`, include/uapi/linux/bpf.h).
mod command {
    pub(super) const MAP_CREATE: libc::c_int = 0;
    pub(super) const MAP_LOOKUP_ELEM: libc::c_int = 1;
    pub(super) const MAP_UPDATE_ELEM: libc::c_int = 2;
    pub(super) const PROG_LOAD: libc::c_int = 5;
    pub(super) const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
    pub(super) const BTF_LOAD: libc::c_int = 18;
    pub(super) const MAP_FREEZE: libc::c_int = 22;
    pub(super) const LINK_CREATE: libc::c_int = 28;
    pub(super) const ITER_CREATE: libc::c_int = 33;
}

/// `BPF_PROG_TYPE_TRACING`.
const PROG_TYPE_TRACING: u32 = 26;
/// `BPF_TRACE_ITER`.
const TRACE_ITER: u32 = 28;
/// Bytes of the verifier's log that are kept of a refused program: its end says why.
const LOG_BYTES: usize = 1 << 20;
/// Times that the verifier may be interrupted by a signal (EAGAIN) before that counts as a refusal.
const INTERRUPTIONS_MAX: u32 = 5;

/// # Safety
/// `T` must be the attributes of `command`, and every address in it valid for what the kernel does there.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the caller's promise; the kernel reads `size_of::<T>()` bytes and treats what is not passed as zero.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
/// As [`bpf`], and `command` must return a new descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attributes) }?;
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the command has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(io::Error::other)
}

/// What a map is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapShape {
    pub(super) kind: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) flags: u32,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

/// Makes a map.
pub(super) fn create_map(shape: MapShape) -> io::Result<OwnedFd> {
    let MapShape { kind, key_size, value_size, max_entries, flags } = shape;
    let mut attributes = MapCreate { kind, key_size, value_size, max_entries, flags };
    // SAFETY: MAP_CREATE's attributes, without addresses; it returns a descriptor.
    unsafe { bpf_fd(command::MAP_CREATE, &mut attributes) }
}

#[repr(C)]
struct MapElement {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A map and how long its keys and values are, so that a slice of another length is never handed to the kernel.
#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

impl Map {
    /// Makes one. `value_size` is what the kernel copies for one key: for per-CPU maps, the values of all CPUs.
    pub(super) fn create(shape: MapShape, value_size: usize) -> io::Result<Map> {
        Ok(Map { fd: create_map(shape)?, key_size: shape.key_size as usize, value_size })
    }

    /// Sets one element.
    pub(super) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, value)?;
        let mut attributes = self.element(key, value.as_ptr() as u64);
        // SAFETY: key and value are as long as this map's, and only read.
        unsafe { bpf(command::MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
    }

    /// Reads one element.
    pub(super) fn get(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.value_size];
        self.check(key, &value)?;
        let mut attributes = self.element(key, value.as_mut_ptr() as u64);
        // SAFETY: the key is as long as this map's, and `value` has room for what the kernel copies.
        unsafe { bpf(command::MAP_LOOKUP_ELEM, &mut attributes) }?;
        Ok(value)
    }

    /// Makes it read-only for user space, so that the verifier takes its contents for constants.
    pub(super) fn freeze(&self) -> io::Result<()> {
        // SAFETY: MAP_FREEZE's attributes: a map.
        unsafe { bpf(command::MAP_FREEZE, &mut number(self.fd.as_fd())) }.map(drop)
    }

    fn check(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if key.len() == self.key_size && value.len() == self.value_size {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "a key or value of the wrong length for this map"))
    }

    fn element(&self, key: &[u8], value: u64) -> MapElement {
        MapElement { map: number(self.fd.as_fd()), pad: 0, key: key.as_ptr() as u64, value, flags: 0 }
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }
}

#[repr(C)]
struct BtfLoad {
    btf: u64,
    log: u64,
    btf_size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}

/// Loads an object's own BTF.
pub(super) fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes =
        BtfLoad { btf: bytes.as_ptr() as u64, log: 0, btf_size: length(bytes)?, log_size: 0, log_level: 0, pad: 0 };
    // SAFETY: the address and size of a slice that outlives the call; no log; it returns a descriptor.
    unsafe { bpf_fd(command::BTF_LOAD, &mut attributes) }
}

/// An iterator program to load.
#[derive(Clone, Copy, Debug)]
pub(super) struct IteratorProgram<'a> {
    /// What the kernel lists it as; 15 characters are kept.
    pub(super) name: &'a str,
    /// Instructions, 8 bytes each.
    pub(super) instructions: &'a [u8],
    /// The object's BTF and its `bpf_func_info` records, 8 bytes each: needed for loop callbacks.
    pub(super) functions: Option<(BorrowedFd<'a>, &'a [u8])>,
    /// BTF id of `bpf_iter_<what>` in the kernel.
    pub(super) target: u32,
}

#[derive(Default)]
#[repr(C)]
struct ProgLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
    btf: u32,
    func_info_size: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_size: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
    attach_btf: u32,
    pad: u32,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(ProgLoad, name) == 48 && offset_of!(ProgLoad, expected_attach_type) == 68);
    assert!(offset_of!(ProgLoad, func_info) == 80 && offset_of!(ProgLoad, line_info) == 96);
    assert!(offset_of!(ProgLoad, attach_btf_id) == 108 && size_of::<ProgLoad>() == 120);
    assert!(offset_of!(LinkCreate, iter_info) == 16 && offset_of!(BtfLoad, btf_size) == 16);
};

/// Bytes of one instruction and of one `bpf_func_info`.
const UNIT: usize = 8;

/// Loads an iterator program. The error of a refusal carries the end of the verifier's log.
pub(super) fn load_iterator(program: IteratorProgram<'_>) -> io::Result<OwnedFd> {
    let mut result = try_load(program, &mut []);
    for _ in 0..INTERRUPTIONS_MAX {
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            break;
        }
        result = try_load(program, &mut []);
    }
    match result {
        Err(refused) if refused.kind() != io::ErrorKind::OutOfMemory => {
            let mut log = vec![0; LOG_BYTES];
            // The second try is for its log; if it succeeds, all the better.
            try_load(program, &mut log).map_err(|again| io::Error::new(again.kind(), format!("{again}: {}", end_of(&log))))
        }
        result => result,
    }
}

fn try_load(program: IteratorProgram<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attributes = ProgLoad {
        kind: PROG_TYPE_TRACING,
        instruction_count: length(program.instructions)? / UNIT as u32,
        instructions: program.instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        expected_attach_type: TRACE_ITER,
        attach_btf_id: program.target,
        ..ProgLoad::default()
    };
    for (place, byte) in attributes.name.iter_mut().take(15).zip(program.name.bytes()) {
        *place = byte;
    }
    if let Some((btf, functions)) = program.functions {
        attributes.btf = number(btf);
        attributes.func_info_size = UNIT as u32;
        attributes.func_info = functions.as_ptr() as u64;
        attributes.func_info_count = length(functions)? / UNIT as u32;
    }
    if !log.is_empty() {
        attributes.log_level = 1;
        attributes.log_size = length(log)?;
        attributes.log = log.as_mut_ptr() as u64;
    }
    // SAFETY: every address is that of a slice (or string) which outlives the call, with its own length beside it.
    unsafe { bpf_fd(command::PROG_LOAD, &mut attributes) }
}

/// The last words of a verifier log.
fn end_of(log: &[u8]) -> String {
    let text: Vec<u8> = log.iter().copied().take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("processed ")).collect();
    lines.iter().skip(lines.len().saturating_sub(4)).copied().collect::<Vec<_>>().join("; ")
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    iter_info: u64,
    iter_info_length: u32,
    pad: u32,
}

/// `bpf_iter_link_info.task`, padded to the union's size.
#[repr(C)]
struct TaskFilter {
    tid: u32,
    pid: u32,
    pid_fd: u32,
    pad: u32,
}

/// Links an iterator program to all tasks, or to those of one process (since 6.1).
pub(super) fn link_iterator(program: BorrowedFd<'_>, only: Option<u32>) -> io::Result<OwnedFd> {
    let filter = TaskFilter { tid: 0, pid: only.unwrap_or(0), pid_fd: 0, pad: 0 };
    let mut attributes = LinkCreate {
        program: number(program),
        target: 0,
        attach_type: TRACE_ITER,
        flags: 0,
        iter_info: 0,
        iter_info_length: 0,
        pad: 0,
    };
    if only.is_some() {
        attributes.iter_info = (&raw const filter) as u64;
        attributes.iter_info_length = size_of::<TaskFilter>() as u32;
    }
    // SAFETY: the filter, if its address is passed, outlives the call; it returns a descriptor.
    unsafe { bpf_fd(command::LINK_CREATE, &mut attributes) }
}

#[repr(C)]
struct IterCreate {
    link: u32,
    flags: u32,
}

/// Starts one run of a linked iterator: a file to read to its end.
pub(super) fn run_iterator(link: BorrowedFd<'_>) -> io::Result<std::fs::File> {
    let mut attributes = IterCreate { link: number(link), flags: 0 };
    // SAFETY: no addresses; it returns a descriptor.
    unsafe { bpf_fd(command::ITER_CREATE, &mut attributes) }.map(std::fs::File::from)
}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    length: u32,
    info: u64,
}

/// How often the kernel left out a run of a loaded program, because it came in the middle of another's (`bpf_prog_info.recursion_misses`, since
/// 5.12; for what hangs on perf events, which kprobes and tracepoints do, since 6.7). Needs no privilege.
pub(super) fn misses(program: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all of its fields are numbers, for which zero is a value.
    let mut info: aya_obj::generated::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut attributes = InfoByFd { fd: number(program), length: size_of_val(&info) as u32, info: (&raw mut info) as u64 };
    // SAFETY: `info` outlives the call and is as long as is said; the kernel fills in what both sides know.
    unsafe { bpf(command::OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(info.recursion_misses)
}

/// An io_uring instance of our own, never used: only its kind is of interest.
pub(super) fn own_ring() -> io::Result<OwnedFd> {
    // `struct io_uring_params` is 120 bytes (include/uapi/linux/io_uring.h).
    let mut parameters = [0_u64; 15];
    // SAFETY: one entry, and a zeroed structure of the size that the kernel reads and writes.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the call has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
