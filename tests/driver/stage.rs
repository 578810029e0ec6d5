//! The processes of a test, the books, and the driver's knobs.
//!
//! Always true: one test at a time has the driver; when it ends, however it ends, all knobs are cleared and every process that was
//! started is killed and reaped, grandchildren too (this process adopts orphans). Every wait has a deadline.

#![expect(unsafe_code, reason = "fork and signals have no safe form")]

use crate::rm::MIB;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where the stand-in keeps its books.
pub(crate) const BOOKS: &str = "/proc/driver/nvidia-standin";
const KNOBS: &str = "/sys/module/nvidia/parameters";
const ALL_KNOBS: [&str; 8] =
    ["release_ms", "defer_ms", "release_sleep", "release_spin", "ioctl_sleep", "ioctl_spin", "lose", "gone"];
/// Bits of the kernel's taint.
const OOPS: u32 = 1 << 7;
const WARNING: u32 = 1 << 9;
/// How long anything may take, in an emulated machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The driver, ours for one test.
pub(crate) struct Stage {
    started: Vec<u32>,
    _turn: MutexGuard<'static, ()>,
}

impl Stage {
    /// None, and a line that says so, where the stand-in is not loaded.
    pub(crate) fn take(test: &str) -> Option<Stage> {
        if !Path::new(BOOKS).exists() {
            let why = "the stand-in for the driver is not loaded here; `cargo xtask vm` runs this in its guests";
            io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
            return None;
        }
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        let stage = Stage { started: Vec::new(), _turn: turn };
        assert_eq!(books(), Books::default(), "the test before left something");
        let taint: u32 = fs::read_to_string("/proc/sys/kernel/tainted").unwrap().trim().parse().unwrap();
        assert_eq!(taint & (OOPS | WARNING), 0, "the kernel complained: see its log");
        Some(stage)
    }

    /// Starts a process and waits until it has said something.
    pub(crate) fn start(&mut self, play: impl FnOnce(&mut Line) -> io::Result<()>) -> Process {
        let process = spawn(play).unwrap();
        self.started.push(process.pid);
        process
    }

    /// A process that another one started, to be killed at the end.
    pub(crate) fn adopt(&mut self, pid: u32) -> u32 {
        self.started.push(pid);
        pid
    }

    /// SIGKILL, and waits until it is reaped. The child of a process that still lives is not ours to reap.
    pub(crate) fn kill(&mut self, pid: u32) {
        kill(pid);
        let mut reaped = false;
        until(&format!("{pid} ended"), || {
            reaped = reaped || reap(pid);
            reaped
        });
        self.started.retain(|started| *started != pid);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for knob in ALL_KNOBS {
            set(knob, 0);
        }
        self.started.iter().for_each(|pid| kill(*pid));
        let deadline = Instant::now() + DEADLINE;
        // Nobody but the test's processes uses this driver, and what was deferred may still be under way.
        while books() != Books::default() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        while self.started.iter().any(|pid| !reap(*pid) && state(*pid) != '?') && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A process that plays a part.
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// What it said.
    pub(crate) said: Vec<u32>,
    line: UnixStream,
}

impl Process {
    /// Lets it go on after [`Line::wait`].
    pub(crate) fn go(&mut self) {
        self.line.write_all(&[1]).unwrap();
    }
}

/// A process' line to its starter.
pub(crate) struct Line(UnixStream);

impl Line {
    /// Says that all is ready, with numbers that the starter needs.
    pub(crate) fn say(&mut self, numbers: &[u32]) -> io::Result<()> {
        let words = std::iter::once(numbers.len() as u32).chain(numbers.iter().copied());
        self.0.write_all(&words.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>())
    }
    /// Waits for [`Process::go`].
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        self.0.read_exact(&mut [0])
    }
}

/// Forks a process that plays and then stays until it is killed. It has said something when this returns.
pub(crate) fn spawn(play: impl FnOnce(&mut Line) -> io::Result<()>) -> io::Result<Process> {
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: the tests run one at a time, and the child never returns: it plays, and sleeps or exits.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        drop(ours);
        let mut line = Line(theirs);
        if let Err(error) = play(&mut line) {
            let text = format!("a process of the test: {error}\n");
            // SAFETY: write reads the stated length; _exit runs nothing of the parent's.
            unsafe {
                libc::write(2, text.as_ptr().cast(), text.len());
                libc::_exit(1)
            }
        }
        loop {
            std::thread::park();
        }
    }
    drop(theirs);
    let mut process = Process { pid: pid as u32, said: Vec::new(), line: ours };
    process.line.set_read_timeout(Some(DEADLINE))?;
    let mut word = [0; 4];
    process.line.read_exact(&mut word)?;
    for _ in 0..u32::from_ne_bytes(word) {
        process.line.read_exact(&mut word)?;
        process.said.push(u32::from_ne_bytes(word));
    }
    Ok(process)
}

/// SIGKILL.
pub(crate) fn kill(pid: u32) {
    // SAFETY: takes numbers; the PID is a child of ours that is not reaped, so it is nobody else.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
}

fn reap(pid: u32) -> bool {
    // SAFETY: null asks for no status.
    unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) == pid as i32 }
}

/// Sends a descriptor into a socket.
pub(crate) fn send_fd(socket: &UnixStream, fd: RawFd) -> io::Result<()> {
    let mut byte = [1_u8];
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0_u64; 4];
    // SAFETY: msghdr and cmsghdr are plain data; `control` is aligned and has room for one header and one descriptor; the
    // kernel reads no more than the stated lengths.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        if libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Mounts tracefs unless it is there.
pub(crate) fn mount_tracefs() {
    let (what, place) = (c"tracefs", c"/sys/kernel/tracing");
    // SAFETY: all pointers are C strings.
    unsafe { libc::mount(what.as_ptr(), place.as_ptr(), what.as_ptr(), 0, std::ptr::null()) };
}

/// Turns a knob.
pub(crate) fn set(knob: &str, value: u32) {
    fs::write(format!("{KNOBS}/{knob}"), value.to_string()).unwrap();
}

/// Waits until it is so.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}; the books say {:?}", books());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state letter of a process or kernel thread.
pub(crate) fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
}

/// Its kernel stack.
pub(crate) fn stack(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default()
}

/// A kernel thread of this name.
pub(crate) fn kernel_thread(name: &str) -> u32 {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)).unwrap()
}

/// What the books say of the first GPU, in MiB.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) used: u64,
    /// By PID.
    pub(crate) listed: BTreeMap<u64, u64>,
}

impl Books {
    /// `used` MiB, of which these are listed.
    pub(crate) fn of(used: u64, listed: &[(u32, u64)]) -> Books {
        Books { used, listed: listed.iter().map(|(pid, mib)| (u64::from(*pid), *mib)).collect() }
    }
}

/// The books as they are now.
pub(crate) fn json() -> Value {
    serde_json::from_str(&fs::read_to_string(BOOKS).unwrap()).unwrap()
}

/// The books as they are now.
pub(crate) fn books() -> Books {
    let gpu = &json()["gpus"][0];
    let number = |value: &Value| value.as_u64().unwrap();
    let processes = gpu["processes"].as_array().unwrap().iter();
    let listed = processes.map(|process| (number(&process["pid"]), number(&process["bytes"]) / MIB)).collect();
    Books { used: number(&gpu["used"]) / MIB, listed }
}
