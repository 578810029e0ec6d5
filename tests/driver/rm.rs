//! A user of NVIDIA's driver: makes the requests that libcuda makes to get, share and give back memory, with the real layouts.
//!
//! Always true: offsets and numbers are those of tracer-ebpf/src/abi.rs (branch 580); a request that the driver does not grant
//! is an error that says its status; descriptors are plain numbers that nothing closes by itself, because who keeps which is
//! what is tested.

#![expect(unsafe_code, reason = "ioctl has no safe form")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{IntoRawFd, RawFd};

/// One MiB.
pub(crate) const MIB: u64 = 1 << 20;
/// `NV_ERR_INSUFFICIENT_PERMISSIONS` and `NV_ERR_INVALID_CLIENT`.
pub(crate) const NOT_PERMITTED: u32 = 0x1b;
pub(crate) const INVALID_CLIENT: u32 = 0x23;

const ALLOC: u32 = 0x2b;
const CONTROL: u32 = 0x2a;
const CLASS_CLIENT: u32 = 0x41;
const CLASS_DEVICE: u32 = 0x80;
const CLASS_MEMORY: u32 = 0x40;

/// Arguments of a request, filled in by offset.
pub(crate) struct Args(Vec<u64>);

impl Args {
    pub(crate) fn new(size: usize) -> Args {
        Args(vec![0; size.div_ceil(8)])
    }
    pub(crate) fn u32(mut self, at: usize, value: u32) -> Args {
        let shift = at % 8 * 8;
        self.0[at / 8] = self.0[at / 8] & !(0xffff_ffff << shift) | u64::from(value) << shift;
        self
    }
    pub(crate) fn u64(self, at: usize, value: u64) -> Args {
        self.u32(at, value as u32).u32(at + 4, (value >> 32) as u32)
    }
    pub(crate) fn get(&self, at: usize) -> u32 {
        (self.0[at / 8] >> (at % 8 * 8)) as u32
    }
    /// Where they are; they must outlive the request.
    pub(crate) fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as u64
    }
}

/// A request as it is: returns what the driver made of the arguments.
fn ioctl(fd: RawFd, request: u64, mut args: Args) -> io::Result<Args> {
    // SAFETY: `args` has the bytes that the request's size says, and so have the nested parameters that callers point to.
    let result = unsafe { libc::ioctl(fd, request as libc::Ioctl, args.0.as_mut_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(args) }
}

fn granted(args: Args, status: usize) -> io::Result<Args> {
    match args.get(status) {
        0 => Ok(args),
        status => Err(io::Error::other(Refused(status))),
    }
}

/// The driver's status.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) u32);

impl std::fmt::Display for Refused {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "the driver says no: status {:#x}", self.0)
    }
}

impl std::error::Error for Refused {}

/// The status with which a request was refused.
pub(crate) fn status_of<T>(result: &io::Result<T>) -> Option<u32> {
    result.as_ref().err()?.get_ref()?.downcast_ref::<Refused>().map(|refused| refused.0)
}

fn encode(number: u32, size: u32) -> u64 {
    u64::from(3 << 30 | size << 16 | u32::from(b'F') << 8 | number)
}

/// A request of the RM, whose status is at `status`.
pub(crate) fn rm(fd: RawFd, number: u32, size: u32, status: usize, args: Args) -> io::Result<Args> {
    granted(ioctl(fd, encode(number, size), args)?, status)
}

/// The same, wrapped (NV_ESC_IOCTL_XFER_CMD).
pub(crate) fn rm_wrapped(fd: RawFd, number: u32, size: u32, status: usize, mut args: Args) -> io::Result<Args> {
    let wrapping = Args::new(16).u32(0, number).u32(4, size).u64(8, args.address());
    ioctl(fd, encode(211, 16), wrapping)?;
    granted(args, status)
}

