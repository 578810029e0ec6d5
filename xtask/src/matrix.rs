//! What came of the matrix: every scenario on each kernel with each way to hook.
//!
//! Always true: pure but for reading files. Only what arrived counts: a scenario whose outcome is missing or cut off is wrong, since a guest that
//! died halfway must not look like one that was right about everything. A recorder is counted under the hooks that it had.

use crate::run::output;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Behind a look's name when a second recorder, with syscall hooks, made its history (tests/src/lib.rs).
const SECOND: &str = " (syscall hooks)";

/// Names of the scenarios that `program play --with WITH` plays, of those in `only` (all when empty).
///
/// # Errors
/// When it does not run.
pub(crate) fn expected(program: &Path, with: &str, only: &[String]) -> Result<Vec<String>> {
    let names = output(Command::new(program).args(["play", "--list", "--with", with]).args(only))?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// Outcomes of one place, by scenario.
pub(crate) struct Outcomes(BTreeMap<String, Value>);

impl Outcomes {
    /// Of these scenarios. What did not arrive, or not whole, is a wrong outcome.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn read(file: &Path, expected: &[String]) -> Result<Outcomes> {
        let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Outcomes::parse(&String::from_utf8_lossy(&text), expected))
    }

    fn parse(text: &str, expected: &[String]) -> Outcomes {
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut outcomes: BTreeMap<String, Value> = lines.filter_map(|outcome| Some((outcome["name"].as_str()?.to_owned(), outcome))).collect();
        for name in expected {
            outcomes.entry(name.clone()).or_insert_with(|| serde_json::json!({ "name": name, "wrong": ["its outcome did not arrive"] }));
        }
        Outcomes(outcomes)
    }

    /// What was played again takes the place of what was before.
    pub(crate) fn replace(&mut self, again: Outcomes) {
        self.0.extend(again.0);
    }

    /// Scenarios about which anything was wrong.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.0.iter().filter(|(_, outcome)| !complaints(outcome).is_empty()).map(|(name, _)| name.clone()).collect()
    }

    /// Scenarios about which recorders with different hooks did not agree: looks of one moment, which no starved machine excuses.
    pub(crate) fn differing(&self) -> Vec<String> {
        self.0.iter().filter(|(_, outcome)| differs(outcome)).map(|(name, _)| name.clone()).collect()
    }

    /// Every complaint, and why what was not played was not.
    pub(crate) fn said(&self) -> Vec<String> {
        let all = self.0.iter().flat_map(|(name, outcome)| {
            let skipped = outcome["skipped"].as_str().map(|why| format!("{name}: not played: {why}"));
            complaints(outcome).into_iter().map(move |what| format!("{name}: {what}")).chain(skipped)
        });
        all.collect()
    }

    fn skipped(&self) -> usize {
        self.0.values().filter(|outcome| outcome["skipped"].is_string()).count()
    }

    /// "right of all" for a look ("cold", "warm", "offline"), with the history of a recorder with these hooks.
    fn right(&self, look: &str, hooks: Hooks) -> String {
        let told: Vec<&Value> = self.0.values().filter_map(|outcome| outcome["looks"].get(hooks.name(outcome, look)?)).collect();
        match told.len() {
            0 => String::new(),
            all => format!("{} of {all}", told.iter().filter(|told| texts(&told["wrong"]).is_empty()).count()),
        }
    }

    /// How many plays were found to differ between the two recorders that watched them.
    fn differ(&self) -> String {
        let twice: Vec<&Value> = self.0.values().filter(|outcome| outcome["looks"].get(format!("warm{SECOND}")).is_some()).collect();
        if twice.is_empty() { String::new() } else { twice.iter().filter(|outcome| differs(outcome)).count().to_string() }
    }
}

/// How a recorder was attached; `None`: there was none.
#[derive(Clone, Copy)]
enum Hooks {
    None,
    Driver,
    Syscall,
}

impl Hooks {
    /// The name of a look in an outcome. Where no driver is loaded a recorder takes what there is: syscall hooks.
    fn name(self, outcome: &Value, look: &str) -> Option<String> {
        let driver = outcome["place"] == "driver";
        match self {
            Hooks::Driver if !driver => None,
            Hooks::Syscall if driver => Some(format!("{look}{SECOND}")),
            Hooks::None | Hooks::Driver | Hooks::Syscall => Some(look.to_owned()),
        }
    }
}

/// All sentences in a value, however deep.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(all) => all.iter().flat_map(texts).collect(),
        Value::Object(all) => all.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

fn differs(outcome: &Value) -> bool {
    texts(&outcome["wrong"]).iter().any(|what| what.contains("recordings disagree") || what.contains("saw other events"))
}

fn complaints(outcome: &Value) -> Vec<String> {
    let looks = outcome["looks"].as_object().into_iter().flatten();
    let told = looks.flat_map(|(look, told)| texts(&told["wrong"]).into_iter().map(move |what| format!("{look}: {what}")));
    let remedy = texts(&outcome["remedy"]["wrong"]).into_iter().map(|what| format!("remedy: {what}"));
    texts(&outcome["wrong"]).into_iter().chain(told).chain(remedy).collect()
}

/// Tests that a guest ran, as its console has them.
#[derive(Default)]
pub(crate) struct Tests {
    passed: usize,
    failed: usize,
    /// What the test of the verifier said.
    verifier: String,
}

