//! `cargo xtask verifier`: records how many instructions the verifier goes through for each program, here and in the guests.
//!
//! Always true: the table (tracer/tests/kernel/verifier.tsv: a program a line, a kernel series a column) has what the kernels said in this run and
//! in earlier ones; the kernel tests compare with it and fail on a jump.

use crate::run::{run, workspace};
use crate::vm::{Errand, Kernel};
use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const TABLE: &str = "tracer/tests/kernel/verifier.tsv";
/// The test that counts and compares, or only counts when told where to write to.
const TEST: &str = "no_program_became_much_harder_to_verify";
const OUT: &str = "OUTLIVE_VERIFIER_OUT";
/// A guest has only this to do.
const PATIENCE: Duration = Duration::from_secs(300);

/// Counts by kernel series, then by program.
type Table = BTreeMap<String, BTreeMap<String, u32>>;

/// Records the counts of this kernel and of the guests'.
///
/// # Errors
/// When something cannot be built or run.
pub(crate) fn record() -> Result<()> {
    let tests = crate::vm::build(&["kernel"])?;
    let test = tests.first().context("cargo built no kernel test")?;
    crate::vm::optimised()?;
    let kernels = crate::vm::kernels(&[])?;
    let file = |name: &str| crate::vm::folder().join(format!("verifier-{name}.tsv"));
    let mut columns = vec![file("here")];
    run(Command::new(test).arg(TEST).env(OUT, file("here")))?;
    let (load, unload) = (crate::driver::LOAD, crate::driver::UNLOAD);
    let line = format!("stty -F /dev/ttyS1 raw\n{load}{OUT}=/dev/ttyS1 '{}' {TEST} || status=1\n{unload}", test.display());
    let guest = |kernel: &Kernel| {
        let errand = Errand { programs: &tests, commands: &line, patience: PATIENCE, out: Some(&file(kernel.name)), counted: false };
        crate::vm::boot(kernel, &errand)
    };
    for result in crate::vm::at_once(&kernels, guest) {
        result?;
    }
    columns.extend(kernels.iter().map(|kernel| file(kernel.name)));
    let place = workspace().join(TABLE);
    let mut table = read(&place)?;
    for column in columns {
        table.extend(read(&column)?);
    }
    fs::write(&place, written(&table)).with_context(|| format!("cannot write {}", place.display()))?;
    println!("wrote {}", place.display());
    Ok(())
}

fn read(place: &Path) -> Result<Table> {
    let text = fs::read_to_string(place).with_context(|| format!("cannot read {}", place.display()))?;
    let mut lines = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let head = lines.next().with_context(|| format!("{} is empty", place.display()))?;
    let mut table: Table = head.iter().skip(1).map(|series| ((*series).to_owned(), BTreeMap::new())).collect();
    for line in lines {
        for (series, count) in head.iter().zip(&line).skip(1) {
            if let (Ok(count), Some(column), Some(name)) = (count.parse(), table.get_mut(*series), line.first()) {
                column.insert((*name).to_owned(), count);
            }
        }
    }
    Ok(table)
}

fn written(table: &Table) -> String {
    // 6.1 before 6.12.
    let mut series: Vec<&String> = table.keys().collect();
    series.sort_by_key(|name| name.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>());
    let names: BTreeSet<&String> = table.values().flat_map(BTreeMap::keys).collect();
    let mut text = format!("program\t{}\n", series.iter().map(|name| name.as_str()).collect::<Vec<_>>().join("\t"));
    for name in names {
        let cell = |series: &&String| table.get(*series).and_then(|column| column.get(name)).map(u32::to_string).unwrap_or_default();
        text.push_str(&format!("{name}\t{}\n", series.iter().map(cell).collect::<Vec<_>>().join("\t")));
    }
    text
}
