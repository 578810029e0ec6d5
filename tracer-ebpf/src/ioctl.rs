//! What a request to the driver says: read once at entry and again after it returned, believed only when both agree and the
//! driver's status says that it was done.
//!
//! Always true: pure (all reading goes through [`UserMemory`]), so the programs and their twin in user-space tests run the same
//! code. Every address and length comes from a hostile process; nothing is assumed of what is read.
//!
//! [`begin`] at entry, [`finish`] at return. Layouts: [`crate::abi`]. Functions are inlined because the verifier checks a program
//! as one.

use crate::abi::{Abi, class, control, rm, uvm};

mod finish;
pub use finish::{Refused, finish};

/// What kind of NVIDIA file a device number is: the value in the `DEVICES` map.
pub mod node {
    /// Something else under an NVIDIA name (modeset, caps, ...).
    pub const OTHER: u32 = 1;
    /// /dev/nvidiactl.
    pub const CONTROL: u32 = 2;
    /// /dev/nvidiaN.
    pub const GPU: u32 = 3;
    /// /dev/nvidia-uvm.
    pub const UVM: u32 = 4;
}

/// The requests that are looked at; stable only within one build of both sides.
pub mod ask {
    /// RM_ALLOC with NVOS64.
    pub const ALLOC: u32 = 1;
    /// RM_ALLOC with NVOS21.
    pub const ALLOC_SHORT: u32 = 2;
    /// RM_FREE.
    pub const FREE: u32 = 3;
    /// RM_CONTROL.
    pub const CONTROL: u32 = 4;
    /// RM_DUP_OBJECT.
    pub const DUP: u32 = 5;
    /// RM_SHARE.
    pub const SHARE: u32 = 6;
    /// RM_VID_HEAP_CONTROL.
    pub const VID_HEAP: u32 = 7;
    /// REGISTER_FD.
    pub const REGISTER: u32 = 9;
    /// EXPORT_TO_DMABUF_FD.
    pub const DMA_BUF: u32 = 10;
    /// UVM_INITIALIZE.
    pub const UVM_INITIALIZE: u32 = 11;
    /// UVM_MM_INITIALIZE.
    pub const UVM_MM: u32 = 12;
    /// UVM_REGISTER_GPU.
    pub const UVM_GPU: u32 = 13;
    /// UVM_MAP_EXTERNAL_ALLOCATION.
    pub const UVM_MAP: u32 = 14;
    /// UVM_FREE.
    pub const UVM_FREE: u32 = 15;
    /// UVM_UNMAP_EXTERNAL.
    pub const UVM_UNMAP: u32 = 16;
    /// A request of a known number and an unknown size: if the driver grants it, our table is wrong.
    pub const WRONG_SIZE: u32 = 17;
    /// A request that could not be read at entry.
    pub const UNREAD: u32 = 18;
}

/// What a record of a granted request says happened ([`crate::record::Rm::op`]). Never reuse a number.
pub mod op {
    /// A client was made.
    pub const CLIENT: u32 = 1;
    /// A client that was not known is named.
    pub const KNOWN: u32 = 2;
    /// An object without memory of its own.
    pub const OBJECT: u32 = 3;
    /// GPU memory.
    pub const MEMORY: u32 = 4;
    /// An object was freed.
    pub const FREE: u32 = 5;
    /// Another reference to an object.
    pub const DUP: u32 = 6;
    /// An object was offered to others.
    pub const SHARE: u32 = 7;
    /// A /dev/nvidiaN keeps a /dev/nvidiactl.
    pub const REGISTER: u32 = 8;
    /// An object was exported to a /dev/nvidiactl.
    pub const EXPORT: u32 = 9;
    /// An object was exported to a dma-buf; `detail` is 1 when that was made by this.
    pub const EXPORT_DMA_BUF: u32 = 10;
    /// An object was imported from a descriptor.
    pub const IMPORT: u32 = 11;
    /// A UVM address space.
    pub const SPACE: u32 = 12;
    /// A UVM description that keeps an address space.
    pub const SPACE_MM: u32 = 13;
    /// A GPU of an address space.
    pub const SPACE_GPU: u32 = 14;
    /// An object is mapped.
    pub const MAP: u32 = 15;
    /// A mapping is gone.
    pub const UNMAP: u32 = 16;
    /// A GPU's id and device instance.
    pub const GPU: u32 = 17;
    /// A granted request that could not be understood or believed: `detail` is one of [`super::missed`].
    pub const MISSED: u32 = 18;
}

