//! Nobody innocent is blamed, whatever becomes of a recording: cut short, shuffled, thinned out, its bytes torn.
//!
//! Always true: who may be named comes from the events of the whole recording (who ever had an NVIDIA file, or was forked from one who
//! had; whom NVML ever listed), not from what outlive says of it.

#![expect(clippy::expect_used, clippy::panic, reason = "a test: what it needs is in the repository")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use outlive::event::{Event, What};
use outlive::explanation::{CauseId, explain};
use outlive::trace::reader::Reader;
use outlive::world::World;
use proptest::prelude::*;
use proptest::sample::Index;

struct Recording {
    name: String,
    events: Vec<Event>,
    /// PIDs that ever had an NVIDIA file or may have inherited one.
    holders: BTreeSet<u32>,
    /// Those, and whom NVML ever listed.
    owners: BTreeSet<u32>,
}

static RECORDINGS: LazyLock<Vec<Recording>> = LazyLock::new(|| {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/h200"))
        .expect("the recordings are there")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "zst"))
        .collect();
    paths.sort();
    paths.iter().map(|path| recording(path)).collect()
});

fn recording(path: &Path) -> Recording {
    let events: Vec<Event> = Reader::open(path).expect("a recording").map(|event| event.expect("the recording is whole")).collect();
    let (mut holders, mut listed) = (BTreeSet::new(), BTreeSet::new());
    for event in &events {
        match &event.what {
            What::Hold(hold) => {
                holders.insert(hold.id.tgid());
                holders.extend(hold.opener.map(|id| id.tgid()));
            }
            What::Sent { id, .. } => {
                holders.insert(id.tgid());
            }
            What::GpuProcesses { list, .. } => listed.extend(list.iter().map(|process| process.pid)),
            _ => {}
        }
    }
    // A fork copies descriptors; a child's own forks may stand before it when events of several processors meet.
    loop {
        let before = holders.len();
        for event in &events {
            if let What::Fork { parent, child, .. } = &event.what
                && holders.contains(&parent.tgid())
            {
                holders.insert(child.tgid());
            }
        }
        if holders.len() == before {
            break;
        }
    }
    let owners = holders.union(&listed).copied().collect();
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
    Recording { name, events, holders, owners }
}

/// Returns how many people were named.
fn nobody_innocent_is_blamed(recording: &Recording, events: impl IntoIterator<Item = Event>) -> usize {
    let mut named = 0;
    let mut world = World::default();
    events.into_iter().for_each(|event| world.apply(&event));
    for holding in explain(&world).holdings.iter().filter(|holding| holding.cause != CauseId::DriverReserve) {
        named += holding.holders.len() + usize::from(holding.owner.is_some());
        for holder in &holding.holders {
            assert!(recording.holders.contains(&holder.pid), "{}: PID {} never had an NVIDIA file: {}", recording.name, holder.pid, holding.summary);
        }
        if let Some(owner) = &holding.owner {
            assert!(recording.owners.contains(&owner.pid), "{}: PID {} never used the GPU: {}", recording.name, owner.pid, holding.summary);
        }
        for command in holding.remedy.iter().filter_map(|remedy| remedy.command.as_deref()).filter(|command| command.contains("kill -")) {
            let targets = targets(command);
            assert!(!targets.is_empty(), "{}: no PID in {command:?}", recording.name);
            for (at, target) in targets.iter().enumerate() {
                assert!(recording.holders.contains(target), "{}: {command:?} would hit an innocent process", recording.name);
                assert!(!targets[..at].contains(target), "{}: {command:?} hits a process twice", recording.name);
            }
        }
    }
    named
}

