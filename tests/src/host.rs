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
    /// MiB in use on a real GPU before anything was played.
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
        if place == Place::Gpu {
            host.idle_mib = Some(used_mib()?);
        }
        Ok(host)
    }

    /// Waits until a real GPU is as it was; else says what is left.
    ///
    /// # Errors
    /// When nvidia-smi fails.
    pub fn until_free(&self, patience: Duration) -> io::Result<Option<String>> {
        let Some(idle) = self.idle_mib else { return Ok(None) };
        let deadline = Instant::now() + patience;
        loop {
            // A recorder's NVML comes and goes.
            let left = used_mib()?.saturating_sub(idle + 8);
            if left == 0 || Instant::now() > deadline {
                return Ok((left > 0).then(|| format!("{left} MiB more are in use than before")));
            }
            thread::sleep(Duration::from_millis(200));
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

fn used_mib() -> io::Result<u64> {
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
