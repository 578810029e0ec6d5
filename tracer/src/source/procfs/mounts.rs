//! Which mounted file system a thread waits for.
//!
//! Always true: nothing here touches the file system itself (no stat, no statfs: they would wait like the thread does);
//! only what the kernel keeps about mounts and descriptors is read, and all of it bounded.

use super::{Proc, TEXT_MAX, bounded, guard};
use crate::event::{Mount, MountBy};
use crate::stack::Wait;
use std::collections::BTreeSet;
use std::io::Read as _;

/// A node with many containers has thousands of mounts.
const MOUNTINFO_MAX: usize = 4 << 20;
const MAPS_MAX: usize = 1 << 20;
/// Descriptors of a process that are looked at.
const FDS_MAX: usize = 4_096;
/// Mounts that are kept.
const MOUNTS_MAX: usize = 8;

/// A line of /proc/PID/mountinfo, with its number.
struct Line {
    id: u64,
    mount: Mount,
}

impl Proc {
    fn abort_file(&self, mount: &Mount) -> Option<String> {
        let connection = u64::from(mount.dev.0) << 20 | u64::from(mount.dev.1);
        let file = format!("sys/fs/fuse/connections/{connection}/abort");
        (fits(mount, Wait::Fuse) && self.root.join(&file).exists()).then(|| format!("/{file}"))
    }

