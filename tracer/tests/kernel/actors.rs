//! Processes that misbehave, made of bare system calls, and the stand-in devices that they misbehave with.
//!
//! The process that forks has one thread, so a forked child may do whatever it likes. A child dies with its parent.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;

use outlive::event::Dev;

/// Panics with the call's name when it failed, which returns −1.
fn checked(what: &str, result: libc::c_long) -> i32 {
    assert!(result >= 0, "{what}: {}", io::Error::last_os_error());
    i32::try_from(result).unwrap()
}

fn path_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

/// /dev/zero and /dev/full under other names: devices that do nothing.
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
    pub(crate) const fn dev(self) -> Dev {
        let (major, minor, _) = self.numbers();
        Dev::new(major, minor)
    }
}

/// A directory with the device nodes.
pub(crate) struct Stand {
    directory: tempfile::TempDir,
}

impl Stand {
    pub(crate) fn new() -> Stand {
        let directory = tempfile::tempdir().unwrap();
        for device in [Device::Zero, Device::Full] {
            let (major, minor, name) = device.numbers();
            let path = path_string(&directory.path().join(name));
            // SAFETY: a NUL-terminated path.
            let made = unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(major, minor)) };
            checked("mknod", made.into());
        }
        Stand { directory }
    }
    pub(crate) fn pattern(&self) -> String {
        self.directory.path().join("gpu*").display().to_string()
    }
    /// Opens a device read-only, with exactly these flags: std would add O_CLOEXEC.
    pub(crate) fn open(&self, device: Device, flags: i32) -> File {
        let path = path_string(&self.directory.path().join(device.numbers().2));
        // SAFETY: a NUL-terminated path.
        let fd = checked("open", unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | flags) }.into());
        // SAFETY: the descriptor is new.
        unsafe { File::from_raw_fd(fd) }
    }
}

/// The child's side of what it and its parent tell each other.
#[derive(Clone)]
pub(crate) struct Gate {
    up: Arc<File>,
    down: Arc<File>,
}

impl Gate {
    pub(crate) fn report(&self, number: u32) {
        (&*self.up).write_all(&number.to_ne_bytes()).unwrap();
    }
    pub(crate) fn arrive(&self) {
        self.report(0);
    }
    /// Until the parent says go; ends when the parent has gone.
    pub(crate) fn wait(&self) {
        let mut byte = [0];
        if (&*self.down).read_exact(&mut byte).is_err() {
            exit(0);
        }
    }
}

/// A child process. Killed and reaped when it goes.
pub(crate) struct Actor {
    pub(crate) pid: u32,
    up: File,
    down: File,
    reaped: bool,
}

fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    checked("pipe", unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into());
    // SAFETY: both are new.
    unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) }
}

impl Actor {
    /// Forks a child that does `what` and exits.
    pub(crate) fn start(stand: &Stand, what: impl FnOnce(&Stand, &Gate)) -> Actor {
        let ((up, child_up), (child_down, down)) = (pipe(), pipe());
        // SAFETY: this process has one thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop((up, down));
            // SAFETY: no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let gate = Gate { up: Arc::new(child_up), down: Arc::new(child_down) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| what(stand, &gate)));
            exit(if done.is_ok() { 0 } else { 101 });
        }
        Actor { pid: checked("fork", pid.into()).unsigned_abs(), up, down, reaped: false }
    }

    /// Forks a child that executes `program`.
    pub(crate) fn exec(stand: &Stand, program: &'static str) -> Actor {
        Actor::start(stand, |_, _| {
            let program = CString::new(program).unwrap();
            // SAFETY: a NULL-terminated array of NUL-terminated strings.
            unsafe { libc::execv(program.as_ptr(), [program.as_ptr(), std::ptr::null()].as_ptr()) };
            exit(127);
        })
    }

    /// The next number that the child reports.
    pub(crate) fn reported(&self) -> u32 {
        let mut number = [0; 4];
        (&self.up).read_exact(&mut number).unwrap();
        u32::from_ne_bytes(number)
    }
    pub(crate) fn await_arrival(&self) {
        assert_eq!(self.reported(), 0);
    }
    pub(crate) fn go(&self) {
        (&self.down).write_all(&[1]).unwrap();
    }
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: no pointers.
        checked("kill", unsafe { libc::kill(self.pid.cast_signed(), signal) }.into());
    }
    /// Reaps it.
    pub(crate) fn wait(mut self) {
        self.reap();
    }
    fn reap(&mut self) {
        self.reaped = true;
        let mut status = 0;
        // SAFETY: a place for the status.
        unsafe { libc::waitpid(self.pid.cast_signed(), &raw mut status, 0) };
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if !self.reaped {
            // SAFETY: no pointers; the child has not been reaped, so its number is still its own.
            unsafe { libc::kill(self.pid.cast_signed(), libc::SIGKILL) };
            self.reap();
        }
    }
}

