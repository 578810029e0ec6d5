//! Against trees made for the test, and against ourselves.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::event::{Container, Header, PidsLimit, StuckThread};
use crate::snapshot::TaskLine;

const START: u64 = 123_456_789_012;
/// include/linux/sched.h
const EXIT_ZOMBIE: u32 = 0x20;
const OWNER: ProcessId = ProcessId(40, START);

fn put(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn stat(pid: u32, comm: &str, ticks: u64) -> String {
    format!("{pid} ({comm}) S 1 {}{ticks} 0 0 0\n", "0 ".repeat(17))
}

/// A process that dumps core: a leader and one thread in the driver.
fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "proc/40/stat", stat(40, "a) (b", START / NS_PER_TICK));
    put(root, "proc/40/cmdline", b"python3\0-m\0train\0\0");
    put(
        root,
        "proc/40/cgroup",
        "12:pids:/docker/aaaaaaaaaaaa\n5:freezer,cpu:/docker/aaaaaaaaaaaa\n0::/\n",
    );
    let status = "Name:\tpy\nState:\tS (sleeping)\nTracerPid:\t0\nUid:\t1000\t0\t0\t0\nNSpid:\t40\t1\nThreads:\t2\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000002\nCoreDumping:\t1\n";
    put(root, "proc/40/task/40/status", status);
    put(root, "proc/40/status", status);
    put(root, "proc/40/comm", "a) (b\n");
    put(
        root,
        "proc/40/task/41/stack",
        "[<0>] uvm_spin_loop+0x1c/0x90 [nvidia_uvm]\n[<ffffffff81000000>] do_exit+0x1/0x2\n",
    );
    put(
        root,
        "sys/fs/cgroup/freezer/docker/aaaaaaaaaaaa/freezer.state",
        "FREEZING\n",
    );
    put(
        root,
        "sys/fs/cgroup/pids/docker/aaaaaaaaaaaa/pids.max",
        "100\n",
    );
    put(
        root,
        "sys/fs/cgroup/pids/docker/aaaaaaaaaaaa/pids.current",
        "98\n",
    );
    put(root, "sys/fs/cgroup/pids/docker/pids.max", "max\n");
    put(root, "sys/fs/cgroup/pids/docker/pids.current", "98\n");
    folder
}

fn task(tid: u32) -> TaskLine {
    TaskLine {
        id: OWNER,
        tid,
        comm: "py".to_owned(),
        parent: ProcessId(9, 8),
        cred: 5,
        state: 1,
        live: 2,
        uid: 1000,
        ns_pid: 1,
        ns_level: 1,
        ioctl: None,
        session: 3,
        pgrp: 40,
        cpu_ns: 10,
        ..TaskLine::default()
    }
}

fn describe(
    root: &Path,
    tasks: &[TaskLine],
) -> (
    Vec<crate::event::ProcessInfo>,
    Vec<crate::event::ProcessState>,
) {
    Proc::new(root).describe(tasks, &BTreeSet::from([OWNER]))
}

#[test]
fn details_come_from_proc_and_the_rest_from_the_scan() {
    let folder = tree();
    let (infos, _) = describe(folder.path(), &[task(40), task(41)]);
    let [info] = &infos[..] else {
        panic!("{infos:?}")
    };
    assert_eq!(info.cmdline.as_deref(), Some("python3 -m train"));
    assert_eq!(info.cgroup.as_deref(), Some("/docker/aaaaaaaaaaaa"));
    assert_eq!(
        info.container,
        Some(Container {
            runtime: "docker".to_owned(),
            id: "aaaaaaaaaaaa".to_owned(),
            pod: None
        })
    );
    assert_eq!(
        (info.ns_pid, info.pgrp, info.cred, info.never_execed),
        (Some(1), Some(40), Some(5), Some(false))
    );
    assert_eq!(
        (info.parent, info.uid, info.comm.as_deref()),
        (Some(ProcessId(9, 8)), Some(1000), Some("py"))
    );
}

#[test]
fn the_room_for_processes_is_read_only_where_zombies_fill_it() {
    let folder = tree();
    let (infos, _) = describe(folder.path(), &[task(40)]);
    assert_eq!(infos[0].pids, None);
    let zombie = TaskLine {
        id: ProcessId(50, 7),
        tid: 50,
        parent: OWNER,
        exit_state: EXIT_ZOMBIE,
        live: 0,
        ..task(50)
    };
    let (infos, _) = describe(folder.path(), &[task(40), zombie]);
    let pids = infos[0].pids.as_ref().unwrap();
    assert_eq!((pids.current, pids.max), (98, 100));
}