    /// The file systems of the kind that `wait` is about which this thread may wait for: the one of its system call's
    /// descriptor, else those of which the process has files, else all that it can see.
    pub(super) fn mounts(&self, pid: u32, tid: u32, fd: Option<i32>, wait: Wait) -> Vec<Mount> {
        let path = self.root.join(format!("proc/{pid}/task/{tid}/mountinfo"));
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(MOUNTINFO_MAX as u64).read_to_end(&mut bytes));
        if read.is_err() {
            return Vec::new();
        }
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<Line> = text.lines().filter_map(line).filter(|line| fits(&line.mount, wait)).collect();
        if lines.is_empty() {
            return Vec::new();
        }
        let inside = self.is_other_namespace(pid, tid);
        let told = |line: &Line, by| Mount { by, inside, abort: self.abort_file(&line.mount), ..line.mount.clone() };
        let named = |ids: &BTreeSet<u64>, by| -> Vec<Mount> {
            let of_them = lines.iter().filter(|line| ids.contains(&line.id));
            of_them.take(MOUNTS_MAX).map(|line| told(line, by)).collect()
        };
        let its: BTreeSet<u64> = fd.and_then(|fd| self.mount_of(pid, tid, fd)).into_iter().collect();
        let found = named(&its, MountBy::Syscall);
        if !found.is_empty() {
            return found;
        }
        // A call that names a path, or closes its descriptor, is about any of them: those that it uses come first.
        let mut open: BTreeSet<u64> = self.fds(pid, tid).into_iter().filter_map(|fd| self.mount_of(pid, tid, fd)).collect();
        let mapped = self.mapped(pid, tid);
        open.extend(lines.iter().filter(|line| mapped.contains(&line.mount.dev)).map(|line| line.id));
        let mut found = named(&open, MountBy::Open);
        if wait != Wait::Disk {
            let others = lines.iter().filter(|line| !open.contains(&line.id)).map(|line| told(line, MountBy::Mounted));
            found.extend(others.take(MOUNTS_MAX - found.len()));
        }
        found
    }

    /// Its paths are not the host's (ours may not be either: see `private_tracefs`). When that cannot be read, they are taken for the host's.
    fn is_other_namespace(&self, pid: u32, tid: u32) -> bool {
        let of = |path: String| std::fs::read_link(self.root.join(path)).ok();
        match (of("proc/1/ns/mnt".to_owned()), of(format!("proc/{pid}/task/{tid}/ns/mnt"))) {
            (Some(hosts), Some(its)) => hosts != its,
            _ => false,
        }
    }

    /// "mnt_id:\t29" (fs/proc/fd.c). Only of files with a path: an epoll instance's fdinfo takes a lock that its user may hold for ever.
    fn mount_of(&self, pid: u32, tid: u32, fd: i32) -> Option<u64> {
        let target = std::fs::read_link(self.root.join(format!("proc/{pid}/task/{tid}/fd/{fd}"))).ok()?;
        if !target.is_absolute() {
            return None;
        }
        let text = self.text(format!("proc/{pid}/task/{tid}/fdinfo/{fd}"))?;
        text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
    }

    fn fds(&self, pid: u32, tid: u32) -> Vec<i32> {
        let Ok(entries) = std::fs::read_dir(self.root.join(format!("proc/{pid}/task/{tid}/fdinfo"))) else { return Vec::new() };
        entries.flatten().take(FDS_MAX).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Devices of mapped files: "7f00-7f10 r--p 00000000 00:2f 131 /mnt/data/x".
    fn mapped(&self, pid: u32, tid: u32) -> BTreeSet<(u32, u32)> {
        let path = self.root.join(format!("proc/{pid}/task/{tid}/maps"));
        let bytes = guard::bytes(path, MAPS_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let device = |line: &str| {
            let (major, minor) = line.split_ascii_whitespace().nth(3)?.split_once(':')?;
            Some((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
        };
        text.lines().filter_map(device).filter(|dev| *dev != (0, 0)).collect()
    }
}

/// "36 35 0:47 / /mnt/data rw,relatime shared:1 - fuse.rclone remote: rw" (Documentation/filesystems/proc.rst).
fn line(text: &str) -> Option<Line> {
    let (before, after) = text.split_once(" - ")?;
    let mut before = before.split(' ');
    let id = before.next()?.parse().ok()?;
    let (major, minor) = before.nth(1)?.split_once(':')?;
    let point = unescaped(before.nth(1)?);
    let mut after = after.split(' ');
    let (kind, source) = (after.next()?.to_owned(), unescaped(after.next().unwrap_or_default()));
    let dev = (major.parse().ok()?, minor.parse().ok()?);
    Some(Line { id, mount: Mount { point, kind: bounded(&kind, 64).to_owned(), source, dev, ..Mount::default() } })
}

/// The kernel writes space, tab, newline and backslash as octal numbers (`mangle`, fs/proc_namespace.c).
fn unescaped(text: &str) -> String {
    let text = text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    bounded(&text, TEXT_MAX).to_owned()
}

fn fits(mount: &Mount, wait: Wait) -> bool {
    let kind = mount.kind.as_str();
    match wait {
        Wait::Fuse => matches!(kind, "fuse" | "fuseblk") || kind.starts_with("fuse."),
        Wait::Nfs => matches!(kind, "nfs" | "nfs4"),
        Wait::RemoteFs => matches!(kind, "ceph" | "cifs" | "smb3" | "lustre" | "gpfs" | "9p" | "beegfs"),
        Wait::Disk => mount.source.starts_with("/dev/"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(fdinfo: &str, maps: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let task = folder.path().join("proc/40/task/41");
        std::fs::create_dir_all(task.join("fdinfo")).unwrap();
        std::fs::create_dir_all(task.join("fd")).unwrap();
        std::os::unix::fs::symlink("/mnt/x", task.join("fd/5")).unwrap();
        std::os::unix::fs::symlink("anon_inode:[eventpoll]", task.join("fd/6")).unwrap();
        std::fs::write(task.join("fdinfo/6"), "mnt_id:\t37\n").unwrap();
        let mountinfo = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                         36 22 0:47 / /mnt/my\\040data rw shared:7 - fuse.rclone remote: rw,user_id=0\n\
                         37 22 0:48 / /mnt/other rw - fuse.sshfs host:/x rw\n\
                         38 22 0:49 / /sys/fs/fuse/connections rw - fusectl fusectl rw\n\
                         39 22 0:50 / /home rw - nfs4 server:/home rw\n\
                         broken\n";
        std::fs::write(task.join("mountinfo"), mountinfo).unwrap();
        std::fs::write(task.join("fdinfo/5"), fdinfo).unwrap();
        std::fs::write(task.join("maps"), maps).unwrap();
        folder
    }

    fn found(folder: &tempfile::TempDir, fd: Option<i32>, wait: Wait) -> Vec<(String, u32, MountBy)> {
        let mounts = Proc::new(folder.path()).mounts(40, 41, fd, wait);
        mounts.into_iter().map(|mount| (mount.point, mount.dev.1, mount.by)).collect()
    }

    #[test]
    fn the_descriptor_of_the_system_call_says_which_mount() {
        let folder = tree("pos:\t0\nmnt_id:\t36\n", "");
        assert_eq!(found(&folder, Some(5), Wait::Fuse), [("/mnt/my data".to_owned(), 47, MountBy::Syscall)]);
        let either = [("/mnt/my data".to_owned(), 47, MountBy::Open), ("/mnt/other".to_owned(), 48, MountBy::Mounted)];
        assert_eq!(found(&folder, None, Wait::Fuse), either, "a call that names a path may be about any mount");
        assert_eq!(found(&folder, None, Wait::Nfs), [("/home".to_owned(), 50, MountBy::Mounted)]);
    }

    #[test]
    fn else_a_mapping_says_it_and_else_all_that_are_mounted_may_be_it() {
        let folder = tree("mnt_id:\t22\n", "7f00-7f10 r--p 00000000 00:30 131 /mnt/other/x\n7f20-7f30 rw-p 0 00:00 0\n");
        let either = [("/mnt/other".to_owned(), 48, MountBy::Open), ("/mnt/my data".to_owned(), 47, MountBy::Mounted)];
        assert_eq!(found(&folder, Some(5), Wait::Fuse), either);
        assert_eq!(found(&folder, Some(5), Wait::Disk), [("/".to_owned(), 1, MountBy::Syscall)]);
        let folder = tree("", "");
        assert_eq!(found(&folder, Some(5), Wait::Fuse).len(), 2);
        assert_eq!(found(&folder, Some(5), Wait::Disk), []);
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read_without_a_panic(text in ".*", tail in ".*") {
            let _ = (line(&text), line(&format!("1 2 0:3 / {text} rw - {tail}")));
        }
    }
}
