//! Waiting for a file system: which one it is, how sure that is, and what may be done to it.

use super::{FUSE, TICKS, assert_says, commands, killed_in_vain, stuck};
use crate::cause::remedy::tests::passes;
use crate::event::{Mount, MountBy, StuckThread};
use crate::explanation::{CauseId, Holding};

fn mount(point: &str, kind: &str, source: &str, minor: u32, by: MountBy) -> Mount {
    Mount { point: point.into(), kind: kind.into(), source: source.into(), dev: (0, minor), abort: kind.starts_with("fuse").then(|| format!("/sys/fs/fuse/connections/{minor}/abort")), by, inside: false }
}

/// What the commands do, behind their checks.
fn deeds(holding: &Holding) -> Vec<&str> {
    commands(holding).into_iter().map(|c| c.rsplit_once("&& ").map_or(c, |(_, deed)| deed)).collect()
}

#[test]
fn without_a_driver_frame_the_gpu_is_innocent() {
    let holding = killed_in_vain(stuck("D", &FUSE));
    assert_eq!(holding.cause, CauseId::ExitBlockedElsewhere);
    assert!(
        holding.summary.contains(
            "thread 577 is stuck in kernel code outside the NVIDIA driver and waits for the FUSE server (request_wait_answer"
        ),
        "{}",
        holding.summary
    );
    assert_eq!(commands(&holding), [""; 0]);
}

#[test]
fn a_fuse_mount_is_named_and_its_connection_can_be_aborted() {
    let mounts = vec![mount("/mnt/my data", "fuse.rclone", "remote:", 47, MountBy::Syscall)];
    let thread = StuckThread { syscall: Some("read".into()), file: Some("/mnt/my data/x".into()), mounts, ..stuck("D", &FUSE) };
    let holding = killed_in_vain(thread);
    assert!(holding.summary.contains("waits for the FUSE server of /mnt/my data (fuse.rclone, remote:) (request_wait"), "{}", holding.summary);
    let checked = |deed: &str| format!("grep -qw {TICKS} /proc/574/stat && grep -q ' 0:47 [^ ]* /mnt/my.*data ' /proc/574/task/577/mountinfo && {deed}");
    assert_eq!(commands(&holding), [checked("echo 1 > /sys/fs/fuse/connections/47/abort"), checked("umount -f -l '/mnt/my data'")]);
    assert!(holding.remedy.iter().filter(|r| r.command.is_some()).all(|r| r.frees_bytes.is_some()));
    assert_says(&holding, "The system call of thread 577 works on a file of /mnt/my data (fuse.rclone, remote:)");
    assert_says(&holding, "; its system call is read on /mnt/my data/x");
}

#[test]
fn of_several_fuse_mounts_none_is_claimed_and_no_path_runs_in_a_shell() {
    let mounts = vec![mount("/a;reboot", "fuse.x", "x", 47, MountBy::Mounted), mount("/b", "fuse.y", "y", 48, MountBy::Mounted)];
    let holding = killed_in_vain(StuckThread { mounts, ..stuck("D", &FUSE) });
    assert_says(&holding, "Which file thread 577 waits for is not known; it can see /a;reboot (fuse.x, x) and /b (fuse.y, y)");
    assert_eq!(deeds(&holding), ["echo 1 > /sys/fs/fuse/connections/47/abort", "echo 1 > /sys/fs/fuse/connections/48/abort", "umount -f -l /b"]);
    assert!(commands(&holding)[0].contains("grep -q ' 0:47 [^ ]* /a.*reboot ' /proc"), "{:?}", commands(&holding));
    assert!(holding.remedy.iter().any(|r| r.effect.contains("if it is this one that the thread waits for")));
}

/// Whether a command gets past its checks, with this line in the list of mounts and a process that began then.
fn is_done(command: &str, line: &str, ticks: u64) -> bool {
    let stat = format!("574 (x) Z 1 {ticks} 0");
    let mounts = format!("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{line}\n");
    passes(command, &[("/proc/574/stat", &stat), ("/proc/574/task/577/mountinfo", &mounts)])
}