/// Why a granted request is not believed. Never reuse a number.
pub mod missed {
    /// The arguments could not be read after the return.
    pub const UNREADABLE: u32 = 1;
    /// The arguments changed while the request was under way.
    pub const CHANGED: u32 = 2;
    /// The arguments are not laid out as the ABI table says.
    pub const UNKNOWN: u32 = 3;
    /// A 32-bit caller.
    pub const COMPAT: u32 = 4;
    /// Too many requests were under way.
    pub const TOO_MANY: u32 = 5;
    /// A descriptor in the arguments no longer named a file.
    pub const NO_FILE: u32 = 6;
    /// A list was longer than what is looked at.
    pub const TOO_LONG: u32 = 7;
}

/// Reads the memory of the process that asked.
pub trait UserMemory {
    /// Four bytes; None when they cannot be read.
    fn u32(&self, address: u64) -> Option<u32>;
    /// Eight bytes.
    fn u64(&self, address: u64) -> Option<u64>;
    /// 16 bytes.
    fn two(&self, address: u64) -> Option<[u64; 2]> {
        Some([self.u64(address)?, self.u64(at(address, 8))?])
    }
    /// 24 bytes.
    fn three(&self, address: u64) -> Option<[u64; 3]> {
        let [first, second] = self.two(address)?;
        Some([first, second, self.u64(at(address, 16))?])
    }
}

/// A request between entry and return.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// `struct file` address; set by the caller.
    pub file: u64,
    /// Where the arguments are.
    pub address: u64,
    /// The arguments' words that must be the same after the return.
    pub words: [u64; 3],
    /// Address of the nested parameters, or a fourth word.
    pub params: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// [`ask`].
    pub ask: u32,
    /// Device number; set by the caller.
    pub dev: u32,
    /// The client that the request names, 0 for none.
    pub client: u32,
    /// 1 when `client` is named through this description for the first time; set by the caller.
    pub names: u32,
    /// 1 when the request itself matters; else only that it names a client.
    pub matters: u32,
    /// The request's number as it was passed; set by the caller.
    pub request: u32,
    /// Its argument; set by the caller.
    pub argument: u64,
}

/// What was done.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// [`op`]; 0: nothing beyond that a client was named.
    pub op: u32,
    /// Client.
    pub client: u32,
    /// Parent.
    pub parent: u32,
    /// Object; GPU id for [`op::GPU`].
    pub object: u32,
    /// RM class.
    pub class: u32,
    /// Client of the original, for [`op::DUP`].
    pub from_client: u32,
    /// The original, for [`op::DUP`].
    pub from_object: u32,
    /// A descriptor of the process that names the other description, or -1.
    pub fd: i32,
    /// Bytes; first half of a UUID; flags of a space; length of a mapping.
    pub bytes: u64,
    /// Address of a mapping; second half of a UUID.
    pub base: u64,
    /// Device instance; whom an object was offered to; one of [`missed`].
    pub detail: u32,
    /// Objects in the list at `list`, when there is one.
    pub count: u32,
    /// Address of a list of objects that are all meant, or 0: then `object` is the only one.
    pub list: u64,
}

const _: () = {
    use core::mem::size_of;
    assert!(size_of::<Pending>() == 88 && size_of::<Done>() == 64);
};

/// Device instance is not known.
pub const NO_DEVICE: u32 = u32::MAX;
/// `NVOS32_FUNCTION_ALLOC_SIZE` and `NVOS32_FUNCTION_FREE`.
const VID_HEAP_ALLOC_SIZE: u32 = 2;
const VID_HEAP_FREE: u32 = 3;

