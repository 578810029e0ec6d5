//! What becomes of outlive, and of what it says, when something else fails: the driver, the kernel log, the ring, the clock, the machine's
//! memory, its PIDs, a container, or outlive itself.
//!
//! Always true: each fault ends in a true verdict or a declared limit, in a trace that can be read, and in a recorder that stops when it is asked
//! to (`watched`); who, which cause and which limit are asserted, never how long something takes. It runs only where the stand-in for the
//! driver is loaded, in the guests of `cargo xtask vm`, and says SKIPPED elsewhere; each test leaves the guest as it found it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::panic, reason = "a fact that does not hold fails with what was said instead")]
#![expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss, reason = "all of them 32-bit numbers")]

#[path = "faults/clock.rs"]
mod clock;
#[path = "faults/containers.rs"]
mod containers;
#[path = "faults/killed.rs"]
mod killed;
#[path = "faults/losses.rs"]
mod losses;
#[path = "faults/machine.rs"]
mod machine;
#[path = "faults/release.rs"]
mod release;
#[path = "faults/reload.rs"]
mod reload;
#[path = "driver/rm.rs"]
#[expect(dead_code, reason = "tests/driver.rs makes more requests")]
mod rm;
#[path = "driver/stage.rs"]
#[expect(dead_code, reason = "tests/driver.rs looks closer")]
mod stage;
#[path = "faults/sys.rs"]
mod sys;
#[path = "faults/watched.rs"]
mod watched;
