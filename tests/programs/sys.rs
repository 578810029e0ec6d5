//! The system calls that std does not offer, each behind a safe function.
//!
//! Always true: nothing here keeps state or decides anything; every failure comes back as the `io::Error` of errno.

#![expect(unsafe_code, reason = "these programs misbehave through fork, ptrace and fd passing, which only libc offers")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Largest number of descriptors that one message carries here (the kernel's SCM_MAX_FD is 253).
const MAX_PASSED: usize = 64;

/// Which side of a fork we are on.
pub(crate) enum Side {
    Parent(u32),
    Child,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn path_of(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Forks. Callers are single-threaded, so the child may do anything.
pub(crate) fn fork() -> io::Result<Side> {
    // SAFETY: the actors are single-threaded when they fork, so no lock can be left taken in the child.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok(u32::try_from(pid).ok().filter(|pid| *pid != 0).map_or(Side::Child, Side::Parent))
}

/// Ends the process without running destructors or flushing: nothing of the parent's is done twice.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any code and never returns.
    unsafe { libc::_exit(code) }
}

/// Ends only the calling thread; the process lives on while it has others.
pub(crate) fn exit_thread() -> ! {
    // SAFETY: the exit system call ends this thread at once; nobody joins the main thread.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    exit_now(1)
}

/// `kill(2)`.
pub(crate) fn kill(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    if pid <= 1 {
        return Err(io::Error::other("only a single process other than init may be signalled"));
    }
    // SAFETY: kill takes any pid and signal.
    check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// `waitid(P_PID)` with `WNOHANG`: true when the child is in one of the states that `options` names.
pub(crate) fn wait_child(pid: u32, options: i32) -> io::Result<bool> {
    // SAFETY: siginfo_t is plain data for which zero is a value; waitid writes it.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a valid siginfo_t for the length of the call.
    check(unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, options | libc::WNOHANG) }.into())?;
    // SAFETY: after waitid si_pid is set, or zero when no child changed state.
    Ok(unsafe { info.si_pid() } != 0)
}

/// Reaps one child, whichever is dead. `Ok(false)`: there are children, none is dead. Err(ECHILD): none left.
pub(crate) fn reap_any() -> io::Result<bool> {
    // SAFETY: a null status is allowed.
    check(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) }.into()).map(|pid| pid > 0)
}

/// Orphans below us become our children, so that we can end and reap them.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: this prctl takes one integer.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }.into()).map(drop)
}

/// Takes close-on-exec from a descriptor.
pub(crate) fn keep_on_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes any descriptor and flags.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }.into()).map(drop)
}

/// Closes a descriptor that this process owns.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: the caller took the number from its own list of open descriptors and forgets it.
    unsafe { libc::close(fd) };
}

/// Makes a character device node.
pub(crate) fn make_char_device(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    let path = path_of(path)?;
    // SAFETY: `path` is a C string that lives through the call.
    check(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(major, minor)) }.into()).map(drop)
}

/// Major and minor number of a device.
pub(crate) fn device_numbers(rdev: u64) -> (u32, u32) {
    (libc::major(rdev), libc::minor(rdev))
}

/// Room for the control message, aligned as a cmsghdr must be.
#[repr(align(8))]
struct Control([u8; 512]);

/// Sends descriptors with one byte of data.
pub(crate) fn send_fds(socket: RawFd, fds: &[RawFd]) -> io::Result<()> {
    if fds.is_empty() || fds.len() > MAX_PASSED {
        return Err(io::Error::other("between 1 and 64 descriptors can be passed"));
    }
    let mut byte = [b'x'];
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 512]);
    let payload = u32::try_from(size_of_val(fds)).map_err(io::Error::other)?;
    // SAFETY: msghdr is plain data for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute; MAX_PASSED descriptors fit into 512 bytes, so the first header
    // lies inside `control`, which outlives the call.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
        std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), payload as usize);
        check(libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) as libc::c_long).map(drop)
    }
}

/// Receives one message with descriptors. `flags`: 0 or MSG_CMSG_CLOEXEC.
pub(crate) fn receive_fds(socket: RawFd, flags: i32) -> io::Result<Vec<RawFd>> {
    let mut byte = [0u8; 1];
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 512]);
    // SAFETY: msghdr is plain data for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: `message` points at live buffers of the stated lengths.
    check(unsafe { libc::recvmsg(socket, &raw mut message, flags) } as libc::c_long)?;
    let mut fds = Vec::new();
    // SAFETY: CMSG_FIRSTHDR returns null or a header inside `control`, whose cmsg_len the kernel wrote; each
    // descriptor is read unaligned from within that length.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::other("a message without descriptors arrived"));
        }
        let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
        for index in 0..count {
            fds.push(libc::CMSG_DATA(header).cast::<RawFd>().add(index).read_unaligned());
        }
    }
    Ok(fds)
}