/// Ends the process at once: no destructors, which belong to the parent.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: always.
    unsafe { libc::_exit(code) }
}

/// Ends this thread only.
pub(crate) fn exit_this_thread() {
    // SAFETY: nothing of this thread's stack is used by the others.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

pub(crate) fn ignore(signal: i32) {
    // SAFETY: no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

pub(crate) fn catch(signal: i32) {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(signal, nothing as *const () as usize) };
}

pub(crate) fn duplicate(file: &impl AsRawFd) -> i32 {
    // SAFETY: no pointers.
    checked("dup", unsafe { libc::dup(file.as_raw_fd()) }.into())
}

/// Makes descriptor `fd` another one of `file`, closing what it was.
pub(crate) fn replace(file: &impl AsRawFd, fd: i32) {
    // SAFETY: no pointers; the callers own both.
    checked("dup2", unsafe { libc::dup2(file.as_raw_fd(), fd) }.into());
}

pub(crate) fn close(fd: i32) {
    // SAFETY: the callers own it.
    checked("close", unsafe { libc::close(fd) }.into());
}

pub(crate) fn close_range(only: i32) {
    // SAFETY: the callers own it, or nobody does.
    checked("close_range", unsafe { libc::syscall(libc::SYS_close_range, only, only, 0) });
}

/// Takes descriptor `fd` of process `pid`.
pub(crate) fn steal(pid: u32, fd: i32) -> OwnedFd {
    // SAFETY: no pointers.
    let process = checked("pidfd_open", unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) });
    // SAFETY: no pointers.
    let stolen = checked("pidfd_getfd", unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0) });
    close(process);
    // SAFETY: the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(stolen) }
}

/// An io_uring with `file` registered in it.
pub(crate) fn ring_with(file: &File) -> i32 {
    /// `IORING_REGISTER_FILES` (include/uapi/linux/io_uring.h).
    const REGISTER_FILES: u32 = 2;
    let mut parameters = [0_u64; 15];
    // SAFETY: a zeroed `struct io_uring_params`.
    let ring = checked("io_uring_setup", unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) });
    let files = [file.as_raw_fd()];
    // SAFETY: an array of one descriptor.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_FILES, files.as_ptr(), 1) };
    checked("io_uring_register", result);
    ring
}

/// `struct msghdr` with room for one descriptor, handed to `call`.
fn with_message(fill: Option<i32>, call: impl FnOnce(&mut libc::msghdr) -> isize) -> i32 {
    let mut byte = [0_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0_u64; 3];
    // SAFETY: all zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the control buffer has room for one header and one descriptor, and is aligned for both.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        if let Some(fd) = fill {
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(first).cast::<i32>().write(fd);
        }
        assert_eq!(call(&mut message), 1, "{}", io::Error::last_os_error());
        libc::CMSG_DATA(first).cast::<i32>().read()
    }
}

pub(crate) fn send(through: &UnixDatagram, file: &impl AsRawFd) {
    // SAFETY: a valid message.
    with_message(Some(file.as_raw_fd()), |message| unsafe { libc::sendmsg(through.as_raw_fd(), message, 0) });
}

pub(crate) fn receive(from: &UnixDatagram) -> OwnedFd {
    // SAFETY: a valid message.
    let fd = with_message(None, |message| unsafe { libc::recvmsg(from.as_raw_fd(), message, 0) });
    // SAFETY: the descriptor has just been received.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// (PID, descriptor) of every stand-in device that /proc shows open, O_PATH and our own left out.
pub(crate) fn descriptors_in_proc() -> BTreeSet<(u32, i32)> {
    let devices = [Device::Zero, Device::Full].map(|device| {
        let (major, minor, _) = device.numbers();
        libc::makedev(major, minor)
    });
    let mut found = BTreeSet::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = number(&process.file_name()).filter(|pid| *pid != std::process::id()) else { continue };
        for link in std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let is_device = std::fs::metadata(link.path())
                .is_ok_and(|file| file.file_type().is_char_device() && devices.contains(&file.rdev()));
            let Some(fd) = number(&link.file_name()).filter(|_| is_device) else { continue };
            let info = std::fs::read_to_string(process.path().join("fdinfo").join(fd.to_string())).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok());
            if flags.is_some_and(|flags| flags & libc::O_PATH == 0) {
                found.insert((pid, fd.cast_signed()));
            }
        }
    }
    found
}

fn number(name: &std::ffi::OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}
