//! The recorder itself is killed, at every stage of its life, and another one is started.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use outlive_tests::host::Host;
use outlive_tests::scenario::Place;

use crate::stage::{Stage, until};
use crate::sys::{mount_debugfs, send};
use crate::watched::{Watched, another_trace, leak, leaked, read};
use crate::rm::Cuda;

const PROBES: &str = "/sys/kernel/debug/kprobes/list";

/// Every kprobe of this kernel.
fn probes() -> String {
    fs::read_to_string(PROBES).unwrap()
}

/// A recorder that writes here, and what it says.
fn start(host: &Host, trace: &Path) -> Child {
    let mut command = host.outlive("record");
    command.args(["--hooks", "driver", "--duration", "300s", "--output"]).arg(trace);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn attached(recorder: &mut Child) {
    let said = BufReader::new(recorder.stderr.take().unwrap());
    let mut lines = said.lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("recording to"))), "it ended before it was attached");
    // Who stops reading would make it block or fail.
    thread::spawn(move || drop(lines.by_ref().last()));
}

fn kill(mut recorder: Child) {
    recorder.kill().unwrap();
    recorder.wait().unwrap();
}

/// What is left of a killed recorder's trace can be read, or it says that there is nothing.
fn is_readable(host: &Host, trace: &PathBuf) {
    if fs::metadata(trace).is_ok_and(|file| file.len() > 0) {
        let ended = read(host, trace);
        assert!(!ended.events.is_empty(), "{} has {} bytes and no event", trace.display(), fs::metadata(trace).unwrap().len());
        return;
    }
    for command in ["explain", "timeline"] {
        let mut run = host.outlive_offline(command);
        if command == "explain" {
            run.arg("--trace");
        }
        let out = run.arg(trace).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        // Exit codes: docs/explanation.md; 1 is a failure, and says of what.
        assert!(out.status.code() == Some(1) && said.contains(&trace.display().to_string()), "{command}: {:?}: {said}", out.status);
    }
}

#[test]
fn killed_at_every_stage() {
    let Some(mut stage) = Stage::take("killed_at_every_stage") else { return };
    let host = Host::take(Place::Driver).unwrap();
    mount_debugfs();
    let before = probes();
    let none_left = |when: &str| until(&format!("no kprobe is left of a recorder that was killed {when}"), || probes() == before);
    let mut count = 0;
    let mut next = || {
        count += 1;
        another_trace(&host, &format!("killed-{count}"))
    };
    for milliseconds in [20, 400, 1_000] {
        let trace = next();
        let recorder = start(&host, &trace);
        thread::sleep(Duration::from_millis(milliseconds));
        kill(recorder);
        none_left("while it started");
        is_readable(&host, &trace);
    }
    let trace = next();
    let mut recorder = start(&host, &trace);
    attached(&mut recorder);
    assert!(probes() != before, "an attached recorder has kprobes, else this test proves nothing");
    kill(recorder);
    none_left("when it was attached");
    is_readable(&host, &trace);
    // Somebody opens and closes all the time.
    let busy = stage.start(|line| {
        line.say(&[])?;
        loop {
            let cuda = Cuda::open()?;
            cuda.malloc(1)?;
            cuda.keep_only(&[]);
            thread::sleep(Duration::from_millis(5));
        }
    });
    let trace = next();
    let mut recorder = start(&host, &trace);
    attached(&mut recorder);
    thread::sleep(Duration::from_millis(1_500));
    kill(recorder);
    none_left("while it wrote");
    is_readable(&host, &trace);
    for milliseconds in [0, 100] {
        let trace = next();
        let mut recorder = start(&host, &trace);
        attached(&mut recorder);
        thread::sleep(Duration::from_millis(300));
        send(recorder.id(), libc::SIGTERM);
        thread::sleep(Duration::from_millis(milliseconds));
        kill(recorder);
        none_left("while it stopped");
        is_readable(&host, &trace);
    }
    stage.kill(busy.pid);
    drop((stage, host));
    // The next one sees everything.
    let mut watched = Watched::begin("killed_at_every_stage").unwrap();
    let (owner, child) = leak(&mut watched.stage);
    watched.until("it leaks", &leaked(owner.pid, child));
    watched.until_recorded("it leaks", &leaked(owner.pid, child));
    watched.ends(&leaked(owner.pid, child));
    none_left("not at all");
}
