//! Writer and reader together: round trips, damage, full disks, cost.

mod storm;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::reader::{Error as ReadError, Problems, Reader};
use super::writer::{Error as WriteError, Options, Writer};
use crate::event::{Event, GpuProcess, GpuUse, Header, ProcessId, ProcessInfo, What};
use storm::exit_storm;

fn header() -> Event {
    let header = Header {
        schema: super::SCHEMA.to_owned(),
        hostname: "node7".to_owned(),
        ..Header::default()
    };
    Event {
        at: 1,
        what: What::Header(Box::new(header)),
    }
}

fn fork(n: u64) -> Event {
    let parent = ProcessId(100, 7);
    let child = ProcessId(u32::try_from(1000 + n).unwrap(), 50 + n);
    Event {
        at: 100 + n,
        what: What::Fork {
            parent,
            child,
            comm: format!("w{n}"),
            cred: None,
        },
    }
}

fn written(folder: &Path, events: &[Event]) -> PathBuf {
    let path = folder.join("t.jsonl.zst");
    let mut writer = Writer::create(&path, Options::default(), &events[..1]).unwrap();
    for event in &events[1..] {
        writer.write(event).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn read(path: &Path) -> Result<(Vec<Event>, Problems), ReadError> {
    let mut reader = Reader::open(path)?;
    let events = reader.by_ref().collect::<Result<_, _>>()?;
    Ok((events, reader.problems().clone()))
}

/// Three frames: header, 20 forks, 20 forks.
fn three_frames(folder: &Path) -> (PathBuf, Vec<Event>, [u64; 3]) {
    let path = folder.join("t.jsonl.zst");
    let mut writer = Writer::create(&path, Options::default(), &[header()]).unwrap();
    let mut ends = [writer.bytes(); 3];
    let mut events = vec![header()];
    for (frame, end) in ends.iter_mut().enumerate().skip(1) {
        for n in 0..20 {
            events.push(fork(frame as u64 * 20 + n));
            writer.write(&events[events.len() - 1]).unwrap();
        }
        writer.flush().unwrap();
        *end = writer.bytes();
    }
    writer.finish().unwrap();
    (path, events, ends)
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = exit_storm(500);
    let list = vec![GpuProcess {
        pid: 4,
        bytes: None,
        usage: GpuUse::Mps,
        name: Some("\u{1b}[31mé".to_owned()),
    }];
    events.push(Event {
        at: u64::MAX,
        what: What::GpuProcesses { gpu: 0, list },
    });
    let info = ProcessInfo {
        id: ProcessId(1, 2),
        cmdline: Some("a b".to_owned()),
        ..ProcessInfo::default()
    };
    events.push(Event {
        at: 5,
        what: What::Process(Box::new(info)),
    });
    let path = written(folder.path(), &events);
    assert_eq!(read(&path).unwrap(), (events, Problems::default()));
}

#[test]
fn a_trace_is_private_and_never_replaces_a_file_or_follows_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path(), &[header()]);
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(
        Writer::create(&path, Options::default(), &[header()]),
        Err(WriteError::Exists { .. })
    ));
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let (link, target) = (folder.path().join("link"), folder.path().join("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(Writer::create(&link, Options::default(), &[header()]).is_err());
    assert!(!target.exists());
}

#[test]
fn a_trace_without_a_header_is_not_begun() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    assert!(matches!(
        Writer::create(&path, Options::default(), &[fork(1)]),
        Err(WriteError::NoHeader)
    ));
    assert!(!path.exists());
}

#[test]
fn cut_anywhere_a_trace_keeps_every_whole_frame() {
    let folder = tempfile::tempdir().unwrap();
    let (path, events, ends) = three_frames(folder.path());
    let bytes = std::fs::read(&path).unwrap();
    let cut = folder.path().join("cut");
    for len in 0..=bytes.len() {
        std::fs::write(&cut, &bytes[..len]).unwrap();
        let whole = ends.iter().filter(|end| **end <= len as u64).count();
        let result = read(&cut);
        if whole == 0 {
            assert!(
                matches!(
                    result,
                    Err(ReadError::NothingWhole { .. } | ReadError::NotATrace { .. })
                ),
                "{len}"
            );
            continue;
        }
        let (got, problems) = result.unwrap();
        assert_eq!(got, events[..1 + (whole - 1) * 20], "cut at {len}");
        assert_eq!(problems.torn_bytes, len as u64 - ends[whole - 1]);
        assert_eq!(problems.is_empty(), ends.contains(&(len as u64)));
    }
}

