//! `cargo xtask tidy`: house rules that the compiler does not know.
//!
//! Always true: each rule is one function from a file to complaints, and each complaint says what to do.

use crate::run::workspace;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines that a source file may have.
const FILE_MAX: usize = 600;
/// Modules of the pure core, and words that have no business there.
const PURE: [&str; 8] =
    ["event.rs", "world", "cause", "explanation.rs", "snapshot.rs", "timeline.rs", "report", "timeline"];
const IMPURE: [&str; 7] =
    ["std::fs", "std::process", "std::net", "SystemTime::now", "Instant::now", "aya::", "nvml_wrapper"];

/// Checks the whole workspace.
///
/// # Errors
/// Lists every complaint.
pub(crate) fn tidy() -> Result<()> {
    let root = workspace();
    let mut files = Vec::new();
    for folder in ["tracer", "tracer-ebpf", "xtask", "tests"] {
        rust_files(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut complaints = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(file);
        complaints.extend(module_doc(name, &text));
        complaints.extend(length(name, &text));
        complaints.extend(purity(name, &text));
    }
    if fs::read(root.join(crate::man::PLACE)).ok() != Some(crate::man::page()?) {
        complaints.push(format!("{}: not what --help says; run `cargo xtask man`", crate::man::PLACE));
    }
    println!("tidy: {} files, {} complaints", files.len(), complaints.len());
    if complaints.is_empty() { Ok(()) } else { bail!("{}", complaints.join("\n")) }
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn module_doc(name: &Path, text: &str) -> Option<String> {
    let first = text.lines().find(|l| !l.is_empty() && !l.starts_with("#!["))?;
    (!first.starts_with("//!")).then(|| format!("{}: begin with `//!`: what the module is for and what always holds", name.display()))
}

fn length(name: &Path, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > FILE_MAX).then(|| format!("{}: {lines} lines; split it below {FILE_MAX}", name.display()))
}

fn purity(name: &Path, text: &str) -> Vec<String> {
    let Ok(inside) = name.strip_prefix("tracer/src") else { return Vec::new() };
    let first = inside.iter().next().and_then(|p| p.to_str()).unwrap_or_default();
    if !PURE.contains(&first) && !PURE.iter().any(|p| first.strip_suffix(".rs") == Some(p)) {
        return Vec::new();
    }
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    IMPURE
        .iter()
        .filter(|word| code.contains(**word))
        .map(|word| format!("{}: uses {word}; the core has no I/O and no clock, move it to `source`", name.display()))
        .collect()
}
