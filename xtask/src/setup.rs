//! `cargo xtask setup`: installs what `cargo xtask ebpf` needs, and nothing that is already there.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::ebpf::{BPF_LINKER, in_path, output};

/// A compiler, the sources of `core`, and the LLVM that this compiler uses, with what linking against it needs.
const PACKAGES: &[&str] = &[
    "rustc-web",
    "cargo-web",
    "rust-web-src",
    "llvm-22",
    "llvm-22-dev",
    "libpolly-22-dev",
    "zlib1g-dev",
    "libzstd-dev",
];
const LLVM: &str = "/usr/lib/llvm-22";

/// What `cargo xtask vm` and `driver` need; the kernels' headers want this very compiler, and their tools libelf.
const VM_PACKAGES: &[&str] = &["qemu-system-x86", "busybox-static", "cpio", "make", "gcc-12", "libelf1"];

/// Installs what is missing; with `vm`, also for `cargo xtask vm`.
pub(crate) fn run(vm: bool) -> Result<()> {
    if in_path("apt-get").is_some() {
        packages(PACKAGES)?;
        if vm {
            packages(VM_PACKAGES)?;
        }
    } else {
        nightly()?;
    }
    linker()?;
    println!("ready: `cargo xtask ebpf` can build");
    Ok(())
}

/// Debian's matched set.
fn packages(wanted: &[&'static str]) -> Result<()> {
    let missing: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if missing.is_empty() {
        println!("packages: all installed");
        return Ok(());
    }
    println!("packages: installing {}", missing.join(" "));
    run_as_root(&["apt-get", "update"])?;
    run_as_root(
        &[
            &["apt-get", "install", "--yes", "--no-install-recommends"],
            missing.as_slice(),
        ]
        .concat(),
    )
}

fn is_installed(package: &str) -> bool {
    output(Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]))
        .is_ok_and(|status| status == "installed")
}

/// The usual way elsewhere.
fn nightly() -> Result<()> {
    let components = "rust-src,llvm-tools";
    let arguments = [
        "toolchain",
        "install",
        "nightly",
        "--profile",
        "minimal",
        "--component",
        components,
    ];
    succeed(Command::new("rustup").args(arguments))
}

/// bpf-linker, against Debian's LLVM where that is installed.
fn linker() -> Result<()> {
    let installed =
        in_path("bpf-linker").and_then(|linker| output(Command::new(linker).arg("--version")).ok());
    if installed.is_some_and(|version| version.split_whitespace().any(|word| word == BPF_LINKER)) {
        println!("bpf-linker: {BPF_LINKER} is installed");
        return Ok(());
    }
    println!("bpf-linker: installing {BPF_LINKER} (about a minute)");
    let mut cargo = Command::new("cargo");
    cargo.args([
        "install",
        "bpf-linker",
        "--version",
        BPF_LINKER,
        "--locked",
        "--force",
    ]);
    if Path::new(LLVM).exists() {
        cargo
            .env("LLVM_PREFIX", LLVM)
            .args(["--no-default-features", "--features", "llvm-22"]);
    }
    succeed(&mut cargo)
}

/// Runs a command, with sudo unless this is root already.
fn run_as_root(words: &[&str]) -> Result<()> {
    let root = output(Command::new("id").arg("-u"))?.trim() == "0";
    let words: Vec<&str> = if root {
        words.to_vec()
    } else {
        [&["sudo"], words].concat()
    };
    let (program, arguments) = words.split_first().context("a command has a name")?;
    succeed(Command::new(program).args(arguments))
}

fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name} failed ({status})");
    Ok(())
}
