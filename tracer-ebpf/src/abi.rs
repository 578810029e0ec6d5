//! The driver's ABI: numbers and layouts of the requests that change who owns GPU memory, x86-64.
//!
//! Always true: what is the same in every branch from 535 to 595 is a constant here, what differs is a field of [`Abi`],
//! and [`BRANCHES`] has one row per branch. User space picks the row for the loaded driver and the programs get it as
//! constants before they load.
//!
//! Source: NVIDIA open-gpu-kernel-modules at the tags named in [`BRANCHES`]; offsets are `offsetof` over those headers.
//! RM: `src/common/sdk/nvidia/inc/nvos.h`, `kernel-open/common/inc/nv-ioctl.h`, `nv-ioctl-numbers.h`;
//! UVM: `kernel-open/nvidia-uvm/uvm_ioctl.h`, `uvm_linux_ioctl.h`; private data: `kernel-open/common/inc/nv.h`, `nv-linux.h`.

/// Numbers of RM requests: the low byte of the request (`_IOC_NR`). The driver ignores the type and direction bits and takes the
/// size from `_IOC_SIZE` (nvidia_ioctl, kernel-open/nvidia/nv.c).
pub mod rm {
    // `NV_ESC_RM_ALLOC_MEMORY` (0x27) is not here: it allocates memory of the host, or (class 0x40) a view of all of the GPU's
    // that holds nothing (rmapi_deprecated_allocmemory.c).
    /// `NV_ESC_RM_FREE`: NVOS00, 16 bytes.
    pub const FREE: u32 = 0x29;
    /// `NV_ESC_RM_CONTROL`: NVOS54, 32 bytes.
    pub const CONTROL: u32 = 0x2a;
    /// `NV_ESC_RM_ALLOC`: NVOS21, 32 bytes, or NVOS64, 48 bytes.
    pub const ALLOC: u32 = 0x2b;
    /// `NV_ESC_RM_DUP_OBJECT`: NVOS55, 28 bytes.
    pub const DUP_OBJECT: u32 = 0x34;
    /// `NV_ESC_RM_SHARE`: NVOS57, 24 bytes.
    pub const SHARE: u32 = 0x35;
    /// `NV_ESC_RM_VID_HEAP_CONTROL`: NVOS32, 184 bytes.
    pub const VID_HEAP_CONTROL: u32 = 0x4a;
    /// `NV_ESC_REGISTER_FD`: a descriptor, 4 bytes, and no status.
    pub const REGISTER_FD: u32 = 201;
    /// `NV_ESC_IOCTL_XFER_CMD`: another request wrapped, 16 bytes.
    pub const XFER: u32 = 211;
    /// `NV_ESC_EXPORT_TO_DMABUF_FD`. On /dev/nvidiaN.
    pub const EXPORT_TO_DMABUF_FD: u32 = 217;

    /// `NV_OK`.
    pub const OK: u32 = 0;
}

/// UVM requests: plain numbers without any encoding.
pub mod uvm {
    /// `UVM_INITIALIZE`.
    pub const INITIALIZE: u32 = 0x3000_0001;
    /// `UVM_MAP_EXTERNAL_ALLOCATION`.
    pub const MAP_EXTERNAL_ALLOCATION: u32 = 33;
    /// `UVM_FREE`.
    pub const FREE: u32 = 34;
    /// `UVM_REGISTER_GPU`.
    pub const REGISTER_GPU: u32 = 37;
    /// `UVM_UNMAP_EXTERNAL`.
    pub const UNMAP_EXTERNAL: u32 = 66;
    /// `UVM_MM_INITIALIZE`.
    pub const MM_INITIALIZE: u32 = 75;
}

