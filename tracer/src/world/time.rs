//! Boottime to wall-clock text.
//!
//! Always true: uses the newest wall-clock reading of the recording; an unknown wall clock gives no text rather than 1970.

use super::World;
use crate::event::BootNs;
use std::time::{Duration, UNIX_EPOCH};

impl World {
    /// RFC 3339 with milliseconds, UTC; `None` when no wall-clock time is known or the moment is not.
    #[must_use]
    pub fn wall(&self, at: BootNs) -> Option<String> {
        if self.wall_offset == 0 || at == 0 {
            return None;
        }
        let ns = u64::try_from(i128::from(at) + self.wall_offset).ok()?;
        let time = UNIX_EPOCH.checked_add(Duration::from_nanos(ns))?;
        // humantime refuses years past 9999 by an error while formatting.
        (ns < 253_000_000_000_000_000_000_u128.min(u128::from(u64::MAX)) as u64)
            .then(|| humantime::format_rfc3339_millis(time).to_string())
    }

    /// Sets the wall clock.
    pub(super) fn set_wall(&mut self, at: BootNs, real_ns: u64) {
        self.wall_offset = i128::from(real_ns) - i128::from(at);
    }
}
