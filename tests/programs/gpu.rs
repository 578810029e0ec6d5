//! What the play's GPU is.
//!
//! Always true: the harness says it (`OUTLIVE_GPU`), and all actors of a play are told the same.

use std::io;
use std::path::Path;

use crate::cuda;
use crate::rm::Cuda;

/// Says which; see [`Gpu`].
const WHICH: &str = "OUTLIVE_GPU";
/// Knobs of the stand-in for the driver: tests/driver/README.md.
const KNOBS: &str = "/sys/module/nvidia/parameters";
/// What an owner allocates, beside its context.
const ALLOCATED_MIB: u64 = 2_048;
const UNLISTED_MIB: u64 = 256;

/// What takes the place of NVIDIA's driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gpu {
    /// Harmless device nodes and a file of books.
    StandIn,
    /// "driver": the modules of tests/driver, loaded.
    Driver,
    /// "real": nothing does.
    Real,
}

impl Gpu {
    /// Of this play.
    pub(crate) fn of_play() -> Gpu {
        match std::env::var(WHICH).as_deref() {
            Ok("driver") => Gpu::Driver,
            Ok("real") => Gpu::Real,
            _ => Gpu::StandIn,
        }
    }

    /// Allocates through the driver. False: there is none.
    pub(crate) fn allocate(self) -> io::Result<bool> {
        match self {
            Gpu::StandIn => return Ok(false),
            Gpu::Driver => Cuda::open()?.malloc(ALLOCATED_MIB).map(drop)?,
            Gpu::Real => cuda::allocate(ALLOCATED_MIB)?,
        }
        Ok(true)
    }
}

/// Allocates through the stand-in for the driver, more than is charged: a part is kept by a mapping alone.
pub(crate) fn allocate_unlisted() -> io::Result<bool> {
    let cuda = Cuda::open()?;
    cuda.malloc(ALLOCATED_MIB)?;
    let unlisted = cuda.malloc(UNLISTED_MIB)?;
    cuda.free(unlisted).map(|()| true)
}

/// Requests of the stand-in for the driver are not answered.
pub(crate) fn is_stuck() -> io::Result<bool> {
    let is_set = |name: &str| std::fs::read_to_string(Path::new(KNOBS).join(name)).map(|value| value.trim() != "0");
    Ok(is_set("ioctl_sleep")? || is_set("ioctl_spin")?)
}

/// Sets a knob of the stand-in for the driver.
pub(crate) fn knob(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(Path::new(KNOBS).join(name), value).map_err(|error| io::Error::other(format!("knob {name}: {error}")))
}
