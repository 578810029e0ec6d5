//! Running other programs.
//!
//! Always true: a command that fails is an error that names the command; nothing is run through a shell here.

use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Root of the workspace.
#[must_use]
pub(crate) fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default()
}

/// Runs a command with our own output.
///
/// # Errors
/// When it cannot be started or exits with another code than 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if status.success() { Ok(()) } else { bail!("{command:?} failed: {status}") }
}

/// Runs a command and returns what it printed on standard output.
///
/// # Errors
/// As [`run`].
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(std::process::Stdio::inherit()).output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
