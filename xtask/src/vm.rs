//! `cargo xtask vm`: boots Debian's 6.1 and 6.12 kernels in QEMU, runs the kernel tests there (every program is verified and attached, and
//! the events and scans are right), the tests of the stand-in driver and those of faults, and plays every scenario with both ways to hook; then
//! plays them on this host's kernel, and prints the matrix.
//!
//! Always true: software emulation only (`-accel tcg`, and one thread for all processors: with several, a kernel that patches its own
//! code can crash or hang, as seen with 6.1 and 6.12 when tracepoints are attached and detached); the guest has no disk and no network, runs one shell script as
//! init and powers itself off; nothing is installed on the host (kernels are unpacked below `target/vm`).

use crate::matrix::{self, Outcomes, Row};
use crate::run::{output, run, workspace};
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Kernels to boot: a name, and the pattern of Debian's package.
const KERNELS: [(&str, &str); 2] =
    [("6.1", r"^linux-image-6\.1\..*-cloud-amd64$"), ("6.12", r"^linux-image-6\.12\..*\+deb12-cloud-amd64$")];
/// This very host.
const HERE: &str = "here";
/// Tests that run in the guest.
const TESTS: [&str; 3] = ["driver", "kernel", "faults"];
/// Those of them that can be asked for alone.
const FAULTS: [&str; 1] = ["faults"];
/// A guest that has not finished by then is killed.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// The guest's init prints this and a status before it powers off.
const MARK: &str = "OUTLIVE-VM-RESULT";

/// A guest's kernel.
pub(crate) struct Kernel {
    /// "6.1", ...
    pub(crate) name: &'static str,
    pub(crate) image: PathBuf,
    /// Modules that the tests need and the image has not.
    modules: Vec<PathBuf>,
}

/// Runs the tests and plays every scenario in each guest, and plays them here; only at the places in `only` ("6.1", "6.12", "here"; all when empty).
///
/// # Errors
/// When a tool is missing, a guest does not boot, a test fails in it, or outlive is wrong about a scenario.
pub(crate) fn vm(only: &[String]) -> Result<()> {
    let is_place = |name: &str| name == HERE || KERNELS.iter().any(|(kernel, _)| *kernel == name);
    if let Some(unknown) = only.iter().find(|name| !is_place(name)) {
        bail!("{unknown:?} is none of {}, {HERE}", KERNELS.map(|(kernel, _)| kernel).join(", "));
    }
    let accuracy = optimised()?;
    let guests: Vec<String> = only.iter().filter(|place| *place != HERE).cloned().collect();
    let mut ran = if only.is_empty() || !guests.is_empty() { in_guests(&accuracy, &guests)? } else { Vec::new() };
    if only.is_empty() || only.iter().any(|place| place == HERE) {
        ran.extend(here()?);
    }
    print!("{}", matrix::page(&ran.iter().filter_map(|ran| ran.row.as_ref()).collect::<Vec<_>>()));
    let failed: Vec<String> = ran.iter().filter_map(|ran| Some(format!("{}: {:#}", ran.place, ran.failed.as_ref()?))).collect();
    if failed.is_empty() { Ok(()) } else { bail!("the matrix failed:\n  {}", failed.join("\n  ")) }
}

/// What came of one place. A guest in which something failed still has a row where it got as far as that.
struct Ran {
    place: String,
    row: Option<Row>,
    failed: Option<anyhow::Error>,
}

fn in_guests(accuracy: &Path, only: &[String]) -> Result<Vec<Ran>> {
    let tests = build(&TESTS)?;
    let mut programs = tests.clone();
    programs.push(accuracy.to_owned());
    let run = tests.iter().map(|test| guest_line(test, "")).collect::<String>() + &crate::accuracy::guest_lines(accuracy, &[], false);
    let (kernels, expected) = (kernels(only)?, matrix::expected(accuracy, "driver", &[])?);
    println!("guests {}, under software emulation and at the same time: half an hour", kernels.iter().map(|k| k.name).collect::<Vec<_>>().join(" and "));
    at_once(&kernels, |kernel| Ok(in_guest(kernel, accuracy, &programs, &run, &expected))).into_iter().collect()
}

