//! Where events come from.

pub mod clock;
pub mod kmsg;
pub mod nvml;
pub mod procfs;
