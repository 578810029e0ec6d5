//! Any list of requests, plausible or not: handles and descriptions are few, so that they meet.

use super::check::{consistent, dump};
use crate::event::rm::{ExportKind, Missed, Op, Rm};
use crate::event::{Dev, Event, Header, Hold, ProcessId, What};
use crate::story::{CTL, GPU0, UVM, bare, fold};
use proptest::collection::vec;
use proptest::prelude::*;

fn process() -> impl Strategy<Value = ProcessId> {
    (1_u32..4, 0_u64..2).prop_map(|(pid, generation)| ProcessId(pid, generation * 40 + 1))
}

fn token() -> impl Strategy<Value = u64> {
    1_u64..7
}

/// Clients and objects share their numbers.
fn handle() -> impl Strategy<Value = u32> {
    0_u32..7
}

fn dev() -> impl Strategy<Value = Dev> {
    prop_oneof![6 => Just(CTL), 2 => Just(UVM), 2 => Just(GPU0), 1 => any::<u32>().prop_map(Dev)]
}

fn making() -> impl Strategy<Value = Op> {
    let device = proptest::option::of(prop_oneof![0_u32..3, any::<u32>()]);
    prop_oneof![
        4 => handle().prop_map(|client| Op::Client { client }),
        1 => handle().prop_map(|client| Op::Known { client }),
        2 => (handle(), handle(), handle(), device)
            .prop_map(|(client, parent, object, device)| Op::Object { client, parent, object, class: 0x80, device }),
        4 => (handle(), handle(), handle(), prop_oneof![1_u64..9, any::<u64>()])
            .prop_map(|(client, parent, object, bytes)| Op::Memory { client, parent, object, class: 0x40, bytes }),
        3 => (handle(), handle()).prop_map(|(client, object)| Op::Free { client, object }),
        1 => (handle(), handle()).prop_map(|(client, object)| Op::Share { client, object, with: 1 }),
        1 => any::<bool>().prop_map(|changed| Op::Missed { why: if changed { Missed::Changed } else { Missed::TooMany } }),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(gpu_id, device)| Op::Gpu { gpu_id, device }),
    ]
}

fn sharing() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![3 => Just(ExportKind::Fd), 1 => Just(ExportKind::DmaBuf)];
    prop_oneof![
        4 => (handle(), handle(), handle(), handle(), handle()).prop_map(
            |(client, parent, object, from_client, from_object)| Op::Dup { client, parent, object, from_client, from_object }
        ),
        3 => (handle(), handle(), token(), kind).prop_map(|(client, object, to, kind)| Op::Export { client, object, to, kind }),
        3 => (handle(), handle(), handle(), token())
            .prop_map(|(client, parent, object, from)| Op::Import { client, parent, object, from }),
        2 => token().prop_map(|control| Op::Register { control }),
        1 => token().prop_map(|space| Op::SpaceMm { space }),
        1 => (0_u64..4).prop_map(|flags| Op::Space { flags }),
        1 => (0_u64..3).prop_map(|uuid| Op::SpaceGpu { uuid: (uuid, 0) }),
        4 => (handle(), handle(), 0_u64..4).prop_map(|(client, object, base)| Op::Map { client, object, base, length: 1 }),
        1 => (0_u64..4).prop_map(|base| Op::Unmap { base, length: 0 }),
    ]
}

fn asked() -> impl Strategy<Value = What> {
    let op = prop_oneof![making(), sharing()];
    (process(), token(), dev(), op).prop_map(|(id, file, dev, op)| What::Rm(Box::new(Rm { id, file, dev, op })))
}

fn surroundings() -> impl Strategy<Value = What> {
    let via = prop_oneof![Just(None), Just(Some(crate::event::Via::Opened))];
    let pins = proptest::option::weighted(0.3, token());
    let hold = (process(), 3_i32..6, token(), dev(), via, pins);
    prop_oneof![
        4 => hold.prop_map(|(id, fd, file, dev, via, pins)| What::Hold(Box::new(Hold { via, pins, ..bare(id, fd, file, dev) }))),
        3 => (process(), 3_i32..6, token()).prop_map(|(id, fd, file)| What::Drop { id, tid: None, fd, file }),
        1 => (process(), token()).prop_map(|(id, file)| What::Sent { id, file, dev: CTL, socket: None }),
        1 => process().prop_map(|id| What::Zombie { id, parent: ProcessId(1, 0) }),
        1 => process().prop_map(|id| What::Free { id }),
        1 => (process(), process()).prop_map(|(parent, child)| What::Fork { parent, child, comm: String::new(), cred: None }),
        1 => (0_u64..400).prop_map(|began| What::Scan { began, processes: 1, zombies: 0, complete: true }),
        1 => (0_u64..3).prop_map(|count| What::Lost { cause: format!("cause{count}"), count }),
        1 => any::<bool>().prop_map(|watching| {
            What::Header(Box::new(Header { watching_since: watching.then_some(1), ..Header::default() }))
        }),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let what = prop_oneof![5 => asked(), 2 => surroundings()];
    let step = prop_oneof![8 => 0_i64..10, 1 => -30_i64..30];
    vec((step, what), 0..160).prop_map(|list| {
        let mut at = 0_i64;
        let timed = list.into_iter().map(|(step, what)| {
            at = (at + step).max(0);
            Event { at: at.unsigned_abs(), what }
        });
        timed.collect()
    })
}

fn fail(why: String) -> TestCaseError {
    TestCaseError::fail(why)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_requests_leave_consistent_books_that_survive_being_carried_over(events in events()) {
        let mut world = crate::world::World::default();
        for event in &events {
            world.apply(event);
            consistent(world.books()).map_err(fail)?;
        }
        let books = world.books();
        for id in (1..4).flat_map(|pid| [ProcessId(pid, 1), ProcessId(pid, 41)]) {
            prop_assert!(books.charged(id, None) >= books.charged(id, Some(0)));
            let _ = (world.gap_of_process(id), world.gap_of_device(id.0));
        }
        let copy = fold(&world.carry_over());
        consistent(copy.books()).map_err(fail)?;
        prop_assert_eq!(dump(copy.books()), dump(books));
        let again = fold(&copy.carry_over());
        prop_assert_eq!(dump(again.books()), dump(books));
    }
}