/// The PIDs that a command signals: `kill -TERM 580; kill -TERM 581   # ...` and `for p in 580:42 581:43; do ... kill -TERM ${p%:*}; done   # ...`.
/// Panics at any other.
fn targets(command: &str) -> Vec<u32> {
    let parse = |pid: &str| -> u32 { pid.parse().unwrap_or_else(|_| panic!("{pid:?} is no PID in {command:?}")) };
    let deeds = command.split(" #").next().unwrap_or_default();
    let looped = deeds.split_once("for p in ").and_then(|(_, rest)| rest.split_once(';')).map(|(list, _)| list);
    let looped = looped.into_iter().flat_map(str::split_whitespace).map(|target| parse(target.split(':').next().unwrap_or_default()));
    let after_kill = |rest: &str| rest.split_whitespace().nth(1).unwrap_or_default().trim_end_matches(';').to_owned();
    let each: Vec<String> = deeds.split("kill -").skip(1).map(after_kill).filter(|pid| pid != "${p%:*}").collect();
    looped.chain(each.iter().map(|pid| parse(pid))).collect()
}

#[test]
fn every_process_that_a_command_hits_is_looked_at() {
    assert_eq!(targets("kill -INT 7   # kill -INT 8"), [7]);
    assert_eq!(targets("grep -qw 9 /proc/7/stat && kill -KILL 7; kill -KILL 8   # a, b"), [7, 8]);
    assert_eq!(targets("for p in 7:1 8:2 9:3 10:4; do grep -qw ${p#*:} /proc/${p%:*}/stat && kill -INT ${p%:*}; done   # a"), [7, 8, 9, 10]);
}

/// The properties below would hold of a program that names nobody.
#[test]
fn somebody_is_named_in_most_recordings_when_they_are_cut_in_the_middle() {
    let named = |recording: &&Recording| {
        let half = recording.events.iter().take(recording.events.len() * 3 / 4).cloned();
        nobody_innocent_is_blamed(recording, half) > 0
    };
    let count = RECORDINGS.iter().filter(named).count();
    assert!(count * 3 > RECORDINGS.len() * 2, "{count} of {}", RECORDINGS.len());
}

/// Moves each event by less than `reach` places, as processors that are read one after the other do; 0: not at all.
fn shuffled(events: &[Event], reach: usize, seed: &[u8]) -> Vec<Event> {
    let place = |at: usize| {
        let noise = seed.get(at % seed.len().max(1)).copied().unwrap_or_default();
        (at + usize::from(noise) * reach / 256, at)
    };
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|at| place(*at));
    order.into_iter().filter_map(|at| events.get(at).cloned()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn of_a_recording_that_is_cut_and_shuffled(
        which in any::<Index>(), cut in any::<Index>(), reach in prop_oneof![Just(0_usize), 1_usize..400, Just(100_000)],
        seed in proptest::collection::vec(any::<u8>(), 64..512),
    ) {
        let recording = which.get(&RECORDINGS);
        let events = shuffled(&recording.events, reach, &seed);
        let kept = cut.index(events.len() + 1);
        nobody_innocent_is_blamed(recording, events.into_iter().take(kept));
    }

    #[test]
    fn of_a_recording_that_lost_events(which in any::<Index>(), lost in proptest::collection::vec(any::<bool>(), 8..256), cut in any::<Index>()) {
        let recording = which.get(&RECORDINGS);
        let kept = cut.index(recording.events.len() + 1);
        let events = recording.events.iter().take(kept).zip(lost.iter().cycle());
        nobody_innocent_is_blamed(recording, events.filter(|(_, lost)| !**lost).map(|(event, _)| event.clone()));
    }

    #[test]
    fn of_a_file_that_is_torn(which in any::<Index>(), cut in any::<Index>(), flip in proptest::option::of((any::<Index>(), 1_u8..))) {
        let recording = which.get(&RECORDINGS);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/h200").join(format!("{}.zst", recording.name));
        let mut bytes = std::fs::read(path).expect("the recording is there");
        if let Some((at, mask)) = flip {
            let at = at.index(bytes.len());
            bytes[at] ^= mask;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        let torn = tempfile::Builder::new().suffix(".jsonl.zst").tempfile().expect("a temporary file");
        std::fs::write(torn.path(), bytes).expect("room for it");
        let events = Reader::open(torn.path()).into_iter().flat_map(|reader| reader.map_while(Result::ok));
        nobody_innocent_is_blamed(recording, events);
    }
}