impl Tests {
    pub(crate) fn read(console: &str) -> Tests {
        let mut tests = Tests::default();
        for line in console.lines().map(str::trim_end) {
            if let Some(said) = line.strip_prefix("verifier: ") {
                said.clone_into(&mut tests.verifier);
            } else if line.starts_with("test ") && line.ends_with(" ok") {
                tests.passed += 1;
            } else if line.starts_with("test ") && line.ends_with(" FAILED") {
                tests.failed += 1;
            }
        }
        tests
    }
}

/// A kernel.
pub(crate) struct Row {
    /// "6.1", ...
    pub(crate) kernel: String,
    /// None where `cargo xtask test` runs them.
    pub(crate) tests: Option<Tests>,
    /// The last of each scenario.
    pub(crate) outcomes: Outcomes,
    /// Scenarios that were played twice.
    pub(crate) again: usize,
    pub(crate) seconds: u64,
}

/// The report.
pub(crate) fn page(rows: &[&Row]) -> String {
    let head = ["kernel", "tests", "cold", "driver: warm", "offline", "syscall: warm", "offline", "differ", "skipped", "twice", "seconds"];
    let cells = |row: &Row| {
        let right = |look, hooks| row.outcomes.right(look, hooks);
        let tests = row.tests.as_ref().map_or_else(String::new, |tests| format!("{} of {}", tests.passed, tests.passed + tests.failed));
        [
            row.kernel.clone(), tests, right("cold", Hooks::None), right("warm", Hooks::Driver), right("offline", Hooks::Driver),
            right("warm", Hooks::Syscall), right("offline", Hooks::Syscall), row.outcomes.differ(), row.outcomes.skipped().to_string(),
            row.again.to_string(), row.seconds.to_string(),
        ]
    };
    let table: Vec<[String; 11]> = std::iter::once(head.map(str::to_owned)).chain(rows.iter().copied().map(cells)).collect();
    let width = |column: usize| table.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: [usize; 11] = std::array::from_fn(width);
    let mut page = String::from("matrix: looks that were right, by kernel and by the hooks of the recorder whose history they had\n");
    for row in &table {
        let line: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        page.push_str(&format!("  {}\n", line.join("  ")));
    }
    for row in rows {
        let verifier = row.tests.as_ref().map(|tests| tests.verifier.as_str()).filter(|said| !said.is_empty());
        page.extend(verifier.map(|said| format!("  {} verifier: {said}\n", row.kernel)));
        page.extend(row.outcomes.said().into_iter().map(|what| format!("  {} {what}\n", row.kernel)));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = r#"{"name":"a","place":"driver","wrong":[],"looks":{"cold":{},"warm":{},"offline":{},"warm (syscall hooks)":{},"offline (syscall hooks)":{}}}"#;
    const NODES: &str = r#"{"name":"b","place":"stand-in","wrong":[],"looks":{"cold":{},"warm":{},"offline":{"wrong":{"owner":["owner 1 instead of 2"]}}}}"#;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_did_not_arrive_or_was_cut_off_is_wrong() {
        let (all, cut) = (names(&["a", "b"]), &NODES[..NODES.len() / 2]);
        assert_eq!(Outcomes::parse(RIGHT, &all).wrong(), ["b"]);
        assert_eq!(Outcomes::parse(&format!("{RIGHT}\n{cut}"), &all).wrong(), ["b"]);
        assert_eq!(Outcomes::parse("", &all).wrong(), ["a", "b"]);
        assert!(Outcomes::parse(RIGHT, &names(&["a"])).wrong().is_empty());
    }

    #[test]
    fn each_recorder_counts_under_the_hooks_that_it_had() {
        let outcomes = Outcomes::parse(&format!("{RIGHT}\n{NODES}"), &[]);
        assert_eq!(outcomes.right("cold", Hooks::None), "2 of 2");
        assert_eq!(outcomes.right("offline", Hooks::Driver), "1 of 1");
        assert_eq!(outcomes.right("offline", Hooks::Syscall), "1 of 2");
        assert_eq!(outcomes.differ(), "0");
        assert_eq!(Outcomes::parse(NODES, &[]).differ(), "");
        assert_eq!(outcomes.said(), ["b: offline: owner 1 instead of 2"]);
    }

    #[test]
    fn a_disagreement_is_wrong_and_counted() {
        let differ = RIGHT.replace(r#""wrong":[]"#, r#""wrong":["recordings disagree: [x] and [y]"]"#);
        let outcomes = Outcomes::parse(&differ, &[]);
        assert_eq!((outcomes.wrong(), outcomes.differing(), outcomes.differ()), (names(&["a"]), names(&["a"]), "1".to_owned()));
    }

    #[test]
    fn what_is_played_again_takes_the_place_of_what_was_wrong() {
        let mut outcomes = Outcomes::parse("", &names(&["a"]));
        outcomes.replace(Outcomes::parse(RIGHT, &names(&["a"])));
        assert!(outcomes.wrong().is_empty());
    }

    #[test]
    fn tests_are_counted_as_a_serial_console_has_them() {
        let tests = Tests::read("test one ... ok\r\ntest two ... FAILED\r\nverifier: 44 programs\r\ntest result: ok. 1 passed; 0 failed\r\n");
        assert_eq!((tests.passed, tests.failed, tests.verifier.as_str()), (1, 1, "44 programs"));
    }
}