fn in_guest(kernel: &Kernel, accuracy: &Path, programs: &[PathBuf], commands: &str, expected: &[String]) -> Ran {
    let (out, began) = (outcomes(kernel.name), Instant::now());
    // What an earlier run left must not pass for this one's.
    let _ = fs::remove_file(&out);
    let mut failed = boot(kernel, &Errand { programs, commands, patience: PATIENCE, out: Some(&out), counted: false }).err();
    let tests = fs::read(console(kernel)).map(|text| matrix::Tests::read(&String::from_utf8_lossy(&text))).ok();
    let mut row = None;
    match Outcomes::read(&out, expected) {
        Ok(mut outcomes) => {
            let (wrong, differing) = (outcomes.wrong(), outcomes.differing());
            if failed.is_none() && !differing.is_empty() {
                failed = Some(anyhow::anyhow!("recorders with different hooks disagree about {}; see {}", differing.join(", "), out.display()));
            } else if failed.is_none() && !wrong.is_empty() {
                failed = again(kernel, accuracy, &wrong, &mut outcomes).err();
            }
            row = Some(Row { kernel: kernel.name.to_owned(), tests, outcomes, again: wrong.len(), seconds: began.elapsed().as_secs() });
        }
        Err(error) => failed = failed.or(Some(error)),
    }
    Ran { place: format!("guest {}", kernel.name), row, failed }
}

/// Plays scenarios again that were wrong, once and aloud: an emulated machine that gets no time from its host misses deadlines of the plays.
fn again(kernel: &Kernel, accuracy: &Path, wrong: &[String], outcomes: &mut Outcomes) -> Result<()> {
    let first: String = outcomes.said().into_iter().map(|what| format!("\n    {what}")).collect();
    println!("guest {}: wrong, and played once more: {}{first}", kernel.name, wrong.join(", "));
    let (programs, commands) = ([accuracy.to_owned()], crate::accuracy::guest_lines(accuracy, wrong, false));
    let second = folder().join(format!("outcomes-{}-again.jsonl", kernel.name));
    let _ = fs::remove_file(&second);
    boot(kernel, &Errand { programs: &programs, commands: &commands, patience: PATIENCE, out: Some(&second), counted: false })?;
    outcomes.replace(Outcomes::read(&second, wrong)?);
    let still = outcomes.wrong();
    if still.is_empty() { Ok(()) } else { bail!("outlive is wrong twice about {}; see {}", still.join(", "), second.display()) }
}

/// Plays every scenario here, with harmless nodes: what CI's own kernel says. Nothing where we are not root.
fn here() -> Result<Option<Ran>> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        println!("not run here: the scenarios on this kernel, which needs root");
        return Ok(None);
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's release")?;
    let kernel = release.split('.').take(2).collect::<Vec<_>>().join(".");
    let (program, out, began) = (workspace().join("target/release/accuracy"), outcomes(HERE), Instant::now());
    let _ = fs::remove_file(&out);
    fs::create_dir_all(folder())?;
    let expected = matrix::expected(&program, "stand-in", &[])?;
    println!("here (Linux {kernel}): {} scenarios, some four minutes", expected.len());
    let played = run(Command::new(&program).args(["play", "--out"]).arg(&out).stdout(std::process::Stdio::null()));
    let outcomes = Outcomes::read(&out, &expected)?;
    let wrong = outcomes.wrong();
    let failed = if wrong.is_empty() { played.err() } else { Some(anyhow::anyhow!("outlive is wrong about {}", wrong.join(", "))) };
    let row = Row { kernel, tests: None, outcomes, again: 0, seconds: began.elapsed().as_secs() };
    Ok(Some(Ran { place: HERE.to_owned(), row: Some(row), failed }))
}

/// Where the outcomes of a place are written.
fn outcomes(place: &str) -> PathBuf {
    folder().join(format!("outcomes-{place}.jsonl"))
}

/// Where what a guest prints is written.
fn console(kernel: &Kernel) -> PathBuf {
    folder().join(format!("console-{}.log", kernel.name))
}

/// Builds what the guests play scenarios with, with optimisation: under software emulation that makes the difference. The program that plays,
/// by the name that it has there.
///
/// # Errors
/// When it cannot be built.
pub(crate) fn optimised() -> Result<PathBuf> {
    let packages = ["-p", "outlive", "-p", "outlive-tests", "-p", "nvml-double"];
    for profile in [&["build"][..], &["build", "--release"]] {
        run(Command::new("cargo").args(profile).args(packages).args(["--bins", "--lib"]).current_dir(workspace()))?;
    }
    Ok(workspace().join("target/debug/accuracy"))
}

