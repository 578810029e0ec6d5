//! `cargo xtask ebpf`: builds the programs of tracer-ebpf into tracer/ebpf/outlive.bpf.o.
//!
//! Always true: with one toolchain the object is the same, byte for byte, wherever the checkout, the home directory and
//! the toolchain lie (paths are remapped, nothing else is read); so CI can prove that the committed object is what the
//! source builds. The toolchain that built it is written beside it.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

/// The version of bpf-linker that is used everywhere.
pub(crate) const BPF_LINKER: &str = "0.13.0";
/// Where Debian puts the compiler that matches its llvm-22.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const OBJECT: &str = "tracer/ebpf/outlive.bpf.o";
const TOOLCHAIN: &str = "tracer/ebpf/outlive.bpf.toolchain";
const TARGET: &str = "bpfel-unknown-none";

/// Builds the object; with `check`, compares instead of replacing.
pub(crate) fn run(check: bool) -> Result<()> {
    let root = root()?;
    let toolchain = Toolchain::find()?;
    let description = toolchain.describe()?;
    if check {
        same_toolchain(&root, &description)?;
    }
    let built = build(&root, &toolchain, "outlive-bpf")?;
    let object = root.join(OBJECT);
    if check {
        let committed =
            fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
        ensure!(
            committed == built,
            "{OBJECT} ({} bytes) is not what the source builds ({} bytes): run `cargo xtask ebpf` and commit the result",
            committed.len(),
            built.len()
        );
        println!(
            "{OBJECT}: {} bytes, the same as the source builds",
            built.len()
        );
        return Ok(());
    }
    write(&object, &built)?;
    write(&root.join(TOOLCHAIN), description.as_bytes())?;
    println!(
        "{OBJECT}: {} bytes\n{}",
        built.len(),
        description.trim_end()
    );
    Ok(())
}

/// Builds the empty programs of the benchmark's floor; they are not committed.
pub(crate) fn floor() -> Result<Vec<u8>> {
    build(&root()?, &Toolchain::find()?, "outlive-floor")
}

/// The workspace that this program was built from.
fn root() -> Result<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(package
        .parent()
        .context("xtask lies in the workspace")?
        .to_owned())
}

/// Only the toolchain that built the committed object can be expected to build the same bytes.
fn same_toolchain(root: &Path, here: &str) -> Result<()> {
    let path = root.join(TOOLCHAIN);
    let recorded =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        recorded == here,
        "cannot compare: {OBJECT} was built by\n{}\nbut here is\n{}\nInstall the former (`cargo xtask setup` on Debian) and try again.",
        indent(&recorded),
        indent(here)
    );
    Ok(())
}

