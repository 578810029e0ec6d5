//! Records on the event ring and in the iterators' output.
//!
//! A record is a [`Header`] followed by the rest of the struct that its [`Kind`] names. User space matches on
//! the number first and then checks the length; an unknown number is skipped and counted, never trusted.

use crate::limits::{COMM_LEN, PATH_LEN};

/// A process: thread-group id in the initial PID namespace and `group_leader->start_boottime` (ns).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proc {
    /// `task_struct.tgid`.
    pub tgid: u32,
    /// `task_struct.pid` of the thread meant; 0 when the whole group is meant.
    pub tid: u32,
    /// `group_leader->start_boottime`, ns of CLOCK_BOOTTIME.
    pub start: u64,
}

/// Value of the `TRACKED` map, whose key is a tgid: a process that is followed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// `group_leader->start_boottime`; 0 matches any (PID 1, put in before anything was read). Another start: the PID was
    /// recycled and the entry is stale.
    pub start: u64,
    /// [`flag::GPU_USER`], or 0 for an ancestor.
    pub flags: u32,
    /// Explicit padding.
    pub pad: u32,
}

impl Tracked {
    /// Does the entry belong to another process than the one with this number that started at `start`?
    #[inline]
    #[must_use]
    pub const fn is_stale(self, start: u64) -> bool {
        self.start != 0 && self.start != start
    }
}

/// First part of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`Kind`] as a number.
    pub kind: u16,
    /// Bytes of the whole record, header included.
    pub size: u16,
    /// Bits of [`flag`]: what about this record is partial.
    pub flags: u32,
    /// `bpf_ktime_get_boot_ns()`; 0 in iterator output (the reader stamps the scan).
    pub at: u64,
    /// The process and thread that the record is about (not always `current`).
    pub who: Proc,
    /// Its `comm`.
    pub comm: [u8; COMM_LEN],
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// At least one field could not be read and is zero.
    pub const PARTIAL: u32 = 1;
    /// The descriptor has close-on-exec set.
    pub const CLOEXEC: u32 = 2;
    /// The signal came from the kernel, not from a process.
    pub const KERNEL: u32 = 4;
    /// The signal was directed at the group.
    pub const GROUP: u32 = 8;
    /// This was the last live thread of the group.
    pub const LAST_THREAD: u32 = 16;
    /// `signal->flags & SIGNAL_GROUP_EXIT`: the whole group was told to exit.
    pub const GROUP_EXIT: u32 = 32;
    /// The file was opened with O_CLOEXEC: set on Open only, from the descriptor's bit (open(2) keeps it out of `f_flags`).
    pub const OPENED_CLOEXEC: u32 = 64;
    /// The thread's files table is the group leader's.
    pub const SHARED_FILES: u32 = 256;
    /// `task->mm` is NULL.
    pub const NO_MM: u32 = 512;
    /// The process uses GPU files itself or descends from one that does (else: it is only an ancestor).
    pub const GPU_USER: u32 = 1024;
    /// The description is an exported handle (`nv_file_private_t.handles` is set).
    pub const EXPORTED: u32 = 2048;
    /// The description is a UVM address space.
    pub const UVM_SPACE: u32 = 4096;
    /// The description keeps a UVM address space and a memory map.
    pub const UVM_MM: u32 = 8192;
}

/// What a record is. Stable numbers; never reuse one.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Task`]: a process starts to be followed, or one line of `iter/task`.
    Task = 1,
    /// [`Fork`].
    Fork = 2,
    /// [`Exec`].
    Exec = 3,
    /// [`Exit`]: one thread.
    Exit = 4,
    /// [`Free`]: the reaped leader's task_struct is freed.
    Free = 5,
    /// [`Signal`] generated. SIGCHLD here always means that `sender` has just become a zombie and `who` was told.
    SignalGenerate = 6,
    /// [`Signal`] delivered.
    SignalDeliver = 7,
    /// [`Reap`]: wait4 or waitid returned a child.
    Reap = 8,
    /// [`Oom`].
    OomVictim = 9,
    /// [`File`]: a successful open of an NVIDIA file.
    Open = 10,
    /// [`File`]: dup, dup2, dup3.
    Dup = 11,
    /// [`File`]: a descriptor is about to be closed.
    Close = 12,
    /// [`File`]: a descriptor left through SCM_RIGHTS.
    Sent = 13,
    /// [`File`]: a descriptor arrived through SCM_RIGHTS.
    Received = 14,
    /// [`File`]: a descriptor arrived through pidfd_getfd.
    Stolen = 15,
    /// Only a [`Header`]: a tracked process changed descriptors in a way that only a scan can follow (close_range).
    FilesChanged = 16,
    /// [`Xid`].
    Xid = 17,
    /// [`Rm`]: the driver granted a request that changes who owns or keeps memory.
    Rm = 18,
    /// [`Release`]: a step of the driver's release of a description whose last reference has gone (driver hooks only).
    Release = 19,
    /// [`File`], `iter/task_file`: a thread has this NVIDIA file at this descriptor.
    Held = 32,
    /// [`File`], `iter/task_file`: an NVIDIA file waits unread in the receive queue of the unix socket at this descriptor.
    InFlight = 33,
    /// [`File`], `iter/task_file`: an io_uring instance at this descriptor (its registered files are read from fdinfo).
    IoUring = 34,
}

