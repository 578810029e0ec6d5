//! `cargo xtask bench`: what outlive costs, beside an empty program on the same hooks and what people would use instead.
//!
//! Always true: every figure is measured in this run, alternating between the variants so that drift hits all of them;
//! ratios are what counts; nothing here is a test assertion. Writes `docs/performance.md`.

use crate::run::{output, run, workspace};
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Times that each variant is measured.
const REPEATS: usize = 3;
/// What is attached while a loop runs.
const VARIANTS: [&str; 4] = ["nothing", "floor", "outlive", "bpftrace"];
/// Programs of others that are measured too.
const COMPARED: [&str; 3] = ["bpftrace", "fuser", "lsof"];
/// Loops: name, what it does, iterations per round.
const LOOPS: [(&str, &str, u64); 5] = [
    ("getppid", "a syscall that nobody hooks", 100_000),
    ("ioctl", "an ioctl of a plain file (untraced)", 50_000),
    ("open", "open and close a plain file (untraced)", 10_000),
    ("nvidia", "open and close an NVIDIA file (two traced events)", 5_000),
    ("fork", "fork, exec, exit, wait of a plain process (untraced)", 100),
];

/// Folder of one run: stand-in device nodes and trace files.
struct Bench {
    folder: PathBuf,
    outlive: PathBuf,
    itself: PathBuf,
}

/// Measures everything and writes the table.
///
/// # Errors
/// When not root, or when a tool is missing.
pub(crate) fn bench() -> Result<()> {
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!("the benchmark attaches eBPF programs; run it as root");
    }
    let is_missing = |tool: &&str| output(Command::new("which").arg(tool)).is_err();
    let missing: Vec<&str> = COMPARED.into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        bail!("not installed, and compared with: {}; on Debian: apt-get install bpftrace psmisc lsof", missing.join(", "));
    }
    run(Command::new("cargo").args(["build", "--release", "-p", "outlive"]).current_dir(workspace()))?;
    crate::ebpf::floor()?;
    let bench = Bench::new()?;
    let mut text = String::from(
        "# What outlive costs\n\nWritten by `cargo xtask bench`; every figure comes from that one run. Times are medians; quote the ratios, not \
         the times.\n\n",
    );
    writeln!(text, "Host: {} cores, Linux {}.\n", std::thread::available_parallelism()?, output(Command::new("uname").arg("-r"))?.trim())?;
    bench.hooks(&mut text)?;
    bench.storm(&mut text)?;
    bench.explain(&mut text)?;
    bench.rest(&mut text)?;
    let place = workspace().join("docs/performance.md");
    fs::write(&place, &text).with_context(|| format!("cannot write {}", place.display()))?;
    let _ = fs::remove_dir_all(&bench.folder);
    println!("{text}");
    Ok(())
}

