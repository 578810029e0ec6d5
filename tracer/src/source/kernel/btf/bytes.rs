//! The bytes of the kernel's BTF file: mapped where the kernel allows it (since 6.16), else read.
//!
//! Always true: the bytes do not change while they are held; they are the kernel's own, read-only, for its life. Mapping
//! them saves a copy of some megabytes into fresh memory, which takes longer than looking everything up.
#![expect(unsafe_code, reason = "mmap, which std does not wrap")]

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Deref;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr::NonNull;

/// See the module.
pub(super) enum Bytes {
    Mapped { start: NonNull<u8>, length: usize },
    Read(Vec<u8>),
}

impl Bytes {
    /// At most `most` bytes of `path`, which must be a file whose contents never change.
    pub(super) fn of(path: &Path, most: usize) -> io::Result<Bytes> {
        let file = File::open(path)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(most).min(most);
        if let Some(start) = map(&file, length) {
            return Ok(Bytes::Mapped { start, length });
        }
        let mut bytes = Vec::with_capacity(length + 1);
        file.take(most as u64).read_to_end(&mut bytes)?;
        Ok(Bytes::Read(bytes))
    }
}

fn map(file: &File, length: usize) -> Option<NonNull<u8>> {
    if length == 0 {
        return None;
    }
    let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_POPULATE);
    // SAFETY: a new mapping at a place of the kernel's choice disturbs no other.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: `length` bytes are mapped at `start` until this is dropped, and the kernel never changes them.
            Bytes::Mapped { start, length } => unsafe { std::slice::from_raw_parts(start.as_ptr(), *length) },
            Bytes::Read(bytes) => bytes,
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Bytes::Mapped { start, length } = self {
            // SAFETY: this mapping is ours, and no slice of it outlives us.
            unsafe { libc::munmap(start.as_ptr().cast(), *length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_and_read_bytes_are_the_same() {
        let path = Path::new(super::super::PATH);
        if !path.exists() {
            println!("skipped: this kernel has no {}", path.display());
            return;
        }
        let bytes = Bytes::of(path, 64 << 20).unwrap();
        assert!(*bytes == std::fs::read(path).unwrap()[..]);
        assert_eq!(Bytes::of(path, 1000).unwrap().len(), 1000);
    }

    #[test]
    fn what_cannot_be_mapped_is_read() {
        // Files of procfs have no size and cannot be mapped.
        let bytes = Bytes::of(Path::new("/proc/self/status"), 64).unwrap_or(Bytes::Read(Vec::new()));
        assert!(bytes.starts_with(b"Name:"));
    }
}