#[test]
fn state_tells_signals_core_dump_freezer_and_stuck_threads() {
    let folder = tree();
    let worker = TaskLine {
        state: 2,
        flags: 0x4,
        ..task(41)
    };
    let (_, states) = describe(folder.path(), &[task(40), worker]);
    let [state] = &states[..] else {
        panic!("{states:?}")
    };
    assert_eq!(
        (
            state.state.as_str(),
            state.live_threads,
            state.leader_exited
        ),
        ("S", 2, false)
    );
    assert!(state.exiting && state.dumping_core && state.frozen);
    assert_eq!(
        (state.pending, state.blocked, state.ignored, state.caught),
        (0x4000, 0x4000, 0x1000, 2)
    );
    assert_eq!((state.cpu_ns, state.exit_code), (20, None));
    let stack = vec![
        "uvm_spin_loop+0x1c/0x90 [nvidia_uvm]".to_owned(),
        "do_exit+0x1/0x2".to_owned(),
    ];
    assert_eq!(
        state.stuck,
        [StuckThread {
            tid: 41,
            comm: Some("py".to_owned()),
            state: "D".to_owned(),
            exiting: true,
            stack,
            cpu_ns: Some(10),
            ..StuckThread::default()
        }]
    );
}

#[test]
fn a_zombie_leader_with_a_live_thread_takes_what_the_thread_says() {
    let folder = tree();
    put(
        folder.path(),
        "proc/40/task/40/status",
        "State:\tZ (zombie)\nSigIgn:\t0000000000001000\n",
    );
    put(
        folder.path(),
        "proc/40/task/41/status",
        "State:\tS (sleeping)\nCoreDumping:\t1\nSigPnd:\t0000000000000100\n",
    );
    let leader = TaskLine {
        exit_state: 0x20,
        state: 0x80,
        exit_code: 9,
        ..task(40)
    };
    let (_, states) = describe(folder.path(), &[leader, task(41)]);
    let state = &states[0];
    assert_eq!(
        (
            state.state.as_str(),
            state.live_threads,
            state.leader_exited,
            state.exit_code
        ),
        ("Z", 1, true, None)
    );
    assert!(state.dumping_core);
    assert_eq!(
        state.stuck.iter().map(|t| t.tid).collect::<Vec<_>>(),
        [41],
        "SIGKILL is pending"
    );
}

#[test]
fn a_whole_zombie_has_its_wait_status_and_nothing_is_stuck() {
    let folder = tree();
    let (_, states) = describe(
        folder.path(),
        &[TaskLine {
            exit_state: 0x20,
            state: 0x80,
            exit_code: 9,
            flags: 0x4,
            ..task(40)
        }],
    );
    assert_eq!(
        (
            states[0].state.as_str(),
            states[0].exit_code,
            states[0].exiting
        ),
        ("Z", Some(9), false)
    );
    assert!(states[0].stuck.is_empty());
}

#[test]
fn a_recycled_pid_is_not_described() {
    let folder = tree();
    put(
        folder.path(),
        "proc/40/stat",
        stat(40, "other", START / NS_PER_TICK + 1),
    );
    assert_eq!(describe(folder.path(), &[task(40)]), (vec![], vec![]));
    assert_eq!(Proc::new(folder.path()).process(OWNER), None);
    assert!(
        Proc::new(folder.path()).is(ProcessId(40, 0)),
        "an id without a start time is taken at its word"
    );
    std::fs::remove_file(folder.path().join("proc/40/stat")).unwrap();
    assert_eq!(
        describe(folder.path(), &[task(40)]),
        (vec![], vec![]),
        "vanished"
    );
}