impl Kind {
    /// The kind with this number, if this version knows it.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Kind> {
        Some(match number {
            1 => Kind::Task,
            2 => Kind::Fork,
            3 => Kind::Exec,
            4 => Kind::Exit,
            5 => Kind::Free,
            6 => Kind::SignalGenerate,
            7 => Kind::SignalDeliver,
            8 => Kind::Reap,
            9 => Kind::OomVictim,
            10 => Kind::Open,
            11 => Kind::Dup,
            12 => Kind::Close,
            13 => Kind::Sent,
            14 => Kind::Received,
            15 => Kind::Stolen,
            16 => Kind::FilesChanged,
            17 => Kind::Xid,
            18 => Kind::Rm,
            19 => Kind::Release,
            32 => Kind::Held,
            33 => Kind::InFlight,
            34 => Kind::IoUring,
            _ => return None,
        })
    }
}

/// A process (ring: when it starts to be followed) or a thread (`iter/task`: every thread of the host).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// `who` is the thread; `comm` its name.
    pub header: Header,
    /// `real_parent`, as a process.
    pub parent: Proc,
    /// `ptrace`r (`parent` when `task->ptrace != 0`); tgid 0 when not traced.
    pub tracer: Proc,
    /// `task->real_cred` pointer (`cred` is another one while a core is dumped): equal to `file->f_cred` of the files that this process opened itself.
    pub cred: u64,
    /// `task->files` pointer; 0 once the files are gone.
    pub files: u64,
    /// `task->utime + task->stime`, ns.
    pub cpu_ns: u64,
    /// `task->__state`.
    pub state: u32,
    /// `task->exit_state` (EXIT_DEAD 0x10, EXIT_ZOMBIE 0x20; include/linux/sched.h).
    pub exit_state: u32,
    /// `task->flags` (PF_EXITING 0x4, PF_FORKNOEXEC 0x40, PF_DUMPCORE 0x200, PF_SIGNALED 0x400, PF_KTHREAD 0x200000).
    pub task_flags: u32,
    /// `task->exit_code`: a wait status.
    pub exit_code: u32,
    /// `signal->live`: threads that have not exited.
    pub live: u32,
    /// `task->jobctl`.
    pub jobctl: u32,
    /// `cred->uid`, in the initial user namespace.
    pub uid: u32,
    /// PID in the innermost namespace (`thread_pid->numbers[level].nr`).
    pub ns_pid: u32,
    /// Depth of that namespace; 0 is the initial one.
    pub ns_level: u32,
    /// Session id, as a PID of the initial namespace.
    pub session: u32,
    /// Process group id, as a PID of the initial namespace.
    pub pgrp: u32,
    /// One more than the descriptor of the ioctl that the thread is in, as its saved registers say, or was in last if it runs its own
    /// program; 0: none (`iter/task` only).
    pub ioctl: u32,
}

/// A process was forked. `who` is the child, `comm` the child's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fork {
    /// The child.
    pub header: Header,
    /// The process that called fork (`current`), thread included.
    pub parent: Proc,
    /// The child's `cred`.
    pub cred: u64,
    /// 1 when the child shares its parent's files table (CLONE_FILES).
    pub shares_files: u32,
    /// Child's PID in its innermost namespace.
    pub ns_pid: u32,
}

/// A process executed a new program. `comm` is the new name.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exec {
    /// The process.
    pub header: Header,
    /// Its new `cred`.
    pub cred: u64,
    /// `linux_binprm.filename`, NUL-terminated when shorter than the array.
    pub path: [u8; PATH_LEN],
}

/// A thread reached `sched_process_exit`. Bits LAST_THREAD and GROUP_EXIT say what that means for the group.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// The thread.
    pub header: Header,
    /// `real_parent` at this moment: who must wait for it.
    pub parent: Proc,
    /// `task->exit_code`: a wait status (signal in the low 7 bits, 0x80 core dumped, code in bits 8..16).
    pub code: u32,
    /// `signal->group_exit_code`, same form.
    pub group_code: u32,
    /// `signal->live` after this thread.
    pub live: u32,
    /// `signal->core_state`-like hint: `task->flags` at exit.
    pub task_flags: u32,
}

/// The task_struct of a reaped group leader is freed (an RCU grace period after the reap).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// The leader.
    pub header: Header,
}

/// A signal was generated for, or is being delivered to, `who`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    /// The target (generate) or the receiver (deliver).
    pub header: Header,
    /// The process that was running when the signal was generated; the sender unless KERNEL is set. Zero on delivery.
    pub sender: Proc,
    /// Its `comm`.
    pub sender_comm: [u8; COMM_LEN],
    /// Signal number.
    pub number: i32,
    /// `si_code`.
    pub code: i32,
    /// generate: TRACE_SIGNAL_DELIVERED 0, IGNORED 1, ALREADY_PENDING 2, OVERFLOW_FAIL 3, LOSE_INFO 4 (include/trace/events/signal.h).
    /// deliver: 0 default action, 1 ignored, 2 handled.
    pub result: i32,
    /// Sender's uid.
    pub sender_uid: u32,
}