/// Takes descriptor `fd` out of process `pid` (`pidfd_getfd(2)`).
pub(crate) fn steal_fd(pid: u32, fd: RawFd) -> io::Result<RawFd> {
    // SAFETY: pidfd_open takes a pid and flags.
    let pidfd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: pidfd_getfd takes two descriptors and flags.
    let stolen = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) });
    close(RawFd::try_from(pidfd).map_err(io::Error::other)?);
    stolen.and_then(|fd| RawFd::try_from(fd).map_err(io::Error::other))
}

/// Makes an io_uring and registers `fd` in it as a fixed file. `Ok(None)`: io_uring is not permitted here.
pub(crate) fn register_in_ring(fd: RawFd) -> io::Result<Option<RawFd>> {
    const SYS_IO_URING_SETUP: libc::c_long = 425;
    const SYS_IO_URING_REGISTER: libc::c_long = 427;
    const IORING_REGISTER_FILES: libc::c_long = 2;
    let mut parameters = [0u8; 120]; // struct io_uring_params
    // SAFETY: the kernel reads and writes 120 bytes at the pointer.
    let ring = match check(unsafe { libc::syscall(SYS_IO_URING_SETUP, 4, parameters.as_mut_ptr()) }) {
        Ok(ring) => ring,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let files = [fd];
    // SAFETY: the kernel reads one descriptor number at the pointer.
    check(unsafe { libc::syscall(SYS_IO_URING_REGISTER, ring, IORING_REGISTER_FILES, files.as_ptr(), 1) })?;
    RawFd::try_from(ring).map(Some).map_err(io::Error::other)
}

extern "C" fn say_handled(_signal: libc::c_int) {
    let line = b"{\"handled\":true}\n";
    // SAFETY: write is async-signal-safe and reads the stated length of a static.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}

/// Handles a signal with a handler that says so on standard output and lets the process live.
pub(crate) fn handle_signal(signal: i32) -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = say_handled;
    // SAFETY: the handler only calls write, which is async-signal-safe.
    let old = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    if old == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ignores a signal.
pub(crate) fn ignore_signal(signal: i32) -> io::Result<()> {
    // SAFETY: SIG_IGN installs no code.
    let old = unsafe { libc::signal(signal, libc::SIG_IGN) };
    if old == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks a signal in this thread and its future children.
pub(crate) fn block_signal(signal: i32) -> io::Result<()> {
    // SAFETY: sigset_t is plain data for which zero is a value; the calls write and read it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into()).map(drop)
    }
}

/// Lifts the limit on core files.
pub(crate) fn allow_core() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) }.into()).map(drop)
}

/// A thread, 0 for the calling one, runs on the first processor from now on.
pub(crate) fn pin(tid: u32) -> io::Result<()> {
    let tid = i32::try_from(tid).map_err(io::Error::other)?;
    let first = 1u64;
    // SAFETY: the kernel reads the eight bytes of `first`.
    check(unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of::<u64>(), &raw const first) }).map(drop)
}

/// Takes the calling thread out of what `flags` (CLONE_*) name.
pub(crate) fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: unshare takes any flags and touches no memory of ours.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Attaches to a process and stops it, as a debugger does.
pub(crate) fn trace_and_stop(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: PTRACE_SEIZE and PTRACE_INTERRUPT read no memory of ours.
    unsafe {
        check(libc::ptrace(libc::PTRACE_SEIZE, pid, none, none))?;
        check(libc::ptrace(libc::PTRACE_INTERRUPT, pid, none, none)).map(drop)
    }
}

/// Mounts a FUSE file system whose root is one regular file over the file `target`.
pub(crate) fn mount_fuse_file(target: &Path, fuse: RawFd) -> io::Result<()> {
    let options = CString::new(format!("fd={fuse},rootmode=100644,user_id=0,group_id=0")).map_err(io::Error::other)?;
    let (target, kind) = (path_of(target)?, c"fuse");
    // SAFETY: all pointers are C strings that live through the call.
    let result = unsafe {
        libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), libc::MS_NOSUID, options.as_ptr().cast())
    };
    check(result.into()).map(drop)
}

/// Covers /proc with that of our own PID namespace, for our own mount namespace only.
pub(crate) fn mount_proc() -> io::Result<()> {
    let mount = |kind: &CStr, target: &CStr, flags| {
        // SAFETY: both strings are valid C strings, and neither file system needs data.
        check(unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) }.into()).map(drop)
    };
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"proc", c"/proc", 0)
}

/// Detaches a mount, busy or not.
pub(crate) fn unmount(target: &Path) -> io::Result<()> {
    let target = path_of(target)?;
    // SAFETY: `target` is a C string that lives through the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }.into()).map(drop)
}

/// Maps the first page of a file shared; the map stays until the process exits.
pub(crate) fn map_shared(fd: RawFd) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4_096, protection, libc::MAP_SHARED, fd, 0) };
    if page == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(page.cast()) }
}

/// The same, and writes to it.
pub(crate) fn dirty_shared_map(fd: RawFd) -> io::Result<()> {
    let page = map_shared(fd)?;
    // SAFETY: the first byte of a page that was just mapped for writing and is never unmapped.
    unsafe { page.write_volatile(1) };
    Ok(())
}
