//! Every fixed size, in one place: map capacities, loop bounds, string lengths; and what is counted when one is exceeded.

/// Bytes of the event ring. A power of two and a multiple of the page size.
pub const RING_BYTES: u32 = 4 << 20;
/// The reader is woken by an event at most once in this time and CPU, ns, because a wake-up costs more than all the rest of an
/// event. The reader drains again a little later than this after it was woken, so no event waits longer.
pub const RING_WAKE_NS: u64 = 2_000_000;
/// Processes that can be tracked at one time (GPU users, their descendants, their ancestors).
pub const TRACKED_MAX: u32 = 65_536;
/// NVIDIA device numbers that can be watched.
pub const DEVICES_MAX: u32 = 1_024;
/// Ancestors of a GPU user that become tracked when it opens its first NVIDIA file.
pub const ANCESTORS_MAX: u32 = 16;
/// Descriptors looked at in one SCM_RIGHTS control message (the kernel's own limit, `SCM_MAX_FD`, include/net/scm.h).
pub const SCM_FDS_MAX: u32 = 253;
/// Steps (messages, control messages and descriptors together) that one walk over a queue or a msghdr takes.
pub const WALK_STEPS_MAX: u32 = 8_192;
/// Requests to the driver that can be under way at one time.
pub const PENDING_MAX: u32 = 8_192;
/// Releases that the driver may put off to a thread of its own and that are remembered until it does.
pub const DEFERRED_MAX: u32 = 4_096;
/// (description, client) pairs that are remembered as known.
pub const CLIENTS_MAX: u32 = 16_384;
/// GPUs whose ids are remembered as told.
pub const GPUS_MAX: u32 = 64;
/// Objects looked at in one list of exports or imports (`NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_MAX_OBJECTS` is 512).
pub const OBJECTS_MAX: u32 = 512;
/// Length of `task_struct.comm` (TASK_COMM_LEN, include/linux/sched.h).
pub const COMM_LEN: usize = 16;
/// Bytes of a path that an exec record carries.
pub const PATH_LEN: usize = 128;

/// Why an event was not (wholly) seen. Index into the per-CPU `LOST` array; never reuse a number.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The ring was full: an event of a tracked process is missing.
    RingFull = 0,
    /// `TRACKED` was full: a process that matters is not being followed.
    TrackedFull = 1,
    /// A read of kernel or user memory failed; the record was sent with what could be read, or not at all.
    ReadFailed = 2,
    /// A control message, descriptor list or queue was longer than the loop bound.
    Truncated = 3,
    /// A caller with a 32-bit ABI, whose structures are not decoded.
    Compat = 4,
    /// A function of the driver was entered and its return was not seen: more calls slept in it than the kernel follows (kretprobe's
    /// `maxactive`, at least ten and twice the CPUs).
    ReturnMissed = 5,
}

/// Number of [`Lost`] causes: the length of the `LOST` array.
pub const LOST_CAUSES: u32 = 6;

impl Lost {
    /// All causes in index order.
    pub const ALL: [Lost; LOST_CAUSES as usize] =
        [Lost::RingFull, Lost::TrackedFull, Lost::ReadFailed, Lost::Truncated, Lost::Compat, Lost::ReturnMissed];

    /// Stable name, as written to trace files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Lost::RingFull => "ring_full",
            Lost::TrackedFull => "tracked_full",
            Lost::ReadFailed => "read_failed",
            Lost::Truncated => "truncated",
            Lost::Compat => "compat",
            Lost::ReturnMissed => "return_missed",
        }
    }
}
