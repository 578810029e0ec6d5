//! The system calls and control files of these faults, each behind a safe function.
//!
//! Always true: what was changed for the whole machine is changed back when its guard is dropped.

#![expect(unsafe_code, reason = "clocks, clones and mounts have no safe form")]

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::stage::until;

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A file of the kernel's that has its old value again when this is dropped.
pub(crate) struct Setting(PathBuf, String);

impl Setting {
    pub(crate) fn set(path: &str, value: &str) -> Setting {
        let before = fs::read_to_string(path).unwrap();
        fs::write(path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
        Setting(path.into(), before.split_whitespace().next().unwrap_or_default().to_owned())
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        // Nothing more can be done about a failure here.
        let _ = fs::write(&self.0, &self.1);
    }
}

/// A control group of version 2, killed and removed when dropped.
pub(crate) struct Group(PathBuf);

impl Group {
    pub(crate) fn make(name: &str) -> Group {
        let path = Path::new("/sys/fs/cgroup/unified").join(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Group(path)
    }

    pub(crate) fn add(&self, pid: u32) {
        self.write("cgroup.procs", &pid.to_string());
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.freeze"), "0");
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let deadline = Instant::now() + Duration::from_secs(10);
        // Busy until its last process is reaped.
        while fs::remove_dir(&self.0).is_err() && self.0.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The wall clock, moved; right again when dropped.
pub(crate) struct Clock {
    began: Instant,
    was: Duration,
}

impl Clock {
    pub(crate) fn now() -> Clock {
        Clock { began: Instant::now(), was: wall() }
    }

    /// Moves it by so many seconds against what it should be.
    pub(crate) fn off_by(&self, seconds: i64) {
        let right = self.was + self.began.elapsed();
        let time = libc::timespec { tv_sec: right.as_secs() as i64 + seconds, tv_nsec: right.subsec_nanos().into() };
        // SAFETY: reads `time`.
        check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) }.into()).unwrap();
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.off_by(0);
    }
}

fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
}

extern "C" fn ends(_: *mut libc::c_void) -> libc::c_int {
    0
}

/// Makes so many children that end at once and are not waited for. They share this process's memory for the moment that they live, which
/// makes them cheap.
pub(crate) fn make_zombies(count: u32) -> io::Result<()> {
    let mut stack = vec![0_u128; 1_024];
    for _ in 0..count {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: with CLONE_VFORK this thread waits until the child has ended, so the child alone uses `stack`, and returns at once.
        let pid = unsafe { libc::clone(ends, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut()) };
        check(pid.into())?;
    }
    Ok(())
}

/// One such child, reaped: its PID.
pub(crate) fn short_lived() -> u32 {
    let mut stack = vec![0_u128; 1_024];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: as in `make_zombies`; null asks for no status.
    unsafe {
        let pid = libc::clone(ends, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut());
        assert!(pid > 0 && libc::waitpid(pid, std::ptr::null_mut(), 0) == pid);
        pid as u32
    }
}

/// This process leads a process group of its own.
pub(crate) fn lead_group() {
    // SAFETY: takes numbers.
    unsafe { libc::setpgid(0, 0) };
}

/// The zombies of a process group, whose parent leads it: all are reaped, however the test ends.
pub(crate) struct Zombies(pub(crate) u32);

impl Drop for Zombies {
    fn drop(&mut self) {
        crate::stage::kill(self.0);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !reap_group(self.0) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Reaps everybody of a process group that has ended and is, or became, a child of ours; true when nobody is left.
pub(crate) fn reap_group(leader: u32) -> bool {
    // SAFETY: null asks for no status.
    while unsafe { libc::waitpid(-(leader as i32), std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
    io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
}

/// This process ignores a signal.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: SIG_IGN installs no code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sends a signal.
pub(crate) fn send(pid: u32, signal: i32) {
    // SAFETY: takes numbers; the PID is that of a child that is not reaped.
    check(unsafe { libc::kill(pid as i32, signal) }.into()).unwrap();
}

/// Children of this process from now on are in a PID namespace of their own.
pub(crate) fn new_pid_namespace() -> io::Result<()> {
    // SAFETY: takes a number.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) }.into()).map(drop)
}

/// Uses this much memory, page by page.
pub(crate) fn use_memory(mib: usize) {
    let bytes = mib << 20;
    // More than there is may be asked for.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, of which one byte of each page is written; it stays to the end of the process.
    unsafe {
        let place = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(place, libc::MAP_FAILED);
        for page in (0..bytes).step_by(4_096) {
            place.cast::<u8>().add(page).write_volatile(1);
        }
    }
}

/// Mounts debugfs unless it is there.
pub(crate) fn mount_debugfs() {
    mount(c"debugfs", c"/sys/kernel/debug");
}

fn mount(what: &CStr, place: &CStr) {
    // SAFETY: all pointers are C strings.
    unsafe { libc::mount(what.as_ptr(), place.as_ptr(), what.as_ptr(), 0, std::ptr::null()) };
}

/// The children of a process, by the PIDs that we know them by.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// The one child of a process.
pub(crate) fn child_of(pid: u32) -> u32 {
    until("it has a child", || !children(pid).is_empty());
    children(pid)[0]
}