#[test]
fn zeros_after_a_crash_cost_nothing_but_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let (path, events, _) = three_frames(folder.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.resize(bytes.len() + 5000, 0);
    std::fs::write(&path, bytes).unwrap();
    let (got, problems) = read(&path).unwrap();
    assert_eq!((got, problems.torn_bytes), (events, 5000));
}

#[test]
fn a_damaged_frame_costs_itself_only() {
    let folder = tempfile::tempdir().unwrap();
    let (path, events, ends) = three_frames(folder.path());
    let good = std::fs::read(&path).unwrap();
    for at in ends[0]..ends[1] {
        let mut bytes = good.clone();
        bytes[usize::try_from(at).unwrap()] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
        let (got, problems) = read(&path).unwrap();
        if problems.is_empty() {
            assert_eq!(
                got, events,
                "byte {at}: a bit of the frame header that means nothing"
            );
            continue;
        }
        let expected: Vec<Event> = events[..1].iter().chain(&events[21..]).cloned().collect();
        assert_eq!(got, expected, "byte {at}");
        assert_eq!(
            (problems.damaged_frames, problems.damaged_bytes),
            (1, ends[1] - ends[0])
        );
    }
}

#[test]
fn unknown_kinds_are_counted_apart_from_malformed_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let lines = [
        serde_json::to_string(&header()).unwrap(),
        r#"{"t":5,"e":{"quantum_leap":{"id":[1,2]}}}"#.to_owned(),
        r#"{"t":6,"e":{"free":{"id":[1,2],"new_field":{"a":[1]}}},"more":1}"#.to_owned(),
        r#"{"t":7,"e":{"deliver":{"id":[1,2],"tid":1,"sig":2,"action":"teleported"}}}"#.to_owned(),
        r#"{"t":8,"e":{"free":{"id":"one"}}}"#.to_owned(),
        "not json \u{1b}[31m".to_owned(),
        String::new(),
        r#"{"t":9,"e":{"free":{"id":[3,4]}}}"#.to_owned(),
        r#"{"t":10,"e":{"fr"#.to_owned(),
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let (events, problems) = read(&path).unwrap();
    assert_eq!(events.len(), 3);
    assert_eq!(
        events[2].what,
        What::Free {
            id: ProcessId(3, 4)
        }
    );
    assert_eq!(
        problems.unknown,
        [("quantum_leap".to_owned(), 1), ("deliver".to_owned(), 1)].into()
    );
    assert_eq!(
        problems
            .described
            .iter()
            .map(|m| m.line)
            .collect::<Vec<_>>(),
        [5, 6]
    );
    assert_eq!((problems.malformed, problems.torn_bytes), (2, 16));
    assert_eq!(problems.sentences().len(), 3);
    assert!(problems.sentences().iter().all(|s| !s.contains('\u{1b}')));
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    let refused: [&[u8]; 4] = [
        b"",
        b"\x7fELF\x02\x01",
        b"{\"name\": \"package\"}\n{}\n",
        b"PAR1",
    ];
    for bytes in refused {
        std::fs::write(&path, bytes).unwrap();
        assert!(
            matches!(read(&path), Err(ReadError::NotATrace { .. })),
            "{bytes:?}"
        );
    }
    std::fs::write(&path, zstd::encode_all(&b"hello\n"[..], 1).unwrap()).unwrap();
    assert!(matches!(read(&path), Err(ReadError::NotATrace { .. })));
    assert!(matches!(
        read(folder.path()),
        Err(ReadError::NotATrace { .. })
    ));
    assert!(matches!(
        read(&folder.path().join("none")),
        Err(ReadError::Io { .. })
    ));
    std::fs::write(
        &path,
        r#"{"t":1,"e":{"header":{"schema":"outlive.trace/2"}}}"#,
    )
    .unwrap();
    assert!(matches!(read(&path), Err(ReadError::Schema { .. })));
}

