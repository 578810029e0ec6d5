//! docs/accuracy.md, made of outcomes.
//!
//! Always true: pure; every cell comes from an outcome; what was not played is an empty cell, never a right one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::outcome::{Outcome, Told};
use crate::rivals::{Answer, Rival};
use crate::scenario::Scenario;

/// What is asked of every tool, in the order of the cells' letters.
const QUESTIONS: [(&str, char); 5] = [("holders", 'H'), ("owner", 'O'), ("cause", 'C'), ("bytes", 'B'), ("remedy", 'R')];
/// Looks, in the order of a cell's marks.
const LOOKS: [&str; 3] = ["cold", "warm", "offline"];

/// The page; `places` are in the order of the columns.
#[must_use]
pub fn page(scenarios: &[Scenario], places: &[(String, Vec<Outcome>)]) -> String {
    let mut page = String::from(INTRODUCTION);
    let by_name: Vec<(&str, BTreeMap<&str, &Outcome>)> = places.iter()
        .map(|(place, outcomes)| (place.as_str(), outcomes.iter().map(|outcome| (outcome.name.as_str(), outcome)).collect()))
        .collect();
    totals(&mut page, &by_name);
    verdicts(&mut page, scenarios, &by_name);
    rivals(&mut page, scenarios, &by_name);
    sentences(&mut page, scenarios, &by_name);
    page
}

const INTRODUCTION: &str = "\
# Accuracy

What `outlive` says of every scenario in `tests/scenarios`, and what the usual tools print of the same moment. Made by
`cargo xtask accuracy`; the column `h200` comes from a host with a real NVIDIA H200 (`tests/gpu/accuracy.sh`). Nothing here is
written by hand.

A scenario is right when cause, confidence, owner, every holder and how it came to hold, and the bytes are right (to the byte with
stand-ins, within 2 MiB of the driver's own figure with a driver, within 8 MiB where cold it can only be what is left over), and nobody else is named; `cold` (nothing ran before), `warm` (with
a recorder's history) and `offline` (from the trace file, read by a user without rights). Without history a cause may be `inferred`
where the past is out of reach.

";

type Columns<'a> = [(&'a str, BTreeMap<&'a str, &'a Outcome>)];

fn is_right(told: &Told) -> bool {
    told.wrong.is_empty()
}

fn totals(page: &mut String, places: &Columns<'_>) {
    page.push_str(
        "| where | scenarios | cold right | warm right | offline right | the same play with syscall hooks | remedies that freed | not played |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (place, outcomes) in places {
        let played: Vec<&&Outcome> = outcomes.values().filter(|outcome| outcome.skipped.is_none()).collect();
        let right = |look: &str| played.iter().filter(|outcome| outcome.looks.get(look).is_some_and(is_right)).count();
        let tried = played.iter().filter_map(|outcome| outcome.remedy.as_ref());
        let freed = tried.clone().filter(|tried| tried.wrong.is_empty()).count();
        let twice: Vec<String> = played.iter().filter_map(|outcome| both(outcome)).collect();
        let both = if twice.is_empty() { String::new() } else { format!("{} of {}", twice.iter().filter(|marks| *marks == "++").count(), twice.len()) };
        let _ = writeln!(
            page,
            "| {place} | {} | {} | {} | {} | {both} | {freed} of {} | {} |",
            played.len(), right("cold"), right("warm"), right("offline"), tried.count(), outcomes.len() - played.len()
        );
    }
}