/// Runs only the tests of faults: of what becomes of outlive when something else fails (tests/faults.rs); of these, those that are named so.
///
/// # Errors
/// As [`vm`].
pub(crate) fn faults(only: &[String], named: &str) -> Result<()> {
    let tests = build(&FAULTS)?;
    optimised()?;
    ensure!(named.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':'), "{named:?} is in no test's name");
    let run: String = tests.iter().map(|test| guest_line(test, named)).collect();
    let kernels = kernels(only)?;
    let results = at_once(&kernels, |kernel| boot(kernel, &Errand { programs: &tests, commands: &run, patience: PATIENCE, out: None, counted: false }));
    for (kernel, result) in kernels.iter().zip(results) {
        println!("faults {}: passed in {:.0} s", kernel.name, result?.as_secs_f64());
    }
    Ok(())
}

/// The kernels whose names are in `only` (all when empty), fetched once.
///
/// # Errors
/// When a tool is missing or a package cannot be had.
pub(crate) fn kernels(only: &[String]) -> Result<Vec<Kernel>> {
    for tool in ["qemu-system-x86_64", "busybox", "cpio", "apt-get", "xz"] {
        if output(Command::new("which").arg(tool)).is_err() {
            bail!("`{tool}` is not installed; run `cargo xtask setup --vm`");
        }
    }
    fs::create_dir_all(folder()).with_context(|| format!("cannot create {}", folder().display()))?;
    let wanted = KERNELS.iter().filter(|(name, _)| only.is_empty() || only.iter().any(|o| o == name));
    wanted.map(|(name, pattern)| kernel(name, pattern)).collect()
}

/// Does it in every guest at the same time: each needs one processor.
pub(crate) fn at_once<T: Send>(kernels: &[Kernel], run: impl Fn(&Kernel) -> Result<T> + Sync) -> Vec<Result<T>> {
    std::thread::scope(|scope| {
        let running: Vec<_> = kernels.iter().map(|kernel| scope.spawn(|| run(kernel))).collect();
        running.into_iter().map(|guest| guest.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the guest's thread panicked")))).collect()
    })
}

/// Runs a test executable with the stand-in for the driver loaded: its functions are what some programs are attached to.
fn guest_line(test: &Path, named: &str) -> String {
    format!("{}'{}' --test-threads=1 {named} || status=1\n{}", crate::driver::LOAD, test.display(), crate::driver::UNLOAD)
}

/// Where everything about guests is kept.
pub(crate) fn folder() -> PathBuf {
    workspace().join("target/vm")
}

/// Builds test executables, by the names of their targets.
///
/// # Errors
/// When they cannot be built, or there are none.
pub(crate) fn build(tests: &[&str]) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--no-run", "--message-format=json"]).current_dir(workspace());
    let json = output(&mut command)?;
    let mut files = Vec::new();
    for line in json.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        let name = value["target"]["name"].as_str().unwrap_or_default();
        let is_test = value["target"]["kind"][0] == "test";
        if let (true, true, Some(path)) = (is_test, tests.contains(&name), value["executable"].as_str()) {
            files.push(PathBuf::from(path));
        }
    }
    if files.is_empty() {
        bail!("cargo built none of the tests {tests:?}");
    }
    Ok(files)
}

