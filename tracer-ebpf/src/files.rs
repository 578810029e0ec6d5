//! From a descriptor to its open file description, and whether that is an NVIDIA file.
//!
//! An NVIDIA file is a character device whose number is in `DEVICES`, and not opened with O_PATH, which holds nothing.
#![expect(unsafe_code, reason = "map values are raw pointers")]

use core::mem::MaybeUninit;

use aya_ebpf::{macros::map, maps::HashMap};
use outlive_ebpf::{
    abi::{UVM_TYPE_MM, UVM_TYPE_SPACE},
    ioctl::node,
    limits::DEVICES_MAX,
    record::{self, DMA_BUF, Kind, flag},
};

use crate::{
    kernel::{self, Memory, Raw, Typed, has, offset},
    ring::{self, fill},
    task::Task,
};

#[map]
static DEVICES: HashMap<u32, u32> = HashMap::with_max_entries(DEVICES_MAX, 0);

/// `FMODE_PATH` (include/linux/fs.h).
const FMODE_PATH: u32 = 1 << 14;
/// `O_CLOEXEC` (include/uapi/asm-generic/fcntl.h).
const O_CLOEXEC: u32 = 0o2_000_000;
/// Type bits of `i_mode` (include/uapi/linux/stat.h).
const S_IFMT: u16 = 0o170_000;
const S_IFCHR: u16 = 0o020_000;
const S_IFSOCK: u16 = 0o140_000;
/// `AF_UNIX` (include/linux/socket.h).
const AF_UNIX: u16 = 1;

/// What kind of NVIDIA file a device number is: [`outlive_ebpf::ioctl::node`].
#[inline(always)]
pub(crate) fn node_of(dev: u32) -> u32 {
    // SAFETY: entries are never removed.
    unsafe { DEVICES.get(dev) }.copied().unwrap_or(node::OTHER)
}

/// `DMA_BUF_MAGIC` (include/uapi/linux/magic.h).
const DMA_BUF_MAGIC: u64 = 0x444d_4142;
/// "nv_dmabuf" and its end, as words.
const EXPORTER: [u64; 2] = [u64::from_le_bytes(*b"nv_dmabu"), b'f' as u64];

/// A `struct file`.
#[derive(Clone, Copy)]
pub(crate) struct File<M>(pub(crate) M);

/// What a file is, as far as that matters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Is {
    /// An NVIDIA device, with its number.
    Nvidia(u32),
    /// A socket.
    Socket,
    /// Anything else.
    Other,
}