/// A request of UVM.
pub(crate) fn uvm(fd: RawFd, request: u32, status: usize, args: Args) -> io::Result<Args> {
    granted(ioctl(fd, request.into(), args)?, status)
}

/// Opens a node, close-on-exec.
pub(crate) fn open(node: &str) -> io::Result<RawFd> {
    OpenOptions::new().read(true).write(true).open(format!("/dev/{node}")).map(IntoRawFd::into_raw_fd)
}

/// Closes a descriptor.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: callers are done with the number.
    unsafe { libc::close(fd) };
}

/// NV_ESC_RM_ALLOC, NVOS64: the object's handle.
pub(crate) fn alloc(control: RawFd, client: u32, parent: u32, class: u32, mut params: Args) -> io::Result<u32> {
    let args = Args::new(48).u32(0, client).u32(4, parent).u32(12, class).u64(16, params.address());
    Ok(rm(control, ALLOC, 48, 40, args)?.get(8))
}

/// A client.
pub(crate) fn client(control: RawFd) -> io::Result<u32> {
    alloc(control, 0, 0, CLASS_CLIENT, Args::new(128))
}

/// A control command.
pub(crate) fn command(control: RawFd, client: u32, command: u32, params: &mut Args, size: u32) -> io::Result<()> {
    let args = Args::new(32).u32(0, client).u32(4, client).u32(8, command).u64(16, params.address()).u32(24, size);
    rm(control, CONTROL, 32, 28, args).map(drop)
}

/// What a CUDA context opens and makes.
#[derive(Clone, Copy)]
pub(crate) struct Cuda {
    /// /dev/nvidiactl.
    pub(crate) control: RawFd,
    /// The first /dev/nvidia0, which is registered to nothing.
    pub(crate) first: RawFd,
    /// Another, registered to `control`.
    pub(crate) registered: RawFd,
    /// /dev/nvidia-uvm: the address space.
    pub(crate) space: RawFd,
    /// /dev/nvidia-uvm: the one that keeps the memory map.
    pub(crate) keeper: RawFd,
    /// RM client.
    pub(crate) client: u32,
    /// RM device.
    pub(crate) device: u32,
}

impl Cuda {
    /// In the order in which libcuda does it.
    pub(crate) fn open() -> io::Result<Cuda> {
        let control = open("nvidiactl")?;
        let client = client(control)?;
        let (first, registered) = (open("nvidia0")?, open("nvidia0")?);
        ioctl(registered, encode(201, 4), Args::new(4).u32(0, control as u32))?;
        let (space, keeper) = (open("nvidia-uvm")?, open("nvidia-uvm")?);
        uvm(space, 0x3000_0001, 8, Args::new(16))?;
        uvm(keeper, 75, 4, Args::new(8).u32(0, space as u32))?;
        let device = alloc(control, client, client, CLASS_DEVICE, Args::new(56))?;
        Ok(Cuda { control, first, registered, space, keeper, client, device })
    }

    /// Memory that no UVM space maps: its handle.
    pub(crate) fn memory(&self, mib: u64) -> io::Result<u32> {
        alloc(self.control, self.client, self.device, CLASS_MEMORY, Args::new(128).u64(64, mib * MIB))
    }

    /// What cudaMalloc makes: memory, mapped in the address space.
    pub(crate) fn malloc(&self, mib: u64) -> io::Result<u32> {
        let memory = self.memory(mib)?;
        self.map(memory, mib).map(|()| memory)
    }

    fn map(&self, memory: u32, mib: u64) -> io::Result<()> {
        let args = Args::new(9_264).u64(0, base(memory)).u64(8, mib * MIB);
        let args = args.u32(9_248, self.control as u32).u32(9_252, self.client).u32(9_256, memory);
        uvm(self.space, 33, 9_260, args).map(drop)
    }

    /// UVM_FREE of what [`Cuda::malloc`] mapped.
    pub(crate) fn unmap(&self, memory: u32, mib: u64) -> io::Result<()> {
        uvm(self.space, 34, 16, Args::new(24).u64(0, base(memory)).u64(8, mib * MIB)).map(drop)
    }

