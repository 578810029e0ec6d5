//! After the return: what a request did.
//!
//! Always true: the status is looked at first, and nothing is believed that is not as it was at entry, or, where the driver writes
//! back, what the driver can have made of it.

use super::{Done, NO_DEVICE, Pending, UserMemory, VID_HEAP_ALLOC_SIZE, VID_HEAP_FREE, ask, at, high, low, missed, nested, op};
use crate::abi::{Abi, class, control, rm};

/// Why a return is not an event.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The driver did not do it.
    Failed = 0,
    /// The arguments could not be read after the return.
    Unreadable = missed::UNREADABLE,
    /// The arguments are not those of the entry.
    Changed = missed::CHANGED,
    /// The driver granted what this ABI table does not know.
    Unknown = missed::UNKNOWN,
}

/// How much more than was asked for the driver may give by rounding up: the largest page of any GPU (512 MiB).
const ROUNDING_MAX: u64 = 512 << 20;
/// `NVOS32_ALLOC_FLAGS_VIRTUAL`: address space only.
const FLAG_VIRTUAL: u32 = 0x0008_0000;
/// `NVOS32_ATTR_LOCATION`, bits 26:25; `_PCI` is 1: memory of the host.
const ATTR_LOCATION_SHIFT: u32 = 25;
const LOCATION_PCI: u32 = 1;
/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_FLAGS_EMPTY_FD`: nothing is exported yet.
const EMPTY_FD: u32 = 1;
/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM`.
const EXPORT_TYPE_RM: u32 = 1;

/// After the return (which was not an error): what was done.
///
/// # Errors
/// The driver's status says no; or the arguments cannot be read, are not those of the entry, or are not understood.
#[inline(always)]
pub fn finish(memory: &impl UserMemory, abi: &Abi, pending: &Pending, done: &mut Done) -> Result<(), Refused> {
    done.fd = -1;
    done.client = pending.client;
    match pending.ask {
        ask::ALLOC => allocated(memory, pending, 40, done),
        ask::ALLOC_SHORT => allocated(memory, pending, 28, done),
        ask::FREE => freed(memory, pending, done),
        ask::CONTROL => controlled(memory, pending, done),
        ask::DUP => duplicated(memory, pending, done),
        ask::SHARE => shared(memory, pending, done),
        ask::VID_HEAP => vid_heap(memory, pending, done),
        ask::REGISTER => registered(memory, pending, done),
        ask::DMA_BUF => dma_buf(memory, abi, pending, done),
        ask::UVM_INITIALIZE | ask::UVM_MM | ask::UVM_GPU | ask::UVM_MAP | ask::UVM_FREE | ask::UVM_UNMAP => {
            unified(memory, abi, pending, done)
        }
        _ => Err(Refused::Unknown),
    }
}

/// Not readable any more.
#[inline(always)]
fn read<T>(value: Option<T>) -> Result<T, Refused> {
    value.ok_or(Refused::Unreadable)
}

/// The driver did it.
#[inline(always)]
fn granted(status: Option<u32>) -> Result<(), Refused> {
    if read(status)? == rm::OK { Ok(()) } else { Err(Refused::Failed) }
}

/// It is as it was at entry.
#[inline(always)]
fn same(unchanged: bool) -> Result<(), Refused> {
    if unchanged { Ok(()) } else { Err(Refused::Changed) }
}

/// A handle that the driver chooses when 0 is passed.
#[inline(always)]
const fn chosen(before: u32, after: u32) -> bool {
    before == after || (before == 0 && after != 0)
}

/// Rounded up by no more than a page of any size.
#[inline(always)]
const fn rounded(before: u64, after: u64) -> bool {
    after >= before && after - before < ROUNDING_MAX
}

#[inline(always)]
fn allocated(memory: &impl UserMemory, p: &Pending, status: u64, done: &mut Done) -> Result<(), Refused> {
    granted(memory.u32(at(p.address, status)))?;
    let words = read(memory.three(p.address))?;
    let (class_before, class_after) = (high(p.words[1]), high(words[1]));
    let object = low(words[1]);
    let is_root = |class| matches!(class, class::ROOT | class::ROOT_NON_PRIV | class::ROOT_CLIENT);
    if is_root(class_before) {
        same(is_root(class_after) && words[2] == p.words[2] && object != 0)?;
        (done.op, done.client, done.object, done.class) = (op::CLIENT, object, object, class::ROOT_CLIENT);
        return Ok(());
    }
    let alike = words[0] == p.words[0] && words[2] == p.words[2] && class_after == class_before;
    same(alike && chosen(low(p.words[1]), object))?;
    if p.matters == 0 {
        return Ok(());
    }
    (done.op, done.parent, done.object, done.class) = (op::OBJECT, high(words[0]), object, class_after);
    done.detail = NO_DEVICE;
    match class_after {
        class::MEMORY_LOCAL_USER => {
            // The driver writes the rounded size back (video_mem.c).
            let bytes = read(memory.u64(at(p.params, 64)))?;
            same(rounded(p.bytes, bytes))?;
            (done.op, done.bytes) = (op::MEMORY, bytes);
            Ok(())
        }
        class::MEMORY_FABRIC if p.params != 0 => {
            // Address space for memory that it references: `map.hVidMem` (mem_fabric.c). None: nothing is referenced yet.
            let of = read(memory.u32(at(p.params, 40)))?;
            same(u64::from(of) == p.bytes)?;
            if of != 0 {
                (done.op, done.from_client, done.from_object) = (op::DUP, done.client, of);
            }
            Ok(())
        }
        class::DEVICE if p.params != 0 => {
            done.detail = read(memory.u32(p.params))?;
            same(u64::from(done.detail) == p.bytes)
        }
        // Without parameters: the first.
        class::DEVICE => {
            done.detail = 0;
            Ok(())
        }
        _ => Ok(()),
    }
}

