//! Which device numbers count as NVIDIA files.
//!
//! Always true: a file is recognised by its device number, never by its path, so nodes in containers and under other
//! names count too. Numbers come from the nodes that `--devices` matches and, for the default pattern, from what the
//! driver says of itself in /proc, so that GPUs whose nodes are missing in this /dev are not missed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use outlive_ebpf::limits::DEVICES_MAX;

use crate::event::{Dev, DeviceNode};

/// What `--devices` is when it is not given.
pub const DEFAULT_PATTERN: &str = "/dev/nvidia*";
/// Major number of /dev/nvidia0, nvidiactl and nvidia-modeset (NV_MAJOR_DEVICE_NUMBER, kernel-open/nvidia/nv.h).
const NVIDIA_MAJOR: u32 = 195;
/// Levels of directories below a match that are looked into (/dev/nvidia-caps/nvidia-cap1 is one).
const DEPTH_MAX: u32 = 2;

/// Why no device numbers are known.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The pattern is not one.
    #[error("--devices {pattern:?} is not a valid pattern")]
    Pattern {
        /// As given.
        pattern: String,
        /// What is wrong with it.
        source: glob::PatternError,
    },
    /// Nothing matched.
    #[error("no character device matches {pattern:?}{}; --devices GLOB names other nodes", if *.driver_loaded { "" } else { " and no NVIDIA driver is loaded (/proc/devices names none)" })]
    NoMatch {
        /// As given.
        pattern: String,
        /// /proc/devices names an NVIDIA driver.
        driver_loaded: bool,
    },
    /// More than the programs can be told.
    #[error("{pattern:?} matches {found} character devices; at most {DEVICES_MAX} can be watched: narrow --devices")]
    TooMany {
        /// As given.
        pattern: String,
        /// How many.
        found: usize,
    },
}

/// Device nodes that `pattern` matches, in order of their numbers; see the module's page for what the default adds.
///
/// # Errors
/// When nothing matches, too much matches, or the pattern is malformed.
pub fn find(pattern: &str) -> Result<Vec<DeviceNode>, DevicesError> {
    find_in(pattern, Path::new("/proc"))
}

fn find_in(pattern: &str, proc: &Path) -> Result<Vec<DeviceNode>, DevicesError> {
    let matches = glob::glob(pattern)
        .map_err(|source| DevicesError::Pattern { pattern: pattern.to_owned(), source })?;
    let mut found = BTreeMap::new();
    // A match that cannot be read any more has gone: it is no device.
    for path in matches.flatten() {
        add_path(&path, DEPTH_MAX, &mut found);
    }
    let majors = fs::read_to_string(proc.join("devices")).unwrap_or_default();
    if pattern == DEFAULT_PATTERN {
        add_from_driver(&majors, &gpu_minors(proc), &mut found);
    }
    if found.is_empty() {
        let driver_loaded = nvidia_majors(&majors).next().is_some();
        return Err(DevicesError::NoMatch { pattern: pattern.to_owned(), driver_loaded });
    }
    if found.len() > DEVICES_MAX as usize {
        return Err(DevicesError::TooMany { pattern: pattern.to_owned(), found: found.len() });
    }
    Ok(found.into_iter().map(|(dev, path)| DeviceNode { dev, path }).collect())
}

/// Adds a node, or the nodes in a directory. Links are followed for what they name; the first path of a number wins.
fn add_path(path: &Path, depth: u32, found: &mut BTreeMap<Dev, String>) {
    let Ok(metadata) = fs::metadata(path) else { return };
    if metadata.file_type().is_char_device() {
        let dev = dev_of(metadata.rdev());
        found.entry(dev).or_insert_with(|| path.to_string_lossy().into_owned());
    } else if metadata.is_dir() && depth > 0 {
        for child in sorted_children(path) {
            add_path(&child, depth - 1, found);
        }
    }
}

fn sorted_children(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut children: Vec<PathBuf> = entries.take(DEVICES_MAX as usize + 1).flatten().map(|entry| entry.path()).collect();
    children.sort();
    children
}

/// The C library's `dev_t` as the kernel's (`gnu_dev_major`, `gnu_dev_minor`: 12 + 20 bits are interleaved).
fn dev_of(rdev: u64) -> Dev {
    let major = (rdev >> 8 & 0xfff) | (rdev >> 32 & !0xfff);
    let minor = (rdev & 0xff) | (rdev >> 12 & !0xff);
    // The kernel's own dev_t has 12 bits of major and 20 of minor (include/linux/kdev_t.h), so nothing is cut off.
    Dev::new(major as u32 & 0xfff, minor as u32)
}