/// RM classes (`src/common/sdk/nvidia/inc/class/`).
pub mod class {
    /// `NV01_ROOT`: becomes a client of class 0x41 whatever is asked (RmIoctl, escape.c).
    pub const ROOT: u32 = 0x0;
    /// `NV01_ROOT_NON_PRIV`.
    pub const ROOT_NON_PRIV: u32 = 0x1;
    /// `NV01_ROOT_CLIENT`.
    pub const ROOT_CLIENT: u32 = 0x41;
    /// `NV01_DEVICE_0`.
    pub const DEVICE: u32 = 0x80;
    /// `NV20_SUBDEVICE_0`.
    pub const SUBDEVICE: u32 = 0x2080;
    /// `NV01_MEMORY_LOCAL_USER`: memory of the GPU.
    pub const MEMORY_LOCAL_USER: u32 = 0x40;
    /// `NV_MEMORY_FABRIC`: address space; references memory of class 0x40 (mem_fabric.c).
    pub const MEMORY_FABRIC: u32 = 0xf8;
    /// `NV_MEMORY_EXPORT`, `NV_MEMORY_FABRIC_IMPORTED_REF`, `NV_MEMORY_FABRIC_IMPORT_V2`, `NV_MEMORY_MULTICAST_FABRIC`: names for memory
    /// that others allocated.
    pub const MEMORY_EXPORT: u32 = 0xe0;
    /// See [`MEMORY_EXPORT`].
    pub const FABRIC_IMPORT_V2: u32 = 0xf9;
    /// See [`MEMORY_EXPORT`].
    pub const FABRIC_IMPORTED_REF: u32 = 0xfb;
    /// See [`MEMORY_EXPORT`].
    pub const MULTICAST_FABRIC: u32 = 0xfd;
}

/// RM control commands (`src/common/sdk/nvidia/inc/ctrl/ctrl0000/`).
pub mod control {
    /// `NV0000_CTRL_CMD_GPU_GET_ID_INFO`: gpuId@0 deviceInstance@8.
    pub const GPU_GET_ID_INFO: u32 = 0x202;
    /// `NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2`: the same two places.
    pub const GPU_GET_ID_INFO_V2: u32 = 0x205;
    /// `NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD`: type@0 hDevice@4 hParent@8 hObject@12 fd@16 flags@20, 24 bytes.
    pub const EXPORT_OBJECT_TO_FD: u32 = 0x3d05;
    /// `NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD`: fd@0 type@4 hDevice@8 hParent@12 hObject@16, 20 bytes.
    pub const IMPORT_OBJECT_FROM_FD: u32 = 0x3d06;
    /// `NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD`: fd@0 hDevice@4 objects@76(u32 x 512) numObjects@2124(u16), 2,128 bytes.
    pub const EXPORT_OBJECTS_TO_FD: u32 = 0x3d0b;
    /// `NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD`: fd@0 hParent@4 objects@8(u32 x 128) numObjects@648(u16), 652 bytes.
    pub const IMPORT_OBJECTS_FROM_FD: u32 = 0x3d0c;
}

/// What differs between branches. Sizes and offsets in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abi {
    /// Number of the request that wraps another: [`rm::XFER`]. (A field so that a test on a kernel without the driver can put a
    /// request there that some other device grants.)
    pub xfer: u32,
    /// `_IOC_SIZE` of it.
    pub xfer_size: u32,
    /// `sizeof(nv_ioctl_export_to_dma_buf_fd_t)`.
    pub dma_buf: u32,
    /// `handles` in it.
    pub dma_buf_handles: u32,
    /// `status` in it.
    pub dma_buf_status: u32,
    /// `rmCtrlFd` in `UVM_MAP_EXTERNAL_ALLOCATION_PARAMS`; hClient, hMemory and rmStatus follow.
    pub uvm_map_tail: u32,
    /// `rmStatus` in `UVM_FREE_PARAMS`.
    pub uvm_free_status: u32,
    /// `ctl_nvfp_priv` in `nv_file_private_t`, the first member of a file's private data: the `struct file` of the nvidiactl that
    /// REGISTER_FD named. `handles` is at 0.
    pub private_control: u32,
    /// Low bits of a UVM file's private data that say what it is (uvm_fd_type.h).
    pub uvm_type_mask: u32,
    /// 1 when private data of files may be read: the real driver is loaded.
    pub private_data: u32,
}