/// An address in hostile hands may wrap.
#[inline(always)]
const fn at(address: u64, offset: u64) -> u64 {
    address.wrapping_add(offset)
}
/// Low half of a word: what lies at the lower address.
#[inline(always)]
const fn low(word: u64) -> u32 {
    word as u32
}
/// High half.
#[inline(always)]
const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Can a request with this number be one that matters? Asked of every ioctl on the host, so it must be cheap.
#[inline(always)]
#[must_use]
pub const fn may_matter(request: u32, xfer: u32) -> bool {
    const NUMBERS: [u64; 4] = {
        let mut bits = [0_u64; 4];
        let numbers = [
            rm::FREE, rm::CONTROL, rm::ALLOC, rm::DUP_OBJECT, rm::SHARE, rm::VID_HEAP_CONTROL,
            rm::REGISTER_FD, rm::EXPORT_TO_DMABUF_FD, uvm::MAP_EXTERNAL_ALLOCATION, uvm::FREE, uvm::REGISTER_GPU,
            uvm::UNMAP_EXTERNAL, uvm::MM_INITIALIZE,
        ];
        let mut at = 0;
        while at < numbers.len() {
            bits[(numbers[at] / 64) as usize] |= 1 << (numbers[at] % 64);
            at += 1;
        }
        bits
    };
    let number = request & 0xff;
    // Not an index: the verifier takes four comparisons more easily than a table.
    let bits = if number < 64 {
        NUMBERS[0]
    } else if number < 128 {
        NUMBERS[1]
    } else if number < 192 {
        NUMBERS[2]
    } else {
        NUMBERS[3]
    };
    bits >> (number % 64) & 1 != 0 || request == uvm::INITIALIZE || number == xfer
}

/// A request, unwrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number (RM: `_IOC_NR`; UVM: the whole request).
    pub number: u32,
    /// Bytes of arguments (RM).
    pub size: u32,
    /// Where they are.
    pub address: u64,
}

/// Takes a request apart and out of its wrapping. None: the wrapping cannot be read.
#[inline(always)]
pub fn unwrap(memory: &impl UserMemory, abi: &Abi, node: u32, request: u32, address: u64) -> Option<Call> {
    if node == node::UVM {
        return Some(Call { number: request, size: 0, address });
    }
    let (number, size) = (request & 0xff, request >> 16 & 0x3fff);
    if number != abi.xfer || size != abi.xfer_size {
        return Some(Call { number, size, address });
    }
    let [inner, address] = memory.two(address)?;
    Some(Call { number: low(inner), size: high(inner), address })
}

/// Which request it is, by its number, the file and the size of its arguments. 0: none of interest.
#[inline(always)]
fn which(abi: &Abi, node: u32, call: Call) -> u32 {
    let Call { number, size, .. } = call;
    if node == node::UVM {
        return match number {
            uvm::INITIALIZE => ask::UVM_INITIALIZE,
            uvm::MM_INITIALIZE => ask::UVM_MM,
            uvm::REGISTER_GPU => ask::UVM_GPU,
            uvm::MAP_EXTERNAL_ALLOCATION => ask::UVM_MAP,
            uvm::FREE => ask::UVM_FREE,
            uvm::UNMAP_EXTERNAL => ask::UVM_UNMAP,
            _ => 0,
        };
    }
    let (ask, right) = match number {
        rm::ALLOC if size == 32 => (ask::ALLOC_SHORT, true),
        rm::ALLOC => (ask::ALLOC, size == 48),
        rm::FREE => (ask::FREE, size == 16),
        rm::CONTROL => (ask::CONTROL, size == 32),
        rm::DUP_OBJECT => (ask::DUP, size == 28),
        rm::SHARE => (ask::SHARE, size == 24),
        rm::VID_HEAP_CONTROL => (ask::VID_HEAP, size == 184),
        rm::REGISTER_FD => (ask::REGISTER, size == 4),
        rm::EXPORT_TO_DMABUF_FD => (ask::DMA_BUF, size == abi.dma_buf),
        _ => return 0,
    };
    if right { ask } else { ask::WRONG_SIZE }
}

