//! `cargo xtask floor`: attaches an empty program to each hook of `outlive record` until stopped. For the benchmark.
//!
//! Always true: attaches the same list in the same way as the recorder, and nothing else.

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::programs::{RawTracePoint, TracePoint};

/// Programs on raw tracepoints; every other program is on a tracepoint.
const RAW: [&str; 6] =
    ["sched_process_fork", "sched_process_exec", "sched_process_exit", "sched_process_free", "signal_generate", "signal_deliver"];

/// Attaches, says so on standard output, and waits to be killed.
///
/// # Errors
/// When a program does not load or attach.
pub(crate) fn run() -> Result<()> {
    outlive::sys::private_tracefs().context("cannot mount tracefs")?;
    let object = std::fs::read(crate::run::workspace().join("target/bpf/outlive-floor.o")).context("run `cargo xtask bench`, which builds it")?;
    let mut ebpf = Ebpf::load(&object).context("the floor object does not load")?;
    for (name, program) in ebpf.programs_mut() {
        if RAW.contains(&name) {
            let program: &mut RawTracePoint = program.try_into()?;
            program.load()?;
            program.attach(name)?;
        } else {
            let category = if name == "mark_victim" { "oom" } else { "syscalls" };
            let program: &mut TracePoint = program.try_into()?;
            program.load()?;
            program.attach(category, name)?;
        }
    }
    println!("ready");
    loop {
        std::thread::park();
    }
}
