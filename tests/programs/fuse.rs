//! The smallest FUSE server: one regular file that stops answering, as a dead network file system does.
//!
//! Always true: the file system's root is that file, so no look-ups are needed; the one request that `Hang` names is
//! never answered; everything hangs on this process, so when it ends the kernel aborts the connection.
//! Wire format: include/uapi/linux/fuse.h, protocol 7.31.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::sys;

const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// FOPEN_DIRECT_IO: reads go to the server, not through the page cache, and then wait unkillably.
const DIRECT_IO: u32 = 1;
const FILE_SIZE: u64 = 4_096;

/// Which request is never answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hang {
    /// A read, which goes to the server at once.
    Read,
    /// The read of a page, for the page cache.
    Page,
    Write,
}

/// A mounted server.
pub(crate) struct Server {
    device: File,
    hang: Hang,
}

impl Server {
    /// Mounts over the file `target`.
    pub(crate) fn mount(target: &Path, hang: Hang) -> io::Result<Server> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        sys::mount_fuse_file(target, device.as_raw_fd())?;
        Ok(Server { device, hang })
    }

    /// Serves until the connection ends; calls `hung` whenever a request is left unanswered.
    pub(crate) fn serve(&mut self, mut hung: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        let mut buffer = vec![0; 256 * 1_024];
        loop {
            let length = match self.device.read(&mut buffer) {
                Ok(length) => length,
                // Unmounted.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
                // The request was withdrawn before we read it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => continue,
                Err(error) => return Err(error),
            };
            let request = &buffer[..length];
            let opcode = u32_at(request, 4)?;
            let hangs = matches!((self.hang, opcode), (Hang::Read | Hang::Page, READ) | (Hang::Write, WRITE));
            if hangs {
                hung()?;
            } else if !matches!(opcode, FORGET | BATCH_FORGET | INTERRUPT) {
                self.answer(opcode, request)?;
            }
        }
    }

    fn answer(&mut self, opcode: u32, request: &[u8]) -> io::Result<()> {
        let body = match opcode {
            INIT => init(),
            GETATTR | SETATTR => attributes(),
            OPEN => open(if self.hang == Hang::Read { DIRECT_IO } else { 0 }),
            READ => Some(vec![0; usize::try_from(FILE_SIZE).map_err(io::Error::other)?]),
            RELEASE | FLUSH | FSYNC => Some(Vec::new()),
            _ => None,
        };
        let error = if body.is_some() { 0 } else { -libc::ENOSYS };
        let body = body.unwrap_or_default();
        let mut reply = Vec::with_capacity(16 + body.len());
        reply.extend_from_slice(&u32::try_from(16 + body.len()).map_err(io::Error::other)?.to_ne_bytes());
        reply.extend_from_slice(&error.to_ne_bytes());
        reply.extend_from_slice(request.get(8..16).ok_or_else(short)?); // unique
        reply.extend_from_slice(&body);
        match self.device.write(&reply) {
            // The caller was interrupted meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result.map(drop),
        }
    }
}

fn short() -> io::Error {
    io::Error::other("a FUSE request is too short")
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes).ok_or_else(short)
}

/// `fuse_init_out`, 64 bytes.
fn init() -> Option<Vec<u8>> {
    let (major, minor, readahead, flags) = (7u32, 31u32, 0u32, 0u32);
    let (background, max_write, time_gran) = (0u32, 65_536u32, 1u32);
    let mut out: Vec<u8> = [major, minor, readahead, flags, background, max_write, time_gran]
        .iter().flat_map(|word| word.to_ne_bytes()).collect();
    out.resize(64, 0);
    Some(out)
}

/// `fuse_attr_out`: how long it is valid (0), and a regular file.
fn attributes() -> Option<Vec<u8>> {
    let mut out = vec![0; 16];
    let (inode, blocks) = (1u64, FILE_SIZE / 512);
    out.extend([inode, FILE_SIZE, blocks, 0, 0, 0].iter().flat_map(|word| word.to_ne_bytes()));
    let (mode, links, block_size) = (libc::S_IFREG | 0o644, 1u32, 4_096u32);
    out.extend([0, 0, 0, mode, links, 0, 0, 0, block_size, 0].iter().flat_map(|word| word.to_ne_bytes()));
    Some(out)
}

/// `fuse_open_out`.
fn open(flags: u32) -> Option<Vec<u8>> {
    let mut out = vec![0; 8];
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    Some(out)
}
