//! Actors that are programs of their own: CUDA programs (tests/gpu), for what takes more than an allocation.
//!
//! Always true: such a program prints one line of JSON when it is ready (`owner`, `other`, `all`: PIDs; `mib`: what the owner's
//! memory comes to, where it knows), and then waits to be killed.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use crate::stage::Stage;

/// The folder of the built program `scenarios`, and of the Python ones.
const FOLDER: &str = "OUTLIVE_CUDA_PROGRAMS";
/// A CUDA start, PyTorch's import and 40 GiB of pinned memory take this long at most.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Deserialize)]
struct Line {
    owner: Option<u32>,
    other: Option<u32>,
    #[serde(default)]
    all: Vec<u32>,
    mib: Option<u64>,
    skip: Option<String>,
}

impl Stage {
    /// Starts a program and casts "owner" and perhaps "other"; many others are "other-1", "other-2" and so on. False: it cannot be
    /// played here.
    pub(crate) fn cuda(&mut self, words: &[&str]) -> io::Result<bool> {
        let Some(folder) = std::env::var_os(FOLDER) else {
            self.skip(format!("needs the programs of tests/gpu, built; {FOLDER} names their folder"));
            return Ok(false);
        };
        let folder = std::path::PathBuf::from(folder);
        let (first, rest) = words.split_first().ok_or_else(|| io::Error::other("no program"))?;
        let mut command = if first.ends_with(".py") { Command::new("python3") } else { Command::new(folder.join("scenarios")) };
        if first.ends_with(".py") { command.arg(folder.join(first)) } else { command.arg(first) };
        command.args(rest).current_dir(self.path("")).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        let mut child = command.spawn()?;
        let line = first_line(child.stdout.take())?;
        let line: Line = serde_json::from_str(&line).map_err(|error| io::Error::other(format!("{first} said {line:?}: {error}")))?;
        if let Some(why) = line.skip {
            self.skip(why);
            return Ok(false);
        }
        let owner = line.owner.ok_or_else(|| io::Error::other("no owner"))?;
        self.cast("owner", owner)?;
        if let Some(other) = line.other.filter(|other| *other != 0) {
            self.cast("other", other)?;
        }
        for (number, pid) in (1..).zip(line.all) {
            self.cast(&format!("other-{number}"), pid)?;
        }
        match line.mib {
            Some(mib) => self.books.know("owner", owner, mib),
            None => self.charge("owner", 0)?,
        }
        Ok(true)
    }
}

/// Reads on a thread, so that there can be a deadline.
fn first_line(stdout: Option<ChildStdout>) -> io::Result<String> {
    let stdout = stdout.ok_or_else(|| io::Error::other("no pipe"))?;
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let mut reader = BufReader::new(stdout);
        let result = reader.read_line(&mut line).map(|_| line);
        // The receiver may have given up.
        let _ = send.send(result);
        // The pipe stays open: a program that says more must not die of it.
        let _ = io::copy(&mut reader, &mut io::sink());
    });
    receive.recv_timeout(PATIENCE).map_err(|_| io::Error::other("the program was not ready in time"))?
}

/// An MPS control daemon of our own.
pub(crate) struct Mps {
    pipe: std::path::PathBuf,
}

const MPS_CONTROL: &str = "nvidia-cuda-mps-control";

impl Mps {
    /// Starts it; CUDA programs that are started later are its clients. None: not installed, and the stage knows.
    pub(crate) fn start(stage: &mut Stage) -> io::Result<Option<Mps>> {
        let (pipe, log) = (stage.path("mps"), stage.path("mps-log"));
        std::fs::create_dir_all(&pipe)?;
        std::fs::create_dir_all(&log)?;
        stage.environment = vec![("CUDA_MPS_PIPE_DIRECTORY", pipe.clone()), ("CUDA_MPS_LOG_DIRECTORY", log.clone())];
        let mut command = Command::new(MPS_CONTROL);
        // Not captured: the daemon would keep the pipe open.
        command.arg("-d").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("CUDA_MPS_PIPE_DIRECTORY", &pipe).env("CUDA_MPS_LOG_DIRECTORY", &log);
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(io::Error::other(format!("{MPS_CONTROL} -d: {status}"))),
            Err(error) => {
                stage.skip(format!("{MPS_CONTROL}: {error}"));
                return Ok(None);
            }
        }
        let mps = Mps { pipe: pipe.clone() };
        stage.at_end(move || Mps { pipe }.ask("quit -t 1").map(drop));
        let daemon = std::fs::read_to_string(mps.pipe.join(format!("{MPS_CONTROL}.pid"))).ok().and_then(|pid| pid.trim().parse().ok());
        if let Some(daemon) = daemon {
            stage.cast("daemon", daemon)?;
        }
        Ok(Some(mps))
    }

    /// PID of the server that it started for its first client.
    pub(crate) fn server(&self) -> io::Result<u32> {
        let list = self.ask("get_server_list")?;
        list.split_whitespace().find_map(|pid| pid.parse().ok()).ok_or_else(|| io::Error::other(format!("{MPS_CONTROL} knows no server: {list:?}")))
    }

    fn ask(&self, words: &str) -> io::Result<String> {
        let mut command = Command::new(MPS_CONTROL);
        command.env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            io::Write::write_all(&mut stdin, format!("{words}\n").as_bytes())?;
        }
        Ok(String::from_utf8_lossy(&child.wait_with_output()?.stdout).into_owned())
    }
}
