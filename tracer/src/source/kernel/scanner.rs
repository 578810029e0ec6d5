//! Who holds what now: loads the two iterators, and reads them to their end.
//!
//! Always true: a scan changes nothing and sees every thread of the host, zombies too. The iterators have maps of
//! their own and do not depend on anything being watched, so a scan is the same live, cold and while recording.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use aya_obj::btf::BtfFeatures;
use aya_obj::{EbpfSectionKind, Object};
use outlive_ebpf::limits::LOST_CAUSES;
use outlive_ebpf::record::Kind;

use super::bpf::{self, Map, MapShape};
use super::btf::Resolved;
use super::decode::{self, FileLine, Line, Tokens};
use super::{Constants, KernelError, number_of, uring};
use crate::event::{BootNs, DeviceNode, Hold};
use crate::snapshot::TaskLine;
use crate::sys;

/// Bytes asked of an iterator at a time; it hands out at most eight pages (kernel/bpf/bpf_iter.c).
const READ_BYTES: usize = 64 << 10;

/// What one scan saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScanPart {
    /// When it began, boottime ns.
    pub began: BootNs,
    /// When it ended.
    pub ended: BootNs,
    /// Every thread.
    pub tasks: Vec<TaskLine>,
    /// Every holding of an NVIDIA file: by descriptor, in flight, or registered in an io_uring.
    pub holds: Vec<Hold>,
    /// Nothing was left out.
    pub complete: bool,
}

/// The loaded iterators.
#[derive(Debug)]
pub(super) struct Scanner {
    tasks: OwnedFd,
    files: OwnedFd,
    known: Option<Map>,
    lost: Option<Map>,
    /// Sum of the loss counters when they were last looked at.
    lost_before: u64,
}

pub(super) const TASK: &str = "iter_task";
pub(super) const TASK_FILE: &str = "iter_task_file";

impl Scanner {
    /// Loads the iterators of `object`.
    pub(super) fn load(
        object: &[u8],
        kernel: &Resolved,
        constants: &Constants,
        devices: &[DeviceNode],
    ) -> Result<Scanner, KernelError> {
        let mut object = parse(object, constants)?;
        let btf = load_btf(&mut object)?;
        let maps = create_maps(&object, devices)?;
        relocate(&mut object, &maps)?;
        let task = Program::of(&object, TASK, kernel.iter_task)?;
        let task_file = Program::of(&object, TASK_FILE, kernel.iter_task_file)?;
        let (tasks, files) = both(|| task.link(&btf), || task_file.link(&btf));
        let (tasks, files) = (tasks?, files?);
        let mut maps = maps;
        let (known, lost) = (maps.remove("DEVICES"), maps.remove("LOST"));
        Ok(Scanner { tasks, files, known, lost, lost_before: 0 })
    }

    /// These devices count from now on.
    pub(super) fn knows(&self, devices: &[DeviceNode]) -> io::Result<()> {
        let Some(known) = &self.known else { return Ok(()) };
        devices.iter().try_for_each(|node| known.set(&node.dev.0.to_ne_bytes(), &number_of(node.node()).to_ne_bytes()))
    }

    /// Reads both iterators.
    pub(super) fn scan(&mut self, devices: &[DeviceNode], tokens: Tokens, ours: Option<u32>) -> io::Result<ScanPart> {
        let mut part = ScanPart { began: sys::boottime_ns(), ..ScanPart::default() };
        let (tasks, files) = both(|| self.read_tasks(tokens), || self.read_files(tokens, ours));
        let ((tasks, unknown_tasks), (files, unknown_files)) = (tasks?, files?);
        part.tasks = tasks;
        let unknown = unknown_tasks + unknown_files;
        part.complete = unknown == 0 && self.newly_lost() == 0;
        for line in distinct(files) {
            if line.kind == Kind::IoUring {
                // A ring that has gone meanwhile holds nothing.
                part.holds.extend(uring::registered(&line.hold, devices, tokens).unwrap_or_default());
            } else {
                part.holds.push(line.hold);
            }
        }
        part.ended = sys::boottime_ns();
        Ok(part)
    }