/// Packs an initramfs: busybox, the programs, their shared libraries, the modules, and an init script that runs `commands`.
fn pack(kernel: &Kernel, programs: &[PathBuf], commands: &str) -> Result<PathBuf> {
    let root = folder().join(format!("root-{}", kernel.name));
    let _ = fs::remove_dir_all(&root);
    let target = workspace().join("target/debug");
    let mut programs = programs.to_vec();
    programs.extend(["outlive", "scenario", "libnvml_double.so"].iter().map(|name| target.join(name)));
    // The real ones: what busybox has under these names prints something else.
    programs.extend(["/usr/bin/fuser", "/usr/bin/lsof", "/usr/bin/ps"].map(PathBuf::from).into_iter().filter(|tool| tool.exists()));
    for directory in ["bin", "proc", "sys", "dev", "tmp", "run", "etc", "modules"] {
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
    crate::driver::put_into(&root, kernel)?;
    for module in &kernel.modules {
        fs::copy(module, root.join("modules").join(module.file_name().context("a module has a name")?))?;
    }
    let busybox = output(Command::new("which").arg("busybox"))?;
    fs::copy(busybox.trim(), root.join("bin/busybox")).context("cannot copy busybox")?;
    for applet in output(Command::new("busybox").arg("--list"))?.lines() {
        let _ = std::os::unix::fs::symlink("busybox", root.join("bin").join(applet));
    }
    fs::write(root.join("init"), format!("{INIT}{commands}echo {MARK} $status\npoweroff -f\n"))?;
    run(Command::new("chmod").arg("+x").arg(root.join("init")))?;
    let initrd = folder().join(format!("initrd-{}.cpio", kernel.name));
    let script = format!("cd '{}' && find . | cpio --quiet -o -H newc > '{}'", root.display(), initrd.display());
    run(Command::new("sh").arg("-c").arg(script))?;
    Ok(initrd)
}

/// What every guest begins with: mounts (control groups in both versions, as hosts in transition have them) and modules.
const INIT: &str = "#!/bin/sh
export PATH=/usr/bin:/bin HOME=/ OUTLIVE_IN_VM=1
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts; mount -t devpts devpts /dev/pts; ip link set lo up
mount -t tmpfs cgroups /sys/fs/cgroup
mkdir /sys/fs/cgroup/unified /sys/fs/cgroup/pids /sys/fs/cgroup/freezer
mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
for c in pids freezer; do mount -t cgroup -o $c $c /sys/fs/cgroup/$c; done
for m in /modules/*.ko; do [ -e $m ] && insmod $m; done
uname -r
status=0
";

/// Copies a file to the same absolute path below `root`; of a program that was built with optimisation too, that one: under software
/// emulation it makes a large difference.
fn copy_into(root: &Path, file: &Path) -> Result<()> {
    let target = workspace().join("target");
    let optimised = file.strip_prefix(target.join("debug")).ok().map(|name| target.join("release").join(name));
    let from = optimised.filter(|path| path.exists()).unwrap_or_else(|| file.to_owned());
    let place = root.join(file.strip_prefix("/").unwrap_or(file));
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(&from, &place).with_context(|| format!("cannot copy {}", from.display()))?;
    run(Command::new("strip").arg("--strip-debug").arg(&place)).or(Ok(()))
}

/// Paths that `ldd` prints.
fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let text = output(Command::new("ldd").arg(program))?;
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// The newest kernel image of a series, downloaded and unpacked once.
fn kernel(name: &'static str, pattern: &str) -> Result<Kernel> {
    let (image, modules) = (folder().join(format!("vmlinuz-{name}")), folder().join(format!("modules-{name}")));
    if !image.exists() || !modules.exists() {
        fetch(name, pattern, &image, &modules)?;
    }
    let modules = fs::read_dir(modules)?.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    Ok(Kernel { name, image, modules })
}

fn fetch(name: &str, pattern: &str, image: &Path, modules: &Path) -> Result<()> {
    let list = output(Command::new("apt-cache").args(["search", "--names-only", pattern]))?;
    let mut packages: Vec<&str> = list.lines().filter_map(|l| l.split_whitespace().next()).collect();
    packages.sort_by_key(|p| p.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect::<Vec<u32>>());
    let package = packages.last().with_context(|| format!("apt knows no package {pattern}; run `apt-get update`"))?;
    let scratch = folder().join(format!("kernel-{name}"));
    fs::create_dir_all(&scratch)?;
    fs::create_dir_all(modules)?;
    run(Command::new("apt-get").args(["-qq", "download", package]).current_dir(&scratch))?;
    // Where FUSE is no module, the kernel has it built in.
    let script = format!(
        "dpkg -x {package}_*.deb . && cp boot/vmlinuz-* '{}' && find lib -name 'fuse.ko*' -exec cp {{}} '{modules}' ';' && \
         find '{modules}' -name '*.xz' -exec xz -df {{}} ';'",
        image.display(),
        modules = modules.display(),
    );
    run(Command::new("sh").arg("-c").arg(script).current_dir(&scratch))?;
    fs::remove_dir_all(&scratch)?;
    Ok(())
}

/// What a guest is booted for.
pub(crate) struct Errand<'a> {
    /// What it needs, beside `outlive`, `scenario` and the NVML double.
    pub(crate) programs: &'a [PathBuf],
    /// Lines of a shell; they set `status` when something failed.
    pub(crate) commands: &'a str,
    /// Killed after that.
    pub(crate) patience: Duration,
    /// What it writes to /dev/ttyS1 comes into this file.
    pub(crate) out: Option<&'a Path>,
    /// Its clock counts instructions, one a nanosecond.
    pub(crate) counted: bool,
}

/// Boots one guest, shows what it prints, and reads its result line.
///
/// # Errors
/// When the guest does not boot, does not finish in time, or something failed in it.
pub(crate) fn boot(kernel: &Kernel, errand: &Errand<'_>) -> Result<Duration> {
    let initrd = pack(kernel, errand.programs, errand.commands)?;
    match boot_once(kernel, errand, &initrd)? {
        Some(took) => Ok(took),
        None => {
            println!("  {}: the emulator failed: it had the guest's processor in a state that none can be in; once more", kernel.name);
            boot_once(kernel, errand, &initrd)?.with_context(|| format!("the emulator failed again; see {}", console(kernel).display()))
        }
    }
}

/// The bits of EFLAGS that a processor can have set (Intel SDM, volume 1, 3.4.3).
const FLAGS: u32 = 0x003f_7fd7;

/// A kernel that panicked says with which flags: QEMU 7.2's software emulation was once seen to get them wrong, and then
/// the next instruction fails. Nothing that runs in the guest can set those that do not exist.
fn emulator_failed(console: &str) -> bool {
    let flags = console.lines().filter_map(|line| line.split_once("EFLAGS: ")).filter_map(|(_, flags)| u32::from_str_radix(flags.trim(), 16).ok());
    console.contains("Kernel panic") && flags.map(|flags| flags & !FLAGS).any(|strange| strange != 0)
}

/// How long it took; none when the emulator failed.
fn boot_once(kernel: &Kernel, errand: &Errand<'_>, initrd: &Path) -> Result<Option<Duration>> {
    let began = Instant::now();
    let log = self::console(kernel);
    let console = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg,thread=single", "-cpu", "max", "-m", "2048", "-nographic", "-no-reboot", "-nodefaults"])
        .args(["-serial", "stdio"]);
    if let Some(out) = errand.out {
        qemu.arg("-serial").arg(format!("file:{}", out.display()));
    }
    // With two processors an instruction of one would be time of the other.
    qemu.args(if errand.counted { &["-smp", "1", "-icount", "shift=0,sleep=off"][..] } else { &["-smp", "2"] });
    // Each hook that is detached waits for a grace period, which takes an emulated machine a quarter of a second: hurry them.
    let mut child = qemu
        .args(["-append", "console=ttyS0 quiet panic=-1 oops=panic rcupdate.rcu_expedited=1 rdinit=/init"])
        .arg("-kernel")
        .arg(&kernel.image)
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
        if began.elapsed() > errand.patience {
            child.kill()?;
            bail!("not finished after {} s; see {}", errand.patience.as_secs(), log.display());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let is_news = |l: &&str| (l.starts_with("test ") && !l.ends_with("ok")) || l.starts_with("skip") || l.contains("test result");
    for line in text.lines().filter(is_news) {
        println!("  {}: {line}", kernel.name);
    }
    match text.lines().find_map(|l| l.trim().strip_prefix(MARK)).map(str::trim) {
        Some("0") => Ok(Some(began.elapsed())),
        Some(_) => bail!("a test failed; see {}", log.display()),
        None if emulator_failed(&text) => Ok(None),
        None => bail!("the guest did not finish; see {}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_no_processor_has_are_the_emulators() {
        let panic = |flags: &str| format!("[  1.0] RSP: 0018:ff5d21a5408437b0 EFLAGS: {flags}\n[  1.1] Kernel panic - not syncing: Fatal exception\n");
        assert!(emulator_failed(&panic("3f7a020a")));
        assert!(!emulator_failed(&panic("00010246")), "a panic of the kernel's own");
        assert!(!emulator_failed("[  1.0] RSP: 0018:ff5d21a5408437b0 EFLAGS: 3f7a020a\n"), "it went on");
    }
}
