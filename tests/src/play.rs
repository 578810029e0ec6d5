//! A part being played, and the truth about it.
//!
//! Always true: the part's report is checked against /proc before anything is compared with it; when the play is
//! dropped, every process of it has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::host::Host;
use crate::scenario::Place;

const DEADLINE: Duration = Duration::from_secs(60);
/// What /proc counts start times in: USER_HZ is 100 on every architecture that outlive runs on.
const TICK: Duration = Duration::from_millis(10);

/// A process of the part.
#[derive(Debug, Deserialize)]
pub struct Member {
    /// PID.
    pub pid: u32,
    /// Its start time, field 22 of /proc/PID/stat.
    pub start_ticks: u64,
    /// Its descriptors, by whose memory they keep.
    pub held: BTreeMap<String, BTreeSet<i32>>,
    /// It cannot tell its descriptors: /proc is asked instead.
    #[serde(default)]
    pub silent: bool,
}

/// What the part says when the incident is on.
#[derive(Debug, Deserialize)]
pub struct Report {
    /// Everybody.
    pub cast: BTreeMap<String, Member>,
    /// Bytes held, by owner.
    pub bytes: BTreeMap<String, u64>,
    /// Why it cannot be played here.
    pub skipped: Option<String>,
    /// What else is worth knowing: "cgroup", "mount".
    #[serde(default)]
    pub facts: BTreeMap<String, serde_json::Value>,
}

/// A part being played.
pub struct Play {
    /// The truth.
    pub report: Report,
    stage: Child,
}

impl Play {
    /// Starts a part and waits until its incident is on.
    ///
    /// # Errors
    /// When the part fails or takes too long.
    pub fn start(host: &Host, part: &str) -> io::Result<Play> {
        let mut command = host.program("scenario");
        command.arg(part).arg(host.stage());
        if host.place == Place::StandIn {
            command.arg(host.path("nvml.json"));
        }
        // Not a pipe: whoever is left behind would keep it open.
        let complaints = host.path("complaints");
        let mut stage = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&complaints)?).spawn()?;
        let line = first_line(&mut stage);
        let mut play = Play { report: Report { cast: BTreeMap::new(), bytes: BTreeMap::new(), skipped: None, facts: BTreeMap::new() }, stage };
        play.report = serde_json::from_str(&line?)
            .map_err(|error| io::Error::other(format!("part {part}: {error}; it says: {}", fs::read_to_string(&complaints).unwrap_or_default())))?;
        let stage = Member { pid: play.stage.id(), start_ticks: ticks(play.stage.id())?, held: BTreeMap::new(), silent: true };
        play.report.cast.insert("stage".to_owned(), stage);
        Ok(play)
    }

    /// A report without a stage.
    #[cfg(test)]
    pub(crate) fn of(report: Report) -> io::Result<Play> {
        Ok(Play { report, stage: std::process::Command::new("true").spawn()? })
    }

    /// Somebody's name.
    #[must_use]
    pub fn name(&self, pid: u32) -> Option<&str> {
        let alive = |member: &Member| member.pid == pid && member.is_alive();
        let dead = |member: &Member| member.pid == pid;
        let find = |is: &dyn Fn(&Member) -> bool| self.report.cast.iter().find(|(_, member)| is(member)).map(|(name, _)| name.as_str());
        find(&alive).or_else(|| find(&dead))
    }

    /// One more thing that the part told.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&str> {
        self.report.facts.get(name)?.as_str()
    }

    /// Number of the FUSE connection of the part's mount: its device's minor number (fuse_ctl_add_conn, fs/fuse/control.c).
    #[must_use]
    pub fn fuse_connection(&self) -> Option<u32> {
        let point = self.fact("mount")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let of_part = mounts.lines().find(|line| line.split(' ').nth(4) == Some(point))?;
        of_part.split(' ').nth(2)?.split_once(':')?.1.parse().ok()
    }

    /// Everybody living whose name begins with "other-".
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.report.cast.iter().filter(|(name, member)| name.starts_with("other-") && !member.has_ended()).map(|(name, _)| name.as_str())
    }

    /// Somebody of the part.
    ///
    /// # Errors
    /// When the scenario names somebody whom the part does not have.
    pub fn member(&self, name: &str) -> io::Result<&Member> {
        self.report.cast.get(name).ok_or_else(|| io::Error::other(format!("the part has no {name:?}")))
    }

    /// Where /proc contradicts the report: then the test itself is wrong.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn contradictions(&self) -> io::Result<Vec<String>> {
        let mut wrong = Vec::new();
        for (name, member) in self.report.cast.iter().filter(|(_, member)| member.is_alive() && !member.silent) {
            let found = member.open_files();
            let (exits, claimed) = (member.is_exiting(), member.held.values().flatten().copied().collect());
            if !exits && found != claimed {
                wrong.push(format!("the part is wrong: {name} claims descriptors {claimed:?} and has {found:?}"));
            }
        }
        Ok(wrong)
    }
}

