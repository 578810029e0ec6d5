//! The machine that the scenarios run on: where the programs are, and the right to use the device numbers.
//!
//! Always true: only one scenario at a time has a [`Host`], in all processes of this machine, because stand-in device
//! nodes share their numbers; when it is dropped, the core pattern is what it was before.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::scenario::Place;

const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// Tells `scenario` what takes the driver's place: tests/programs/gpu.rs.
const WHICH: &str = "OUTLIVE_GPU";
/// Books of the stand-in for the driver.
const BOOKS: &str = "/proc/driver/nvidia-standin";

/// A machine, ours for one scenario.
pub struct Host {
    /// What stands for NVIDIA's driver, if anything does.
    pub place: Place,
    dir: TempDir,
    programs: PathBuf,
    core_pattern: Option<String>,
    /// MiB in use, as a driver says, before anything was played; stand-in device nodes have none.
    idle_mib: Option<u64>,
    /// Held until we are dropped.
    _lock: File,
}

impl Host {
    /// Waits until no other scenario runs, and makes what stands for the driver.
    ///
    /// # Errors
    /// When we are not root, a program is missing or the device nodes cannot be made.
    pub fn take(place: Place) -> io::Result<Host> {
        if !is_root()? {
            return Err(io::Error::other("making device nodes and watching the kernel need root"));
        }
        let programs = programs()?;
        let lock = File::create(std::env::temp_dir().join("outlive-scenarios.lock"))?;
        lock.lock()?;
        let dir = tempfile::Builder::new().prefix("outlive-").tempdir()?;
        // Traces are read as an unprivileged user from here.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
        let mut host = Host { place, dir, programs, core_pattern: fs::read_to_string(CORE_PATTERN).ok(), idle_mib: None, _lock: lock };
        fs::create_dir_all(host.stage())?;
        if place == Place::StandIn {
            let made = host.program("scenario").arg("devices").arg(host.stage()).arg(host.path("nvml.json")).output()?;
            if !made.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
            }
        }
        host.idle_mib = host.used_mib()?;
        Ok(host)
    }

    /// Waits until the GPU is as it was; else says what is left. Where nothing but device nodes stands for the driver, nobody can say.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn until_free(&self, patience: Duration) -> io::Result<Option<String>> {
        let deadline = Instant::now() + patience;
        loop {
            let (Some(idle), Some(used)) = (self.idle_mib, self.used_mib()?) else { return Ok(None) };
            // A recorder's NVML comes and goes.
            let left = used.saturating_sub(idle + if self.place == Place::Gpu { 8 } else { 0 });
            if left == 0 || Instant::now() > deadline {
                return Ok((left > 0).then(|| format!("{left} MiB more are in use than before")));
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn used_mib(&self) -> io::Result<Option<u64>> {
        match self.place {
            Place::StandIn => Ok(None),
            Place::Driver => in_the_books(&fs::read_to_string(BOOKS)?).map(Some),
            Place::Gpu => of_the_gpu().map(Some),
        }
    }

    /// A path in this scenario's own folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where the part is played.
    #[must_use]
    pub fn stage(&self) -> PathBuf {
        self.path("dev")
    }

    /// Which files are NVIDIA's: a pattern.
    #[must_use]
    pub fn devices(&self) -> PathBuf {
        if self.place == Place::StandIn { self.stage().join("nvidia*") } else { PathBuf::from("/dev/nvidia*") }
    }

    /// A command for one of the workspace's programs.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        match self.place {
            Place::StandIn => command.env_remove(WHICH),
            Place::Driver => command.env(WHICH, "driver"),
            Place::Gpu => command.env(WHICH, "real"),
        };
        command
    }

    /// `outlive`, told about the stand-ins if there are any.
    #[must_use]
    pub fn outlive(&self, subcommand: &str) -> Command {
        let mut command = self.program("outlive");
        command.arg(subcommand);
        if self.place == Place::StandIn {
            command.arg("--devices").arg(self.devices());
        }
        if self.place != Place::Gpu {
            let books = if self.place == Place::Driver { PathBuf::from(BOOKS) } else { self.path("nvml.json") };
            command.arg("--nvml").arg(self.programs.join("libnvml_double.so")).env("OUTLIVE_NVML_DOUBLE", books);
        }
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

/// What the stand-in for the driver has in use on all its GPUs.
fn in_the_books(books: &str) -> io::Result<u64> {
    let books: serde_json::Value = serde_json::from_str(books)?;
    let gpus = books["gpus"].as_array().ok_or_else(|| io::Error::other("the driver's books have no GPUs"))?;
    let used = gpus.iter().map(|gpu| gpu["used"].as_u64()).sum::<Option<u64>>();
    // A byte that is left counts.
    used.map(|bytes| bytes.div_ceil(1 << 20)).ok_or_else(|| io::Error::other("the driver's books do not say what is in use"))
}

fn of_the_gpu() -> io::Result<u64> {
    let answer = Command::new("nvidia-smi").args(["--query-gpu=memory.used", "--format=csv,noheader,nounits"]).output()?;
    String::from_utf8_lossy(&answer.stdout).split_whitespace().next().and_then(|mib| mib.parse().ok())
        .ok_or_else(|| io::Error::other(format!("nvidia-smi says no memory figure: {}", answer.status)))
}

/// Whether this process may do what the scenarios need.
///
/// # Errors
/// When /proc cannot be read.
pub fn is_root() -> io::Result<bool> {
    Ok(fs::metadata("/proc/self")?.uid() == 0)
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

/// The folder of the programs: our own, or for a test executable, which is in `deps`, the one above.
fn programs() -> io::Result<PathBuf> {
    let this = std::env::current_exe()?;
    let mut folders = this.ancestors().skip(1).take(2);
    let missing = |folder: &Path| ["outlive", "scenario"].into_iter().find(|name| !folder.join(name).exists());
    folders.find(|folder| missing(folder).is_none()).map(Path::to_owned).ok_or_else(|| {
        io::Error::other(format!(
            "`outlive` or `scenario` is missing beside {}: run `cargo build --workspace --bins --lib` first (`cargo xtask test` does)",
            this.display()
        ))
    })
}

/// Says something that the test runner must not swallow.
///
/// # Errors
/// When standard error is gone.
pub fn say(line: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_books_say_what_is_in_use() {
        assert_eq!(in_the_books(r#"{"gpus": [{"used": 2097153}, {"used": 0}]}"#).unwrap(), 3);
        assert!(in_the_books(r#"{"gpus": [{}]}"#).is_err());
        assert!(in_the_books("{}").is_err());
    }
}