#[test]
fn both_cgroup_versions_tell_frozen_and_a_foreign_namespace_does_not() {
    let folder = tempfile::tempdir().unwrap();
    put(
        folder.path(),
        "sys/fs/cgroup/a/b/cgroup.events",
        "populated 1\nfrozen 1\n",
    );
    put(
        folder.path(),
        "sys/fs/cgroup/c/cgroup.events",
        "populated 1\nfrozen 0\n",
    );
    put(
        folder.path(),
        "sys/fs/cgroup/unified/h/cgroup.events",
        "frozen 1\n",
    );
    put(
        folder.path(),
        "sys/fs/cgroup/freezer/f/freezer.state",
        "FROZEN\n",
    );
    put(folder.path(), "sys/fs/x/cgroup.events", "frozen 1\n");
    let proc = Proc::new(folder.path());
    // Frozen from above.
    put(folder.path(), "sys/fs/cgroup/a/cgroup.freeze", "1\n");
    put(folder.path(), "sys/fs/cgroup/a/b/cgroup.freeze", "0\n");
    let thawed_by = |text| proc.frozen(&cgroup::Paths::parse(text));
    assert_eq!(thawed_by("0::/a/b\n").as_deref(), Some("/sys/fs/cgroup/a/cgroup.freeze"));
    assert_eq!(thawed_by("0::/h\n").as_deref(), Some("/sys/fs/cgroup/unified/h/cgroup.freeze"));
    assert_eq!(thawed_by("3:freezer:/f\n0::/\n").as_deref(), Some("/sys/fs/cgroup/freezer/f/freezer.state"));
    for running in ["0::/c\n", "0::/../x\n", ""] {
        assert_eq!(thawed_by(running), None, "{running}");
    }
}

#[test]
fn the_tightest_pids_limit_is_found_in_both_versions() {
    let folder = tree();
    let proc = Proc::new(folder.path());
    let limit = PidsLimit {
        cgroup: "/docker/aaaaaaaaaaaa".to_owned(),
        current: 98,
        max: 100,
    };
    assert_eq!(proc.pids_limit(OWNER), Some(limit));
    put(folder.path(), "proc/40/cgroup", "0::/s/u\n");
    for (file, text) in [
        ("s/pids.max", "50"),
        ("s/pids.current", "49"),
        ("s/u/pids.max", "40"),
        ("s/u/pids.current", "3"),
    ] {
        put(folder.path(), &format!("sys/fs/cgroup/{file}"), text);
    }
    assert_eq!(
        proc.pids_limit(OWNER),
        Some(PidsLimit {
            cgroup: "/s".to_owned(),
            current: 49,
            max: 50
        })
    );
    assert_eq!(proc.pids_limit(ProcessId(40, 1)), None, "another process");
}

#[test]
fn long_and_hostile_texts_are_bounded() {
    let folder = tree();
    put(
        folder.path(),
        "proc/40/cmdline",
        [vec![0xff; 5000], "é".repeat(5000).into_bytes()].concat(),
    );
    put(
        folder.path(),
        "proc/40/task/41/stack",
        "[<0>] x\n".repeat(1000),
    );
    let (infos, states) = describe(
        folder.path(),
        &[
            task(40),
            TaskLine {
                state: 2,
                ..task(41)
            },
        ],
    );
    assert!(infos[0].cmdline.as_ref().unwrap().len() <= TEXT_MAX);
    assert_eq!(states[0].stuck[0].stack.len(), 64);
}

#[test]
fn letters_are_those_of_ps() {
    let folder = tree();
    let cases = [
        (0, 0, "R"),
        (1, 0, "S"),
        (2, 0, "D"),
        (0x102, 0, "D"),
        (4, 0, "T"),
        (0x104, 0, "T"),
        (8, 0, "t"),
        (0x402, 0, "I"),
        (0x80, 0x20, "Z"),
        (0x80, 0x10, "X"),
        (0x2001, 0, "S"),
        (0x8000, 0, "D"),
    ];
    for (state, exit_state, letter) in cases {
        let (_, states) = describe(
            folder.path(),
            &[TaskLine {
                state,
                exit_state,
                ..task(40)
            }],
        );
        assert_eq!(states[0].state, letter, "{state:#x}");
    }
}

#[test]
fn the_host_is_known_by_name_boot_and_driver() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "proc/sys/kernel/hostname", "node7\n");
    put(root, "proc/sys/kernel/osrelease", "6.18.44\n");
    put(root, "proc/sys/kernel/random/boot_id", "b\n");
    put(root, "proc/sys/kernel/pid_max", "4194304\n");
    put(
        root,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@x)\nGCC version:  gcc 12.2.0\n",
    );
    std::fs::create_dir_all(root.join("proc/self/ns")).unwrap();
    std::os::unix::fs::symlink("pid:[4026531836]", root.join("proc/self/ns/pid")).unwrap();
    let mut header = Header::default();
    Proc::new(root).host().fill(&mut header);
    assert_eq!(
        (
            header.hostname.as_str(),
            header.kernel.as_str(),
            header.boot_id.as_str()
        ),
        ("node7", "6.18.44", "b")
    );
    assert_eq!(
        (
            header.pid_max,
            header.driver.as_deref(),
            header.initial_pid_namespace
        ),
        (Some(4_194_304), Some("580.159.04"), true)
    );
    std::fs::remove_file(root.join("proc/driver/nvidia/version")).unwrap();
    put(root, "sys/module/nvidia/version", "550.1\n");
    assert_eq!(Proc::new(root).host().driver.as_deref(), Some("550.1"));
}

