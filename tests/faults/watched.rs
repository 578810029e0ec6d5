//! A fault while a recorder watches, and the three things that must hold of every one of them.
//!
//! Always true: [`Watched::ends`] stops the recorder and fails unless it exits with 0, `explain --trace` and `timeline` read what it
//! wrote, and what was true of the running host is said of the trace too; what is asserted of an answer is asked again until a deadline,
//! because a recording lags, but being sure of somebody innocent fails at once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use outlive::event::{Event, What};
use outlive::explanation::{CauseId, Confidence, Explanation, Holding};
use outlive::timeline::Timeline;
use outlive::trace::reader::Reader;
use outlive_tests::host::Host;
use outlive_tests::look::{self, Recorder};
use outlive_tests::scenario::Place;

use crate::rm::Cuda;
use crate::stage::{Line, Process, Stage, spawn};

/// How long a recording may take to tell what is so: it calls nothing stuck at once, and everything is slow in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The recorder writes every second.
const QUIET: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(300);

/// What must be so of an answer; else what is wrong with it.
pub(crate) type Facts<'a> = &'a dyn Fn(&Explanation) -> Result<(), String>;

/// A recorder, the driver and the machine, ours for one test.
pub(crate) struct Watched {
    /// Dropped first: nothing that a test leaves behind keeps it.
    pub(crate) recorder: Recorder,
    pub(crate) stage: Stage,
    pub(crate) host: Host,
}

/// What was written.
pub(crate) struct Ended {
    pub(crate) explanation: Explanation,
    pub(crate) timelines: Vec<Timeline>,
    pub(crate) events: Vec<Event>,
}

impl Watched {
    /// None, and a line that says so, where the stand-in is not loaded.
    pub(crate) fn begin(test: &str) -> Option<Watched> {
        Watched::begin_with(test, "driver")
    }

    /// With these hooks (`--hooks`).
    pub(crate) fn begin_with(test: &str, hooks: &str) -> Option<Watched> {
        let stage = Stage::take(test)?;
        let host = Host::take(Place::Driver).unwrap();
        let recorder = Recorder::start(&host, hooks).unwrap();
        Some(Watched { recorder, stage, host })
    }

    /// Asks of the running host, with the recording's history, until it is so.
    pub(crate) fn until(&self, what: &str, facts: Facts<'_>) -> Explanation {
        until(what, facts, || look::live(&self.host, Some(self.recorder.trace())).unwrap().explanation)
    }

    /// Asks the recording alone until it is so.
    pub(crate) fn until_recorded(&self, what: &str, facts: Facts<'_>) -> Explanation {
        until(what, facts, || look::offline(&self.host, self.recorder.trace()).unwrap().explanation)
    }

    /// What has been recorded so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        events(self.recorder.trace())
    }

    /// Waits until this has been recorded.
    pub(crate) fn until_event(&self, what: &str, is: impl Fn(&What) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.events().iter().any(|event| is(&event.what)) {
            assert!(Instant::now() < deadline, "waited in vain for {what} to be recorded");
            thread::sleep(POLL);
        }
    }

    /// Waits until nothing is written any more: what had happened is recorded.
    pub(crate) fn until_quiet(&self) {
        let length = || std::fs::metadata(self.recorder.trace()).unwrap().len();
        let deadline = Instant::now() + PATIENCE;
        let (mut known, mut since) = (length(), Instant::now());
        while since.elapsed() < QUIET {
            assert!(Instant::now() < deadline, "the recorder writes and writes");
            thread::sleep(POLL);
            let now = length();
            if now != known {
                (known, since) = (now, Instant::now());
            }
        }
    }

    /// The recorder stops in order, and what it wrote can be read and says what is so.
    pub(crate) fn ends(self, facts: Facts<'_>) -> (Ended, Stage, Host) {
        let Watched { recorder, stage, host } = self;
        let trace = recorder.stop().unwrap_or_else(|error| panic!("the recorder did not stop in order: {error}"));
        let ended = read(&host, &trace);
        assert!(ended.events.iter().any(|event| matches!(event.what, What::Stop { .. })), "the trace does not say that it ended");
        if let Err(wrong) = facts(&ended.explanation) {
            panic!("the trace: {wrong}\n{}", told(&ended.explanation));
        }
        (ended, stage, host)
    }
}

/// Reads a trace in every way that a user has.
pub(crate) fn read(host: &Host, trace: &Path) -> Ended {
    let explanation = look::offline(host, trace).unwrap().explanation;
    let text = timeline(host, trace, &[]);
    assert!(text.status.success() && !text.stdout.is_empty(), "outlive timeline: {text:?}");
    let json = timeline(host, trace, &["--json"]);
    let timelines = serde_json::from_slice(&json.stdout).unwrap_or_else(|error| panic!("outlive timeline --json: {error}: {json:?}"));
    Ended { explanation, timelines, events: events(trace) }
}

fn timeline(host: &Host, trace: &Path, options: &[&str]) -> Output {
    host.outlive_offline("timeline").arg(trace).args(options).output().unwrap()
}

/// What a file has, as far as it is whole.
pub(crate) fn events(trace: &Path) -> Vec<Event> {
    Reader::open(trace).unwrap().map_while(Result::ok).collect()
}

