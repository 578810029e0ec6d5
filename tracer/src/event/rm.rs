//! What processes asked of NVIDIA's resource manager (RM) and of its unified-memory driver (UVM), as far as it changes who
//! owns, references or keeps GPU memory.
//!
//! Always true: the driver answered that it was done; a request that failed is never an event. Handles are those of the
//! driver: an object is known by (client, handle), and a client's handle is one per host for as long as the client lives.
//!
//! Sources: NVIDIA open-gpu-kernel-modules, `src/common/sdk/nvidia/inc/nvos.h` (RM), `kernel-open/nvidia-uvm/uvm_ioctl.h` (UVM).

use super::{Dev, ProcessId, Token};
use serde::{Deserialize, Serialize};

/// A handle of the resource manager (`NvHandle`).
pub type Handle = u32;

/// One request that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rm {
    /// Who asked.
    pub id: ProcessId,
    /// The open file description through which it asked. A client belongs to the description of /dev/nvidiactl that it was made
    /// through, whoever asks.
    pub file: Token,
    /// Its device number.
    pub dev: Dev,
    /// What was asked.
    pub op: Op,
}

/// What was asked and done. Externally tagged on the wire by its snake_case name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A client was made (RM_ALLOC, class 0x41): the root of an object tree, owned by `file`.
    Client {
        /// Its handle.
        client: Handle,
    },
    /// A client that was there before it could be seen is named for the first time, through `file`: what it allocated earlier
    /// is not known. (A client can only be used through the description that owns it: rmclientValidate_IMPL, client.c.)
    Known {
        /// Its handle.
        client: Handle,
    },
    /// An object that holds no memory but can be the parent of some: device (0x80), subdevice (0x2080).
    Object {
        /// Client.
        client: Handle,
        /// Parent object; equal to `client` for the root's children.
        parent: Handle,
        /// Its own handle.
        object: Handle,
        /// RM class.
        class: u32,
        /// Device instance (class 0x80: `NV0080_ALLOC_PARAMETERS.deviceId`); not the minor number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<u32>,
    },
    /// Memory of the GPU was allocated: RM_ALLOC of class 0x40 and the like, VID_HEAP_CONTROL, RM_ALLOC_MEMORY.
    Memory {
        /// Client.
        client: Handle,
        /// Parent: a device or subdevice of the client.
        parent: Handle,
        /// Its own handle.
        object: Handle,
        /// RM class.
        class: u32,
        /// Bytes, as the driver rounded them.
        bytes: u64,
    },
    /// An object and all its children were freed (RM_FREE; VID_HEAP_CONTROL free). `object == client`: the whole client.
    Free {
        /// Client.
        client: Handle,
        /// The object.
        object: Handle,
    },
    /// Another reference to an object of this or another client (RM_DUP_OBJECT): CUDA IPC imports this way.
    Dup {
        /// Client of the new reference.
        client: Handle,
        /// Parent of the new reference.
        parent: Handle,
        /// The new reference.
        object: Handle,
        /// Client that has the original.
        from_client: Handle,
        /// The original.
        from_object: Handle,
    },
    /// An object was offered to others (RM_SHARE): nothing is held by it.
    Share {
        /// Client.
        client: Handle,
        /// The object.
        object: Handle,
        /// `RS_SHARE_TYPE_*`: 1 all, 2 same user, 3 one client, 4 same process.
        with: u16,
    },
    /// `file` (/dev/nvidiaN) from now on keeps the description `control` of /dev/nvidiactl open (REGISTER_FD), and with it all clients
    /// of it.
    Register {
        /// The description of /dev/nvidiactl.
        control: Token,
    },
    /// An object was exported: the description `to` keeps a reference of its own, whatever becomes of the client.
    Export {
        /// Client.
        client: Handle,
        /// The object.
        object: Handle,
        /// The description that is the exported handle.
        to: Token,
        /// What that description is.
        kind: ExportKind,
    },
    /// An object was imported from an exported handle: a reference of `client`.
    Import {
        /// Client.
        client: Handle,
        /// Parent of the new reference.
        parent: Handle,
        /// The new reference.
        object: Handle,
        /// The exported handle's description.
        from: Token,
    },
    /// `file` (/dev/nvidia-uvm) became an address space (UVM_INITIALIZE).
    Space {
        /// `UVM_INIT_FLAGS_*`: 1 no HMM, 2 shared between processes (MPS).
        flags: u64,
    },
    /// `file` (/dev/nvidia-uvm) keeps the address space of description `space`, and the memory map of whoever made it (UVM_MM_INITIALIZE).
    SpaceMm {
        /// The description that is the address space.
        space: Token,
    },
    /// A GPU was registered with the address space `file` (UVM_REGISTER_GPU).
    SpaceGpu {
        /// The GPU's UUID, as 16 bytes in hexadecimal order, high half first.
        uuid: (u64, u64),
    },
    /// The address space `file` maps an object at `base`: a reference of UVM's own (UVM_MAP_EXTERNAL_ALLOCATION).
    Map {
        /// Client that the object was named by.
        client: Handle,
        /// The object.
        object: Handle,
        /// First address.
        base: u64,
        /// Bytes of address space.
        length: u64,
    },
    /// The address space `file` has nothing at `base` any more (UVM_FREE, UVM_UNMAP_EXTERNAL).
    Unmap {
        /// First address.
        base: u64,
        /// Bytes of address space; 0 where the request does not say (UVM_FREE since branch 590): all that was mapped at `base`.
        #[serde(default, skip_serializing_if = "is_zero")]
        length: u64,
    },
    /// The driver calls the GPU with this id `device` (NV0000_CTRL_CMD_GPU_GET_ID_INFO). The id says where it is on the PCI bus:
    /// (domain << 16) | (bus << 8) | device (gpuGenerate32BitId, gpu.c).
    Gpu {
        /// GPU id.
        gpu_id: u32,
        /// Device instance.
        device: u32,
    },
    /// The driver granted something that could not be read, understood or believed: what is known of this process's memory is
    /// not complete.
    Missed {
        /// Why.
        why: Missed,
    },
}

/// Why a granted request is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Its arguments could not be read after the return.
    Unreadable,
    /// Its arguments changed while it was under way.
    Changed,
    /// Its arguments are not laid out as the table of the driver's ABI says.
    UnknownLayout,
    /// A 32-bit program asked.
    Compat,
    /// Too many requests were under way at one time.
    TooMany,
    /// A descriptor in its arguments no longer named a file.
    NoFile,
    /// It named more objects than are looked at.
    TooLong,
}

/// What an exported handle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportKind {
    /// A description of /dev/nvidiactl (CUDA's POSIX file descriptor handles, Vulkan's opaque ones).
    Fd,
    /// A dma-buf.
    DmaBuf,
}

/// What the driver made of a description, beyond its device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// An exported handle (`nv_file_private_t.handles`): it keeps memory by itself.
    Exported,
    /// An address space of UVM.
    Space,
    /// A UVM description that keeps another's address space and its maker's memory map.
    SpaceMm,
}

const fn is_zero(length: &u64) -> bool {
    *length == 0
}
