//! `cargo xtask accuracy`: plays every scenario here and in the guests, and writes docs/accuracy.md.
//!
//! Always true: what was seen at each place is kept in docs/accuracy/PLACE.jsonl, one outcome a line, and the page is made of these files
//! alone; a scenario that is played again replaces its own line.

use crate::matrix::Outcomes;
use crate::run::{output, run, workspace};
use crate::vm::{Errand, Kernel};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A guest under software emulation takes this long at most.
const PATIENCE: Duration = Duration::from_secs(2_400);
/// Places, in the order of the page's columns. What a GPU host said comes with `--add`.
const PLACES: [&str; 4] = ["here", "guest-6.1", "guest-6.12", "h200"];

/// Plays the scenarios in `only` (all when empty), at the places in `at` ("here", "6.1", "6.12"; all when empty), or plays none and adds the
/// outcomes of other hosts in `add`. Writes the page.
///
/// # Errors
/// When something cannot be built or played, or when outlive is wrong about a scenario.
pub(crate) fn accuracy(only: &[String], at: &[String], add: &[PathBuf]) -> Result<()> {
    let program = crate::vm::optimised()?;
    let mut wrong = Vec::new();
    for file in add {
        let place = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if !PLACES.contains(&place) {
            bail!("{} is named for none of the places {PLACES:?}", file.display());
        }
        keep(file, place, false)?;
    }
    if add.is_empty() {
        wrong = play(&program, only, at)?;
    }
    let files = PLACES.map(kept).into_iter().filter(|file| file.exists());
    let page = output(Command::new(&program).arg("table").args(files))?;
    let place = workspace().join("docs/accuracy.md");
    fs::write(&place, page).with_context(|| format!("cannot write {}", place.display()))?;
    println!("wrote {}", place.display());
    if wrong.is_empty() { Ok(()) } else { bail!("outlive is wrong about a scenario: {}; see above", wrong.join(", ")) }
}

/// Returns the places where something was wrong.
fn play(program: &Path, only: &[String], at: &[String]) -> Result<Vec<String>> {
    let folder = workspace().join("target/accuracy");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut wrong = Vec::new();
    if at.is_empty() || at.iter().any(|place| place == "here") {
        println!("here:");
        let out = folder.join("here.jsonl");
        let mut here = Command::new(program);
        here.args(["play", "--rivals", "--out"]).arg(&out).args(only);
        if run(&mut here).is_err() {
            wrong.push("here".to_owned());
        }
        keep(&out, "here", only.is_empty())?;
    }
    let guests: Vec<String> = at.iter().filter(|place| *place != "here").cloned().collect();
    if at.is_empty() || !guests.is_empty() {
        println!("guests (software emulation, at the same time; a quarter of an hour for all scenarios):");
        let kernels = crate::vm::kernels(&guests)?;
        let out = |kernel: &Kernel| folder.join(format!("guest-{}.jsonl", kernel.name));
        let results = crate::vm::at_once(&kernels, |kernel| in_guest(kernel, program, only, &out(kernel)));
        for (kernel, result) in kernels.iter().zip(results) {
            println!("guest {}:\n{}", kernel.name, said(kernel));
            if let Err(error) = result {
                println!("guest {}: {error:#}", kernel.name);
                wrong.push(format!("guest {}", kernel.name));
            }
            keep(&out(kernel), &format!("guest-{}", kernel.name), only.is_empty())?;
        }
    }
    Ok(wrong)
}

fn in_guest(kernel: &Kernel, program: &Path, only: &[String], out: &Path) -> Result<()> {
    let (programs, commands) = ([program.to_owned()], guest_lines(program, only, true));
    crate::vm::boot(kernel, &Errand { programs: &programs, commands: &commands, patience: PATIENCE, out: Some(out), counted: false })?;
    let wrong = Outcomes::read(out, &crate::matrix::expected(program, "driver", only)?)?.wrong();
    if wrong.is_empty() { Ok(()) } else { bail!("wrong: {}", wrong.join(", ")) }
}

/// What a guest runs to play these scenarios (all when empty), writing the outcomes to its second serial port: [`Outcomes`] reads them.
pub(crate) fn guest_lines(program: &Path, only: &[String], rivals: bool) -> String {
    let rivals = if rivals { "--rivals" } else { "" };
    let play = format!("stty -F /dev/ttyS1 raw; '{}' play --with driver {rivals} --out /dev/ttyS1 {}\n", program.display(), only.join(" "));
    format!("{}{play}{}", crate::driver::LOAD, crate::driver::UNLOAD)
}

/// What the guest said of each scenario, from its console.
fn said(kernel: &Kernel) -> String {
    let log = fs::read(workspace().join(format!("target/vm/console-{}.log", kernel.name))).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines = log.lines().filter(|line| line.contains(" s  ") || line.starts_with("    "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Where the outcomes of a place are kept.
fn kept(place: &str) -> PathBuf {
    workspace().join("docs/accuracy").join(format!("{place}.jsonl"))
}

/// Adds new outcomes to those of a place; `all`: they are all that there are.
fn keep(new: &Path, place: &str, all: bool) -> Result<()> {
    let file = kept(place);
    let mut lines = BTreeMap::new();
    let old = if all { String::new() } else { fs::read_to_string(&file).unwrap_or_default() };
    let new = fs::read_to_string(new).with_context(|| format!("cannot read {}", new.display()))?;
    for line in old.lines().chain(new.lines()) {
        let outcome: serde_json::Value = serde_json::from_str(line).with_context(|| format!("not an outcome: {line:.80}"))?;
        let name = outcome["name"].as_str().context("an outcome has a name")?.to_owned();
        lines.insert(name, line.to_owned());
    }
    let text: String = lines.into_values().map(|line| line + "\n").collect();
    fs::create_dir_all(workspace().join("docs/accuracy"))?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}