#[test]
fn a_bomb_and_a_huge_window_are_passed_over_in_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (path, events, _) = three_frames(folder.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend(zstd::encode_all(&vec![b'a'; 64 << 20][..], 3).unwrap());
    let mut long = zstd::Encoder::new(Vec::new(), 3).unwrap();
    long.window_log(27).unwrap();
    std::io::Write::write_all(&mut long, &[b'b'; 10]).unwrap();
    bytes.extend(long.finish().unwrap());
    bytes.extend(
        zstd::encode_all(
            format!("\n{}\n", serde_json::to_string(&fork(77)).unwrap()).as_bytes(),
            3,
        )
        .unwrap(),
    );
    std::fs::write(&path, bytes).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let got: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(
        got,
        events.into_iter().chain([fork(77)]).collect::<Vec<_>>()
    );
    assert_eq!(
        (
            reader.problems().malformed,
            reader.problems().damaged_frames
        ),
        (1, 1)
    );
    assert!(reader.held_bytes() < 8 << 20, "{}", reader.held_bytes());
}

#[test]
fn a_trace_recompressed_in_one_frame_reads_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let events = exit_storm(3000);
    let text: Vec<u8> = events
        .iter()
        .flat_map(|e| [serde_json::to_vec(e).unwrap(), b"\n".to_vec()].concat())
        .collect();
    let path = folder.path().join("one.zst");
    std::fs::write(&path, zstd::encode_all(&text[..text.len() - 1], 5).unwrap()).unwrap();
    assert_eq!(read(&path).unwrap(), (events, Problems::default()));
}

#[test]
fn rotation_numbers_the_files_keeps_the_newest_and_touches_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("out.jsonl.zst");
    let old = super::names::numbered(&base, 1);
    std::fs::write(&old, "of an earlier run").unwrap();
    let options = Options {
        rotate_size: Some(1),
        keep: Some(2),
    };
    let mut writer = Writer::create(&base, options, &[header()]).unwrap();
    for n in 0..4 {
        writer.write(&fork(n)).unwrap();
        writer.flush().unwrap();
        writer.rotate(&[header(), fork(100 + n)]).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(std::fs::read(&old).unwrap(), b"of an earlier run");
    let kept = super::names::parts(&base);
    assert_eq!(
        kept,
        [
            old,
            super::names::numbered(&base, 5),
            super::names::numbered(&base, 6)
        ]
    );
    let mut reader = Reader::open_all(kept[1..].to_vec()).unwrap();
    let events: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(events, [header(), fork(102), fork(3), header(), fork(103)]);
    assert!(reader.problems().is_empty());
}

#[test]
fn a_long_opening_does_not_make_every_file_full_when_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        rotate_size: Some(1),
        keep: None,
    };
    let mut opening = vec![header()];
    opening.extend((0..500).map(fork));
    let mut writer = Writer::create(&folder.path().join("t.jsonl.zst"), options, &opening).unwrap();
    assert!(!writer.wants_rotation());
    let opened = writer.bytes();
    let mut more = (500..).map(fork);
    while writer.bytes() < 2 * opened {
        writer.write(&more.next().unwrap()).unwrap();
        writer.flush().unwrap();
    }
    assert!(writer.wants_rotation());
}

#[test]
fn files_of_two_boots_are_not_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = |number: u64, boot: &str| {
        let Event {
            at,
            what: What::Header(mut header),
        } = header()
        else {
            panic!("not a header")
        };
        header.boot_id = boot.to_owned();
        let path = super::names::numbered(&folder.path().join("out.jsonl.zst"), number);
        let header = Event {
            at,
            what: What::Header(header),
        };
        Writer::create(&path, Options::default(), &[header])
            .unwrap()
            .finish()
            .unwrap();
    };
    file(1, "a");
    file(2, "a");
    file(3, "b");
    let read: Vec<_> = Reader::open(&folder.path().join("out.jsonl.zst"))
        .unwrap()
        .collect();
    assert!(
        matches!(&read[..], [Ok(_), Ok(_), Err(ReadError::OtherBoot { path })] if path.ends_with("out.000003.jsonl.zst"))
    );
}

