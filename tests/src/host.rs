//! The machine that the scenarios run on: where the programs are, and the right to use the device numbers.
//!
//! Always true: only one scenario at a time has a [`Host`], in all processes of this machine, because stand-in device
//! nodes share their numbers; when it is dropped, the core pattern is what it was before.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// A machine, ours for one scenario.
pub struct Host {
    dir: TempDir,
    programs: PathBuf,
    core_pattern: Option<String>,
    /// Held until we are dropped.
    _lock: File,
}

impl Host {
    /// Waits until no other scenario runs, and makes the device nodes and an idle GPU's books. `Ok(None)`: not possible here; says why.
    ///
    /// # Errors
    /// When a program is missing or the device nodes cannot be made.
    pub fn take(part: &str) -> io::Result<Option<Host>> {
        if fs::metadata("/proc/self")?.uid() != 0 {
            say(&format!("SKIPPED {part}: making device nodes and watching the kernel need root"))?;
            return Ok(None);
        }
        let programs = programs()?;
        let lock = File::create(std::env::temp_dir().join("outlive-scenarios.lock"))?;
        lock.lock()?;
        let dir = tempfile::Builder::new().prefix("outlive-").tempdir()?;
        // Traces are read as an unprivileged user from here.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
        let host = Host { dir, programs, core_pattern: fs::read_to_string(CORE_PATTERN).ok(), _lock: lock };
        let made = host.program("scenario").arg("devices").arg(host.path("dev")).arg(host.path("nvml.json")).output()?;
        if !made.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        Ok(Some(host))
    }

    /// A path in this scenario's own folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command for one of the workspace's programs.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }

    /// `outlive`, told about the stand-ins.
    #[must_use]
    pub fn outlive(&self, subcommand: &str) -> Command {
        let mut command = self.program("outlive");
        command.arg(subcommand).arg("--devices").arg(self.path("dev/nvidia*"));
        command.arg("--nvml").arg(self.programs.join("libnvml_double.so"));
        command.env("OUTLIVE_NVML_DOUBLE", self.path("nvml.json"));
        command
    }

    /// `outlive` for somebody without rights, GPU or NVML.
    #[must_use]
    pub fn outlive_offline(&self, subcommand: &str) -> Command {
        let mut command = self.program("outlive");
        command.arg(subcommand).current_dir("/").env_remove("OUTLIVE_NVML_DOUBLE");
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A part that was itself killed while it had the pattern changed could not restore it.
        if let Some(before) = &self.core_pattern
            && fs::read_to_string(CORE_PATTERN).is_ok_and(|now| now != *before)
        {
            // Nothing more can be done about a failure here.
            let _ = fs::write(CORE_PATTERN, before.trim_end_matches('\n'));
        }
    }
}

/// The folder that cargo builds programs into: test executables are in `deps` below it.
fn programs() -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.parent().and_then(Path::parent).unwrap_or(Path::new("/")).to_owned();
    for name in ["outlive", "scenario", "libnvml_double.so"] {
        if !folder.join(name).exists() {
            return Err(io::Error::other(format!(
                "{} is missing: run `cargo build --workspace --bins --lib` first (`cargo xtask test` does)",
                folder.join(name).display()
            )));
        }
    }
    Ok(folder)
}

/// Says something that the test runner must not swallow.
///
/// # Errors
/// When standard error is gone.
pub fn say(line: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{line}")
}