fn indent(text: &str) -> String {
    text.trim_end()
        .lines()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// A compiler with the sources of `core`, and the linker and objcopy to go with it.
struct Toolchain {
    cargo: PathBuf,
    rustc: PathBuf,
    sysroot: PathBuf,
    linker: PathBuf,
    objcopy: PathBuf,
}

impl Toolchain {
    /// Debian's, else rustup's nightly; or an error that says what to install.
    fn find() -> Result<Toolchain> {
        let Some((cargo, rustc, sysroot)) = debian().or_else(nightly) else {
            bail!(
                "no compiler with the sources of `core` was found: {}",
                how_to_install()
            );
        };
        let linker = in_path("bpf-linker")
            .with_context(|| format!("bpf-linker was not found: {}", how_to_install()))?;
        let objcopy = objcopy(&sysroot).with_context(|| {
            format!(
                "neither llvm-objcopy nor rustup's llvm-tools was found: {}",
                how_to_install()
            )
        })?;
        Ok(Toolchain {
            cargo,
            rustc,
            sysroot,
            linker,
            objcopy,
        })
    }

    /// What decides about the bytes of the object, one line each.
    fn describe(&self) -> Result<String> {
        let rustc = output(Command::new(&self.rustc).arg("--version").arg("--verbose"))?;
        let line = |prefix: &str| {
            rustc
                .lines()
                .find(|line| line.starts_with(prefix))
                .unwrap_or_default()
                .to_owned()
        };
        let linker = output(Command::new(&self.linker).arg("--version"))?;
        Ok(format!(
            "{}\n{}\n{}\n",
            line("rustc "),
            line("LLVM version"),
            linker.trim()
        ))
    }
}

fn how_to_install() -> String {
    format!(
        "run `cargo xtask setup`, or install rustup's nightly with rust-src and llvm-tools and `cargo install bpf-linker --version {BPF_LINKER}`"
    )
}

/// Debian's rustc-web, cargo-web and rust-web-src.
fn debian() -> Option<(PathBuf, PathBuf, PathBuf)> {
    let (cargo, rustc) = (PathBuf::from(DEBIAN_CARGO), PathBuf::from(DEBIAN_RUSTC));
    let sysroot = sysroot(&rustc)?;
    (cargo.exists() && has_core_source(&sysroot)).then_some((cargo, rustc, sysroot))
}

/// rustup's nightly with rust-src.
fn nightly() -> Option<(PathBuf, PathBuf, PathBuf)> {
    let which = |tool| {
        let path =
            output(Command::new("rustup").args(["which", "--toolchain", "nightly", tool])).ok()?;
        Some(PathBuf::from(path.trim()))
    };
    let (cargo, rustc) = (which("cargo")?, which("rustc")?);
    let sysroot = sysroot(&rustc)?;
    has_core_source(&sysroot).then_some((cargo, rustc, sysroot))
}

fn sysroot(rustc: &Path) -> Option<PathBuf> {
    let path = output(Command::new(rustc).args(["--print", "sysroot"])).ok()?;
    Some(PathBuf::from(path.trim()))
}

fn has_core_source(sysroot: &Path) -> bool {
    sysroot
        .join("lib/rustlib/src/rust/library/core/Cargo.toml")
        .exists()
}

/// LLVM's objcopy, of any version: it only leaves sections out.
fn objcopy(sysroot: &Path) -> Option<PathBuf> {
    let of_rustup = fs::read_dir(sysroot.join("lib/rustlib"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin/llvm-objcopy"))
        .find(|path| path.exists());
    ["llvm-objcopy-22", "llvm-objcopy", "rust-objcopy"]
        .into_iter()
        .find_map(in_path)
        .or(of_rustup)
}

/// A program in PATH or where `cargo install` puts it.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(cargo_home().map(|home| home.join("bin")))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cargo")))
}

/// Builds the object and returns it without the debug sections that only debuggers read (.BTF stays).
fn build(root: &Path, toolchain: &Toolchain, program: &str) -> Result<Vec<u8>> {
    let target = root.join("target/bpf");
    let mut cargo = Command::new(&toolchain.cargo);
    cargo.current_dir(root).args([
        "build",
        "--release",
        "--locked",
        "--package",
        "outlive-ebpf",
        "--bin",
        program,
    ]);
    cargo.args(["--target", TARGET, "-Z", "build-std=core"]);
    for variable in [
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_TARGET",
    ] {
        cargo.env_remove(variable);
    }
    cargo
        .env("RUSTC", &toolchain.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &target)
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            flags(root, toolchain).join("\x1f"),
        )
        .env("PATH", path_with(&toolchain.linker)?);
    for (option, value) in [
        ("DEBUG", "2"),
        ("LTO", "off"),
        ("CODEGEN_UNITS", "1"),
        ("STRIP", "none"),
    ] {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{option}"), value);
    }
    let status = cargo
        .status()
        .with_context(|| format!("cannot run {}", toolchain.cargo.display()))?;
    ensure!(
        status.success(),
        "the eBPF programs do not build ({status})"
    );
    let whole = target.join(TARGET).join("release").join(program);
    let stripped = target.join(format!("{program}.o"));
    output(
        Command::new(&toolchain.objcopy)
            .arg("--strip-debug")
            .arg(&whole)
            .arg(&stripped),
    )?;
    fs::read(&stripped).with_context(|| format!("cannot read {}", stripped.display()))
}

/// PATH with the linker's folder first: rustc looks for `bpf-linker` there, and the name alone is the same everywhere.
fn path_with(linker: &Path) -> Result<OsString> {
    let folder = linker
        .parent()
        .context("the linker lies in a folder")?
        .to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths(
        std::iter::once(folder).chain(env::split_paths(&path)),
    )?)
}

/// Compiler flags: BTF, the architecture of the kernel's structures, and no path of this machine.
fn flags(root: &Path, toolchain: &Toolchain) -> Vec<String> {
    let mut flags: Vec<String> = ["-Clink-arg=--btf", "--cfg=bpf_target_arch=\"x86_64\""]
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut remap =
        |from: &Path, to: &str| flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    remap(&toolchain.sysroot.join("lib/rustlib/src/rust"), "/rust");
    // Each registry has its own folder, named by a hash.
    let registries = cargo_home().map(|home| home.join("registry/src"));
    let mut folders: Vec<PathBuf> = registries
        .and_then(|folder| fs::read_dir(folder).ok())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    for folder in folders {
        remap(&folder, "/registry");
    }
    remap(root, "/outlive");
    flags
}

/// Standard output of a command that must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    ensure!(
        output.status.success(),
        "{name} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
