//! The stage: starts actors, does to them what the part says, reports who holds what, and clears up at the end.
//!
//! Always true: every wait has a deadline; every process that was started is killed and reaped before the stage
//! ends, identified by PID and start time; what a part changed outside (a cgroup, a mount) is undone.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::actor::{self, say, start_ticks};
use crate::books::Books;
use crate::cgroup::Cgroup;
use crate::gpu;
use crate::sys;

/// How long any one step may take, on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(20);
/// Between two looks at something that cannot be waited for.
const POLL: Duration = Duration::from_millis(2);

/// What an owner allocates without a real GPU: the context of a CUDA program and 2 GiB, as measured on an H200.
pub(crate) const OWNED_MIB: u64 = 2_566;

/// A line from an actor.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Ready { ready: String, pid: u32, start_ticks: u64, held: BTreeMap<String, Vec<RawFd>> },
    Handled { #[expect(dead_code, reason = "the key is the message")] handled: bool },
    Error { error: String },
}

/// A process that said it is ready.
pub(crate) struct Member {
    pub(crate) pid: u32,
    start_ticks: u64,
    held: BTreeMap<String, Vec<RawFd>>,
    /// It cannot tell what it holds.
    silent: bool,
}

/// What a play.rs is: returns when the incident is on, with the books telling NVML's truth.
pub(crate) type Play = fn(&mut Stage) -> io::Result<()>;

/// Undone when the play ends.
type Undo = Box<dyn FnOnce() -> io::Result<()>>;

/// Where a part is played.
pub(crate) struct Stage {
    part: String,
    dir: PathBuf,
    pub(crate) books: Books,
    cast: BTreeMap<String, Member>,
    lines: Receiver<io::Result<Line>>,
    to_us: PipeWriter,
    undo: Vec<Undo>,
    /// Environment variables of CUDA programs.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
    /// Where actors enter the control group that they are started in.
    entrance: Option<PathBuf>,
    skipped: Option<String>,
    facts: BTreeMap<&'static str, Value>,
}

impl Stage {
    pub(crate) fn new(part: &str, dir: &Path, nvml: Option<PathBuf>) -> io::Result<Stage> {
        sys::become_subreaper()?;
        let (from_actors, to_us) = io::pipe()?;
        Ok(Stage {
            part: part.to_owned(),
            dir: dir.to_owned(),
            books: Books::open(nvml)?,
            cast: BTreeMap::new(),
            lines: lines_of(from_actors),
            to_us,
            undo: Vec::new(),
            environment: Vec::new(),
            entrance: None,
            skipped: None,
            facts: BTreeMap::new(),
        })
    }

    /// A path in the stage's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Says why this part cannot be played here.
    pub(crate) fn skip(&mut self, why: impl Into<String>) {
        self.skipped = Some(why.into());
    }

    /// Tells the test one more fact.
    pub(crate) fn fact(&mut self, name: &'static str, value: impl Into<Value>) {
        self.facts.insert(name, value.into());
    }

    /// To be undone at the end, last first, before the actors are killed.
    pub(crate) fn at_end(&mut self, undo: impl FnOnce() -> io::Result<()> + 'static) {
        self.undo.push(Box::new(undo));
    }

    /// From now on actors are started in this control group.
    pub(crate) fn enters(&mut self, group: &Cgroup) {
        self.entrance = Some(group.entrance());
    }