impl Bench {
    fn new() -> Result<Bench> {
        let folder = std::env::temp_dir().join(format!("outlive-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        // Stand-ins: harmless character devices under NVIDIA's names.
        run(Command::new("mknod").arg(folder.join("nvidiactl")).args(["c", "1", "7"]))?;
        Ok(Bench { folder, outlive: workspace().join("target/release/outlive"), itself: std::env::current_exe()? })
    }

    fn devices(&self) -> String {
        format!("{}/nvidia*", self.folder.display())
    }

    /// Starts a variant and waits until it is attached.
    fn attach(&self, variant: &str) -> Result<Option<Running>> {
        let mut command = match variant {
            "nothing" => return Ok(None),
            "floor" => {
                let mut c = Command::new(&self.itself);
                c.arg("floor");
                c
            }
            "outlive" => self.record("bench", &[]),
            _ => {
                // bpftrace wants tracefs below debugfs; give it both without changing the host.
                let mounts = "mount -t debugfs debugfs /sys/kernel/debug; mount -t tracefs tracefs /sys/kernel/debug/tracing; exec bpftrace \"$0\"";
                let mut c = Command::new("unshare");
                c.args(["-m", "sh", "-c", mounts]).arg(workspace().join("xtask/src/bench.bt"));
                c
            }
        };
        let ready = match variant {
            "bpftrace" => "Attaching",
            "floor" => "ready",
            _ => "recording to",
        };
        Ok(Some(Running::start(&mut command, ready)?))
    }

    fn record(&self, name: &str, more: &[&str]) -> Command {
        let trace = self.folder.join(format!("{name}.jsonl.zst"));
        let _ = fs::remove_file(&trace);
        let mut c = Command::new(&self.outlive);
        c.args(["record", "--devices", &self.devices(), "-o"]).arg(trace).args(more);
        c
    }

    fn one(&self, kind: &str, iterations: u64) -> Result<f64> {
        let (kind, path) = if kind == "nvidia" { ("open", self.folder.join("nvidiactl")) } else { (kind, PathBuf::from("/etc/passwd")) };
        let text = output(Command::new(&self.itself).args(["bench-loop", kind, &iterations.to_string()]).arg(path))?;
        let value: serde_json::Value = serde_json::from_str(&text)?;
        value["median_ns"].as_f64().context("the loop printed no figure")
    }

    /// Cost of the hooks to processes that are traced, and to all others.
    fn hooks(&self, text: &mut String) -> Result<()> {
        let mut times = vec![vec![Vec::new(); LOOPS.len()]; VARIANTS.len()];
        for _ in 0..REPEATS {
            for (v, variant) in VARIANTS.iter().enumerate() {
                let running = self.attach(variant)?;
                for (l, (kind, _, iterations)) in LOOPS.iter().enumerate() {
                    times[v][l].push(self.one(kind, *iterations)?);
                }
                if let Some(running) = running {
                    running.stop()?;
                }
            }
        }
        text.push_str(
            "## Hooks\n\nFloor: an empty program on each of the same hooks. bpftrace: `xtask/src/bench.bt`, the same probes counting \
             into maps.\n\n| loop | nothing | floor | outlive | bpftrace | outlive / floor | outlive / bpftrace |\n|---|---|---|---|---|---|---|\n",
        );
        for (l, (_, what, _)) in LOOPS.iter().enumerate() {
            let m: Vec<f64> = (0..VARIANTS.len()).map(|v| median(&mut times[v][l])).collect();
            writeln!(
                text,
                "| {what} | {} | {} | {} | {} | {:.2} | {:.2} |",
                ns(m[0]), ns(m[1]), ns(m[2]), ns(m[3]), m[2] / m[1], m[2] / m[3]
            )?;
        }
        let added = |l: usize, v: usize, times: &mut [Vec<Vec<f64>>]| median(&mut times[v][l]) - median(&mut times[0][l]);
        let nvidia = LOOPS.iter().position(|(kind, _, _)| *kind == "nvidia").context("there is no NVIDIA loop")?;
        let (own, floor) = (added(nvidia, 2, &mut times) / 2.0, added(nvidia, 1, &mut times) / 2.0);
        writeln!(text, "\nAdded per traced event (half of what the NVIDIA loop gained): floor {}, outlive {}.\n", ns(floor), ns(own))?;
        Ok(())
    }

    /// Forks and exits as fast as the machine can, all of them traced; then the trace is read back.
    fn storm(&self, text: &mut String) -> Result<()> {
        let running = Running::start(&mut self.record("storm", &[]), "recording to")?;
        let script = format!("exec 9<'{}/nvidiactl'; i=0; while [ $i -lt 20000 ]; do ( : ) ; i=$((i+1)); done", self.folder.display());
        let began = Instant::now();
        let mut shells = Vec::new();
        for _ in 0..std::thread::available_parallelism()?.get() {
            shells.push(Command::new("dash").arg("-c").arg(&script).spawn().context("cannot start dash")?);
        }
        let forks = 20_000 * shells.len();
        for mut shell in shells {
            shell.wait()?;
        }
        let took = began.elapsed();
        running.stop()?;
        let trace = self.folder.join("storm.jsonl.zst");
        let plain = output(Command::new("zstdcat").arg(&trace)).or_else(|_| output(Command::new("zstd").arg("-dc").arg(&trace)))?;
        let events = plain.lines().count();
        let lost = plain.lines().filter(|l| l.contains("\"lost\":{")).count();
        let seen = plain.lines().filter(|l| l.contains("\"fork\":{")).count();
        let bytes = fs::metadata(&trace)?.len();
        let reading = self.median_time(|| {
            let mut c = Command::new(&self.outlive);
            c.arg("timeline").arg(&trace).args(["--pid", "1"]);
            c
        })?;
        writeln!(
            text,
            "## Fork and exit storm\n\n{forks} traced forks in {:.1} s ({:.0} forks a second on all cores): {seen} fork events, {events} events in all, \
             **{lost} loss reports**. The trace takes {:.1} bytes an event; reading and folding it takes {:.2} s, {:.2} million events a second.\n",
            took.as_secs_f64(),
            forks as f64 / took.as_secs_f64(),
            bytes as f64 / events as f64,
            reading.as_secs_f64(),
            events as f64 / reading.as_secs_f64() / 1e6,
        )?;
        Ok(())
    }

    /// Time of a live explanation on a host with 10,000 processes, beside the tools that people use.
    fn explain(&self, text: &mut String) -> Result<()> {
        let node = self.folder.join("nvidiactl");
        let script = format!(
            "exec 9<'{}'; sleep 600 & exec 9<&-; i=0; while [ $i -lt 10000 ]; do sleep 600 & i=$((i+1)); done; echo ready; wait",
            node.display()
        );
        let crowd = Running::start_on_stdout(Command::new("setsid").args(["dash", "-c", &script]), "ready")?;
        // The last of them are still starting.
        std::thread::sleep(Duration::from_secs(3));
        let explain = self.median_time(|| {
            let mut c = Command::new(&self.outlive);
            c.args(["explain", "--json", "--devices", &self.devices(), "--nvml", "/nonexistent/none"]);
            c
        })?;
        let fuser = self.median_time(|| {
            let mut c = Command::new("fuser");
            c.arg("-v").arg(&node);
            c
        })?;
        let lsof = self.median_time(|| {
            let mut c = Command::new("lsof");
            c.arg(&node);
            c
        })?;
        let _ = Command::new("pkill").args(["-x", "sleep"]).status();
        drop(crowd);
        writeln!(
            text,
            "## A live explanation on a host with 10,000 processes\n\n| command | whole command, ms |\n|---|---|\n| `outlive explain` (without NVML) | {:.0} |\n\
             | `fuser -v` on one node | {:.0} |\n| `lsof` on one node | {:.0} |\n",
            ms(explain), ms(fuser), ms(lsof)
        )?;
        Ok(())
    }

    /// The recorder at rest.
    fn rest(&self, text: &mut String) -> Result<()> {
        let running = Running::start(&mut self.record("rest", &[]), "recording to")?;
        std::thread::sleep(Duration::from_secs(3));
        let before = cpu_ticks(running.child.id())?;
        let span = Duration::from_secs(30);
        std::thread::sleep(span);
        let ticks = cpu_ticks(running.child.id())? - before;
        let status = fs::read_to_string(format!("/proc/{}/status", running.child.id()))?;
        let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or("?").trim().to_owned();
        running.stop()?;
        let hertz: f64 = output(Command::new("getconf").arg("CLK_TCK"))?.trim().parse()?;
        let percent = ticks as f64 / hertz / span.as_secs_f64() * 100.0;
        writeln!(text, "## At rest\n\nOver {} s with no GPU activity: {percent:.2} % of a core, {rss} resident.\n", span.as_secs())?;
        Ok(())
    }

    fn median_time(&self, command: impl Fn() -> Command) -> Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..7 {
            let began = Instant::now();
            command().stdout(Stdio::null()).stderr(Stdio::null()).status().context("cannot start a command to time")?;
            times.push(began.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    }
}

/// A background process that is stopped with SIGINT.
struct Running {
    child: Child,
}

impl Running {
    /// Starts and waits for a line on standard error (outlive) or standard output (others) that contains `ready`.
    fn start(command: &mut Command, ready: &str) -> Result<Running> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(|| format!("cannot start {command:?}"))?;
        let out = child.stdout.take().context("no stdout")?;
        let error = child.stderr.take().context("no stderr")?;
        let (sender, receiver) = std::sync::mpsc::channel();
        for stream in [Box::new(out) as Box<dyn std::io::Read + Send>, Box::new(error)] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(std::result::Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        drop(sender);
        let mut said = String::new();
        while let Ok(line) = receiver.recv_timeout(Duration::from_secs(30)) {
            if line.contains(ready) {
                std::thread::sleep(Duration::from_millis(if ready == "Attaching" { 3000 } else { 200 }));
                return Ok(Running { child });
            }
            said.push_str(&line);
            said.push('\n');
        }
        let _ = child.kill();
        bail!("{command:?} did not get ready: {said}")
    }

    fn start_on_stdout(command: &mut Command, ready: &str) -> Result<Running> {
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut out = child.stdout.take().context("no stdout")?;
        let mut buffer = vec![0; ready.len()];
        out.read_exact(&mut buffer)?;
        Ok(Running { child })
    }

    fn stop(mut self) -> Result<()> {
        run(Command::new("kill").args(["-INT", &self.child.id().to_string()]))?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// utime + stime of a process, clock ticks.
fn cpu_ticks(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(Path::new(&path)).with_context(|| format!("cannot read {path}"))?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Ok(field(11) + field(12))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn ns(value: f64) -> String {
    if value.abs() >= 10_000.0 { format!("{:.1} µs", value / 1000.0) } else { format!("{value:.0} ns") }
}

fn ms(value: Duration) -> f64 {
    value.as_secs_f64() * 1000.0
}
