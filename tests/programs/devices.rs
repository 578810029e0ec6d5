//! Stand-ins for the NVIDIA device nodes: harmless character devices under NVIDIA's names.
//!
//! Always true: the numbers are ones that no process on this host holds open when they are chosen, because outlive
//! recognises device nodes by number and would otherwise count strangers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::sys;

/// Devices of `mem` (drivers/char/mem.c) that can be opened for reading and writing without effect, rarest first:
/// /dev/full, /dev/random, /dev/zero, /dev/urandom, /dev/null.
const CANDIDATES: [(u32, u32); 5] = [(1, 7), (1, 8), (1, 5), (1, 9), (1, 3)];

/// Which NVIDIA node a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Control,
    Uvm,
    Gpu,
}

impl Device {
    pub(crate) const ALL: [Device; 3] = [Device::Control, Device::Uvm, Device::Gpu];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Device::Control => "nvidiactl",
            Device::Uvm => "nvidia-uvm",
            Device::Gpu => "nvidia0",
        }
    }

    pub(crate) fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.name())
    }
}

/// Makes the nodes in `dir` unless they are there.
pub(crate) fn make(dir: &Path) -> io::Result<()> {
    if Device::ALL.iter().all(|device| is_char_device(&device.path(dir))) {
        return Ok(());
    }
    fs::create_dir_all(dir)?;
    let taken = numbers_in_use()?;
    let free: Vec<(u32, u32)> = CANDIDATES.into_iter().filter(|number| !taken.contains(number)).collect();
    if free.len() < Device::ALL.len() {
        return Err(io::Error::other(format!(
            "too few of the device numbers {CANDIDATES:?} are unused on this host (in use: {taken:?})"
        )));
    }
    for (device, (major, minor)) in Device::ALL.into_iter().zip(free) {
        sys::make_char_device(&device.path(dir), major, minor)?;
    }
    Ok(())
}

/// NVIDIA's own files that this thread has open, by descriptor.
pub(crate) fn open_here() -> io::Result<Vec<(RawFd, Device)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/thread-self/fd")?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let device = match target.to_str().and_then(|target| target.strip_prefix("/dev/nvidia")) {
            Some("ctl") => Device::Control,
            Some("-uvm") => Device::Uvm,
            Some(number) if number.parse::<u8>().is_ok() => Device::Gpu,
            _ => continue,
        };
        let fd = entry.file_name().to_str().and_then(|fd| fd.parse().ok());
        found.extend(fd.map(|fd| (fd, device)));
    }
    found.sort_by_key(|(fd, _)| *fd);
    Ok(found)
}

fn is_char_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device())
}

/// Numbers of all character devices that some process holds open. Processes that end meanwhile are skipped.
fn numbers_in_use() -> io::Result<BTreeSet<(u32, u32)>> {
    let mut numbers = BTreeSet::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            // stat, not lstat: follows the magic link to the open file itself.
            if let Ok(file) = fs::metadata(descriptor.path())
                && file.file_type().is_char_device()
            {
                numbers.insert(sys::device_numbers(file.rdev()));
            }
        }
    }
    Ok(numbers)
}