    /// NV_ESC_RM_FREE.
    pub(crate) fn free(&self, object: u32) -> io::Result<()> {
        rm(self.control, 0x29, 16, 12, Args::new(16).u32(0, self.client).u32(8, object)).map(drop)
    }

    /// NV_ESC_RM_SHARE with everybody.
    pub(crate) fn share(&self, object: u32) -> io::Result<()> {
        rm(self.control, 0x35, 24, 20, Args::new(24).u32(0, self.client).u32(4, object).u32(16, 1)).map(drop)
    }

    /// NV_ESC_RM_DUP_OBJECT, mapped: what an import by CUDA IPC is.
    pub(crate) fn import_ipc(&self, client: u32, object: u32, mib: u64) -> io::Result<u32> {
        let args = Args::new(28).u32(0, self.client).u32(4, self.device).u32(12, client).u32(16, object);
        let copy = rm(self.control, 0x34, 28, 24, args)?.get(8);
        self.map(copy, mib).map(|()| copy)
    }

    /// Exports to a new /dev/nvidiactl, as cuMemExportToShareableHandle does.
    pub(crate) fn export(&self, memory: u32) -> io::Result<RawFd> {
        let handle = open("nvidiactl")?;
        let mut params = Args::new(2_128).u32(0, handle as u32).u32(4, self.device).u32(76, memory).u32(2_124, 1);
        command(self.control, self.client, 0x3d0b, &mut params, 2_128).map(|()| handle)
    }

    /// The same by the older command, for one object.
    pub(crate) fn export_one(&self, memory: u32) -> io::Result<RawFd> {
        let handle = open("nvidiactl")?;
        let params = Args::new(24).u32(0, 1).u32(4, self.device).u32(8, self.device);
        let mut params = params.u32(12, memory).u32(16, handle as u32);
        command(self.control, self.client, 0x3d05, &mut params, 24).map(|()| handle)
    }

    /// Imports what [`Cuda::export`] exported.
    pub(crate) fn import(&self, handle: RawFd) -> io::Result<u32> {
        let mut params = Args::new(652).u32(0, handle as u32).u32(4, self.device).u32(648, 1);
        command(self.control, self.client, 0x3d0c, &mut params, 652)?;
        Ok(params.get(8))
    }

    /// The same by the older command.
    pub(crate) fn import_one(&self, handle: RawFd) -> io::Result<u32> {
        let mut params = Args::new(20).u32(0, handle as u32).u32(4, 1).u32(8, self.device).u32(12, self.device);
        command(self.control, self.client, 0x3d06, &mut params, 20)?;
        Ok(params.get(16))
    }

    /// Exports as a dma-buf.
    pub(crate) fn dma_buf(&self, memory: u32, mib: u64) -> io::Result<RawFd> {
        let args = Args::new(2_608).u32(0, u32::MAX).u32(4, self.client).u32(8, 1).u32(12, 1).u64(24, mib * MIB).u32(36, memory);
        Ok(rm(self.registered, 217, 2_608, 2_600, args)?.get(0) as RawFd)
    }

    /// What cudaMallocManaged makes.
    pub(crate) fn managed(&self, mib: u64) -> io::Result<()> {
        let (bytes, flags) = ((mib * MIB) as usize, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping where the kernel likes; nobody touches it.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), bytes, flags, libc::MAP_SHARED, self.space, 0) };
        if place == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Closes all descriptors but these.
    pub(crate) fn keep_only(&self, kept: &[RawFd]) {
        let all = [self.control, self.first, self.registered, self.space, self.keeper];
        all.into_iter().filter(|fd| !kept.contains(fd)).for_each(close);
    }
}

/// Where memory is mapped: anywhere, but not twice.
fn base(memory: u32) -> u64 {
    u64::from(memory) << 36
}
