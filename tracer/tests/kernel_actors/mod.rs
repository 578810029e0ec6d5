//! Processes that misbehave, made of bare system calls, and the stand-in devices that they misbehave with.
//!
//! The parent has one thread, so a forked child may do whatever it likes. A child dies with its parent.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use outlive::event::Dev;

/// A directory with two device nodes.
pub(crate) struct Stand {
    directory: tempfile::TempDir,
}

/// /dev/zero and /dev/full under other names: devices that anyone may open and that do nothing.
#[derive(Clone, Copy)]
pub(crate) enum Device {
    Zero,
    Full,
}

impl Device {
    const fn numbers(self) -> (u32, u32, &'static str) {
        match self {
            Device::Zero => (1, 5, "gpu0"),
            Device::Full => (1, 7, "gpuctl"),
        }
    }
}

impl Stand {
    pub(crate) fn new() -> Stand {
        let directory = tempfile::tempdir().unwrap();
        for device in [Device::Zero, Device::Full] {
            let (major, minor, name) = device.numbers();
            let path = std::ffi::CString::new(directory.path().join(name).into_os_string().into_encoded_bytes()).unwrap();
            // SAFETY: a NUL-terminated path.
            let made = unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(major, minor)) };
            assert_eq!(made, 0, "mknod: {}", std::io::Error::last_os_error());
        }
        Stand { directory }
    }
    pub(crate) fn pattern(&self) -> String {
        self.directory.path().join("gpu*").display().to_string()
    }
    pub(crate) const fn dev(&self, device: Device) -> Dev {
        let (major, minor, _) = device.numbers();
        Dev::new(major, minor)
    }
    fn path(&self, device: Device) -> PathBuf {
        self.directory.path().join(device.numbers().2)
    }
    /// Opens a device with exactly these flags beside O_RDONLY: std would add O_CLOEXEC.
    pub(crate) fn open(&self, device: Device, flags: i32) -> File {
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.path(device)).unwrap();
        if flags & (libc::O_CLOEXEC | libc::O_PATH) != 0 {
            return file;
        }
        drop(file);
        let path = std::ffi::CString::new(self.path(device).into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a NUL-terminated path; the descriptor is new.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | flags) };
        assert!(fd >= 0);
        // SAFETY: as above.
        unsafe { File::from_raw_fd(fd) }
    }
}
