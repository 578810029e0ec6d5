//! The loops that `cargo xtask bench` times: small, single-threaded, and the same whatever is attached.
//!
//! Always true: a loop prints its best-of-rounds and median nanoseconds per iteration as one JSON line and nothing else.

use anyhow::{Context as _, Result, bail};
use std::fs::File;
use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Instant;

/// Rounds per loop; the median is reported.
const ROUNDS: usize = 15;

/// Runs loop `kind`, each round `iterations` times; `path` is the file that the open loops open.
///
/// # Errors
/// When the kind is not known or a call fails.
pub(crate) fn run(kind: &str, iterations: u64, path: &str) -> Result<()> {
    let mut rounds = Vec::new();
    let body: Box<dyn Fn() -> Result<()>> = match kind {
        // A syscall without any hook: what the mere presence of syscall tracepoints costs.
        "getppid" => Box::new(|| {
            std::hint::black_box(std::os::unix::process::parent_id());
            Ok(())
        }),
        "open" => {
            let path = path.to_owned();
            Box::new(move || File::open(&path).map(drop).with_context(|| format!("cannot open {path}")))
        }
        // Asks for a terminal's settings, which no other file has.
        "ioctl" => {
            let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
            Box::new(move || {
                std::hint::black_box(file.is_terminal());
                Ok(())
            })
        }
        "fork" => Box::new(|| {
            let mut child = Command::new("/bin/true");
            let mut child = child.arg0("true").spawn().context("cannot start /bin/true")?;
            child.wait().context("cannot wait")?;
            Ok(())
        }),
        _ => bail!("no loop named {kind}"),
    };
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..iterations {
            body()?;
        }
        rounds.push(began.elapsed().as_nanos() as f64 / iterations as f64);
    }
    rounds.sort_by(f64::total_cmp);
    println!("{}", serde_json::json!({ "median_ns": rounds[ROUNDS / 2], "best_ns": rounds[0] }));
    Ok(())
}
