//! How hard each program is to verify on this kernel, beside what was recorded in verifier.tsv: a jump fails.
//!
//! Always true: every program that is loaded is in the table; `cargo xtask verifier` records it anew, here and in the guests. What is
//! counted is the instructions that the verifier goes through, all paths together; it refuses a program at a million.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use outlive::source::kernel::{Kernel, KernelError, Options, Wanted};

const RECORDED: &str = include_str!("verifier.tsv");
/// A count may grow by this share and by this many instructions before it is a jump: the kernel's updates move it a little.
const SHARE: u32 = 5;
const SLACK: u32 = 500;

/// "6.12" of "6.12.117+deb12-cloud-amd64".
fn series() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// The counts of this kernel series, by program.
fn recorded(series: &str) -> BTreeMap<&str, u32> {
    let mut lines = RECORDED.lines();
    let Some(column) = lines.next().unwrap().split('\t').position(|name| name == series) else { return BTreeMap::new() };
    let cell = |line: &'static str| Some((line.split('\t').next()?, line.split('\t').nth(column)?.parse().ok()?));
    lines.filter_map(cell).collect()
}

/// Counts of both ways to hook, as far as this kernel has them.
fn counts(options: &Options) -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    for hooks in [Wanted::Syscall, Wanted::Driver] {
        match Kernel::for_watching(Options { hooks, xid_tracepoint: false, ..options.clone() }) {
            Ok(kernel) => all.extend(kernel.verified()),
            Err(KernelError::NoProbes) => println!("skipped: the kprobe programs, since this kernel has no kprobes"),
            Err(error) => panic!("{error}"),
        }
    }
    all
}

/// Fails when a program became much harder to verify. With OUTLIVE_VERIFIER_OUT in the environment it writes the counts to that file.
pub(crate) fn no_program_became_much_harder_to_verify(options: &Options) {
    let (series, counts) = (series(), counts(options));
    let driver = std::path::Path::new("/sys/module/nvidia").exists();
    assert!(!driver || counts.contains_key("driver_ioctl_done"), "the driver's functions are not hooked: {counts:?}");
    assert!(counts.contains_key("iter_task") && counts.contains_key("sched_process_exit"), "{counts:?}");
    if let Some(out) = std::env::var_os("OUTLIVE_VERIFIER_OUT") {
        let mut text = format!("program\t{series}\n");
        counts.iter().for_each(|(name, count)| writeln!(text, "{name}\t{count}").unwrap());
        std::fs::write(out, text).unwrap();
        return;
    }
    let known = recorded(&series);
    if known.is_empty() {
        println!("skipped: verifier.tsv has no column for Linux {series}; `cargo xtask verifier` adds it");
        return;
    }
    // One line for the report of the matrix.
    let hardest = counts.iter().max_by_key(|(_, count)| **count).map_or_else(String::new, |(name, count)| format!("{name} {count}"));
    let (before, after) = counts.iter().filter_map(|(name, count)| Some((known.get(name.as_str())?, count))).fold((0, 0), |sum, (old, new)| (sum.0 + old, sum.1 + new));
    println!("verifier: {} programs, hardest {hardest}; all together {after} instructions, recorded {before}", counts.len());
    let most = |name: &str| known.get(name).map(|count| count + (count / SHARE).max(SLACK));
    let jumped: Vec<String> = counts.iter()
        .filter(|(name, count)| most(name).is_none_or(|most| **count > most))
        .map(|(name, count)| format!("{name}: {count}, recorded {:?}", known.get(name.as_str())))
        .collect();
    assert!(jumped.is_empty(), "harder to verify on Linux {series}, or not recorded (`cargo xtask verifier`): {jumped:#?}");
}