    /// Every thread, and how many records were not understood.
    fn read_tasks(&self, tokens: Tokens) -> io::Result<(Vec<TaskLine>, u64)> {
        let (mut lines, mut unknown) = (Vec::new(), 0);
        each_record(bpf::run_iterator(self.tasks.as_fd())?, |record| match decode::line(record, tokens) {
            Line::Task(line) => lines.push(line),
            Line::File(_) | Line::Unknown => unknown += 1,
        })?;
        Ok((lines, unknown))
    }

    /// Every file that counts, but `ours`, and how many records were not understood.
    fn read_files(&self, tokens: Tokens, ours: Option<u32>) -> io::Result<(Vec<FileLine>, u64)> {
        let (mut lines, mut unknown) = (Vec::new(), 0);
        each_record(bpf::run_iterator(self.files.as_fd())?, |record| match decode::line(record, tokens) {
            Line::File(line) if Some(line.hold.id.tgid()) == ours => {}
            Line::File(line) => lines.push(line),
            Line::Task(_) | Line::Unknown => unknown += 1,
        })?;
        Ok((lines, unknown))
    }

    /// What the iterators' programs counted as lost since last asked.
    fn newly_lost(&mut self) -> u64 {
        let Some(map) = &self.lost else { return 0 };
        let values = (0..LOST_CAUSES).filter_map(|cause| map.get(&cause.to_ne_bytes()).ok());
        let sum = values.flat_map(|bytes| words(&bytes)).fold(0_u64, u64::wrapping_add);
        let new = sum.wrapping_sub(self.lost_before);
        self.lost_before = sum;
        new
    }
}

/// Does two things at once: loading or running the two iterators is all kernel time, and one CPU's worth each. Where no thread can be made
/// (zombies can take all PIDs, which is when somebody looks), one after the other.
fn both<A: Send, B>(one: impl Fn() -> A + Sync, other: impl FnOnce() -> B) -> (A, B) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, &one);
        let other = other();
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(one)) => (one, other),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => (one(), other),
        }
    })
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// One line for each descriptor of each table of each process: threads that share a table are visited more than once
/// when their leader is gone. Two processes that share a table both hold what is in it.
fn distinct(lines: Vec<FileLine>) -> impl Iterator<Item = FileLine> {
    let mut seen = HashSet::new();
    lines.into_iter().filter(move |line| seen.insert((line.hold.id, line.files, line.hold.fd, line.hold.file)))
}