#[inline(always)]
fn freed(memory: &impl UserMemory, p: &Pending, done: &mut Done) -> Result<(), Refused> {
    let words = read(memory.two(p.address))?;
    granted(Some(high(words[1])))?;
    same(words[0] == p.words[0] && u64::from(low(words[1])) == p.words[1])?;
    (done.op, done.parent, done.object) = (op::FREE, high(words[0]), low(words[1]));
    Ok(())
}

#[inline(always)]
fn duplicated(memory: &impl UserMemory, p: &Pending, done: &mut Done) -> Result<(), Refused> {
    granted(memory.u32(at(p.address, 24)))?;
    let words = read(memory.three(p.address))?;
    let object = low(words[1]);
    let alike = words[0] == p.words[0] && high(words[1]) == high(p.words[1]) && words[2] == p.words[2];
    same(alike && chosen(low(p.words[1]), object))?;
    (done.op, done.parent, done.object) = (op::DUP, high(words[0]), object);
    (done.from_client, done.from_object) = (high(words[1]), low(words[2]));
    Ok(())
}

#[inline(always)]
fn shared(memory: &impl UserMemory, p: &Pending, done: &mut Done) -> Result<(), Refused> {
    let words = read(memory.three(p.address))?;
    granted(Some(high(words[2])))?;
    same(words[0] == p.words[0] && words[1] == p.words[1] && u64::from(low(words[2])) == p.words[2])?;
    // target@8 accessMask@12 type@16 (16 bits).
    (done.op, done.object, done.detail) = (op::SHARE, high(words[0]), low(words[2]) & 0xffff);
    Ok(())
}

#[inline(always)]
fn vid_heap(memory: &impl UserMemory, p: &Pending, done: &mut Done) -> Result<(), Refused> {
    granted(memory.u32(at(p.address, 20)))?;
    let words = read(memory.two(p.address))?;
    let named = read(memory.u64(at(p.address, 40)))?;
    let (before, after) = (high(p.words[2]), high(named));
    // Without NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED the driver replaces whatever handle was passed.
    let allocates = low(words[1]) == VID_HEAP_ALLOC_SIZE;
    same(words[0] == p.words[0] && low(words[1]) == low(p.words[1]) && (allocates || before == after))?;
    if p.matters == 0 {
        return Ok(());
    }
    (done.parent, done.object) = (high(words[0]), after);
    if low(words[1]) == VID_HEAP_FREE {
        done.op = op::FREE;
        return Ok(());
    }
    let bytes = read(memory.u64(at(p.address, 88)))?;
    same(rounded(p.bytes, bytes))?;
    let (flags, attributes) = (read(memory.u32(at(p.address, 52)))?, read(memory.u32(at(p.address, 56)))?);
    if flags & FLAG_VIRTUAL == 0 && attributes >> ATTR_LOCATION_SHIFT & 3 != LOCATION_PCI {
        (done.op, done.class, done.bytes) = (op::MEMORY, class::MEMORY_LOCAL_USER, bytes);
    }
    Ok(())
}

#[inline(always)]
fn registered(memory: &impl UserMemory, p: &Pending, done: &mut Done) -> Result<(), Refused> {
    let fd = read(memory.u32(p.address))?;
    same(u64::from(fd) == p.words[0])?;
    (done.op, done.fd) = (op::REGISTER, fd as i32);
    Ok(())
}