#[test]
fn zstdcat_reads_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let events = exit_storm(50);
    let path = written(folder.path(), &events);
    let Ok(output) = std::process::Command::new("zstdcat").arg(&path).output() else {
        std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED: there is no zstdcat\n")
            .unwrap();
        return;
    };
    let lines = String::from_utf8(output.stdout).unwrap();
    let parsed: Vec<Event> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(parsed, events);
}

#[test]
fn a_full_disk_loses_nothing_silently_and_recording_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl.zst");
    let mut writer = Writer::create(&path, Options::default(), &[header()]).unwrap();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let real = writer.swap_file(full);
    let storm = exit_storm(400);
    let failures = storm
        .iter()
        .skip(1)
        .filter(|event| writer.write(event).is_err())
        .count();
    assert_eq!(failures, 1, "said once, not once an event");
    assert!(writer.is_failing(), "counting an event is not writing it");
    let error = writer.flush().unwrap_err();
    assert!(error.to_string().contains("free some space"), "{error}");
    let lost = writer.lost();
    assert!(lost > 0);
    assert!(writer.write(&fork(0)).is_ok() && writer.is_failing(), "counted");
    let lost = lost + 1;
    writer.swap_file(real);
    writer.flush().unwrap();
    assert!(!writer.is_failing());
    writer.write(&fork(1)).unwrap();
    writer.finish().unwrap();
    let (events, problems) = read(&path).unwrap();
    assert!(problems.is_empty());
    let kept = storm.len() + 1 - usize::try_from(lost).unwrap();
    assert_eq!(events[..kept], storm[..kept]);
    assert_eq!(
        events[kept].what,
        What::Lost {
            cause: "write_failed".to_owned(),
            count: lost
        }
    );
    assert_eq!(events[kept + 1..], [fork(1)]);
}

#[test]
fn an_xid_is_on_disk_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let mut writer = Writer::create(&path, Options::default(), &[header()]).unwrap();
    writer.write(&fork(1)).unwrap();
    assert_eq!(read(&path).unwrap().0.len(), 1);
    let xid = Event {
        at: 9,
        what: What::Xid {
            pci: "0000:0b:00".to_owned(),
            code: 79,
            pid: None,
            message: String::new(),
        },
    };
    writer.write(&xid).unwrap();
    assert_eq!(read(&path).unwrap().0, [header(), fork(1), xid]);
}

#[test]
fn an_exit_storm_costs_at_most_20_bytes_an_event() {
    let folder = tempfile::tempdir().unwrap();
    let events = exit_storm(4_000);
    let began = Instant::now();
    let path = written(folder.path(), &events);
    let wrote = began.elapsed();
    let bytes = std::fs::metadata(&path).unwrap().len();
    let began = Instant::now();
    assert_eq!(
        Reader::open(&path).unwrap().filter(Result::is_ok).count(),
        events.len()
    );
    let count = events.len() as f64;
    let rate = |took: Duration| count / took.as_secs_f64() / 1e6;
    println!(
        "{count} events, {:.1} bytes each; written at {:.2} M/s, read at {:.2} M/s",
        bytes as f64 / count,
        rate(wrote),
        rate(began.elapsed())
    );
    assert!(bytes as f64 / count <= 20.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096), kind in 0..3_u8) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes = match kind {
            0 => bytes,
            1 => [&[0x28, 0xb5, 0x2f, 0xfd], &bytes[..]].concat(),
            _ => zstd::encode_all(&bytes[..], 1).unwrap(),
        };
        std::fs::write(file.path(), bytes).unwrap();
        let _ = read(file.path());
    }

    #[test]
    fn flipped_bits_only_ever_remove_events(flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 1..12)) {
        let folder = tempfile::tempdir().unwrap();
        let (path, events, _) = three_frames(folder.path());
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        std::fs::write(&path, bytes).unwrap();
        if let Ok(reader) = Reader::open(&path) {
            let mut expected = events.iter();
            for event in reader.flatten() {
                prop_assert!(expected.any(|e| *e == event), "{event:?} was made up or out of order");
            }
        }
    }
}
