//! `cargo xtask cost`: what a recorder costs a program that never touches a GPU, with either way to hook, counted in instructions.
//!
//! Always true: a guest runs a loop of one system call without a recorder, then with one, in turns; its clock goes on by a nanosecond for each
//! instruction (QEMU's `-icount shift=0`), so that what it measures is how many there were, and noise of this host is in no figure. Writes
//! docs/cost.md.

use crate::run::workspace;
use crate::vm::Errand;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Loops and how often each goes round: see `bench_loop`.
const LOOPS: [(&str, &str, u32); 4] = [
    ("getppid", "getppid", 20_000),
    ("ioctl", "an ioctl of a plain file", 20_000),
    ("open", "open and close a plain file", 2_000),
    ("fork", "fork, exec, exit, wait", 20),
];
const VARIANTS: [(&str, &str); 3] = [("none", "no recorder"), ("driver", "driver hooks"), ("syscall", "syscall hooks")];
const ROUNDS: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(900);

/// Measures in every guest and writes the page.
///
/// # Errors
/// When something cannot be built or run.
pub(crate) fn cost() -> Result<()> {
    crate::vm::optimised()?;
    let itself = std::env::current_exe().context("cannot find this program")?;
    let kernels = crate::vm::kernels(&[])?;
    let commands = commands(&itself);
    let out = |name: &str| crate::vm::folder().join(format!("cost-{name}.txt"));
    let results = crate::vm::at_once(&kernels, |kernel| {
        let errand = Errand { programs: std::slice::from_ref(&itself), commands: &commands, patience: PATIENCE, out: Some(&out(kernel.name)), counted: true };
        crate::vm::boot(kernel, &errand)
    });
    let mut page = String::from(
        "# What a recorder costs who does not use the GPU\n\nWritten by `cargo xtask cost`. Instructions for one round of a loop (the best of all rounds: \
         in others something else ran too), in guests whose clock counts instructions; in parentheses the ratio to no recorder. The loops run in turns \
         with and without a recorder.\n",
    );
    for (kernel, result) in kernels.iter().zip(results) {
        result?;
        let text = fs::read_to_string(out(kernel.name)).with_context(|| format!("the guest {} wrote no figures", kernel.name))?;
        table(&mut page, kernel.name, &figures(&text));
    }
    let place = workspace().join("docs/cost.md");
    fs::write(&place, &page).with_context(|| format!("cannot write {}", place.display()))?;
    println!("{page}");
    Ok(())
}

/// Best of each (variant, loop), ns, in every round.
fn figures(text: &str) -> BTreeMap<(String, String), Vec<f64>> {
    let mut found: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(variant), Some(kind), Some(json)) = (words.next(), words.next(), words.next()) else { continue };
        let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
        if let Some(best) = value["best_ns"].as_f64() {
            found.entry((variant.to_owned(), kind.to_owned())).or_default().push(best);
        }
    }
    found
}

fn table(page: &mut String, kernel: &str, figures: &BTreeMap<(String, String), Vec<f64>>) {
    let best = |variant: &str, kind: &str| {
        let all = figures.get(&(variant.to_owned(), kind.to_owned())).into_iter().flatten().copied();
        all.min_by(f64::total_cmp).unwrap_or(f64::NAN)
    };
    let heads = VARIANTS.map(|(_, head)| head).join(" | ");
    let _ = write!(page, "\n## Linux {kernel}\n\n| loop | {heads} |\n|---|---|---|---|\n");
    for (kind, what, _) in LOOPS {
        let plain = best("none", kind);
        let cells = VARIANTS.map(|(variant, _)| format!("{:.0} ({:.3})", best(variant, kind), best(variant, kind) / plain));
        let _ = writeln!(page, "| {what} | {} |", cells.join(" | "));
    }
}

/// What the guest runs.
fn commands(itself: &Path) -> String {
    let target = workspace().join("target/debug");
    let (outlive, double) = (target.join("outlive"), target.join("libnvml_double.so"));
    let loops: String = LOOPS.iter().map(|(kind, _, times)| format!("echo $h {kind} $('{}' bench-loop {kind} {times} /etc/passwd) > /dev/ttyS1\n", itself.display())).collect();
    let record = format!(
        "if [ $h != none ]; then '{}' record -o /tmp/$i$h.zst --hooks $h --nvml '{}' 2>/tmp/said & R=$!\n\
         while ! grep -q 'recording to' /tmp/said; do kill -0 $R || {{ status=1; break; }}; sleep 1; done; sleep 3; fi\n",
        outlive.display(),
        double.display(),
    );
    let rounds: String = (0..ROUNDS).map(|round| format!(" {round}")).collect();
    let variants = VARIANTS.map(|(variant, _)| variant).join(" ");
    format!(
        "stty -F /dev/ttyS1 raw\n{}export OUTLIVE_NVML_DOUBLE=/proc/driver/nvidia-standin\n\
         for i in{rounds}; do for h in {variants}; do\n{record}{loops}if [ $h != none ]; then kill $R; wait $R || status=1; fi\ndone; done\n{}",
        crate::driver::LOAD,
        crate::driver::UNLOAD,
    )
}