#[test]
fn a_mount_is_aborted_only_while_it_is_the_one_that_was_seen() {
    for (point, listed) in [("/mnt/x", "/mnt/x"), ("/mnt/a b", "/mnt/a\\040b"), ("/mnt/$(reboot)'\"[*]", "/mnt/$(reboot)'\"[*]"), ("/mnt/données", "/mnt/données")] {
        let holding = killed_in_vain(StuckThread { mounts: vec![mount(point, "fuse.x", "x", 47, MountBy::Syscall)], ..stuck("D", &FUSE) });
        for command in commands(&holding) {
            assert!(is_done(command, &format!("36 22 0:47 /sub {listed} rw shared:7 - fuse.x x rw"), TICKS), "{command}");
            assert!(!is_done(command, &format!("36 22 0:47 / {listed} rw - fuse.x x rw"), TICKS + 1), "mounted anew at the same place: {command}");
            assert!(!is_done(command, &format!("36 22 0:48 / {listed} rw - fuse.x x rw"), TICKS), "{command}");
            assert!(!is_done(command, "36 22 0:47 / /mnt/other rw - fuse.y y rw", TICKS), "the number is another mount's: {command}");
        }
    }
}

#[test]
fn nfs_and_disks_are_told_apart() {
    let mounts = vec![mount("/home", "nfs4", "server:/home", 50, MountBy::Open)];
    let nfs = ["rpc_wait_bit_killable+0x1/0x2 [sunrpc]", "nfs4_proc_getattr+0x1/0x2 [nfsv4]"];
    let holding = killed_in_vain(StuckThread { mounts, ..stuck("D", &nfs) });
    assert_eq!(holding.cause, CauseId::ExitBlockedElsewhere);
    assert!(holding.summary.contains("waits for the NFS server, perhaps of /home (nfs4, server:/home)"), "{}", holding.summary);
    assert_eq!(deeds(&holding), ["umount -f /home"]);
    let mounts = vec![Mount { inside: true, ..mount("/home", "nfs4", "server:/home", 50, MountBy::Open) }];
    let holding = killed_in_vain(StuckThread { mounts, ..stuck("D", &nfs) });
    assert_eq!(deeds(&holding), ["nsenter -t 577 -m umount -f /home"], "the path is a container's");
    assert!(holding.remedy.iter().all(|r| r.command.is_none() || r.frees_bytes.is_none()), "it may be another mount");
    let mounts = vec![mount("/", "ext4", "/dev/sda1", 1, MountBy::Syscall)];
    let holding = killed_in_vain(StuckThread { mounts, ..stuck("D", &["io_schedule+0x1/0x2", "ext4_sync_file+0x1/0x2"]) });
    assert!(holding.summary.contains("waits for the disk of / (ext4, /dev/sda1)"), "{}", holding.summary);
}

#[test]
fn the_driver_that_waits_for_a_file_is_innocent() {
    let fault = [FUSE[0], "handle_mm_fault+0x1/0x2", "nvidia_unlocked_ioctl+0x1/0x2 [nvidia]"];
    assert_eq!(killed_in_vain(stuck("D", &fault)).cause, CauseId::ExitBlockedElsewhere);
}

#[test]
fn a_root_of_a_container_is_never_taken_away() {
    let mounts = vec![mount("/", "fuse.fuse-overlayfs", "fuse-overlayfs", 47, MountBy::Open)];
    let holding = killed_in_vain(StuckThread { mounts, ..stuck("D", &FUSE) });
    assert_eq!(commands(&holding), [""; 0]);
}

#[test]
fn a_trace_cannot_say_which_file_is_written_to() {
    let mounts = vec![Mount { abort: Some("/etc/shadow".into()), ..mount("/mnt/x", "fuse.x", "x", 47, MountBy::Syscall) }];
    let holding = killed_in_vain(StuckThread { mounts, ..stuck("D", &FUSE) });
    assert!(commands(&holding).iter().all(|c| !c.contains("shadow")), "{:?}", commands(&holding));
}
