//! Running `outlive`: live, with and without a recording's history, and on trace files as an unprivileged user.
//!
//! Always true: every run has a deadline, and its output is the documented JSON or an error that quotes it.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use outlive::explanation::Explanation;

use crate::host::Host;
use crate::remedy::signal;

const DEADLINE: Duration = Duration::from_secs(30);
/// Verifying and attaching some 45 programs takes an emulated machine ten seconds, and several times that when its host has no time for it.
const ATTACHED: Duration = Duration::from_secs(90);
/// "nobody" on every distribution that has one.
const NOBODY: u32 = 65_534;

/// What `outlive explain` answered.
pub struct Look {
    /// The JSON.
    pub explanation: Explanation,
    /// The verdict.
    pub exit_code: Option<i32>,
    /// How long the whole command took.
    pub took: Duration,
}

/// Explains the running host, perhaps with the history of a recording.
///
/// # Errors
/// When outlive fails.
pub fn live(host: &Host, history: Option<&Path>) -> io::Result<Look> {
    let mut command = host.outlive("explain");
    command.arg("--json");
    if let Some(history) = history {
        command.arg("--history").arg(history);
    }
    look(host, command)
}

/// Explains a copy of a trace file as a user who may do nothing.
///
/// # Errors
/// When outlive fails.
pub fn offline(host: &Host, trace: &Path) -> io::Result<Look> {
    offline_at(host, trace, None)
}

/// The same, of a moment in the trace instead of its end.
///
/// # Errors
/// When outlive fails.
pub fn offline_at(host: &Host, trace: &Path, at: Option<SystemTime>) -> io::Result<Look> {
    let copy = host.path("copy.jsonl.zst");
    fs::copy(trace, &copy)?;
    fs::set_permissions(&copy, Permissions::from_mode(0o644))?;
    let mut command = host.outlive_offline("explain");
    // std drops the supplementary groups with the user id.
    command.uid(NOBODY).gid(NOBODY).arg("--json").arg("--trace").arg(&copy);
    if let Some(at) = at {
        command.arg("--at").arg(humantime::format_rfc3339_nanos(at).to_string());
    }
    look(host, command)
}

fn look(host: &Host, mut command: Command) -> io::Result<Look> {
    let began = Instant::now();
    let (out, err) = (host.path("stdout"), host.path("stderr"));
    let mut child = command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?).spawn()?;
    let status = end(&mut child)?;
    let took = began.elapsed();
    let json = fs::read_to_string(out)?;
    let explanation = serde_json::from_str(&json).map_err(|error| {
        let said = fs::read_to_string(err).unwrap_or_default();
        io::Error::other(format!("{command:?}: {status}, {error}\n{json}\n{said}"))
    })?;
    Ok(Look { explanation, exit_code: status.code(), took })
}

/// Waits for a child with a deadline; kills it when that is over.
fn end(child: &mut Child) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("outlive did not end within {DEADLINE:?}")));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// A running `outlive record`.
pub struct Recorder {
    child: Child,
    trace: PathBuf,
    ready: mpsc::Receiver<Result<(), String>>,
}

impl Recorder {
    /// Starts it with these hooks ("auto", "driver", "syscall") and waits until it is attached.
    ///
    /// # Errors
    /// When it fails to start.
    pub fn start(host: &Host, hooks: &str) -> io::Result<Recorder> {
        let recorder = Recorder::begin(host, hooks)?;
        recorder.await_attached()?;
        Ok(recorder)
    }

    /// Starts it and does not wait: most of what several of them wait for is the same.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin(host: &Host, hooks: &str) -> io::Result<Recorder> {
        let trace = host.path(&format!("{hooks}.jsonl.zst"));
        let mut command = host.outlive("record");
        // Should the test be killed, the recorder still ends.
        command.args(["--hooks", hooks, "--duration", "300s"]);
        command.arg("--output").arg(&trace).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stderr = child.stderr.take();
        let (send, ready) = mpsc::channel();
        thread::spawn(move || said_until(stderr, "recording to", &send));
        Ok(Recorder { child, trace, ready })
    }

    /// Waits until it is attached.
    ///
    /// # Errors
    /// When it fails to start.
    pub fn await_attached(&self) -> io::Result<()> {
        match self.ready.recv_timeout(ATTACHED) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(said)) => Err(io::Error::other(format!("outlive record failed: {said}"))),
            Err(_) => Err(io::Error::other("outlive record was not ready in time")),
        }
    }

    /// The file that it writes.
    #[must_use]
    pub fn trace(&self) -> &Path {
        &self.trace
    }

    /// Makes it stand still until what is returned is dropped.
    ///
    /// # Errors
    /// When it has ended.
    pub fn freeze(&self) -> io::Result<Frozen> {
        signal(self.child.id(), libc::SIGSTOP)?;
        Ok(Frozen(self.child.id()))
    }

    /// Stops it in order and returns the trace.
    ///
    /// # Errors
    /// When it does not stop cleanly.
    pub fn stop(self) -> io::Result<PathBuf> {
        self.ask_to_stop()?;
        self.await_stopped()
    }

    /// Asks it to stop, and does not wait.
    ///
    /// # Errors
    /// When it has ended.
    pub fn ask_to_stop(&self) -> io::Result<()> {
        signal(self.child.id(), libc::SIGTERM)
    }

    /// Waits until it has stopped and returns the trace.
    ///
    /// # Errors
    /// When it does not stop cleanly.
    pub fn await_stopped(mut self) -> io::Result<PathBuf> {
        let status = end(&mut self.child)?;
        if status.success() { Ok(self.trace.clone()) } else { Err(io::Error::other(format!("outlive record: {status}"))) }
    }
}

/// A recorder that stands still.
pub struct Frozen(u32);

impl Drop for Frozen {
    fn drop(&mut self) {
        // It is our child and not reaped: the PID is its own.
        let _ = signal(self.0, libc::SIGCONT);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Failures here mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a child's messages until one contains `mark`; goes on reading so that it never blocks.
fn said_until(stderr: Option<impl Read>, mark: &str, tell: &mpsc::Sender<Result<(), String>>) {
    let mut said = String::new();
    for line in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()).map_while(Result::ok) {
        if line.contains(mark) {
            // The receiver may have given up.
            let _ = tell.send(Ok(()));
        }
        said.push_str(&line);
        said.push('\n');
    }
    let _ = tell.send(Err(said));
}

/// A look that says one thing only: a holding, as JSON.
#[cfg(test)]
pub(crate) fn told(holding: &str) -> Look {
    let json = format!(
        r#"{{"schema": "", "taken_at": "", "host": {}, "covers": {}, "gpus": [], "holdings": [{holding}], "zombies": [], "limits": []}}"#,
        serde_json::to_string(&outlive::explanation::HostPart::default()).unwrap(),
        serde_json::to_string(&outlive::explanation::Covers::default()).unwrap(),
    );
    Look { explanation: serde_json::from_str(&json).unwrap(), exit_code: Some(3), took: Duration::ZERO }
}