impl<M: Memory> File<M> {
    /// What it is.
    #[inline(always)]
    pub(crate) fn is(self) -> Is {
        let inode = self.0.follow(offset!(file_inode));
        let kind = inode.get::<u16>(offset!(inode_mode)) & S_IFMT;
        if kind == S_IFSOCK {
            return Is::Socket;
        }
        if kind == 0 && self.is_dma_buf(inode.address()) {
            return Is::Nvidia(DMA_BUF);
        }
        if kind != S_IFCHR {
            return Is::Other;
        }
        let dev = inode.get::<u32>(offset!(inode_rdev));
        // SAFETY: only the presence of the key is used.
        if unsafe { DEVICES.get(dev) }.is_none()
            || self.0.get::<u32>(offset!(file_mode)) & FMODE_PATH != 0
        {
            return Is::Other;
        }
        Is::Nvidia(dev)
    }
    /// A dma-buf that the NVIDIA driver exported: its inode, which has no type, is of the dma-buf pseudo file system, and
    /// `exp_name` is the driver's (nv_dma_buf_export, kernel-open/nvidia/nv-dmabuf.c).
    #[inline(always)]
    fn is_dma_buf(self, inode: u64) -> bool {
        if !has!(inode_sb) || !has!(sb_magic) || !has!(dmabuf_exp_name) {
            return false;
        }
        if Raw(inode).follow(offset!(inode_sb)).get::<u64>(offset!(sb_magic)) != DMA_BUF_MAGIC {
            return false;
        }
        let private = Raw(self.0.get(offset!(file_private_data)));
        let name: [u64; 2] = private.follow(offset!(dmabuf_exp_name)).get(0);
        name[0] == EXPORTER[0] && name[1] & 0xffff == EXPORTER[1]
    }
    /// Bytes of a dma-buf, 0 of anything else.
    #[inline(always)]
    fn dma_buf_size(self, dev: u32) -> u64 {
        if dev == DMA_BUF && has!(dmabuf_size) {
            return Raw(self.0.get(offset!(file_private_data))).get(offset!(dmabuf_size));
        }
        0
    }
    /// Its device number when it is an NVIDIA file.
    #[inline(always)]
    pub(crate) fn nvidia(self) -> Option<u32> {
        match self.is() {
            Is::Nvidia(dev) => Some(dev),
            Is::Socket | Is::Other => None,
        }
    }
    /// Inode number.
    #[inline(always)]
    pub(crate) fn ino(self) -> u64 {
        self.0.follow(offset!(file_inode)).get(offset!(inode_ino))
    }
    /// Address of its operations.
    #[inline(always)]
    pub(crate) fn operations(self) -> u64 {
        self.0.follow(offset!(file_op)).address()
    }
    /// Its `struct sock`, when it is a unix socket. Only for sockets.
    #[inline(always)]
    pub(crate) fn unix_sock(self) -> Option<Raw> {
        let socket: Raw = Raw(self.0.get(offset!(file_private_data)));
        let sock = socket.follow(offset!(socket_sk));
        (sock.address() != 0 && sock.get::<u16>(offset!(sock_family)) == AF_UNIX).then_some(sock)
    }
    /// Address of the opener's credentials.
    #[inline(always)]
    fn cred(self) -> u64 {
        self.0.follow(offset!(file_cred)).address()
    }
    /// [`flag::OPENED_CLOEXEC`] when it was opened with O_CLOEXEC.
    #[inline(always)]
    fn opened_flag(self) -> u32 {
        if self.0.get::<u32>(offset!(file_flags)) & O_CLOEXEC != 0 {
            flag::OPENED_CLOEXEC
        } else {
            0
        }
    }
}

/// What the driver made of a file: bits of [`flag`], and the `struct file` that it keeps open.
///
/// The first member of an NVIDIA file's private data is `nv_file_private_t` (nv_linux_file_private_t, nv-linux.h); a UVM file's is
/// a pointer whose low bits are a type (uvm_fd_type.h).
#[inline(always)]
pub(crate) fn role<M: Memory>(file: File<M>, dev: u32) -> (u32, u64) {
    let abi = kernel::abi();
    let node = node_of(dev);
    if abi.private_data == 0 || node == node::OTHER {
        return (0, 0);
    }
    let private: u64 = file.0.get(offset!(file_private_data));
    if node == node::UVM {
        let kind = private as u32 & abi.uvm_type_mask;
        return match kind {
            UVM_TYPE_SPACE => (flag::UVM_SPACE, 0),
            // The rest of the pointer is the `struct file` of the address space (uvm.c).
            UVM_TYPE_MM => (flag::UVM_MM, private & !u64::from(abi.uvm_type_mask)),
            _ => (0, 0),
        };
    }
    if private == 0 {
        return (0, 0);
    }
    let private = Raw(private);
    if node == node::CONTROL {
        let handles: u64 = private.get(0);
        return (if handles != 0 { flag::EXPORTED } else { 0 }, 0);
    }
    (0, private.get(abi.private_control as usize))
}

/// The descriptor table of a thread.
#[derive(Clone, Copy)]
pub(crate) struct Table(Typed);

