//! `cargo xtask driver`: builds the stand-in for NVIDIA's driver (tests/driver) for the guests' kernels.
//!
//! Always true: headers and modules lie below `target/vm` and nothing is installed; headers are those of the very kernel image that
//! the guest boots; what was built from the same sources for the same kernel is not built again.

use crate::run::{output, run, workspace};
use crate::vm::Kernel;
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The modules, in the order in which they are loaded.
const MODULES: [&str; 2] = ["nvidia", "nvidia-uvm"];
/// Where the modules for a kernel lie in a guest: below this, in a folder named like `uname -r`.
const PLACE: &str = "driver";
/// Names of folders and what the compiler is told: as it is since 545, with the functions of 535, and without one that is hooked.
const VARIANTS: [(&str, &str); 3] = [("", ""), ("535", "-DBEFORE_545"), ("renamed", "-Dnvidia_unlocked_ioctl=nv_some_ioctl")];
/// Loads the stand-in, in a guest's init.
pub(crate) const LOAD: &str = "for m in nvidia nvidia-uvm; do insmod /driver/$(uname -r)/$m.ko || status=1; done\n";
/// Unloads it, which works only when nobody holds anything.
pub(crate) const UNLOAD: &str = "for m in nvidia-uvm nvidia; do rmmod $m || status=1; done\n";

/// Builds for every guest.
///
/// # Errors
/// When a tool or package is missing, or the compiler fails.
pub(crate) fn driver() -> Result<()> {
    for kernel in crate::vm::kernels(&[])? {
        let place = build(&kernel)?.1;
        println!("driver {}: {}", kernel.name, place.display());
    }
    Ok(())
}

/// Puts the modules for a guest's kernel into its root.
///
/// # Errors
/// As [`driver`].
pub(crate) fn put_into(root: &Path, kernel: &Kernel) -> Result<()> {
    let (release, place) = build(kernel)?;
    let to = root.join(PLACE).join(release);
    for (variant, _) in VARIANTS {
        fs::create_dir_all(to.join(variant))?;
        for module in MODULES {
            let file = Path::new(variant).join(format!("{module}.ko"));
            fs::copy(place.join(&file), to.join(&file)).with_context(|| format!("cannot copy {}", file.display()))?;
        }
    }
    Ok(())
}

/// The kernel's release, and where its modules are.
fn build(kernel: &Kernel) -> Result<(String, PathBuf)> {
    for tool in ["make", "gcc-12", "dpkg"] {
        if output(Command::new("which").arg(tool)).is_err() {
            bail!("`{tool}` is not installed; run `cargo xtask setup --vm`");
        }
    }
    let (folder, image) = (crate::vm::folder(), &kernel.image);
    let release = release(image)?;
    let sources = workspace().join("tests/driver");
    let made_of = made_of(&sources, &release)?;
    let place = folder.join(format!("driver-{}", kernel.name));
    let stamp = place.join("made-of");
    if fs::read_to_string(&stamp).is_ok_and(|old| old == made_of) {
        return Ok((release, place));
    }
    let headers = headers(&folder, &release, image)?;
    let _ = fs::remove_dir_all(&place);
    for (variant, told) in VARIANTS {
        compile(&sources, &place.join(variant), &headers, told).with_context(|| format!("cannot build tests/driver for {release}: see the messages above"))?;
    }
    fs::write(stamp, made_of)?;
    Ok((release, place))
}

fn compile(sources: &Path, place: &Path, headers: &Path, told: &str) -> Result<()> {
    fs::create_dir_all(place)?;
    for file in files(sources)? {
        fs::copy(&file, place.join(file.file_name().unwrap_or_default()))?;
    }
    // Without BTF, like most builds on users' hosts: it would need pahole.
    let mut make = Command::new("make");
    make.arg("-sC").arg(headers).args([&format!("M={}", place.display()), &format!("STANDIN={told}")]).args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]);
    run(&mut make)?;
    for module in MODULES {
        run(Command::new("strip").arg("--strip-debug").arg(place.join(format!("{module}.ko"))))?;
    }
    Ok(())
}

/// `uname -r` of a kernel image: a string that the boot protocol points to (Documentation/arch/x86/boot.rst, kernel_version).
fn release(image: &Path) -> Result<String> {
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let pointer = bytes.get(0x20e..0x210).map_or(0, |two| usize::from(two[0]) | usize::from(two[1]) << 8);
    let text = bytes.get(pointer + 0x200..).unwrap_or_default();
    let word: Vec<u8> = text.iter().copied().take_while(|byte| byte.is_ascii_graphic()).collect();
    ensure!(pointer != 0 && !word.is_empty(), "{} is no kernel image; delete it", image.display());
    Ok(String::from_utf8_lossy(&word).into_owned())
}

/// What a build depends on, as one line.
fn made_of(sources: &Path, release: &str) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    VARIANTS.hash(&mut hasher);
    for file in files(sources)? {
        file.file_name().hash(&mut hasher);
        fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?.hash(&mut hasher);
    }
    Ok(format!("{release} {:016x}\n", hasher.finish()))
}

/// The modules' sources, in order.
fn files(sources: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(sources).with_context(|| format!("cannot list {}", sources.display()))?;
    let mut files: Vec<PathBuf> = list.filter_map(|entry| entry.ok().map(|e| e.path())).filter(|path| is_source(path)).collect();
    files.sort();
    Ok(files)
}

fn is_source(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "Kbuild") || path.extension().is_some_and(|end| end == "c" || end == "h")
}

/// The build folder of a kernel's headers, downloaded and unpacked once.
fn headers(folder: &Path, release: &str, image: &Path) -> Result<PathBuf> {
    let place = folder.join(format!("headers-{release}"));
    let build = place.join(format!("usr/src/linux-headers-{release}"));
    if place.join("complete").exists() {
        return Ok(build);
    }
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place)?;
    let package = format!("linux-headers-{release}");
    let depends = output(Command::new("apt-cache").args(["depends", &package])).with_context(|| {
        let old = image.display();
        format!("apt knows no package {package}: run `apt-get update`; if it is gone, delete {old} to get a newer kernel")
    })?;
    let needed = depends.split_whitespace().filter(|word| word.starts_with("linux-kbuild-") || word.ends_with("-common"));
    for package in std::iter::once(package.as_str()).chain(needed) {
        run(Command::new("apt-get").args(["-qq", "download", package]).current_dir(&place))
            .with_context(|| format!("cannot download {package}: run `apt-get update` and look at the network"))?;
        run(Command::new("sh").arg("-c").arg(format!("dpkg -x {package}_*.deb . && rm {package}_*.deb")).current_dir(&place))?;
    }
    // It names its sibling by the path that an installation would have.
    let makefile = build.join("Makefile");
    let text = fs::read_to_string(&makefile).with_context(|| format!("cannot read {}", makefile.display()))?;
    fs::write(&makefile, text.replace("/usr/src/", &format!("{}/usr/src/", place.display())))?;
    fs::write(place.join("complete"), "")?;
    Ok(build)
}
