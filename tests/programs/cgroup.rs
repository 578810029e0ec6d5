//! Control groups of our own: to freeze an actor in, or to look like a container.
//!
//! Always true: only folders that we made are removed, when the play ends and they are empty.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::stage::{Stage, until};
use crate::sys;

/// A control group, made below the hierarchy's root.
pub(crate) struct Cgroup {
    path: PathBuf,
    /// Folders that were not there before, outermost first.
    made: Vec<PathBuf>,
}

impl Cgroup {
    /// In the v2 hierarchy; none: not mounted here, and the stage knows.
    pub(crate) fn unified(stage: &mut Stage, name: &str) -> io::Result<Option<Cgroup>> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        match roots.into_iter().find(|root| root.join("cgroup.controllers").exists()) {
            Some(root) => Cgroup::make(stage, root, name).map(Some),
            None => {
                stage.skip("cgroup v2 is not mounted under /sys/fs/cgroup");
                Ok(None)
            }
        }
    }

    /// In the v1 hierarchy of a controller; none: not mounted here, and the stage knows.
    pub(crate) fn legacy(stage: &mut Stage, controller: &str, name: &str) -> io::Result<Option<Cgroup>> {
        let root = Path::new("/sys/fs/cgroup").join(controller);
        if root.join("cgroup.procs").exists() && !root.join("cgroup.controllers").exists() {
            return Cgroup::make(stage, &root, name).map(Some);
        }
        stage.skip(format!("the cgroup v1 hierarchy of {controller} is not mounted at {}", root.display()));
        Ok(None)
    }

    fn make(stage: &mut Stage, root: &Path, name: &str) -> io::Result<Cgroup> {
        let (mut path, mut made) = (root.to_owned(), Vec::new());
        for component in name.split('/') {
            path.push(component);
            if !path.exists() {
                fs::create_dir(&path)?;
                made.push(path.clone());
            }
        }
        stage.fact("cgroup", path.display().to_string());
        Ok(Cgroup { path, made })
    }

    /// The file through which processes enter.
    pub(crate) fn entrance(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Moves a process in.
    pub(crate) fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.entrance(), pid.to_string())
    }

    /// Writes a control file.
    pub(crate) fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.path.join(file), text)
    }

    /// Reads a control file.
    pub(crate) fn read(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(self.path.join(file))
    }

    /// At the end: writes `thaw` (a frozen process cannot be killed under v1), kills what is inside, and removes what was made.
    pub(crate) fn at_end(&self, stage: &mut Stage, thaw: Option<(&'static str, &'static str)>) {
        let (path, made) = (self.path.clone(), self.made.clone());
        stage.at_end(move || {
            if let Some((file, text)) = thaw {
                fs::write(path.join(file), text)?;
            }
            for pid in fs::read_to_string(path.join("cgroup.procs"))?.lines().filter_map(|line| line.parse().ok()) {
                // It may end by itself meanwhile.
                let _ = sys::kill(pid, libc::SIGKILL);
            }
            made.iter().rev().try_for_each(|folder| {
                // Busy until its last task has left.
                until("the cgroup to be empty", || match fs::remove_dir(folder) {
                    Ok(()) => Ok(true),
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => sys::reap_any().map(|_| false).or(Ok(false)),
                    Err(error) => Err(error),
                })
            })
        });
    }
}
