//! Recordings of a real H200, explained again: what was true then must be said now, at every moment nothing false.
//!
//! The truth beside the recordings is what the scenario programs did (tests/gpu/keep.py), not what outlive said.

#![expect(clippy::expect_used, reason = "a test: what it needs is in the repository")]

use outlive::event::Event;
use outlive::explanation::{CauseId, Explanation, explain};
use outlive::offline::{self, Moment};
use outlive::trace::reader::Reader;
use outlive::world::World;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

#[derive(Deserialize)]
struct Truth {
    at: String,
    cause: Option<CauseId>,
    owner: u32,
    holders: Option<BTreeMap<String, outlive::event::Via>>,
    /// What exactly the dead owner's allocations are, where the scenario knows.
    #[serde(default)]
    mib: Option<u64>,
}

/// Two figures of the same memory differ by no more.
const NEAR: u64 = 2 << 20;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/h200")
}

fn truths() -> BTreeMap<String, Truth> {
    let text = std::fs::read_to_string(folder().join("truth.json")).expect("truth.json is there");
    serde_json::from_str(&text).expect("truth.json is as keep.py writes it")
}

fn events(name: &str) -> Vec<Event> {
    let reader = Reader::open(&folder().join(format!("{name}.jsonl.zst"))).expect("the recording is there");
    reader.map(|event| event.expect("the recording is whole")).collect()
}

fn fold<'a>(events: impl IntoIterator<Item = &'a Event>) -> World {
    let mut world = World::default();
    events.into_iter().for_each(|event| world.apply(event));
    world
}

/// Holdings apart from the driver's reserve.
fn held(answer: &Explanation) -> Vec<&outlive::explanation::Holding> {
    answer.holdings.iter().filter(|h| h.cause != CauseId::DriverReserve).collect()
}

#[test]
fn every_recorded_incident_is_explained_as_it_was() {
    for (name, truth) in truths() {
        let path = folder().join(format!("{name}.jsonl.zst"));
        // The moment is printed in whole milliseconds: take all of the last one.
        let moment = match Moment::parse(&truth.at).expect("a moment") {
            Moment::Wall(ns) => Moment::Wall(ns + 999_999),
            other => other,
        };
        let answer = explain(&offline::world(&[&path], moment).expect("a trace"));
        let held = held(&answer);
        let Some(cause) = truth.cause else {
            assert!(held.is_empty(), "{name}: {held:?}");
            continue;
        };
        let found = held.iter().find(|h| h.cause == cause).unwrap_or_else(|| panic!("{name}: {held:?}"));
        assert_eq!(found.owner.as_ref().map(|o| o.pid), Some(truth.owner), "{name}");
        if let Some(holders) = truth.holders {
            let got: BTreeMap<String, _> = found.holders.iter().map(|h| (h.pid.to_string(), h.via)).collect();
            assert_eq!(got, holders, "{name}");
        }
        match (truth.mib, found.bytes) {
            (Some(mib), Some(bytes)) => assert!(bytes.abs_diff(mib << 20) <= NEAR, "{name}: {bytes} bytes, {mib} MiB are held"),
            (_, bytes) => assert!(bytes.is_some_and(|b| b > 512 << 20), "{name}: {bytes:?}"),
        }
    }
}

#[test]
fn books_that_are_complete_agree_with_nvml_and_each_account_adds_up() {
    let mut compared = 0;
    for (name, truth) in truths() {
        let path = folder().join(format!("{name}.jsonl.zst"));
        let answer = explain(&offline::world(&[&path], Moment::parse(&truth.at).expect("a moment")).expect("a trace"));
        for h in &answer.holdings {
            let Some((books, nvml)) = h.books.as_ref().and_then(|b| Some((b, b.nvml_bytes?))) else { continue };
            compared += usize::from(books.complete);
            assert!(!books.complete || books.bytes.abs_diff(nvml) <= NEAR, "{name}: {books:?}");
            assert!(books.complete != (name == "late"), "{name}: {books:?}");
        }
        for gpu in &answer.gpus {
            let Some((account, used)) = gpu.account.as_ref().zip(gpu.used_bytes) else { continue };
            let sum = account.owners_bytes + account.held.iter().map(|held| held.bytes).sum::<u64>() + account.unexplained_bytes;
            assert_eq!(sum, used, "{name}: {account:?}");
        }
    }
    assert!(compared >= 20, "{compared}");
}

