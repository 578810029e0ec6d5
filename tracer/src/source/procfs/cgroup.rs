//! The cgroup of a process: its path, whether it is frozen, and how many processes it may have. Both versions.

use super::{Proc, TEXT_MAX, bounded};
use crate::event::{PidsLimit, ProcessId};
use std::path::Path;

/// Where a process is in the cgroup hierarchies. A host may have both versions at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Paths {
    /// Version 2 ("0::path").
    pub(super) unified: Option<String>,
    /// Version 1, the pids controller's.
    pub(super) pids: Option<String>,
    /// Version 1, the freezer's.
    pub(super) freezer: Option<String>,
    /// The first of any other version 1 hierarchy.
    other: Option<String>,
}

impl Paths {
    /// The content of /proc/PID/cgroup: lines of "number:controllers:path" (proc_cgroup_show, kernel/cgroup/cgroup.c).
    pub(super) fn parse(text: &str) -> Paths {
        let mut paths = Paths::default();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(number), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let path = bounded(path.trim_end_matches(" (deleted)"), TEXT_MAX);
            let path = || Some(path.to_owned());
            let has = |name| controllers.split(',').any(|c| c == name);
            if number == "0" && controllers.is_empty() {
                paths.unified = path();
            }
            if has("pids") {
                paths.pids = path();
            }
            if has("freezer") {
                paths.freezer = path();
            }
            if !controllers.is_empty() && paths.other.is_none() {
                paths.other = path();
            }
        }
        paths
    }

    /// The path to show: that of version 2 when it says something, else the pids controller's.
    pub(super) fn shown(&self) -> Option<&str> {
        let telling = self.unified.as_deref().filter(|path| *path != "/");
        telling
            .or(self.pids.as_deref())
            .or(self.unified.as_deref())
            .or(self.other.as_deref())
    }
}

impl Proc {
    pub(super) fn cgroups(&self, pid: u32) -> Option<Paths> {
        Some(Paths::parse(&self.text(format!("proc/{pid}/cgroup"))?))
    }

    /// All processes of the cgroup are stopped by the freezer.
    pub(super) fn frozen(&self, paths: &Paths) -> Option<String> {
        let unified = paths.unified.as_deref().filter(|path| inside(path)).and_then(|path| {
            ["sys/fs/cgroup", "sys/fs/cgroup/unified"].iter().find_map(|mount| {
                let frozen = self.text(format!("{mount}{path}/cgroup.events"))?.lines().any(|line| line == "frozen 1");
                // "frozen" counts freezing of any cgroup above, too (cgroup_update_frozen, kernel/cgroup/freezer.c): the innermost one
                // that was frozen itself is what must be thawed, and its own file where none can be read.
                frozen.then(|| {
                    let files = Path::new(path).ancestors().map(|group| format!("{mount}{}/cgroup.freeze", group.display().to_string().trim_end_matches('/')));
                    let switched = |file: &String| self.line(file.clone()).as_deref() == Some("1");
                    files.into_iter().find(switched).unwrap_or_else(|| format!("{mount}{path}/cgroup.freeze"))
                })
            })
        });
        let legacy = || {
            let file = format!("sys/fs/cgroup/freezer{}/freezer.state", paths.freezer.as_deref().filter(|path| inside(path))?);
            // THAWED, FREEZING (not all have stopped yet) or FROZEN.
            matches!(self.line(file.clone()).as_deref(), Some("FROZEN" | "FREEZING")).then_some(file)
        };
        unified.or_else(legacy).map(|file| format!("/{file}"))
    }

    /// The limit on processes that a process is closest to, among its cgroup and those above it; `None` when there is none.
    #[must_use]
    pub fn pids_limit(&self, id: ProcessId) -> Option<PidsLimit> {
        let paths = self.cgroups(id.tgid())?;
        let (mount, path) = match (&paths.pids, &paths.unified) {
            (Some(path), _) => ("sys/fs/cgroup/pids", path),
            (None, Some(path)) => ("sys/fs/cgroup", path),
            (None, None) => return None,
        };
        let mut path = if inside(path) && self.is(id) {
            path.as_str()
        } else {
            return None;
        };
        let mut closest: Option<PidsLimit> = None;
        loop {
            if let Some(limit) = self.pids_of(mount, path)
                && closest
                    .as_ref()
                    .is_none_or(|best| limit.room() < best.room())
            {
                closest = Some(limit);
            }
            match path.rsplit_once('/') {
                Some((above, _)) if !above.is_empty() => path = above,
                _ => return closest,
            }
        }
    }

    fn pids_of(&self, mount: &str, path: &str) -> Option<PidsLimit> {
        let max = self.number(format!("{mount}{path}/pids.max"))?; // "max" is no number and no limit.
        let current = self.number(format!("{mount}{path}/pids.current"))?;
        Some(PidsLimit {
            cgroup: path.to_owned(),
            current,
            max,
        })
    }
}

/// The path stays below the mount: a process outside our cgroup namespace has a path that begins with "/..".
fn inside(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| part != "..")
}
