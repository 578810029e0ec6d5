//! `outlive record`: keeps a trace until stopped.

use super::output;
use crate::cli::{Common, Record};
use crate::event::{Event, What};
use crate::recorder::{Recorder, Sources};
use crate::source::kernel::{Kernel, Options};
use crate::source::kmsg::{self, Kmsg};
use crate::source::nvml::{self, Sampler};
use crate::source::procfs::Proc;
use crate::source::devices::{self, DEFAULT_PATTERN, DevicesError};
use crate::trace::writer::{self, Writer};
use crate::{host, sys};
use anyhow::{Context as _, Result};
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) fn run(args: &Record, common: &Common) -> Result<u8> {
    // Mounting needs a mount namespace of our own, and that must be made before there are threads.
    if let Err(error) = sys::private_tracefs() {
        tracing::warn!("cannot mount tracefs, so no tracepoint can be attached: {error}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the event loop")?;
    runtime.block_on(record(args, common))?;
    Ok(0)
}

async fn record(args: &Record, common: &Common) -> Result<()> {
    // First, so that a stop while the programs are being loaded still leaves a whole trace.
    let mut stops = Stops::catch()?;
    let (sources, opening) = open(common)?;
    let path = args.output.clone().unwrap_or_else(default_path);
    let options = writer::Options { rotate_size: args.rotate_size, keep: args.keep.map(|n| n as usize) };
    let writer = Writer::create(&path, options, &opening)?;
    let first = writer.path().display().to_string();
    // Everything is attached and open. NVML's thread is there already and keeps what root has: the driver's library may have
    // to load the module or make device nodes (nvidia-modprobe) when the driver comes back.
    if let Err(error) = sys::drop_capabilities(sys::WATCHING) {
        tracing::warn!("{error}; recording goes on with all of them");
    }
    let mut recorder = Recorder::new(sources, writer, &opening);
    sys::return_free_memory();
    output::complain(&format!("outlive: recording to {first}; stop with Ctrl-C"));
    if opening.iter().any(|event| matches!(&event.what, What::Header(header) if header.devices.is_empty())) {
        output::complain("outlive: no NVIDIA driver is loaded; recording waits for it");
    }
    let reason = until_stopped(&mut recorder, &mut stops, args.duration).await?;
    recorder.finish(&reason)?;
    // Of a recording that rotates, the name without a number stands for all parts that are left.
    let shown = path.display();
    output::complain(&format!("outlive: stopped ({reason}); `outlive timeline {shown}` and `outlive explain --trace {shown}` read it"));
    Ok(())
}

/// Attaches everything and makes the events that every file begins with.
fn open(common: &Common) -> Result<(Sources, Vec<Event>)> {
    let options = nvml::Options { library: common.nvml.clone(), ..nvml::Options::default() };
    let sampler = Sampler::start(options).context("cannot start a thread for NVML")?;
    let devices = match devices::find(&common.devices) {
        // It may be loaded later, and who opens it first is then known.
        Err(DevicesError::NoMatch { driver_loaded: false, .. }) if common.devices == DEFAULT_PATTERN => Vec::new(),
        found => found?,
    };
    let pattern = Some(common.devices.clone());
    let kmsg = Kmsg::open(kmsg::From::Now);
    let (hooks, xid_tracepoint) = (common.hooks.wanted(), kmsg.is_err());
    let kernel = Kernel::for_watching(Options { hooks, xid_tracepoint, pattern, ..Options::new(devices.clone()) })?;
    let proc = Proc::default();
    let mut opening = vec![host::header(&proc, &kernel, devices, kernel.watching_since())];
    opening.extend(host::limits(&kernel));
    let kmsg = match kmsg {
        Ok(log) => Some(log),
        Err(_) if sees_xid(&kernel) => None,
        Err(error) => {
            opening.push(Event { at: sys::boottime_ns(), what: error.limit() });
            None
        }
    };
    Ok((Sources { kernel, sampler, kmsg, proc }, opening))
}

/// The driver's own tracepoint is there (since driver 575).
fn sees_xid(kernel: &Kernel) -> bool {
    kernel.hooks().iter().any(|hook| hook.attached && hook.name.contains("nvidia_dev_xid"))
}

/// The signals that end a recording.
struct Stops {
    interrupt: Signal,
    terminate: Signal,
    /// `None` under nohup.
    hangup: Option<Signal>,
}

impl Stops {
    fn catch() -> Result<Stops> {
        Ok(Stops {
            // A script's background job starts with SIGINT ignored, and stopping it with `kill -INT` must work all the same.
            interrupt: signal(SignalKind::interrupt()).context("cannot catch SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot catch SIGTERM")?,
            hangup: hangup().context("cannot catch SIGHUP")?,
        })
    }

    /// The name of the next one that comes.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            () = comes(&mut self.hangup) => "SIGHUP",
        }
    }
}

/// SIGHUP stays ignored where our starter ignored it: that is what nohup is for.
fn hangup() -> std::io::Result<Option<Signal>> {
    let kind = SignalKind::hangup();
    if sys::is_ignored(kind.as_raw_value()) { Ok(None) } else { signal(kind).map(Some) }
}

async fn comes(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

async fn until_stopped(recorder: &mut Recorder, stops: &mut Stops, duration: Option<Duration>) -> Result<String> {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let end = tokio::time::sleep(duration.unwrap_or(Duration::from_secs(u64::from(u32::MAX))));
    tokio::pin!(end);
    loop {
        tokio::select! {
            biased;
            signal = stops.next() => return Ok(signal.to_owned()),
            () = &mut end => return Ok("duration is over".to_owned()),
            _ = second.tick() => recorder.tick(),
            stepped = recorder.step() => stepped?,
        }
    }
}

/// "outlive-HOST-2026-12-01T12-03-55Z.jsonl.zst" in the current folder.
fn default_path() -> PathBuf {
    let host = Proc::default().host().hostname;
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(64).collect();
    let time = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string().replace(':', "-");
    PathBuf::from(format!("outlive-{host}-{time}.jsonl.zst"))
}
