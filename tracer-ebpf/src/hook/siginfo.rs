//! `struct kernel_siginfo` as the signal tracepoints pass it.

use crate::kernel::{Memory, Raw};

/// Offsets of the first members, the same since 4.20 (include/uapi/asm-generic/siginfo.h).
const SI_CODE: usize = 8;
const SI_PID: usize = 16;
/// `SI_USER` and `SI_KERNEL`.
const SI_USER: i32 = 0;
const SI_KERNEL: i32 = 0x80;

/// The pointer, or one of two special values (include/linux/sched/signal.h).
#[derive(Clone, Copy)]
pub(crate) struct Info(pub(crate) u64);

impl Info {
    /// `si_code`: positive when the kernel sent the signal.
    #[inline(always)]
    pub(crate) fn code(self) -> i32 {
        match self.0 {
            // SEND_SIG_NOINFO: kill() from the running process; SEND_SIG_PRIV: the kernel.
            0 => SI_USER,
            1 => SI_KERNEL,
            pointer => Raw(pointer).get(SI_CODE),
        }
    }
    /// `si_pid`; only for signals that have one.
    #[inline(always)]
    pub(crate) fn pid(self) -> u32 {
        if self.0 <= 1 {
            0
        } else {
            Raw(self.0).get(SI_PID)
        }
    }
}
