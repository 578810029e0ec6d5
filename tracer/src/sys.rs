//! The few system calls that std does not wrap: the boot clock, a private tracefs, giving up capabilities.
//!
//! Always true: each function does one thing to the calling thread (and what it starts later), names what failed in
//! its error, and changes nothing outside this process.
#![expect(unsafe_code, reason = "system calls that std does not wrap; nothing here keeps a pointer")]

use std::io;
use std::path::Path;

use crate::event::BootNs;

/// Where tracefs is mounted (Documentation/trace/ftrace.rst).
const TRACEFS: &str = "/sys/kernel/tracing";

/// Now, ns of CLOCK_BOOTTIME: the clock of `bpf_ktime_get_boot_ns` and of `task_struct.start_boottime`.
#[must_use]
pub fn boottime_ns() -> BootNs {
    clock_ns(libc::CLOCK_BOOTTIME)
}

/// Now, ns since 1970.
#[must_use]
pub fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// Times that two clocks are read to compare them.
const CLOCK_READS: usize = 5;

/// Wall clock minus boottime, ns. A thread can be made to wait between two readings: the pair that took the shortest time counts.
#[must_use]
pub fn wall_offset_ns() -> i128 {
    let read = || {
        let (before, wall, after) = (boottime_ns(), realtime_ns(), boottime_ns());
        (after.saturating_sub(before), i128::from(wall) - i128::from(before + after.saturating_sub(before) / 2))
    };
    let best = (0..CLOCK_READS).map(|_| read()).min_by_key(|(took, _)| *took);
    best.map_or(0, |(_, offset)| offset)
}

/// Now, ns of CLOCK_MONOTONIC: boottime without the time spent suspended.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for one timespec. These clocks exist on every kernel that has eBPF.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// This process was started with the signal ignored, and nobody has changed that.
#[must_use]
pub fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action changes nothing; `action` is a place for one sigaction, for which all zero is a value too.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// What [`private_tracefs`] found or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracefs {
    /// It was mounted already; nothing was changed.
    Present,
    /// Mounted, in a mount namespace of our own: no other process sees it.
    MountedPrivately,
}

/// Gives freed memory back to the kernel: loading programs and reading the kernel's types needs much, recording little.
pub fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Is tracefs mounted where aya looks for it?
#[must_use]
pub fn tracefs_is_mounted() -> bool {
    [TRACEFS, "/sys/kernel/debug/tracing"].iter().any(|path| Path::new(path).join("events/syscalls").is_dir())
}

/// Makes tracefs readable at its usual place without changing the host: when it is not mounted, the calling thread
/// gets a private copy of the mount table and mounts it there.
///
/// Call it before any thread is started: only the caller and what it starts afterwards see the mount. Needs
/// CAP_SYS_ADMIN.
///
/// # Errors
/// The step that failed and why; the caller can go on without tracepoints.
pub fn private_tracefs() -> io::Result<Tracefs> {
    if tracefs_is_mounted() {
        return Ok(Tracefs::Present);
    }
    // SAFETY: no pointers; the flag is valid for one thread of a multi-threaded process too.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }, "cannot get a private mount namespace")?;
    // SAFETY: constant strings; source, type and data may be NULL for a change of propagation.
    let private = unsafe {
        libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE, std::ptr::null())
    };
    check(private, "cannot make the mount namespace private")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: constant strings; data may be NULL.
    let mounted = unsafe {
        libc::mount(c"tracefs".as_ptr(), c"/sys/kernel/tracing".as_ptr(), c"tracefs".as_ptr(), flags, std::ptr::null())
    };
    check(mounted, "cannot mount tracefs at /sys/kernel/tracing")?;
    Ok(Tracefs::MountedPrivately)
}

fn check(result: libc::c_int, what: &str) -> io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    let cause = io::Error::last_os_error();
    Err(io::Error::new(cause.kind(), format!("{what}: {cause}")))
}

/// A capability, by its number (include/uapi/linux/capability.h).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Write into directories that root does not own: where a trace file is rotated.
    DacOverride = 1,
    /// Read any file: other users' /proc entries.
    DacReadSearch = 2,
    /// /proc/PID/{fd,fdinfo,task} of processes of other users.
    SysPtrace = 19,
    /// /proc/PID/stack (`proc_pid_stack`, fs/proc/base.c).
    SysAdmin = 21,
    /// /dev/kmsg.
    Syslog = 34,
    /// Open tracepoints and let programs read kernel memory.
    Perfmon = 38,
    /// The bpf system call: maps, and iterators where unprivileged bpf is switched off.
    Bpf = 39,
}

/// What watching still needs after the programs are attached. Given up: everything else, above all the power to
/// signal, to trace in the sense of changing, to load modules, to touch devices and the network.
///
/// `CAP_SYS_ADMIN` stays for kernel stacks alone: no other capability opens /proc/PID/stack.
pub const WATCHING: &[Capability] = &[
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::SysPtrace,
    Capability::SysAdmin,
    Capability::Syslog,
    Capability::Bpf,
];

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: 64 capabilities in two words.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Gives up every capability of the calling thread but `keep`, for good, and forbids gaining any by exec. What the
/// thread does not have is not asked for. Threads that it starts later have no more; those that run already keep theirs.
///
/// # Errors
/// The call that failed; nothing is half done, because one capset(2) does it all.
pub fn drop_capabilities(keep: &[Capability]) -> io::Result<()> {
    let kept = keep.iter().fold(0u64, |mask, &capability| mask | 1 << (capability as u8));
    let header = CapHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut data = [CapData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: version 3 reads and writes two CapData, which is what `data` has.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) };
    check_long(got, "cannot read the capabilities")?;
    for (word, half) in data.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
        word.permitted &= half;
        word.effective = word.permitted;
        word.inheritable = 0;
    }
    // SAFETY: as above; the kernel only reads.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    check_long(set, "cannot give up capabilities")?;
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, "cannot forbid new privileges")
}

fn check_long(result: libc::c_long, what: &str) -> io::Result<()> {
    check(libc::c_int::try_from(result).unwrap_or(-1), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_goes_forward_and_agrees_with_proc_uptime() {
        let first = boottime_ns();
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = text.split_whitespace().next().unwrap().parse().unwrap();
        let second = boottime_ns();
        assert!(first <= second);
        // /proc/uptime is boottime with two decimals, rounded down.
        assert!(uptime * 1e9 >= first as f64 - 2e7 && uptime * 1e9 <= second as f64 + 2e7, "{first} {uptime} {second}");
    }

    #[test]
    fn a_signal_is_ignored_only_when_somebody_said_so() {
        // Rust's start-up ignores SIGPIPE.
        assert!(is_ignored(libc::SIGPIPE));
        assert!(!is_ignored(libc::SIGUSR2));
        assert!(!is_ignored(-1), "no such signal");
    }

    #[test]
    fn dropping_capabilities_leaves_exactly_the_kept_ones() {
        if std::fs::read_to_string("/proc/self/status").unwrap().contains("CapPrm:\t0000000000000000") {
            println!("skipped: this process has no capabilities to drop");
            return;
        }
        // Capabilities belong to a thread, so a thread of its own does not disturb other tests.
        let status = std::thread::spawn(|| {
            drop_capabilities(&[Capability::SysPtrace, Capability::Bpf]).unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        })
        .join()
        .unwrap();
        let kept: u64 = 1 << 19 | 1 << 39;
        for set in ["CapEff", "CapPrm"] {
            assert!(status.contains(&format!("{set}:\t{kept:016x}")), "{set} in {status}");
        }
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    }
}