/// Numbers that the loaded driver owns whether or not this /dev has nodes for them.
fn add_from_driver(majors: &str, gpus: &[u32], found: &mut BTreeMap<Dev, String>) {
    for (major, name) in nvidia_majors(majors) {
        let minors: Vec<(u32, String)> = match name {
            "nvidia-uvm" => vec![(0, "nvidia-uvm".to_owned()), (1, "nvidia-uvm-tools".to_owned())],
            _ if major == NVIDIA_MAJOR => gpus
                .iter()
                .map(|minor| (*minor, format!("nvidia{minor}")))
                .chain([(254, "nvidia-modeset".to_owned()), (255, "nvidiactl".to_owned())])
                .collect(),
            // /dev/nvidia-caps/nvidia-cap1 and 2 are "mig config" and "mig monitor" on every host that has the major.
            "nvidia-caps" => [1, 2].map(|minor| (minor, format!("nvidia-cap{minor}"))).to_vec(),
            _ => Vec::new(),
        };
        for (minor, name) in minors {
            found.entry(Dev::new(major, minor)).or_insert(name);
        }
    }
}

/// Character-device lines of /proc/devices that an NVIDIA module registered.
fn nvidia_majors(text: &str) -> impl Iterator<Item = (u32, &str)> {
    text.lines().take_while(|line| *line != "Block devices:").filter_map(|line| {
        let (number, name) = line.trim().split_once(' ')?;
        Some((number.parse().ok()?, name)).filter(|(_, name)| name.starts_with("nvidia"))
    })
}

/// "Device Minor:" of every /proc/driver/nvidia/gpus/*/information.
fn gpu_minors(proc: &Path) -> Vec<u32> {
    let minor = |path: PathBuf| -> io::Result<Option<u32>> {
        let text = fs::read_to_string(path.join("information"))?;
        Ok(text.lines().find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse().ok()))
    };
    sorted_children(&proc.join("driver/nvidia/gpus")).into_iter().filter_map(|path| minor(path).ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROC_DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n\
        234 nvidia-nvswitch\n508 nvidia-uvm\n511 nvidia-caps\n\nBlock devices:\n508 nvidia-uvm\n";

    fn host(devices: &str, gpu_minor: Option<u32>) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        fs::write(proc.path().join("devices"), devices).unwrap();
        if let Some(minor) = gpu_minor {
            let gpu = proc.path().join("driver/nvidia/gpus/0000:0b:00.0");
            fs::create_dir_all(&gpu).unwrap();
            let text = format!("Model: \t\t NVIDIA H200\nIRQ:   \t\t 33\nDevice Minor: \t {minor}\n");
            fs::write(gpu.join("information"), text).unwrap();
        }
        proc
    }

    #[test]
    fn a_pattern_gives_the_numbers_of_the_character_devices_that_it_matches() {
        let found = find("/dev/nul[l]").unwrap();
        assert_eq!(found, [DeviceNode { dev: Dev::new(1, 3), path: "/dev/null".to_owned() }]);
    }

    #[test]
    fn directories_that_match_are_looked_into() {
        let found = find("/de[v]").unwrap();
        assert!(found.iter().any(|node| node.dev == Dev::new(1, 5) && node.path == "/dev/zero"), "{found:?}");
    }

    #[test]
    fn a_pattern_without_a_match_says_so() {
        let proc = host("Character devices:\n  1 mem\n", None);
        let error = find_in("/nowhere/nvidia*", proc.path()).unwrap_err().to_string();
        assert!(error.contains("\"/nowhere/nvidia*\"") && error.contains("no NVIDIA driver"), "{error}");
        let proc = host(PROC_DEVICES, None);
        let error = find_in("/nowhere/nvidia*", proc.path()).unwrap_err();
        assert!(matches!(error, DevicesError::NoMatch { driver_loaded: true, .. }), "{error}");
    }

    #[test]
    fn ordinary_files_and_block_devices_do_not_count() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("nvidia0"), "").unwrap();
        let pattern = format!("{}/*", directory.path().display());
        assert!(matches!(find(&pattern), Err(DevicesError::NoMatch { .. })));
    }

    #[test]
    fn the_default_adds_what_the_driver_owns() {
        let proc = host(PROC_DEVICES, Some(3));
        let found = find_in(DEFAULT_PATTERN, proc.path()).unwrap();
        let has = |major, minor| found.iter().any(|node| node.dev == Dev::new(major, minor));
        assert!(has(195, 3) && has(195, 255) && has(508, 0) && has(508, 1), "{found:?}");
        assert!(!has(234, 0), "nvswitch nodes are found by path only: {found:?}");
    }

    #[test]
    fn a_malformed_pattern_is_refused() {
        assert!(matches!(find("/dev/***"), Err(DevicesError::Pattern { .. })));
    }

    #[test]
    fn large_device_numbers_survive() {
        // makedev(511, 70000): minor bits above 8 move up by 12.
        let (major, minor) = (511_u64, 70_000_u64);
        let rdev = (major & 0xfff) << 8 | (major & !0xfff) << 32 | (minor & 0xff) | (minor & !0xff) << 12;
        assert_eq!(dev_of(rdev), Dev::new(511, 70_000));
    }
}
