//! The clocks that events are stamped with.
#![expect(unsafe_code, reason = "clock_gettime; std has no CLOCK_BOOTTIME")]

use crate::event::BootNs;

/// Now, ns of CLOCK_BOOTTIME.
#[must_use]
pub fn boottime() -> BootNs {
    read(libc::CLOCK_BOOTTIME)
}

/// Now, ns of CLOCK_MONOTONIC: boottime without the time spent suspended.
#[must_use]
pub fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the call to fill.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut now) } != 0;
    if failed {
        return 0; // Only for a clock that the kernel does not have; every kernel that we run on has both.
    }
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