fn until(what: &str, facts: Facts<'_>, mut look: impl FnMut() -> Explanation) -> Explanation {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = look();
        match facts(&said) {
            Ok(()) => return said,
            Err(wrong) if Instant::now() > deadline => panic!("{what}: {wrong}\n{}", told(&said)),
            Err(_) => thread::sleep(POLL),
        }
    }
}

/// An answer in short, for who must find out what went wrong.
pub(crate) fn told(said: &Explanation) -> String {
    let holding = |h: &Holding| {
        let evidence: String = h.evidence.iter().map(|e| format!("\n      {}", e.what)).collect();
        format!("  {:?} {:?}: {}{evidence}\n", h.cause, h.confidence, h.summary)
    };
    let holdings: String = said.holdings.iter().map(holding).collect();
    let limits: String = said.limits.iter().map(|limit| format!("  limit: {}\n", limit.missing)).collect();
    format!("{holdings}{limits}")
}

/// What is so of some memory.
pub(crate) struct Held<'a> {
    pub(crate) owner: u32,
    pub(crate) causes: &'a [CauseId],
    /// Who must be named, and nobody else.
    pub(crate) holders: &'a [u32],
    /// Every link was seen, so that nothing may be deduced.
    pub(crate) exact: bool,
}

impl Held<'_> {
    /// It is said of exactly one holding, and no other outlives its owner.
    pub(crate) fn told(&self, said: &Explanation) -> Result<(), String> {
        let outlive: Vec<&Holding> = said.holdings.iter().filter(|h| h.outlives()).collect();
        let [held] = outlive[..] else { return Err(format!("{} holdings outlive their owners, and not one", outlive.len())) };
        self.is(held)
    }

    /// It is this holding.
    pub(crate) fn is(&self, held: &Holding) -> Result<(), String> {
        let owner = held.owner.as_ref().map(|owner| owner.pid);
        let holders: BTreeSet<u32> = held.holders.iter().map(|holder| holder.pid).collect();
        let must: BTreeSet<u32> = self.holders.iter().copied().collect();
        if !self.causes.contains(&held.cause) {
            return Err(format!("the cause is {:?} and not one of {:?}", held.cause, self.causes));
        }
        if owner != Some(self.owner) {
            return Err(format!("the owner is {owner:?} and not {}", self.owner));
        }
        if holders != must {
            return Err(format!("the holders are {holders:?} and not {must:?}"));
        }
        if self.exact && held.confidence != Confidence::Exact {
            return Err(format!("everything was seen, and it is {:?}", held.confidence));
        }
        Ok(())
    }
}

/// An owner that is on its way out has the memory, and nobody else: of its descriptors the kernel may have taken away the last. Memory that only
/// UVM keeps any more is charged to nobody; then the answer says so, and names who releases it.
pub(crate) fn dying(owner: u32, cause: CauseId) -> impl Fn(&Explanation) -> Result<(), String> {
    move |said| {
        let mut outlive = said.holdings.iter().filter(|h| h.outlives());
        let held = outlive.next().ok_or("nothing outlives its owner")?;
        let holders: &[u32] = if held.holders.is_empty() { &[] } else { &[owner] };
        let releases = |text: &str| text.contains("is charged to no process") && text.contains(&format!("(PID {owner})"));
        if held.owner.is_none() && outlive.next().is_none() && held.holders.is_empty() && held.cause == cause && releases(&held.summary) {
            return Ok(());
        }
        Held { owner, causes: &[cause], holders, exact: false }.told(said)
    }
}

/// Nothing outlives its owner.
pub(crate) fn nothing(said: &Explanation) -> Result<(), String> {
    match said.holdings.iter().find(|h| h.outlives()) {
        Some(held) => Err(format!("something outlives its owner: {}", held.summary)),
        None => Ok(()),
    }
}

/// A limit is declared that has these words.
pub(crate) fn declares(said: &Explanation, words: &str) -> bool {
    said.limits.iter().any(|limit| limit.missing.contains(words))
}

/// Where another recorder of the same test writes.
pub(crate) fn another_trace(host: &Host, name: &str) -> PathBuf {
    host.path(&format!("{name}.jsonl.zst"))
}

/// An owner of this much by cudaMalloc.
pub(crate) fn owner(mib: u64) -> impl FnOnce(&mut Line) -> std::io::Result<()> {
    move |line| {
        Cuda::open()?.malloc(mib)?;
        line.say(&[])
    }
}

/// An owner whose child has everything that it opened: its PID is in what was said.
pub(crate) fn owner_with_child(mib: u64) -> impl FnOnce(&mut Line) -> std::io::Result<()> {
    move |line| {
        Cuda::open()?.malloc(mib)?;
        let child = spawn(|child| child.say(&[]))?;
        line.say(&[child.pid])
    }
}

/// The usual leak: an owner dies, and its child keeps everything. Everything of it was seen.
pub(crate) fn leak(stage: &mut Stage) -> (Process, u32) {
    let owner = stage.start(owner_with_child(2_048));
    let child = stage.adopt(owner.said[0]);
    stage.kill(owner.pid);
    (owner, child)
}

/// What must be said of [`leak`].
pub(crate) fn leaked(owner: u32, child: u32) -> impl Fn(&Explanation) -> Result<(), String> {
    move |said| Held { owner, causes: &[CauseId::InheritedDescriptor], holders: &[child], exact: true }.told(said)
}