impl Member {
    /// This very process exists, perhaps as a zombie.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        ticks(self.pid).is_ok_and(|start| start == self.start_ticks)
    }

    /// Its state letter, if it exists.
    #[must_use]
    pub fn state(&self) -> Option<char> {
        let stat = self.is_alive().then(|| fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok())??;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }

    /// The kernel has begun to take it apart, perhaps its descriptors too: PF_EXITING (include/linux/sched.h) of field 9.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)).and_then(|flags| flags.parse::<u64>().ok());
        flags.is_some_and(|flags| flags & 4 != 0)
    }

    /// It has ended: gone, or a zombie without threads.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).map_or(0, Iterator::count);
        self.state().is_none_or(|state| state == 'Z' && threads <= 1)
    }

    /// `time` is its start, as far as /proc can tell.
    #[must_use]
    pub fn started_at(&self, time: SystemTime) -> bool {
        let Some(boot) = boot_time() else { return false };
        let start = boot + TICK * u32::try_from(self.start_ticks).unwrap_or(u32::MAX);
        let apart = time.duration_since(start).unwrap_or_else(|error| error.duration());
        // One tick each for the start time and for the uptime, and a step of the clock.
        apart < TICK * 4
    }

    /// Descriptors, in any thread, of NVIDIA's files, or of the socket or ring that carries one.
    #[must_use]
    pub fn open_files(&self) -> BTreeSet<i32> {
        let carriers: BTreeSet<i32> = self.held.values().flatten().copied().collect();
        let mut fds = BTreeSet::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten() {
            for entry in fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten() {
                let fd = entry.file_name().to_str().and_then(|name| name.parse().ok());
                let target = fs::read_link(entry.path()).unwrap_or_default();
                let counts = is_nvidia(&target) && !is_path_only(&task.path(), fd);
                let carries = fd.is_some_and(|fd| carriers.contains(&fd)) && is_carrier(&target);
                fds.extend(fd.filter(|_| counts || carries));
            }
        }
        fds
    }
}

fn is_nvidia(target: &Path) -> bool {
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    (target.starts_with(std::env::temp_dir()) || target.starts_with("/dev")) && ["nvidiactl", "nvidia-uvm", "nvidia0"].contains(&name)
}

fn is_carrier(target: &Path) -> bool {
    let target = target.to_string_lossy();
    target.starts_with("socket:") || target.starts_with("anon_inode:[io_uring]")
}

/// fdinfo's flags (octal) have O_PATH: such a descriptor holds nothing.
fn is_path_only(task: &Path, fd: Option<i32>) -> bool {
    let info = fd.and_then(|fd| fs::read_to_string(task.join("fdinfo").join(fd.to_string())).ok()).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim).unwrap_or_default();
    i32::from_str_radix(flags, 8).is_ok_and(|flags| flags & libc::O_PATH != 0)
}

fn ticks(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)).and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no start time")))
}

fn boot_time() -> Option<SystemTime> {
    let read = || {
        let began = Instant::now();
        let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let boot = now.checked_sub(Duration::try_from_secs_f64(uptime).ok()?)?;
        Some((began.elapsed(), UNIX_EPOCH + boot))
    };
    // We can be made to wait between two readings: those that took the shortest time count.
    (0..5).filter_map(|_| read()).min().map(|(_, boot)| boot)
}

/// Reads on a thread, so that there can be a deadline.
fn first_line(stage: &mut Child) -> io::Result<String> {
    let (send, receive) = mpsc::channel();
    let Some(stdout) = stage.stdout.take() else { return Err(io::Error::other("no pipe")) };
    thread::spawn(move || {
        let mut line = String::new();
        let result = BufReader::new(stdout).read_line(&mut line).map(|_| line);
        // The receiver may have given up.
        let _ = send.send(result);
    });
    receive.recv_timeout(DEADLINE).map_err(|_| io::Error::other("the part was not ready in time"))?
}

impl Drop for Play {
    fn drop(&mut self) {
        // The end of its input tells the stage to clear up.
        drop(self.stage.stdin.take());
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline && matches!(self.stage.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        // Failures here mean that it has ended already.
        let _ = self.stage.kill();
        let _ = self.stage.wait();
        for member in self.report.cast.values().filter(|member| !member.has_ended()) {
            let _ = crate::remedy::signal(member.pid, libc::SIGKILL);
        }
    }
}