/// wait4 or waitid returned a child. `who` is the process that waited.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reap {
    /// The parent.
    pub header: Header,
    /// The child's PID in the parent's PID namespace.
    pub child: u32,
    /// PID namespace depth of the parent.
    pub ns_level: u32,
}

/// The OOM killer chose this process (`oom:mark_victim`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oom {
    /// The victim; only `tid` is known (the tracepoint gives a PID).
    pub header: Header,
}

/// One descriptor of one NVIDIA file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// The thread.
    pub header: Header,
    /// `struct file` address.
    pub file: u64,
    /// `file->f_cred`: the credentials of whoever opened it.
    pub cred: u64,
    /// `task->files`: the table that the descriptor is in.
    pub files: u64,
    /// Inode number of the socket (InFlight, Sent, Received) or 0.
    pub socket: u64,
    /// Iterators: the `struct file` that this one keeps open (REGISTER_FD, UVM_MM_INITIALIZE), or 0.
    pub pins: u64,
    /// Bytes of a dma-buf, or 0.
    pub bytes: u64,
    /// The descriptor; -1 when not known (Sent).
    pub fd: i32,
    /// Device number: major << 20 | minor (the kernel's `dev_t`); or [`DMA_BUF`].
    pub dev: u32,
}

/// Stands for a device number: a dma-buf that the NVIDIA driver exported. No device has it (MKDEV keeps 12 bits of major).
pub const DMA_BUF: u32 = u32::MAX;

/// A request to the driver that was granted. `who` asked. Fields that an `op` does not have are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rm {
    /// Who asked.
    pub header: Header,
    /// `struct file` address that it was asked through.
    pub file: u64,
    /// `struct file` address that a descriptor in the arguments named.
    pub other: u64,
    /// Bytes; first half of a UUID; flags of an address space; length of a mapping.
    pub bytes: u64,
    /// Address of a mapping; second half of a UUID.
    pub base: u64,
    /// Device number of `file`.
    pub dev: u32,
    /// [`crate::ioctl::op`].
    pub op: u32,
    /// Client.
    pub client: u32,
    /// Parent object.
    pub parent: u32,
    /// Object; GPU id.
    pub object: u32,
    /// RM class.
    pub class: u32,
    /// Client of the original.
    pub from_client: u32,
    /// The original.
    pub from_object: u32,
    /// Device instance ([`crate::ioctl::NO_DEVICE`] when not known); whom an object was offered to; [`crate::ioctl::missed`].
    pub detail: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// Steps of [`Release`].
pub mod step {
    /// The driver's release function was entered.
    pub const BEGIN: u32 = 1;
    /// It has returned: done, or put off to a thread of the driver's.
    pub const END: u32 = 2;
    /// A thread of the driver's begins what was put off.
    pub const DEFERRED_BEGIN: u32 = 3;
    /// It has done that.
    pub const DEFERRED_END: u32 = 4;
}

/// The driver releases a description. `who` is the thread that does it: of whoever let go last, or the kernel's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// The thread.
    pub header: Header,
    /// `struct file` address; 0 for a put-off release whose beginning was not seen.
    pub file: u64,
    /// Its device number, or 0.
    pub dev: u32,
    /// [`step`].
    pub step: u32,
}

/// An Xid from `nvidia:nvidia_dev_xid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// `current` when it was reported; often not the culprit.
    pub header: Header,
    /// Xid number.
    pub code: u32,
    /// Explicit padding.
    pub pad: u32,
    /// Device name ("0000:0b:00.0"), NUL-terminated.
    pub device: [u8; 32],
    /// Message, NUL-terminated when shorter.
    pub message: [u8; PATH_LEN],
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Tracked>() == 16 && offset_of!(Tracked, flags) == 8);
    assert!(size_of::<Proc>() == 16 && align_of::<Proc>() == 8);
    assert!(size_of::<Header>() == 48 && offset_of!(Header, who) == 16 && offset_of!(Header, comm) == 32);
    assert!(size_of::<Task>() == 48 + 32 + 24 + 48);
    assert!(size_of::<Fork>() == 48 + 16 + 16);
    assert!(size_of::<Exec>() == 48 + 8 + PATH_LEN);
    assert!(size_of::<Exit>() == 48 + 16 + 16);
    assert!(size_of::<Free>() == 48);
    assert!(size_of::<Signal>() == 48 + 16 + 16 + 16);
    assert!(size_of::<Reap>() == 56);
    assert!(size_of::<Oom>() == 48);
    assert!(size_of::<File>() == 48 + 48 + 8);
    assert!(size_of::<Rm>() == 48 + 32 + 40 && offset_of!(Rm, dev) == 80);
    assert!(size_of::<Release>() == 48 + 16 && offset_of!(Release, step) == 60);
    assert!(size_of::<Xid>() == 48 + 8 + 32 + PATH_LEN);
};