impl Abi {
    /// The fields in order, as they lie in memory.
    #[must_use]
    pub const fn words(&self) -> [u32; 10] {
        [
            self.xfer,
            self.xfer_size,
            self.dma_buf,
            self.dma_buf_handles,
            self.dma_buf_status,
            self.uvm_map_tail,
            self.uvm_free_status,
            self.private_control,
            self.uvm_type_mask,
            self.private_data,
        ]
    }
}

/// What a UVM file's private data says (`uvm_fd_type_t`): an address space.
pub const UVM_TYPE_SPACE: u32 = 2;
/// It keeps another's address space and its maker's memory map.
pub const UVM_TYPE_MM: u32 = 3;

/// One branch of the driver.
#[derive(Clone, Copy, Debug)]
pub struct Branch {
    /// First number of its versions.
    pub branch: u32,
    /// The tags whose headers were read.
    pub source: &'static str,
    /// Its layout.
    pub abi: Abi,
}

const R580: Abi = Abi {
    xfer: rm::XFER,
    xfer_size: 16,
    dma_buf: 2_608,
    dma_buf_handles: 36,
    dma_buf_status: 2_600,
    uvm_map_tail: 9_248,
    uvm_free_status: 16,
    private_control: 96,
    uvm_type_mask: 7,
    private_data: 0,
};
const R590: Abi = Abi { uvm_free_status: 8, ..R580 };
const R570: Abi = Abi { uvm_type_mask: 3, ..R580 };
const R550: Abi = Abi { dma_buf: 2_600, dma_buf_handles: 32, dma_buf_status: 2_592, ..R570 };
const R545: Abi = Abi { uvm_map_tail: 1_184, ..R550 };
const R535: Abi = Abi { private_control: 88, ..R545 };

/// The branches, oldest first.
pub const BRANCHES: &[Branch] = &[
    Branch { branch: 535, source: "535.183.01, 535.288.01", abi: R535 },
    Branch { branch: 545, source: "545.29.06", abi: R545 },
    Branch { branch: 550, source: "550.54.14, 550.163.01", abi: R550 },
    Branch { branch: 555, source: "555.58.02", abi: R550 },
    Branch { branch: 560, source: "560.35.03", abi: R550 },
    Branch { branch: 565, source: "565.77", abi: R550 },
    Branch { branch: 570, source: "570.195.03, 570.211.01", abi: R570 },
    Branch { branch: 575, source: "575.51.02, 575.64.05", abi: R580 },
    Branch { branch: 580, source: "580.105.08, 580.142", abi: R580 },
    Branch { branch: 590, source: "590.44.01, 590.48.01", abi: R590 },
    Branch { branch: 595, source: "595.45.04", abi: R590 },
];

/// The branch for a driver of this version ("580.159.04"), and whether it is that very branch; the nearest one otherwise
/// (the older of two equally near). Of a version that is no number: the newest.
#[must_use]
pub fn for_driver(version: &str) -> (&'static Branch, bool) {
    let major = version.split('.').next().and_then(|number| number.parse::<u32>().ok());
    let newest = &BRANCHES[BRANCHES.len() - 1];
    let Some(major) = major else { return (newest, false) };
    let nearest = BRANCHES.iter().min_by_key(|row| row.branch.abs_diff(major)).unwrap_or(newest);
    (nearest, nearest.branch == major)
}

const _: () = assert!(core::mem::size_of::<Abi>() == 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_branch_is_taken_and_an_unknown_one_gets_its_neighbour() {
        let of = |version| {
            let (row, exact) = for_driver(version);
            (row.branch, exact)
        };
        assert_eq!(of("580.159.04"), (580, true));
        assert_eq!(of("535.43.02"), (535, true));
        assert_eq!(of("530.30.02"), (535, false));
        assert_eq!(of("585.1"), (580, false));
        assert_eq!(of("610.1"), (595, false));
        assert_eq!(of("nonsense"), (595, false));
        assert_eq!(of(""), (595, false));
    }
}