    /// The command that plays `role` as `name` in a program of its own (fork and exec).
    pub(crate) fn command(&self, name: &str, role: &str, args: &[&str]) -> io::Result<Command> {
        let program = std::env::current_exe()?;
        let mut command = match &self.entrance {
            None => Command::new(program),
            Some(entrance) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "echo $$ > \"$1\" && shift && exec \"$@\"", "sh"]).arg(entrance).arg(program);
                shell
            }
        };
        command.args(["play", role, name]).arg(&self.dir).args(args);
        self.direct(&mut command)?;
        Ok(command)
    }

    /// Lets a command's output reach the stage.
    pub(crate) fn direct(&self, command: &mut Command) -> io::Result<()> {
        command.stdin(Stdio::inherit()).stdout(self.to_us.try_clone()?).stderr(Stdio::inherit());
        Ok(())
    }

    /// Starts an actor in a process group of its own, as a shell does with a job, and waits until it is ready.
    pub(crate) fn enter(&mut self, name: &str, role: &str, args: &[&str]) -> io::Result<u32> {
        self.start(name, role, args)?;
        self.meet(&[name])?;
        self.pid(name)
    }

    /// Starts an actor in a process group of its own.
    pub(crate) fn start(&self, name: &str, role: &str, args: &[&str]) -> io::Result<()> {
        // The child is waited for by PID, never through std.
        self.command(name, role, args)?.process_group(0).spawn().map(drop)
    }

    /// Waits until all of `names` are ready.
    pub(crate) fn meet(&mut self, names: &[&str]) -> io::Result<()> {
        let until = Instant::now() + DEADLINE;
        while let Some(missing) = names.iter().find(|name| !self.cast.contains_key(**name)) {
            if let Line::Ready { ready, pid, start_ticks, held } = self.line(until, missing)? {
                self.cast.insert(ready, Member { pid, start_ticks, held, silent: false });
            }
        }
        Ok(())
    }

    /// Waits until an actor's signal handler has run.
    pub(crate) fn meet_handler(&mut self) -> io::Result<()> {
        let until = Instant::now() + DEADLINE;
        while !matches!(self.line(until, "the signal handler")?, Line::Handled { .. }) {}
        Ok(())
    }

    fn line(&mut self, until: Instant, awaited: &str) -> io::Result<Line> {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Ok(Line::Error { error })) => Err(io::Error::other(error)),
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => Err(io::Error::other(format!("{awaited} was not ready in time"))),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the actors' pipe ended")),
        }
    }

    /// PID of an actor.
    pub(crate) fn pid(&self, name: &str) -> io::Result<u32> {
        self.cast.get(name).map(|member| member.pid).ok_or_else(|| io::Error::other(format!("no actor {name}")))
    }

    /// An actor's descriptors that keep `owner`'s memory.
    pub(crate) fn held(&self, name: &str, owner: &str) -> Vec<RawFd> {
        self.cast.get(name).and_then(|member| member.held.get(owner)).cloned().unwrap_or_default()
    }

    /// Adds a process that cannot speak for itself.
    pub(crate) fn cast(&mut self, name: &str, pid: u32) -> io::Result<()> {
        let member = Member { pid, start_ticks: start_ticks(pid)?, held: BTreeMap::new(), silent: true };
        self.cast.insert(name.to_owned(), member);
        Ok(())
    }

    /// "owner" plays `role`, forks or meets `others`, and allocates. Returns its PID.
    pub(crate) fn owner(&mut self, role: &str, args: &[&str], others: &[&str]) -> io::Result<u32> {
        let pid = self.enter("owner", role, args)?;
        self.meet(others)?;
        self.charge("owner", OWNED_MIB)?;
        Ok(pid)
    }

    /// The same, and then the owner is killed and reaped, while `others` live on.
    pub(crate) fn owner_dies(&mut self, role: &str, args: &[&str], others: &[&str]) -> io::Result<()> {
        self.owner(role, args, others)?;
        if self.entrance.is_some() {
            // Only while it lives can anybody read which group it is in.
            std::thread::sleep(Duration::from_secs(1));
        }
        self.kill_and_reap("owner")
    }

    /// The actor allocates on the GPU; `mib` is what a stand-in says of it, a real GPU says itself.
    pub(crate) fn charge(&mut self, name: &str, mib: u64) -> io::Result<()> {
        let pid = self.pid(name)?;
        self.books.charge(name, pid, mib)
    }

    /// Sets a knob of the stand-in for the driver; cleared at the end, before anybody is killed.
    pub(crate) fn knob(&mut self, name: &'static str, value: &str) -> io::Result<()> {
        gpu::knob(name, value)?;
        self.at_end(move || gpu::knob(name, "0"));
        Ok(())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str, signal: i32) -> io::Result<()> {
        sys::kill(self.pid(name)?, signal)
    }

    /// SIGKILL, and waits until it is a zombie of ours, unreaped.
    pub(crate) fn kill(&self, name: &str) -> io::Result<()> {
        self.signal(name, libc::SIGKILL)?;
        self.until_child(name, libc::WEXITED | libc::WNOWAIT)
    }

    /// SIGKILL and reap: what a shell or supervisor does.
    pub(crate) fn kill_and_reap(&self, name: &str) -> io::Result<()> {
        self.kill(name)?;
        self.until_child(name, libc::WEXITED)
    }

    /// SIGKILL to a process that need not be our child, and waits until it has ended, reaped or not.
    pub(crate) fn end(&self, name: &str) -> io::Result<()> {
        let pid = self.pid(name)?;
        self.signal(name, libc::SIGKILL)?;
        until(&format!("{name} to end"), || Ok(matches!(actor::state(pid), None | Some('Z'))))
    }

    /// Waits until our child is in one of the states of `waitid`'s options.
    pub(crate) fn until_child(&self, name: &str, options: i32) -> io::Result<()> {
        let pid = self.pid(name)?;
        until(&format!("{name} to change state"), || sys::wait_child(pid, options))
    }

    /// Prints the report: who is who, who holds what, and what the books say.
    pub(crate) fn report(&self) -> io::Result<()> {
        let cast: BTreeMap<&str, Value> = self.cast.iter()
            .map(|(name, member)| {
                let Member { pid, start_ticks, held, silent } = member;
                (name.as_str(), json!({"pid": pid, "start_ticks": start_ticks, "held": held, "silent": silent}))
            })
            .collect();
        say(&json!({
            "part": self.part, "cast": cast, "bytes": self.books.held(), "skipped": self.skipped, "facts": self.facts,
        }))
    }

    /// Stays until standard input ends, then clears up.
    pub(crate) fn until_end(&mut self) -> io::Result<()> {
        actor::until_end()?;
        self.clear()
    }

    /// Undoes, kills and reaps everything. Goes on after a failure and reports the first.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        while let Some(undo) = self.undo.pop() {
            result = result.and(undo());
        }
        for member in self.cast.values() {
            // A PID that was recycled is not ours.
            if start_ticks(member.pid).is_ok_and(|start| start == member.start_ticks) {
                // It may end by itself meanwhile.
                let _ = sys::kill(member.pid, libc::SIGKILL);
            }
        }
        result.and(until("all actors to end", || {
            while match sys::reap_any() {
                Ok(reaped) => reaped,
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(true),
                Err(error) => return Err(error),
            } {}
            Ok(false)
        }))
    }
}

/// Reads the actors' lines on a thread, so that waiting for one can have a deadline.
fn lines_of(pipe: PipeReader) -> Receiver<io::Result<Line>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let line = line.and_then(|line| {
                serde_json::from_str(&line).map_err(|error| io::Error::other(format!("{line:?}: {error}")))
            });
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

/// Polls until `done`, with a deadline.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while !done()? {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("waited in vain for {what}")));
        }
        thread::sleep(POLL);
    }
    Ok(())
}