/// Reads to the end, handing out whole records.
fn each_record(mut from: File, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut filled = 0;
    loop {
        let room = buffer.get_mut(filled..).unwrap_or_default();
        match from.read(room) {
            Ok(0) => break,
            Ok(count) => filled += count,
            // The kernel answers EAGAIN after a million objects without output, and goes on when read again.
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => continue,
            Err(error) => return Err(error),
        }
        let used = decode::split(buffer.get(..filled).unwrap_or_default(), &mut each);
        let used = used.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an iterator wrote a broken record"))?;
        buffer.copy_within(used..filled, 0);
        filled -= used;
    }
    if filled == 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads the object and keeps of it what the iterators need.
fn parse(bytes: &[u8], constants: &Constants) -> Result<Object, KernelError> {
    let broken = |error: &dyn std::fmt::Display| KernelError::Object(error.to_string());
    let mut object = Object::parse(bytes).map_err(|error| broken(&error))?;
    object.patch_map_data(constants.globals().into_iter().collect()).map_err(|error| broken(&error))?;
    let unwanted: Vec<_> =
        object.programs.extract_if(|name, _| name != TASK && name != TASK_FILE).map(|(_, program)| program).collect();
    for program in unwanted {
        object.functions.remove(&program.function_key());
    }
    Ok(object)
}

fn load_btf(object: &mut Object) -> Result<OwnedFd, KernelError> {
    // Nothing has to be left out of the object's BTF for kernels since 6.0, and older ones lack what the programs need.
    let features = BtfFeatures::new(true, true, true, true, true, true, true, true);
    let btf = object.fixup_and_sanitize_btf(&features).map_err(|error| KernelError::Object(error.to_string()))?;
    let bytes = btf.ok_or_else(|| KernelError::Object("it has no BTF".to_owned()))?.to_bytes();
    bpf::load_btf(&bytes).map_err(|source| KernelError::Refused { program: "BTF of the programs".to_owned(), source })
}

/// Kinds of map (`enum bpf_map_type`, include/uapi/linux/bpf.h).
const HASH: u32 = 1;
const LRU_HASH: u32 = 9;
const RINGBUF: u32 = 27;
const PERCPU_ARRAY: u32 = 6;

/// Makes every map of the object: those that only the watching programs use as small as can be.
fn create_maps(object: &Object, devices: &[DeviceNode]) -> Result<HashMap<String, Map>, KernelError> {
    let mut maps = HashMap::new();
    for (name, definition) in &object.maps {
        let failed = |source| KernelError::Map { map: name.clone(), source };
        let max_entries = match (definition.map_type(), name.as_str()) {
            (RINGBUF, _) => 4096,
            // A map of the watching programs' own.
            (HASH | LRU_HASH, name) if name != "DEVICES" => 1,
            _ => definition.max_entries(),
        };
        let shape = MapShape {
            kind: definition.map_type(),
            key_size: definition.key_size(),
            value_size: definition.value_size(),
            max_entries,
            flags: definition.map_flags(),
        };
        let value_size = match shape.kind {
            PERCPU_ARRAY => shape.value_size.next_multiple_of(8) as usize * possible_cpus().map_err(failed)?,
            _ => shape.value_size as usize,
        };
        let map = Map::create(shape, value_size).map_err(failed)?;
        if definition.section_kind() == EbpfSectionKind::Rodata {
            map.set(&0_u32.to_ne_bytes(), definition.data()).and_then(|()| map.freeze()).map_err(failed)?;
        }
        if name == "DEVICES" {
            for node in devices {
                map.set(&node.dev.0.to_ne_bytes(), &super::number_of(node.node()).to_ne_bytes()).map_err(failed)?;
            }
        }
        maps.insert(name.clone(), map);
    }
    Ok(maps)
}

/// CPUs that the kernel can ever have: a per-CPU value is read with all of them.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other("/sys/devices/system/cpu/possible has no range in it"))
}

fn relocate(object: &mut Object, maps: &HashMap<String, Map>) -> Result<(), KernelError> {
    let texts: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let definitions = object.maps.clone();
    let bound = maps.iter().filter_map(|(name, map)| Some((name.as_str(), map.as_raw_fd(), definitions.get(name)?)));
    object.relocate_maps(bound, &texts).map_err(|error| KernelError::Object(error.to_string()))?;
    object.relocate_calls(&texts).map_err(|error| KernelError::Object(error.to_string()))
}

/// A program as the kernel takes it.
struct Program {
    name: &'static str,
    instructions: Vec<u8>,
    functions: Vec<u8>,
    target: u32,
}

impl Program {
    fn of(object: &Object, name: &'static str, target: Option<u32>) -> Result<Program, KernelError> {
        let function = object.programs.get(name).and_then(|program| object.functions.get(&program.function_key()));
        let function = function.ok_or_else(|| KernelError::Object(format!("it has no program {name}")))?;
        let target = target.ok_or_else(|| KernelError::Refused {
            program: name.to_owned(),
            source: io::Error::other("this kernel has no such iterator"),
        })?;
        let instructions = function.instructions.iter().flat_map(encode).collect();
        Ok(Program { name, instructions, functions: function.func_info.func_info_bytes(), target })
    }

    /// Loads it and links it to all tasks.
    fn link(&self, btf: &OwnedFd) -> Result<OwnedFd, KernelError> {
        let program = bpf::IteratorProgram {
            name: self.name,
            instructions: &self.instructions,
            functions: Some((btf.as_fd(), &self.functions)),
            target: self.target,
        };
        let loaded = bpf::load_iterator(program);
        loaded
            .and_then(|program| bpf::link_iterator(program.as_fd(), None))
            .map_err(|source| KernelError::Refused { program: self.name.to_owned(), source })
    }
}

fn encode(instruction: &aya_obj::generated::bpf_insn) -> [u8; 8] {
    uring::instruction(instruction.code, instruction.dst_reg(), instruction.src_reg(), instruction.off, instruction.imm)
}