fn verdicts(page: &mut String, scenarios: &[Scenario], places: &Columns<'_>) {
    page.push_str(
        "\n## Scenarios\n\nThree marks: cold, warm, offline (`+` right, `x` wrong); where the first recorder had driver hooks, behind \
         a stroke warm and offline of one with syscall hooks that watched the same play; then `R` where the printed commands were followed and \
         the memory went (`r`: it did not). `skip`: could not be played there (the reason stands below the table); empty: needs what that place has not.\n\n",
    );
    let _ = writeln!(page, "| scenario | what it proves | {} |", places.iter().map(|(place, _)| *place).collect::<Vec<_>>().join(" | "));
    let _ = writeln!(page, "|---|---|{}", "---|".repeat(places.len()));
    for scenario in scenarios {
        let cells = places.iter().map(|(_, outcomes)| outcomes.get(scenario.name.as_str()).map(|outcome| cell(outcome)).unwrap_or_default());
        let _ = writeln!(page, "| `{}` | {} | {} |", scenario.name, scenario.claim, cells.collect::<Vec<_>>().join(" | "));
    }
    let skipped: Vec<String> = places.iter()
        .flat_map(|(place, outcomes)| outcomes.values().filter_map(move |o| o.skipped.as_ref().map(|why| format!("* `{}` on {place}: {why}\n", o.name))))
        .collect();
    if !skipped.is_empty() {
        let _ = write!(page, "\nNot played:\n\n{}", skipped.concat());
    }
}

fn cell(outcome: &Outcome) -> String {
    if outcome.skipped.is_some() {
        return "skip".to_owned();
    }
    let mark = |look: &&str| match outcome.looks.get(*look) {
        Some(told) if is_right(told) => '+',
        Some(_) => 'x',
        None => '-',
    };
    let marks: String = LOOKS.iter().map(mark).collect();
    let marks = both(outcome).map_or(marks.clone(), |more| format!("{marks}/{more}"));
    let remedy = outcome.remedy.as_ref().map_or("", |tried| if tried.wrong.is_empty() { " R" } else { " r" });
    format!("`{marks}`{remedy}")
}

/// Marks of the looks with the history of a second recorder, which had syscall hooks, where there was one: warm and offline.
fn both(outcome: &Outcome) -> Option<String> {
    let looks = ["warm (syscall hooks)", "offline (syscall hooks)"].map(|look| outcome.looks.get(look));
    let marks: String = looks.into_iter().flatten().map(|told| if is_right(told) { '+' } else { 'x' }).collect();
    (!marks.is_empty()).then_some(marks)
}

/// Where the usual tools were asked: on a real GPU, if the scenario was played there.
fn asked<'a>(name: &str, places: &'a Columns<'_>) -> Option<&'a Outcome> {
    places.iter().rev().find_map(|(_, outcomes)| outcomes.get(name).copied().filter(|outcome| !outcome.rivals.is_empty()))
}

fn rivals(page: &mut String, scenarios: &[Scenario], places: &Columns<'_>) {
    page.push_str(
        "\n## The usual tools\n\nA letter for what a tool answers rightly: **H** names the holders and nobody else, **O** the owner, **C** the cause, \
         **B** the bytes, **R** `kill -9` of everybody whom it names would end every holder and no one innocent. A small letter: only a part of it; `!`: \
         it names somebody who does not hold it; `.`: nothing. `outlive`'s own letters are those of its warm look. Scenarios that cannot be \
         played on the GPU host were asked about on the development host, where NVML's tools have nothing to say (empty).\n\n",
    );
    let mut tools: Vec<&str> = Vec::new();
    for rival in scenarios.iter().filter_map(|scenario| asked(&scenario.name, places)).flat_map(|outcome| &outcome.rivals) {
        if !tools.contains(&rival.tool.as_str()) {
            tools.push(&rival.tool);
        }
    }
    let order = ["nvidia-smi", "NVML list", "gpustat", "nvitop", "fuser", "lsof", "ps"];
    tools.sort_by_key(|tool| order.iter().position(|known| known == tool));
    let _ = writeln!(page, "| scenario | outlive | {} |\n|---|---|{}", tools.join(" | "), "---|".repeat(tools.len()));
    let mut right: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
    let mut wrong: BTreeMap<&str, usize> = BTreeMap::new();
    let mut count = 0;
    for scenario in scenarios.iter().filter(|scenario| !scenario.memory.is_empty()) {
        let Some(outcome) = asked(&scenario.name, places) else { continue };
        count += 1;
        let ours = ours(outcome);
        tally(&mut right, "outlive", ours);
        let cells: Vec<String> = tools.iter().map(|tool| {
            let Some(rival) = outcome.rivals.iter().find(|rival| rival.tool == *tool) else { return String::new() };
            tally(&mut right, tool, answers(rival).map(|answer| answer == Answer::Yes));
            *wrong.entry(tool).or_default() += usize::from(rival.holders == Answer::Wrong);
            format!("`{}`", letters(answers(rival)))
        }).collect();
        let our_letters = letters(ours.map(|is| if is { Answer::Yes } else { Answer::No }));
        let _ = writeln!(page, "| `{}` | `{our_letters}` | {} |", scenario.name, cells.join(" | "));
    }
    let _ = writeln!(page, "\nOf these {count} scenarios, right answers by tool:\n\n| tool | holders | owner | cause | bytes | remedy | names somebody wrong |\n|---|---|---|---|---|---|---|");
    for tool in std::iter::once("outlive").chain(tools) {
        let counts = right.get(tool).copied().unwrap_or_default();
        let _ = writeln!(page, "| {tool} | {} | {} |", counts.map(|n| bar(n, count)).join(" | "), wrong.get(tool).copied().unwrap_or_default());
    }
}