#[test]
fn we_recognise_ourselves_on_the_live_host() {
    let proc = Proc::default();
    let pid = std::process::id();
    let ticks = proc.start_ticks(pid).unwrap();
    let id = ProcessId(pid, ticks * NS_PER_TICK + 5);
    assert!(proc.is(id));
    assert!(!proc.is(ProcessId(pid, (ticks + 1) * NS_PER_TICK)));
    let info = proc.process(id).unwrap();
    assert!(info.cmdline.unwrap().contains("outlive"));
    assert!(!proc.host().kernel.is_empty());
}

#[test]
fn a_stuck_thread_says_its_call_its_file_its_cpu_time_and_what_it_sleeps_in() {
    let folder = tree();
    let task_folder = folder.path().join("proc/40/task/41");
    std::fs::remove_file(task_folder.join("stack")).unwrap();
    put(folder.path(), "proc/40/task/41/syscall", "16 0x5 0xc020462a 0x7ffc 0x0 0x0 0x0 0x7ffc 0x7f00\n");
    put(folder.path(), "proc/40/task/41/wchan", "uvm_spin_loop");
    put(folder.path(), "proc/40/task/41/schedstat", "5000 7 9\n");
    std::fs::create_dir_all(task_folder.join("fd")).unwrap();
    std::os::unix::fs::symlink("/dev/nvidia-uvm", task_folder.join("fd/5")).unwrap();
    let worker = TaskLine { state: 2, ..task(41) };
    let stuck = &describe(folder.path(), &[task(40), worker.clone()]).1[0].stuck[0];
    if cfg!(target_arch = "x86_64") {
        assert_eq!((stuck.syscall.as_deref(), stuck.file.as_deref()), (Some("ioctl"), Some("/dev/nvidia-uvm")));
    }
    assert_eq!((stuck.wchan.as_deref(), stuck.cpu_ns), (Some("uvm_spin_loop"), Some(5_000)));
    for broken in ["running\n", "-1 0x0 0x0\n", "", "999999999999999999999 0x5", "16", "16 zz"] {
        put(folder.path(), "proc/40/task/41/syscall", broken);
        let _ = describe(folder.path(), &[task(40), worker.clone()]);
    }
}

#[test]
fn a_running_thread_that_may_hold_the_drivers_lock_is_read_too() {
    let folder = tree();
    put(folder.path(), "proc/40/task/40/stack", "[<0>] down_write+0x1/0x2\n[<0>] os_acquire_rwlock_write+0x1/0x2 [nvidia]\n");
    let waits = TaskLine { state: 2, ..task(40) };
    let runs = TaskLine { state: 0, ..task(41) };
    let (_, states) = describe(folder.path(), &[waits, runs.clone()]);
    assert_eq!(states[0].stuck.iter().map(|t| t.tid).collect::<Vec<_>>(), [40, 41]);
    let (_, states) = describe(folder.path(), &[task(40), runs]);
    assert_eq!(states[0].stuck, [], "nobody waits for it");
}

/// Puts a file there whose read never returns; false where that cannot be made.
fn hangs(root: &Path, path: &str) -> bool {
    let path = root.join(path);
    let _ = std::fs::remove_file(&path);
    guard::endless(&path)
}

/// Runs on a thread, which a read that hangs hangs alone.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    receive.recv_timeout(std::time::Duration::from_secs(20)).expect("it hangs")
}

#[test]
fn a_thread_that_may_hold_the_lock_of_the_memory_map_does_not_hang_us() {
    let folder = tree();
    let root = folder.path().to_owned();
    if !hangs(&root, "proc/40/cmdline") {
        return;
    }
    let spins = TaskLine { state: 0, ..task(41) };
    let (infos, states) = in_time(move || describe(&root, &[task(40), spins]));
    assert_eq!((infos.len(), states.len()), (1, 1));
    assert_eq!(infos[0].cmdline, None);
    // A recording asks of a process of which no scan has told yet.
    let root = folder.path().to_owned();
    assert_eq!(in_time(move || Proc::new(root).process(OWNER)).expect("it is there").cmdline, None);
}

