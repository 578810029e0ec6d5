//! `cargo xtask test`: everything that can be tested on this machine, and a sentence for what cannot.
//!
//! Always true: the same command for developers and CI; `--ci` adds the checks that need the eBPF toolchain and the
//! guests with other kernels.

use crate::run::{run, workspace};
use anyhow::Result;
use std::process::Command;

/// Runs the tests.
///
/// # Errors
/// When any check or test fails.
pub(crate) fn test(ci: bool) -> Result<()> {
    // Tests start `outlive`, `scenario` and the NVML double from the folder that cargo builds them into.
    cargo(&["build", "--workspace", "--bins", "--lib"])?;
    cargo(&["test", "--workspace"])?;
    crate::tidy::tidy()?;
    if ci {
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
        crate::ebpf::run(true)?;
        crate::vm::vm(&[])?;
    } else {
        println!("not run here: clippy, the object check, and the scenarios and faults in guests with kernels 6.1 and 6.12 (the matrix of hooks); `cargo xtask test --ci` runs them");
    }
    println!("not run here: tests/gpu, which needs an NVIDIA GPU (tests/gpu/accuracy.sh PROGRAMS OUT)");
    Ok(())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    run(Command::new("cargo").args(arguments).current_dir(workspace()))
}