#[inline(always)]
fn dma_buf(memory: &impl UserMemory, abi: &Abi, p: &Pending, done: &mut Done) -> Result<(), Refused> {
    granted(memory.u32(at(p.address, u64::from(abi.dma_buf_status))))?;
    let words = read(memory.two(p.address))?;
    let made = p.params == u64::from(u32::MAX);
    same(u64::from(high(words[0])) == p.words[0] && words[1] == p.words[1] && (made || u64::from(low(words[0])) == p.params))?;
    (done.op, done.fd, done.count) = (op::EXPORT_DMA_BUF, low(words[0]) as i32, high(words[1]));
    done.list = at(p.address, u64::from(abi.dma_buf_handles));
    done.detail = made as u32;
    Ok(())
}

#[inline(always)]
fn controlled(memory: &impl UserMemory, p: &Pending, done: &mut Done) -> Result<(), Refused> {
    granted(memory.u32(at(p.address, 28)))?;
    let words = read(memory.three(p.address))?;
    same(words[0] == p.words[0] && words[1] == p.words[1] && words[2] == p.words[2])?;
    if p.matters == 0 {
        return Ok(());
    }
    same(read(nested(memory, low(words[1]), p.params))? == p.bytes)?;
    match low(words[1]) {
        control::GPU_GET_ID_INFO | control::GPU_GET_ID_INFO_V2 => {
            (done.op, done.object) = (op::GPU, read(memory.u32(p.params))?);
            done.detail = read(memory.u32(at(p.params, 8)))?;
        }
        control::EXPORT_OBJECT_TO_FD => {
            let (object, to) = (read(memory.two(p.params))?, read(memory.u64(at(p.params, 16)))?);
            if low(object[0]) == EXPORT_TYPE_RM && high(to) & EMPTY_FD == 0 {
                (done.op, done.parent, done.object, done.fd) = (op::EXPORT, low(object[1]), high(object[1]), low(to) as i32);
            }
        }
        control::IMPORT_OBJECT_FROM_FD => {
            let (from, object) = (read(memory.two(p.params))?, read(memory.u32(at(p.params, 16)))?);
            if high(from[0]) == EXPORT_TYPE_RM {
                (done.op, done.parent, done.object, done.fd) = (op::IMPORT, high(from[1]), object, low(from[0]) as i32);
            }
        }
        control::EXPORT_OBJECTS_TO_FD => {
            let head = read(memory.u64(p.params))?;
            (done.op, done.parent, done.fd) = (op::EXPORT, high(head), low(head) as i32);
            done.count = read(memory.u32(at(p.params, 2_124)))? & 0xffff;
            done.list = at(p.params, 76);
        }
        control::IMPORT_OBJECTS_FROM_FD => {
            let head = read(memory.u64(p.params))?;
            (done.op, done.parent, done.fd) = (op::IMPORT, high(head), low(head) as i32);
            done.count = read(memory.u32(at(p.params, 648)))? & 0xffff;
            done.list = at(p.params, 8);
        }
        _ => {}
    }
    Ok(())
}

#[inline(always)]
fn unified(memory: &impl UserMemory, abi: &Abi, p: &Pending, done: &mut Done) -> Result<(), Refused> {
    let first = read(memory.u64(p.address))?;
    match p.ask {
        ask::UVM_INITIALIZE => {
            granted(memory.u32(at(p.address, 8)))?;
            same(first == p.words[0])?;
            (done.op, done.bytes) = (op::SPACE, first);
        }
        ask::UVM_MM => {
            // fd@0 status@4. NV_WARN_NOTHING_TO_DO (not OK) where the kernel has no MMU notifiers: then nothing is kept.
            granted(Some(high(first)))?;
            same(u64::from(low(first)) == p.words[0])?;
            (done.op, done.fd) = (op::SPACE_MM, low(first) as i32);
        }
        ask::UVM_GPU => {
            granted(memory.u32(at(p.address, 36)))?;
            same(first == p.words[0] && read(memory.u64(at(p.address, 8)))? == p.words[1])?;
            (done.op, done.bytes, done.base) = (op::SPACE_GPU, first, p.words[1]);
        }
        ask::UVM_MAP => {
            let tail = read(memory.two(at(p.address, u64::from(abi.uvm_map_tail))))?;
            granted(Some(high(tail[1])))?;
            same(first == p.words[0] && read(memory.u64(at(p.address, 8)))? == p.words[1] && tail[0] == p.words[2] && u64::from(low(tail[1])) == p.params)?;
            (done.op, done.client, done.object) = (op::MAP, high(tail[0]), low(tail[1]));
            (done.base, done.bytes) = (first, p.words[1]);
        }
        _ => {
            let status = if p.ask == ask::UVM_FREE { abi.uvm_free_status } else { 32 };
            granted(memory.u32(at(p.address, u64::from(status))))?;
            // base@0 length@8, except where the status is at 8.
            let length = if status == 8 { 0 } else { read(memory.u64(at(p.address, 8)))? };
            same(first == p.words[0] && length == p.words[1])?;
            (done.op, done.base, done.bytes) = (op::UNMAP, first, length);
        }
    }
    Ok(())
}
