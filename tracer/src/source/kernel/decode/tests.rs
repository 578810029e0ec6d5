//! Tests of the decoder: every kind of record, and bytes that are none.

use super::*;
use crate::event::rm::{ExportKind, Missed, Op};
use proptest::prelude::*;

const TOKENS: Tokens = Tokens::with_key(0x0123_4567_89ab_cdef);

/// A record as the programs write it: a header, then words.
fn record(kind: u16, size: usize, flags: u32, tail: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(size as u16).to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&1_000_u64.to_ne_bytes());
    bytes.extend_from_slice(&[580_u32.to_ne_bytes(), 581_u32.to_ne_bytes()].concat());
    bytes.extend_from_slice(&77_u64.to_ne_bytes());
    bytes.extend_from_slice(b"python3\0garbage!");
    for value in tail {
        bytes.extend_from_slice(&value.to_ne_bytes());
    }
    bytes.resize(size, 0);
    bytes
}

const WHO: ProcessId = ProcessId(580, 77);

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn event(bytes: &[u8]) -> What {
    match ring(bytes, TOKENS) {
        Decoded::Event(event) => {
            assert_eq!(event.at, 1_000);
            event.what
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn tokens_are_48_bits_and_equal_exactly_when_addresses_are() {
    let (a, b) = (0xffff_8881_0123_4500, 0xffff_8881_0123_4600);
    assert_eq!(TOKENS.of(a), TOKENS.of(a));
    assert_ne!(TOKENS.of(a), TOKENS.of(b));
    assert!(TOKENS.of(a) < 1 << 48);
    assert_eq!(TOKENS.of(0), 0);
    assert_ne!(TOKENS.of(a), Tokens::with_key(1).of(a));
}

#[test]
fn a_registered_file_gets_a_token_that_no_file_can_have() {
    let ring = 0xffff_8881_0123_4500_u64;
    let first = TOKENS.registered(TOKENS.of(ring), 0);
    assert_ne!(first, TOKENS.registered(TOKENS.of(ring), 1));
    // Undo the key: the address that it stands for is odd, so no aligned object lies there.
    let stands_for = (first ^ TOKENS.key) & TOKEN_MASK;
    assert_eq!(stands_for, (ring & TOKEN_MASK) + 1);
}

#[test]
fn an_open_says_who_opened_which_device() {
    let tail = [0xffff_8881_0000_1000, 0xffff_8881_0000_2000, 0xffff_8881_0000_3000, 0, 0, 0, pair(7, 195 << 20 | 255)];
    let bytes = record(10, size_of::<record::File>(), flag::CLOEXEC | flag::SHARED_FILES, &tail);
    let What::Hold(hold) = event(&bytes) else { panic!() };
    assert_eq!((hold.id, hold.tid, hold.fd, hold.dev), (WHO, None, 7, Dev::new(195, 255)));
    assert_eq!((hold.via, hold.opener, hold.since), (Some(Via::Opened), Some(WHO), Some(1_000)));
    assert_eq!((hold.cloexec, hold.opened_cloexec), (Some(true), Some(true)));
    assert_eq!(hold.file, TOKENS.of(0xffff_8881_0000_1000));
    assert_eq!(hold.cred, Some(TOKENS.of(0xffff_8881_0000_2000)));
}

#[test]
fn a_descriptor_in_a_table_of_its_own_names_the_thread() {
    let bytes = record(32, size_of::<record::File>(), 0, &[1, 2, 3, 0, 0, 0, pair(7, 1 << 20)]);
    let Line::File(line) = line(&bytes, TOKENS) else { panic!() };
    assert_eq!(line.hold.tid, Some(581));
    assert_eq!((line.hold.via, line.hold.since), (None, None));
    assert_eq!((line.hold.cloexec, line.hold.opened_cloexec), (Some(false), None), "a scan cannot know how it was opened");
}

#[test]
fn an_exit_carries_the_group_code_only_when_the_group_was_told_to_exit() {
    let tail = [pair(1, 0), 5, pair(9, 9), pair(0, 4)];
    let alone = event(&record(4, size_of::<record::Exit>(), 0, &tail));
    assert!(matches!(alone, What::Exit { group_code: None, last: false, tid: 581, code: 9, .. }), "{alone:?}");
    let last = event(&record(4, size_of::<record::Exit>(), flag::GROUP_EXIT | flag::LAST_THREAD, &tail));
    let parent = Some(ProcessId(1, 5));
    assert_eq!(last, What::Exit { id: WHO, tid: 581, code: 9, group_code: Some(9), live: 0, last: true, parent });
}

#[test]
fn sigchld_is_the_zombie_moment_of_its_sender() {
    let tail = [pair(600, 600), 99, 0, 0, pair(17, 1), pair(0, 0)];
    let what = event(&record(6, size_of::<record::Signal>(), flag::GROUP, &tail));
    assert_eq!(what, What::Zombie { id: ProcessId(600, 99), parent: WHO });
}

#[test]
fn a_signal_of_the_kernel_has_no_sender() {
    let tail = [pair(600, 600), 99, u64::from_ne_bytes(*b"bash\0\0\0\0"), 0, pair(9, 0), pair(0, 1000)];
    let What::Signal { from, comm, uid, tid, .. } = event(&record(6, size_of::<record::Signal>(), flag::GROUP, &tail)) else {
        panic!()
    };
    assert_eq!((from, comm.as_str(), uid, tid), (Some(ProcessId(600, 99)), "bash", Some(1000), None));
    let by_kernel = record(6, size_of::<record::Signal>(), flag::KERNEL, &tail);
    let What::Signal { from, comm, uid, tid, .. } = event(&by_kernel) else { panic!() };
    assert_eq!((from, comm.as_str(), uid, tid), (None, "", None, Some(581)));
}

#[test]
fn an_exec_carries_the_new_name_and_the_path_up_to_its_nul() {
    let mut bytes = record(3, size_of::<record::Exec>(), 0, &[0xffff_8881_0000_2000]);
    bytes[56..56 + 9].copy_from_slice(b"/bin/true");
    let What::Exec { id, comm, path, .. } = event(&bytes) else { panic!() };
    assert_eq!((id, comm.as_str(), path.as_str()), (WHO, "python3", "/bin/true"));
}

#[test]
fn an_xid_message_names_the_channel_s_creator() {
    let mut bytes = record(17, size_of::<record::Xid>(), 0, &[pair(31, 0)]);
    bytes[56..56 + 12].copy_from_slice(b"0000:0b:00.0");
    bytes[88..88 + 22].copy_from_slice(b"pid='4711', name=train");
    let what = event(&bytes);
    assert!(matches!(&what, What::Xid { pci, code: 31, pid: Some(4711), .. } if pci == "0000:0b:00.0"), "{what:?}");
}

/// A granted request as the programs report it, every field with a value of its own.
fn request(op: u32, detail: u32) -> Vec<u8> {
    let (file, other) = (0xffff_8881_0000_1000, 0xffff_8881_0000_2000);
    let tail = [file, other, 0x0807_0605_0403_0201, 0x1817_1615_1413_1211, pair(195 << 20 | 255, op), pair(3, 4), pair(5, 6), pair(7, 8), pair(detail, 0)];
    record(18, size_of::<record::Rm>(), 0, &tail)
}

#[test]
fn a_request_has_every_field_where_the_record_has_it() {
    let op = |op: u32, detail: u32| {
        let What::Rm(rm) = event(&request(op, detail)) else { panic!() };
        assert_eq!((rm.id, rm.file, rm.dev), (WHO, TOKENS.of(0xffff_8881_0000_1000), Dev::new(195, 255)));
        rm.op
    };
    let (client, parent, object, class) = (3, 4, 5, 6);
    let (bytes, base, other) = (0x0807_0605_0403_0201, 0x1817_1615_1413_1211, TOKENS.of(0xffff_8881_0000_2000));
    assert_eq!(op(1, 9), Op::Client { client });
    assert_eq!(op(2, 9), Op::Known { client });
    assert_eq!(op(3, 9), Op::Object { client, parent, object, class, device: Some(9) });
    assert_eq!(op(3, u32::MAX), Op::Object { client, parent, object, class, device: None });
    assert_eq!(op(4, 9), Op::Memory { client, parent, object, class, bytes });
    assert_eq!(op(5, 9), Op::Free { client, object });
    assert_eq!(op(6, 9), Op::Dup { client, parent, object, from_client: 7, from_object: 8 });
    assert_eq!(op(7, 9), Op::Share { client, object, with: 9 });
    assert_eq!(op(8, 9), Op::Register { control: other });
    assert_eq!(op(9, 9), Op::Export { client, object, to: other, kind: ExportKind::Fd });
    assert_eq!(op(10, 1), Op::Export { client, object, to: other, kind: ExportKind::DmaBuf });
    assert_eq!(op(11, 9), Op::Import { client, parent, object, from: other });
    assert_eq!(op(12, 9), Op::Space { flags: bytes });
    assert_eq!(op(13, 9), Op::SpaceMm { space: other });
    // A UUID is bytes, whose order is that of the address.
    assert_eq!(op(14, 9), Op::SpaceGpu { uuid: (0x0102_0304_0506_0708, 0x1112_1314_1516_1718) });
    assert_eq!(op(15, 9), Op::Map { client, object, base, length: bytes });
    assert_eq!(op(16, 9), Op::Unmap { base, length: bytes });
    assert_eq!(op(17, 9), Op::Gpu { gpu_id: object, device: 9 });
    assert_eq!(op(18, 2), Op::Missed { why: Missed::Changed });
}

#[test]
fn a_request_of_an_unknown_kind_is_no_event() {
    for (op, detail) in [(0, 0), (19, 0), (u32::MAX, 0), (18, 0), (18, 8), (7, 0x1_0000)] {
        assert_eq!(ring(&request(op, detail), TOKENS), Decoded::Unknown, "{op} {detail}");
    }
    assert_eq!(ring(&request(1, 0)[..size_of::<record::Rm>() - 1], TOKENS), Decoded::Unknown);
}

#[test]
fn numbers_and_lengths_that_do_not_fit_are_unknown() {
    assert_eq!(ring(&record(999, 64, 0, &[]), TOKENS), Decoded::Unknown);
    assert_eq!(ring(&record(1, 100, 0, &[]), TOKENS), Decoded::Unknown, "a task record is longer");
    assert_eq!(ring(&record(32, 88, 0, &[]), TOKENS), Decoded::Unknown, "an iterator's line is not an event");
    assert_eq!(ring(&[1, 0, 0], TOKENS), Decoded::Unknown);
    assert_eq!(line(&record(10, 88, 0, &[]), TOKENS), Line::Unknown);
    assert_eq!(ring(&record(16, 48, 0, &[]), TOKENS), Decoded::FilesChanged(WHO));
}

#[test]
fn a_stream_is_cut_at_record_boundaries_and_its_tail_kept() {
    let mut stream = record(1, 152, 0, &[]);
    stream.extend(record(32, 88, 0, &[]));
    stream.extend_from_slice(&record(1, 152, 0, &[])[..60]);
    let mut sizes = Vec::new();
    assert_eq!(split(&stream, |record| sizes.push(record.len())), Some(152 + 88));
    assert_eq!(sizes, [152, 88]);
    let broken = record(1, 152, 0, &[]).into_iter().enumerate().map(|(at, byte)| if at == 2 { 3 } else { byte });
    assert_eq!(split(&broken.collect::<Vec<u8>>(), |_| ()), None);
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0_u16..40) {
        let mut bytes = bytes;
        let _ = ring(&bytes, TOKENS);
        if let Some(start) = bytes.get_mut(..2) { start.copy_from_slice(&kind.to_ne_bytes()); }
        let _ = ring(&bytes, TOKENS);
        let _ = line(&bytes, TOKENS);
        let _ = split(&bytes, |_| ());
    }

    #[test]
    fn a_request_of_random_bytes_does_not_panic(words in proptest::collection::vec(any::<u64>(), 9), op in 0_u32..22, detail in 0_u32..12) {
        let mut words = words;
        let _ = ring(&record(18, size_of::<record::Rm>(), 0, &words), TOKENS);
        // Most operations are only reached by their number.
        (words[4], words[8]) = (pair(0, op), pair(detail, 0));
        let decoded = ring(&record(18, size_of::<record::Rm>(), 0, &words), TOKENS);
        let known = (1..=17).contains(&op) || (op == 18 && (1..=7).contains(&detail));
        prop_assert_eq!(matches!(decoded, Decoded::Event(_)), known);
    }
}
