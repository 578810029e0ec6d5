//! Where events come from. All input lives here; everything after it is pure.
//!
//! Always true: what other processes wrote (names, paths, arguments) is bounded when it is read, and a source that
//! fails says what failed, on what, and what to do.

pub mod devices;
pub mod kernel;
pub mod kmsg;
pub mod nvml;
pub mod procfs;
