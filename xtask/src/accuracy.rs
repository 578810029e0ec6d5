//! `cargo xtask accuracy`: plays every scenario here and in the guests, and writes docs/accuracy.md.
//!
//! Always true: what a GPU host said comes from docs/accuracy/h200.jsonl, which tests/gpu/accuracy.sh wrote there; every other cell
//! was seen in this run.

use crate::run::{output, run, workspace};
use crate::vm::Kernel;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A guest under software emulation takes this long at most.
const PATIENCE: Duration = Duration::from_secs(2_400);

/// Plays the scenarios in `only` (all when empty), at the places in `at` ("here", "6.1", "6.12"; all when empty). The page is written
/// when both are empty.
///
/// # Errors
/// When something cannot be built or played, or when outlive is wrong about a scenario.
pub(crate) fn accuracy(only: &[String], at: &[String]) -> Result<()> {
    run(Command::new("cargo").args(["build", "--workspace", "--bins", "--lib"]).current_dir(workspace()))?;
    let program = workspace().join("target/debug/accuracy");
    let folder = workspace().join("target/accuracy");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    if at.is_empty() || at.iter().any(|place| place == "here") {
        println!("here:");
        let out = folder.join("here.jsonl");
        let mut here = Command::new(&program);
        here.args(["play", "--rivals", "--out"]).arg(&out).args(only);
        if run(&mut here).is_err() {
            wrong.push("here".to_owned());
        }
        files.push(out);
    }
    let kernels = crate::vm::kernels(at)?;
    let out = |kernel: &Kernel| folder.join(format!("guest-{}.jsonl", kernel.name));
    if !kernels.is_empty() {
        println!("guests (software emulation, at the same time; some minutes):");
    }
    let results = crate::vm::at_once(&kernels, |kernel| in_guest(kernel, &program, only, &out(kernel)));
    for (kernel, result) in kernels.iter().zip(results) {
        println!("guest {}:\n{}", kernel.name, said(kernel));
        if let Err(error) = result {
            println!("guest {}: {error:#}", kernel.name);
            wrong.push(format!("guest {}", kernel.name));
        }
        files.push(out(kernel));
    }
    if only.is_empty() && at.is_empty() {
        files.push(workspace().join("docs/accuracy/h200.jsonl"));
        write_page(&program, &files)?;
    }
    if wrong.is_empty() { Ok(()) } else { bail!("outlive is wrong about a scenario: {}; see above", wrong.join(", ")) }
}

fn in_guest(kernel: &Kernel, program: &Path, only: &[String], out: &Path) -> Result<()> {
    let play = format!("stty -F /dev/ttyS1 raw; '{}' play --with driver --rivals --out /dev/ttyS1 {} || status=1\n", program.display(), only.join(" "));
    let play = format!("{}{play}{}", crate::driver::LOAD, crate::driver::UNLOAD);
    crate::vm::boot(kernel, &[program.to_owned()], &play, PATIENCE, Some(out)).map(drop)
}

/// What the guest said of each scenario, from its console.
fn said(kernel: &Kernel) -> String {
    let log = fs::read(workspace().join(format!("target/vm/console-{}.log", kernel.name))).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines = log.lines().filter(|line| line.contains(" s  ") || line.starts_with("    "));
    lines.collect::<Vec<_>>().join("\n")
}

fn write_page(program: &Path, files: &[PathBuf]) -> Result<()> {
    let files = files.iter().filter(|file| file.exists());
    let page = output(Command::new(program).arg("table").args(files))?;
    let place = workspace().join("docs/accuracy.md");
    fs::write(&place, page).with_context(|| format!("cannot write {}", place.display()))?;
    println!("wrote {}", place.display());
    Ok(())
}
