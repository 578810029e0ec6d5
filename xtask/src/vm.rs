//! `cargo xtask vm`: boots Debian's 6.1 and 6.12 kernels in QEMU and runs the kernel tests there: every program is verified and
//! attached, and the events and scans are right.
//!
//! Always true: software emulation only (`-accel tcg`); the guest has no disk and no network, runs one shell script as
//! init and powers itself off; nothing is installed on the host (kernels are unpacked below `target/vm`).

use crate::run::{output, run, workspace};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Kernels to boot: a name, and the pattern of Debian's package.
pub(crate) const KERNELS: [(&str, &str); 2] =
    [("6.1", r"^linux-image-6\.1\..*-cloud-amd64$"), ("6.12", r"^linux-image-6\.12\..*\+deb12-cloud-amd64$")];
/// Tests that run in the guest.
const TESTS: [&str; 2] = ["driver", "kernel"];
/// A guest that has not finished by then is killed.
const PATIENCE: Duration = Duration::from_secs(900);
/// The guest's init prints this and a status before it powers off.
const MARK: &str = "OUTLIVE-VM-RESULT";

/// Runs the tests in every guest whose name is in `only` (all when empty).
///
/// # Errors
/// When a tool is missing, a guest does not boot, or a test fails in it.
pub(crate) fn vm(only: &[String]) -> Result<()> {
    for tool in ["qemu-system-x86_64", "busybox", "cpio", "apt-get"] {
        if output(Command::new("which").arg(tool)).is_err() {
            bail!("`{tool}` is not installed; run `cargo xtask setup --vm`");
        }
    }
    let folder = folder()?;
    let tests = build()?;
    let initrd = pack(&folder, &tests)?;
    let mut failed = Vec::new();
    for (name, pattern) in KERNELS {
        if !only.is_empty() && !only.iter().any(|o| o == name) {
            continue;
        }
        let image = kernel(&folder, name, pattern)?;
        match boot(name, &image, &initrd) {
            Ok(took) => println!("vm {name}: passed in {:.0} s", took.as_secs_f64()),
            Err(error) => {
                println!("vm {name}: {error:#}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed on {}", failed.join(", ")) }
}

/// Where everything about guests is kept.
pub(crate) fn folder() -> Result<PathBuf> {
    let folder = workspace().join("target/vm");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Builds what runs in the guest; returns the program and the test executables.
fn build() -> Result<Vec<PathBuf>> {
    run(Command::new("cargo").args(["build", "--workspace", "--bins", "--lib"]).current_dir(workspace()))?;
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--no-run", "--message-format=json"]).current_dir(workspace());
    let json = output(&mut command)?;
    let mut files = Vec::new();
    for line in json.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        let name = value["target"]["name"].as_str().unwrap_or_default();
        let is_test = value["target"]["kind"][0] == "test";
        if let (true, true, Some(path)) = (is_test, TESTS.contains(&name), value["executable"].as_str()) {
            files.push(PathBuf::from(path));
        }
    }
    if files.is_empty() {
        bail!("cargo built none of the tests {TESTS:?}");
    }
    Ok(files)
}

/// Packs an initramfs: busybox, the programs, their shared libraries, and an init script.
fn pack(folder: &Path, tests: &[PathBuf]) -> Result<PathBuf> {
    let root = folder.join("root");
    let _ = fs::remove_dir_all(&root);
    let target = workspace().join("target/debug");
    let mut programs: Vec<PathBuf> = ["outlive", "scenario", "libnvml_double.so"].iter().map(|n| target.join(n)).collect();
    programs.extend(tests.iter().cloned());
    for directory in ["bin", "proc", "sys", "dev", "tmp", "run", "etc"] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")?;
    let mut libraries = BTreeSet::new();
    for program in &programs {
        copy_into(&root, program)?;
        libraries.extend(shared_libraries(program)?);
    }
    for library in &libraries {
        copy_into(&root, library)?;
    }
    let busybox = output(Command::new("which").arg("busybox"))?;
    fs::copy(busybox.trim(), root.join("bin/busybox")).context("cannot copy busybox")?;
    for applet in output(Command::new("busybox").arg("--list"))?.lines() {
        let _ = std::os::unix::fs::symlink("busybox", root.join("bin").join(applet));
    }
    crate::driver::put_into(&root, folder)?;
    fs::write(root.join("init"), init_script(tests))?;
    run(Command::new("chmod").arg("+x").arg(root.join("init")))?;
    let initrd = folder.join("initrd.cpio");
    let script = format!("cd '{}' && find . | cpio --quiet -o -H newc > '{}'", root.display(), initrd.display());
    run(Command::new("sh").arg("-c").arg(script))?;
    Ok(initrd)
}

fn init_script(tests: &[PathBuf]) -> String {
    let mut script = String::from(
        "#!/bin/sh\nexport PATH=/bin HOME=/ OUTLIVE_IN_VM=1\n\
         mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n\
         mkdir -p /tmp /sys/fs/cgroup /dev/pts; mount -t devpts devpts /dev/pts; mount -t cgroup2 cgroup2 /sys/fs/cgroup; ip link set lo up\n\
         uname -r\nstatus=0\n",
    );
    for test in tests {
        let line = format!("'{}' --test-threads=1 || status=1\n", test.display());
        // The stand-in for the driver is loaded only for the tests of it.
        let is_driver = test.file_name().is_some_and(|name| name.to_string_lossy().starts_with("driver-"));
        script.push_str(&if is_driver { format!("{}{line}{}", crate::driver::LOAD, crate::driver::UNLOAD) } else { line });
    }
    script.push_str(&format!("echo {MARK} $status\npoweroff -f\n"));
    script
}

/// Copies a file to the same absolute path below `root`.
fn copy_into(root: &Path, file: &Path) -> Result<()> {
    let place = root.join(file.strip_prefix("/").unwrap_or(file));
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(file, &place).with_context(|| format!("cannot copy {}", file.display()))?;
    run(Command::new("strip").arg("--strip-debug").arg(&place)).or(Ok(()))
}

/// Paths that `ldd` prints.
fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let text = output(Command::new("ldd").arg(program))?;
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// The newest kernel image of a series, downloaded and unpacked once.
pub(crate) fn kernel(folder: &Path, name: &str, pattern: &str) -> Result<PathBuf> {
    let place = folder.join(format!("vmlinuz-{name}"));
    if place.exists() {
        return Ok(place);
    }
    let list = output(Command::new("apt-cache").args(["search", "--names-only", pattern]))?;
    let mut packages: Vec<&str> = list.lines().filter_map(|l| l.split_whitespace().next()).collect();
    packages.sort_by_key(|p| p.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect::<Vec<u32>>());
    let package = packages.last().with_context(|| format!("apt knows no package {pattern}; run `apt-get update`"))?;
    let scratch = folder.join(format!("kernel-{name}"));
    fs::create_dir_all(&scratch)?;
    run(Command::new("apt-get").args(["-qq", "download", package]).current_dir(&scratch))?;
    let script = format!("dpkg -x {package}_*.deb . && cp boot/vmlinuz-* '{}'", place.display());
    run(Command::new("sh").arg("-c").arg(script).current_dir(&scratch))?;
    fs::remove_dir_all(&scratch)?;
    Ok(place)
}

/// Boots one guest, shows what it prints, and reads its result line.
fn boot(name: &str, kernel: &Path, initrd: &Path) -> Result<Duration> {
    let began = Instant::now();
    let log = initrd.with_file_name(format!("console-{name}.log"));
    let console = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut child = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg", "-cpu", "max", "-m", "2048", "-smp", "2", "-nographic", "-no-reboot", "-nodefaults"])
        .args(["-serial", "stdio", "-append", "console=ttyS0 quiet panic=-1 oops=panic rdinit=/init"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .stdin(std::process::Stdio::null())
        .stdout(console)
        .spawn()
        .context("cannot start qemu-system-x86_64")?;
    loop {
        if child.try_wait()?.is_some() {
            break;
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            bail!("not finished after {} s; see {}", PATIENCE.as_secs(), log.display());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    for line in text.lines().filter(|l| l.starts_with("test ") || l.starts_with("skip") || l.contains("test result")) {
        println!("  {name}: {line}");
    }
    match text.lines().find_map(|l| l.trim().strip_prefix(MARK)).map(str::trim) {
        Some("0") => Ok(began.elapsed()),
        Some(_) => bail!("a test failed; see {}", log.display()),
        None => bail!("the guest did not finish; see {}", log.display()),
    }
}