/// A number with a bar of ten cells.
fn bar(n: usize, of: usize) -> String {
    let cells = (n * 10).checked_div(of).unwrap_or_default();
    format!("`{}{}` {n}", "#".repeat(cells), ".".repeat(10 - cells))
}

fn ours(outcome: &Outcome) -> [bool; 5] {
    let warm = outcome.looks.get("warm");
    let right = |part: &str| warm.is_some_and(|told| !told.wrong.contains_key(part));
    // A remedy is right when following it helped, or when there rightly is no command to follow.
    let remedy = outcome.remedy.as_ref().is_none_or(|tried| tried.wrong.is_empty()) && right("rest");
    QUESTIONS.map(|(part, _)| if part == "remedy" { remedy } else { right(part) })
}

fn tally<'a>(counts: &mut BTreeMap<&'a str, [usize; 5]>, tool: &'a str, right: [bool; 5]) {
    let counts = counts.entry(tool).or_default();
    for (count, right) in counts.iter_mut().zip(right) {
        *count += usize::from(right);
    }
}

fn answers(rival: &Rival) -> [Answer; 5] {
    [rival.holders, rival.owner, rival.cause, rival.bytes, rival.remedy]
}

fn letters(answers: [Answer; 5]) -> String {
    let letter = |(answer, (_, letter)): (Answer, (&str, char))| match answer {
        Answer::Yes => letter,
        Answer::Partly => letter.to_ascii_lowercase(),
        Answer::Wrong => '!',
        Answer::No | Answer::Nothing => '.',
    };
    answers.into_iter().zip(QUESTIONS).map(letter).collect()
}

fn sentences(page: &mut String, scenarios: &[Scenario], places: &Columns<'_>) {
    page.push_str("\n## What it says\n\nThe first sentence of each answer, warm and cold, from the last place above that played the scenario; PIDs and times as they were; sentences about outlive's own processes are left out.\n");
    for scenario in scenarios {
        let played = places.iter().rev().find_map(|(place, outcomes)| {
            outcomes.get(scenario.name.as_str()).filter(|outcome| !outcome.looks.is_empty()).map(|outcome| (place, *outcome))
        });
        let Some((place, outcome)) = played else { continue };
        let _ = write!(page, "\n**`{}`** ({place}): {}\n\n", scenario.name, scenario.story);
        for look in ["warm", "cold"] {
            let summaries = outcome.looks.get(look).map(|told| told.summaries.as_slice()).unwrap_or_default();
            if summaries.is_empty() {
                let _ = writeln!(page, "* {look}: nothing outlives its owner.");
            }
            // Of the recorder and the looks themselves there is nothing to learn here.
            summaries.iter().filter(|summary| !summary.contains("belongs to outlive (PID")).for_each(|summary| {
                let _ = writeln!(page, "* {look}: {}", summary.replace('|', "\\|"));
            });
        }
    }
}