/// At entry: what will have to be looked at after the return, into `pending`, which is empty; `matters` and `client` 0: nothing.
/// None: the arguments cannot be read, which need not keep the driver from reading them, because it may wait for the page.
#[inline(always)]
pub fn begin(memory: &impl UserMemory, abi: &Abi, node: u32, call: Call, pending: &mut Pending) -> Option<()> {
    let ask = which(abi, node, call);
    let address = call.address;
    (pending.ask, pending.address, pending.matters) = (ask, address, 1);
    match ask {
        ask::ALLOC | ask::ALLOC_SHORT => {
            pending.words = memory.three(address)?;
            pending.params = pending.words[2];
            pending.client = low(pending.words[0]);
            match high(pending.words[1]) {
                class::ROOT | class::ROOT_NON_PRIV | class::ROOT_CLIENT => pending.client = 0,
                class::MEMORY_LOCAL_USER => pending.bytes = memory.u64(at(pending.params, 64))?,
                class::DEVICE if pending.params != 0 => pending.bytes = u64::from(memory.u32(pending.params)?),
                class::MEMORY_FABRIC if pending.params != 0 => pending.bytes = u64::from(memory.u32(at(pending.params, 40))?),
                class::DEVICE | class::SUBDEVICE | class::MEMORY_FABRIC | class::MEMORY_EXPORT => {}
                class::FABRIC_IMPORTED_REF | class::FABRIC_IMPORT_V2 | class::MULTICAST_FABRIC => {}
                _ => pending.matters = 0,
            }
        }
        ask::FREE => {
            let words = memory.two(address)?;
            pending.words = [words[0], u64::from(low(words[1])), 0];
            pending.client = low(words[0]);
        }
        ask::CONTROL => {
            pending.words = memory.three(address)?;
            pending.params = pending.words[2];
            pending.client = low(pending.words[0]);
            pending.matters = matters(low(pending.words[1]));
            if pending.matters != 0 {
                pending.bytes = nested(memory, low(pending.words[1]), pending.params)?;
            }
        }
        ask::DUP | ask::SHARE => {
            pending.words = memory.three(address)?;
            if ask == ask::SHARE {
                // The status comes back in the last word.
                pending.words[2] = u64::from(low(pending.words[2]));
            }
            pending.client = low(pending.words[0]);
        }
        ask::VID_HEAP => {
            let words = memory.two(address)?;
            pending.words = [words[0], words[1], memory.u64(at(address, 40))?];
            pending.client = low(words[0]);
            match low(words[1]) {
                VID_HEAP_ALLOC_SIZE => pending.bytes = memory.u64(at(address, 88))?,
                VID_HEAP_FREE => {}
                _ => pending.matters = 0,
            }
        }
        ask::REGISTER | ask::UVM_MM => pending.words[0] = u64::from(memory.u32(address)?),
        ask::DMA_BUF => {
            let words = memory.two(address)?;
            // The descriptor, in the low half, is made by the driver when it is -1 (nv-dmabuf.c).
            pending.words = [u64::from(high(words[0])), words[1], 0];
            pending.params = u64::from(low(words[0]));
            pending.client = high(words[0]);
        }
        ask::UVM_INITIALIZE => pending.words[0] = memory.u64(address)?,
        ask::UVM_FREE if abi.uvm_free_status == 8 => pending.words[0] = memory.u64(address)?,
        ask::UVM_GPU | ask::UVM_FREE | ask::UVM_UNMAP => {
            let words = memory.two(address)?;
            pending.words = [words[0], words[1], 0];
        }
        ask::UVM_MAP => {
            let (words, tail) = (memory.two(address)?, memory.two(at(address, u64::from(abi.uvm_map_tail)))?);
            pending.words = [words[0], words[1], tail[0]];
            pending.params = u64::from(low(tail[1]));
        }
        ask::WRONG_SIZE => {}
        _ => pending.matters = 0,
    }
    Some(())
}

/// What a control command's parameters ask for, as one word to be compared: all that the driver only reads.
#[inline(always)]
fn nested(memory: &impl UserMemory, command: u32, params: u64) -> Option<u64> {
    let fold = |a: u64, b: u64| a.rotate_left(21) ^ b;
    Some(match command {
        control::EXPORT_OBJECT_TO_FD => {
            let object = memory.two(params)?;
            fold(fold(object[0], object[1]), u64::from(memory.u32(at(params, 20))?))
        }
        control::IMPORT_OBJECT_FROM_FD => {
            let from = memory.two(params)?;
            fold(fold(from[0], from[1]), u64::from(memory.u32(at(params, 16))?))
        }
        control::EXPORT_OBJECTS_TO_FD => fold(u64::from(memory.u32(at(params, 4))?), u64::from(memory.u32(at(params, 2_124))?)),
        control::IMPORT_OBJECTS_FROM_FD => fold(memory.u64(params)?, u64::from(memory.u32(at(params, 648))?)),
        _ => u64::from(memory.u32(params)?),
    })
}

/// 1 when a control command matters.
#[inline(always)]
const fn matters(command: u32) -> u32 {
    matches!(
        command,
        control::GPU_GET_ID_INFO
            | control::GPU_GET_ID_INFO_V2
            | control::EXPORT_OBJECT_TO_FD
            | control::IMPORT_OBJECT_FROM_FD
            | control::EXPORT_OBJECTS_TO_FD
            | control::IMPORT_OBJECTS_FROM_FD
    ) as u32
}