#[test]
fn a_thread_that_executes_a_program_and_is_stuck_does_not_hang_us() {
    let folder = tree();
    let root = folder.path().to_owned();
    if !["stack", "syscall"].iter().all(|file| hangs(&root, &format!("proc/40/task/41/{file}"))) {
        return;
    }
    put(&root, "proc/40/task/41/wchan", "uvm_spin_loop");
    let stuck = TaskLine { state: 2, ..task(41) };
    let (_, states) = in_time(move || describe(&root, &[task(40), stuck]));
    assert_eq!(states[0].stuck.iter().map(|t| (t.tid, t.wchan.as_deref())).collect::<Vec<_>>(), [(41, Some("uvm_spin_loop"))]);
}

#[test]
fn a_lock_holder_is_found_among_any_number_of_running_strangers() {
    let folder = tree();
    put(folder.path(), "proc/40/task/40/stack", "[<0>] down_write+0x1/0x2\n[<0>] os_acquire_rwlock_write+0x1/0x2 [nvidia]\n");
    let stranger = |pid| TaskLine { id: ProcessId(pid, 1), tid: pid, state: 0, ..task(pid) };
    let mut tasks: Vec<TaskLine> = (100..300).map(stranger).collect();
    tasks.extend([TaskLine { state: 2, ..task(40) }, TaskLine { state: 0, ..task(41) }]);
    let (_, states) = describe(folder.path(), &tasks);
    assert_eq!(states[0].stuck.iter().map(|t| t.tid).collect::<Vec<_>>(), [40, 41]);
}

#[test]
fn mounts_are_searched_once_for_all_threads_that_wait_alike() {
    let folder = tree();
    let waits = "[<0>] request_wait_answer+0x1/0x2 [fuse]\n[<0>] fuse_simple_request+0x1/0x2 [fuse]\n";
    for tid in [41, 42] {
        put(folder.path(), &format!("proc/40/task/{tid}/stack"), waits);
    }
    put(folder.path(), "proc/40/task/41/mountinfo", "36 22 0:47 / /mnt/data rw - fuse.rclone remote: rw\n");
    put(folder.path(), "proc/40/task/42/mountinfo", "37 22 0:48 / /mnt/other rw - fuse.sshfs host: rw\n");
    let (_, states) = describe(folder.path(), &[task(40), TaskLine { state: 2, ..task(41) }, TaskLine { state: 2, ..task(42) }]);
    let points: Vec<_> = states[0].stuck.iter().map(|t| t.mounts.iter().map(|m| m.point.as_str()).collect::<Vec<_>>()).collect();
    assert_eq!(points, [["/mnt/data"], ["/mnt/data"]]);
}

#[test]
fn kernel_threads_are_those_that_do_something_inside_the_driver() {
    let folder = tree();
    let kernel = |pid: u32, comm: &str, state: u32, stack: &str| {
        put(folder.path(), &format!("proc/{pid}/task/{pid}/stack"), stack);
        TaskLine { id: ProcessId(pid, 1), tid: pid, comm: comm.to_owned(), state, flags: 0x0020_0000, ..TaskLine::default() }
    };
    let release = "[<0>] uvm_va_space_destroy+0x1/0x2 [nvidia_uvm]\n[<0>] _main_loop+0x1/0x2 [nvidia_uvm]\n";
    let tasks = [
        kernel(70, "UVM deferred release queue", 1, release),
        kernel(71, "nv_queue", 1, "[<0>] down_interruptible+0x1/0x2\n[<0>] _main_loop+0x1/0x2 [nvidia]\n"),
        kernel(72, "kworker/3:1", 2, "[<0>] nvidia_close+0x1/0x2 [nvidia]\n[<0>] delayed_fput+0x1/0x2\n"),
        kernel(73, "kworker/3:2", 1, release),
        kernel(74, "kswapd0", 2, "[<0>] shrink_node+0x1/0x2\n"),
        TaskLine { flags: 0, ..kernel(75, "nvtop", 2, release) },
    ];
    let found = Proc::new(folder.path()).kernel_threads(&tasks);
    let pids: Vec<u32> = found.iter().map(|thread| thread.id.tgid()).collect();
    assert_eq!(pids, [70, 72], "idle queues, sleeping workers, others and programs are none");
}

#[test]
fn users_of_modules_are_read_where_they_are_loaded() {
    let folder = tree();
    put(folder.path(), "sys/module/nvidia_uvm/refcnt", "4\n");
    let modules = Proc::new(folder.path()).modules();
    assert_eq!(modules.into_iter().collect::<Vec<_>>(), [("nvidia_uvm".to_owned(), 4)]);
}