#[test]
fn after_everything_was_killed_nothing_is_held() {
    for name in truths().into_keys() {
        let answer = explain(&fold(&events(&name)));
        assert!(held(&answer).is_empty(), "{name}: {:?}", held(&answer));
        assert_eq!(answer.exit_code(), 0, "{name}");
    }
}

#[test]
fn no_prefix_of_a_recording_blames_a_process_that_holds_nothing() {
    for name in truths().into_keys() {
        let events = events(&name);
        let mut world = World::default();
        for (index, event) in events.iter().enumerate() {
            world.apply(event);
            if index % 7 != 0 {
                continue;
            }
            let holding: BTreeSet<u32> = world.processes().filter(|p| !p.files.is_empty()).map(|p| p.id().tgid()).collect();
            for h in explain(&world).holdings {
                for holder in h.holders {
                    assert!(holding.contains(&holder.pid), "{name}, event {index}: {} holds nothing", holder.pid);
                }
            }
        }
    }
}

#[test]
fn a_recording_without_some_of_its_events_never_panics() {
    for name in truths().into_keys() {
        let events = events(&name);
        for step in 2..7 {
            for start in 0..step {
                let _ = explain(&fold(events.iter().enumerate().filter(|(i, _)| i % step != start).map(|(_, e)| e)));
            }
        }
        let _ = explain(&fold(events.iter().rev()));
    }
}

#[test]
fn the_next_file_of_a_rotated_recording_says_the_same_of_what_is_held() {
    for name in truths().into_keys() {
        let events = events(&name);
        for cut in [events.len() / 3, events.len() / 2, events.len() * 2 / 3] {
            let before = fold(&events[..cut]);
            let after = fold(&before.carry_over());
            let say = |w: &World| -> Vec<_> {
                let answer = explain(w);
                answer.holdings.iter().map(|h| (h.gpu, h.bytes, h.cause, h.owner.as_ref().map(|o| o.pid), h.summary.clone())).collect()
            };
            assert_eq!(say(&after), say(&before), "{name}, cut at {cut}");
        }
    }
}

/// What stands in the README between the comment that begins with `about` and `<!-- end -->`, without its indent.
fn shown_in_readme(about: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(folder().join("../../../README.md")).expect("README.md is there");
    let lines = readme.lines().skip_while(|l| !l.starts_with(&format!("<!-- {about}"))).skip(1);
    lines.take_while(|l| *l != "<!-- end -->").map(|l| l.strip_prefix("    ").unwrap_or(l).to_owned()).collect()
}

#[test]
fn the_readme_shows_what_the_program_prints() {
    use outlive::report::{layout::Style, text, timeline};
    let demo = folder().join("../../../tracer/demo/h200-dataloader.jsonl.zst");
    let world = offline::world(&[&demo], Moment::End).expect("the demo's recording");
    let printed = text::explanation(&explain(&world), &Style::default());
    let shown = shown_in_readme("outlive demo");
    assert!(shown.len() > 20, "{shown:?}");
    let printed: Vec<&str> = printed.lines().map(str::trim_end).take(shown.len()).collect();
    assert_eq!(shown, printed, "README.md and `outlive demo` differ");

    let killed = folder().join("killed.jsonl.zst");
    let world = offline::world(&[&killed], Moment::End).expect("a recording");
    let printed = timeline::text(&outlive::timeline::timelines(&world, None), &Style::default());
    let shown = shown_in_readme("outlive timeline");
    assert!(shown.len() > 8, "{shown:?}");
    let printed: Vec<&str> = printed.lines().map(str::trim_end).take(shown.len()).collect();
    assert_eq!(shown, printed, "README.md and `outlive timeline` differ");
}