impl Table {
    /// Of `task`; None once its files are gone.
    #[inline(always)]
    pub(crate) fn of(task: Task<Typed>) -> Option<Table> {
        let files = task.files();
        (files.address() != 0).then(|| Table(files.follow(offset!(files_fdt))))
    }
    /// The file at `fd`.
    #[inline(always)]
    pub(crate) fn file(self, fd: u32) -> Option<File<Raw>> {
        if fd >= self.0.get::<u32>(offset!(fdtable_max_fds)) {
            return None;
        }
        let slots = Raw(self.0.get(offset!(fdtable_fd)));
        let file = slots.follow(fd as usize * 8);
        (file.address() != 0).then_some(File(file))
    }
    /// The descriptor that was taken last, if it is still empty.
    #[inline(always)]
    pub(crate) fn reserved(self, task: Task<Typed>) -> Option<u32> {
        if !has!(files_next_fd) || !has!(fdtable_open_fds) {
            return None;
        }
        // Behind the lowest free one (alloc_fd, fs/file.c).
        let fd = task.files().get::<u32>(offset!(files_next_fd)).wrapping_sub(1);
        if fd >= self.0.get::<u32>(offset!(fdtable_max_fds)) || self.file(fd).is_some() {
            return None;
        }
        let taken = Raw(self.0.get(offset!(fdtable_open_fds)));
        let word: u64 = taken.get((fd / 64) as usize * 8);
        (word >> (fd % 64) & 1 != 0).then_some(fd)
    }
    /// [`flag::CLOEXEC`] when the descriptor is close-on-exec.
    #[inline(always)]
    fn cloexec_flag(self, fd: u32) -> u32 {
        let bits = Raw(self.0.get(offset!(fdtable_close_on_exec)));
        let word: u64 = bits.get((fd / 64) as usize * 8);
        if word >> (fd % 64) & 1 != 0 {
            flag::CLOEXEC
        } else {
            0
        }
    }
}

/// The NVIDIA file at a descriptor of `task`.
#[inline(always)]
pub(crate) fn nvidia_at(task: Task<Typed>, fd: u32) -> Option<(File<Raw>, u32)> {
    let file = Table::of(task)?.file(fd)?;
    Some((file, file.nvidia()?))
}

/// One file at one descriptor of a thread, to be reported.
#[derive(Clone, Copy)]
pub(crate) struct Entry<M> {
    /// What is reported.
    pub(crate) kind: Kind,
    /// The thread.
    pub(crate) task: Task<Typed>,
    /// The descriptor, or -1.
    pub(crate) fd: i32,
    /// The file.
    pub(crate) file: File<M>,
    /// Its device number, or 0.
    pub(crate) dev: u32,
    /// Inode number of the socket that it goes through, or 0.
    pub(crate) socket: u64,
    /// `struct file` that it keeps open, or 0.
    pub(crate) pins: u64,
}

impl<M: Memory> Entry<M> {
    /// Writes the record; `at` is when, or 0 when the reader stamps it.
    #[inline(always)]
    pub(crate) fn describe(self, place: &mut MaybeUninit<record::File>, flags: u32, at: u64) {
        fill!(
            place,
            record::File {
                header: record::Header {
                    kind: self.kind as u16,
                    size: size_of::<record::File>() as u16,
                    flags: flags | self.flags(),
                    at,
                    who: self.task.thread(),
                    comm: self.task.comm(),
                },
                file: self.file.0.address(),
                cred: self.file.cred(),
                files: self.task.files().address(),
                socket: self.socket,
                pins: self.pins,
                bytes: self.file.dma_buf_size(self.dev),
                fd: self.fd,
                dev: self.dev,
            }
        );
    }

    /// What the descriptor and the table say.
    #[inline(always)]
    fn flags(self) -> u32 {
        let mut flags = self.file.opened_flag();
        if self.fd >= 0
            && let Some(table) = Table::of(self.task)
        {
            flags |= table.cloexec_flag(self.fd as u32);
        }
        if self.task.shares_files() {
            flags |= flag::SHARED_FILES;
        }
        flags
    }
}

impl Entry<Raw> {
    /// Sends the record as an event of a process that uses GPU files.
    #[inline(always)]
    pub(crate) fn send(self) {
        ring::send::<record::File>(|place| self.describe(place, flag::GPU_USER, ring::now()));
    }
}
