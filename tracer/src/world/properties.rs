//! What must hold for every list of events, plausible or not.

use super::World;
use crate::event::ReleaseStep;
use crate::event::{
    Action, Dev, Event, GpuProcess, GpuUse, Header, Hold, KernelThread, Mount, ProcessId, ProcessInfo, ProcessState, Ran, SignalResult,
    StuckThread, Via, What,
};
use crate::explanation::{Explanation, explain};
use crate::story::{CTL, GPU0, UVM, fold};
use crate::timeline::timelines;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Few processes and files, so that they meet.
fn process() -> impl Strategy<Value = ProcessId> {
    (1_u32..9, 0_u64..3).prop_map(|(pid, generation)| ProcessId(pid, generation * 40 + 1))
}

fn dev() -> impl Strategy<Value = Dev> {
    prop_oneof![Just(CTL), Just(UVM), Just(GPU0)]
}

fn via() -> impl Strategy<Value = Option<Via>> {
    prop_oneof![
        4 => Just(None),
        4 => Just(Some(Via::Opened)),
        1 => Just(Some(Via::ScmRights)),
        1 => Just(Some(Via::PidfdGetfd)),
        1 => Just(Some(Via::IoUring)),
        1 => Just(Some(Via::InFlight)),
    ]
}

fn hold() -> impl Strategy<Value = What> {
    let flags = (any::<Option<bool>>(), any::<Option<bool>>(), proptest::option::of(1_u64..6));
    (process(), 3_i32..8, 1_u64..7, dev(), via(), flags, proptest::option::of(process())).prop_map(
        |(id, fd, file, dev, via, (cloexec, opened_cloexec, cred), opener)| {
            let opener = if via == Some(Via::Opened) { Some(id) } else { opener };
            let (tid, from, since) = (None, None, None);
            What::Hold(Box::new(Hold { id, tid, fd, file, dev, cred, cloexec, opened_cloexec, via, from, opener, since, role: None, pins: None, bytes: None }))
        },
    )
}

fn life() -> impl Strategy<Value = What> {
    let exit = (process(), 0_u32..3, any::<bool>(), 0_u32..300).prop_map(|(id, live, group, code)| {
        let group_code = group.then_some(code);
        What::Exit { id, tid: id.tgid() + live, code, group_code, live, last: live == 0, parent: Some(ProcessId(1, 0)) }
    });
    prop_oneof![
        3 => (process(), process()).prop_map(|(parent, child)| What::Fork { parent, child, comm: "child".into(), cred: None }),
        1 => (process(), proptest::option::of(1_u64..6))
            .prop_map(|(id, cred)| What::Exec { id, comm: "prog".into(), path: "/bin/prog".into(), cred }),
        2 => exit,
        1 => (process(), process()).prop_map(|(id, parent)| What::Zombie { id, parent }),
        1 => (process(), 1_u32..9).prop_map(|(by, child)| What::Reap { by, comm: "parent".into(), child }),
        1 => process().prop_map(|id| What::Free { id }),
        1 => process().prop_map(|id| What::ProcessGone { id }),
        1 => (1_u32..9).prop_map(|pid| What::OomVictim { pid }),
    ]
}

fn signals() -> impl Strategy<Value = What> {
    let result = prop_oneof![Just(SignalResult::Queued), Just(SignalResult::Ignored), Just(SignalResult::AlreadyPending)];
    let action = prop_oneof![Just(Action::Default), Just(Action::Ignored), Just(Action::Handled)];
    let sig = prop_oneof![Just(9), Just(15), Just(19), Just(18), Just(6), -3_i32..70];
    prop_oneof![
        (process(), sig.clone(), proptest::option::of(process()), result).prop_map(|(to, sig, from, result)| {
            What::Signal { to, tid: None, sig, from, comm: "killer".into(), uid: None, code: 0, result }
        }),
        (process(), sig, action).prop_map(|(id, sig, action)| What::Deliver { id, tid: 1, sig, action }),
    ]
}

fn looks() -> impl Strategy<Value = What> {
    let info = (process(), proptest::option::of(process()), proptest::option::of(1_u64..6), proptest::option::of(1_u32..9), any::<Option<bool>>());
    let info = info.prop_map(|(id, parent, cred, pgrp, never_execed)| {
        let comm = Some("known".to_owned());
        What::Process(Box::new(ProcessInfo { id, parent, cred, pgrp, never_execed, comm, ..ProcessInfo::default() }))
    });
    let stack = prop_oneof![Just(vec![]), Just(vec!["f+0x1 [nvidia]".to_owned()]), Just(vec!["f+0x1".to_owned()]), Just(vec!["fuse_x+0x1".to_owned()])];
    let letter = prop_oneof![Just("R"), Just("S"), Just("D"), Just("T"), Just("t"), Just("Z")];
    let state = (process(), letter, 0_u32..3, any::<[bool; 4]>(), any::<(u64, u64)>(), stack);
    let state = state.prop_map(|(id, letter, live_threads, flags, (pending, blocked), stack)| {
        let [leader_exited, exiting, dumping_core, frozen] = flags;
        let mounts = vec![Mount { point: "/mnt".into(), kind: "fuse.x".into(), dev: (0, live_threads), ..Mount::default() }];
        let (ran, same_since) = (Some(Ran { cpu_ns: pending, over_ns: blocked }), frozen.then_some(pending));
        let stuck = vec![StuckThread { tid: 1, state: "D".into(), exiting, stack, mounts, ran, same_since, ..Default::default() }];
        let state = letter.to_owned();
        let known = ProcessState { id, state, live_threads, leader_exited, exiting, dumping_core, frozen, pending, blocked, ..Default::default() };
        What::State(Box::new(ProcessState { stuck, ..known }))
    });
    prop_oneof![2 => info, 2 => state]
}

fn surroundings() -> impl Strategy<Value = What> {
    let list = vec((1_u32..9, proptest::option::of(0_u64..1 << 32)), 0..4).prop_map(|lines| {
        let line = |(pid, bytes)| GpuProcess { pid, bytes, usage: GpuUse::Compute, name: None };
        What::GpuProcesses { gpu: 0, list: lines.into_iter().map(line).collect() }
    });
    prop_oneof![
        1 => (process(), 1_u64..7, dev()).prop_map(|(id, file, dev)| What::Sent { id, file, dev, socket: Some(1) }),
        2 => (process(), 3_i32..8, 1_u64..7).prop_map(|(id, fd, file)| What::Drop { id, tid: None, fd, file }),
        1 => (0_u64..400, any::<bool>()).prop_map(|(began, complete)| What::Scan { began, processes: 9, zombies: 1, complete }),
        1 => (0_u64..1 << 33, proptest::option::of(0_u64..1 << 30))
            .prop_map(|(used, reserved)| What::GpuMemory { gpu: 0, total: 1 << 34, used, reserved }),
        1 => list,
        1 => (0_u32..3).prop_map(|gpu| What::Gpu { gpu, uuid: "u".into(), name: "n".into(), minor: Some(0), pci: None, settled_at: None }),
        1 => (0_u32..100).prop_map(|code| What::Xid { pci: "0000:0b:00".into(), code, pid: Some(3), message: "m".into() }),
        1 => any::<[bool; 2]>().prop_map(|[lost, reset_required]| What::GpuHealth { gpu: 0, recovery: Some(1), lost, reset_required }),
        1 => (process(), any::<Option<u64>>()).prop_map(|(id, same_since)| {
            let stack = vec!["nvidia_close+0x1/0x2 [nvidia]".to_owned(), "delayed_fput+0x1/0x2".to_owned()];
            let thread = StuckThread { tid: id.tgid(), state: "D".into(), stack, same_since, ..StuckThread::default() };
            What::KernelThreads { list: vec![KernelThread { id, comm: "kworker/0:1".into(), thread }] }
        }),
        1 => (0_u32..3).prop_map(|users| What::Modules { users: BTreeMap::from([("nvidia_uvm".to_owned(), users)]) }),
        1 => (process(), proptest::option::of(1_u64..7), dev(), 0..4_usize).prop_map(|(by, file, dev, step)| {
            let steps = [ReleaseStep::Begin, ReleaseStep::End, ReleaseStep::DeferredBegin, ReleaseStep::DeferredEnd];
            What::Release { by, tid: by.tgid(), comm: "python3".into(), file, dev, step: steps[step] }
        }),
        1 => any::<u64>().prop_map(|count| What::Lost { cause: "ring_full".into(), count }),
        1 => any::<u64>().prop_map(|real_ns| What::Clock { real_ns }),
        1 => proptest::option::of(0_u64..9).prop_map(|watching_since| {
            What::Header(Box::new(Header { watching_since, real_ns: 1 << 60, initial_pid_namespace: true, ..Header::default() }))
        }),
    ]
}

/// Times mostly go on, and sometimes jump.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let what = prop_oneof![4 => hold(), 4 => life(), 2 => signals(), 2 => looks(), 3 => surroundings()];
    let step = prop_oneof![8 => 0_i64..10, 1 => -30_i64..30, 1 => Just(1_i64 << 34)];
    vec((step, what), 0..120).prop_map(|list| {
        let mut at = 0_i64;
        let timed = list.into_iter().map(|(step, what)| {
            at = (at + step).max(0);
            Event { at: at.unsigned_abs(), what }
        });
        timed.collect()
    })
}

/// Both sides of every holding agree, and nobody dead holds.
fn consistent(world: &World) -> Result<(), TestCaseError> {
    for file in world.files() {
        prop_assert!(!file.is_released(), "released and kept: {file:?}");
        for ((id, _), holder) in &file.holders {
            prop_assert!(!holder.slots.is_empty(), "empty holder: {file:?}");
            let process = world.process(*id).ok_or_else(|| TestCaseError::fail("holder is unknown"))?;
            prop_assert!(process.is_alive(), "the dead hold: {process:?}");
            prop_assert!(process.files.contains(&file.token));
        }
    }
    for process in world.processes() {
        prop_assert!(process.files.is_sorted());
        for token in &process.files {
            prop_assert!(world.file(*token).is_some_and(|file| file.is_held_by(process.id())));
        }
    }
    Ok(())
}

/// Nobody is blamed who holds nothing; no byte is counted twice; commands never name PID 1.
fn honest(world: &World, told: &Explanation) -> Result<(), TestCaseError> {
    for holding in &told.holdings {
        prop_assert!(!holding.summary.is_empty() && holding.summary.ends_with('.'), "{}", holding.summary);
        for holder in &holding.holders {
            let holds = world.processes().any(|p| p.id().tgid() == holder.pid && p.is_alive() && !p.files.is_empty());
            prop_assert!(holds && !holder.descriptors.is_empty(), "{holder:?}");
        }
        for command in holding.remedy.iter().filter_map(|r| r.command.as_deref()) {
            let clauses = command.split('#').next().unwrap_or_default().split([';', '&']);
            let kills = clauses.filter_map(|clause| clause.trim().strip_prefix("kill -"));
            for pid in kills.flat_map(|clause| clause.split_whitespace().skip(1)) {
                let pid: u32 = pid.parse().map_err(|_| TestCaseError::fail(command.to_owned()))?;
                prop_assert!(pid > 1 && world.living(pid).is_some_and(|p| p.is_alive()), "{command}");
            }
        }
    }
    for gpu in &told.gpus {
        let charged: u64 = world.gpus()[&gpu.index].lines.keys().filter_map(|(pid, _)| world.gpus()[&gpu.index].charged(*pid).flatten()).sum();
        let attributed = gpu.attributed_bytes.unwrap_or_default();
        let used = gpu.used_bytes.unwrap_or_default();
        prop_assert!(attributed <= charged.max(used), "{gpu:?} {charged}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_prefix_and_any_order_keeps_the_books_and_blames_nobody_who_holds_nothing(events in events(), cut in 0_usize..120) {
        let world = fold(&events[..cut.min(events.len())]);
        consistent(&world)?;
        honest(&world, &explain(&world))?;
        let whole = fold(&events);
        consistent(&whole)?;
        let told = explain(&whole);
        honest(&whole, &told)?;
        let all = timelines(&whole, None);
        prop_assert!(all.iter().all(|t| t.steps.len() == 10));
        let mut backwards = events;
        backwards.reverse();
        let world = fold(&backwards);
        consistent(&world)?;
        honest(&world, &explain(&world))?;
    }

    #[test]
    fn explanations_are_deterministic_and_survive_json(events in events()) {
        let told = explain(&fold(&events));
        prop_assert_eq!(&told, &explain(&fold(&events)));
        let text = serde_json::to_string(&told).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let back: Explanation = serde_json::from_str(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(told, back);
    }

    #[test]
    fn what_is_carried_over_has_the_same_holders(events in events()) {
        let world = fold(&events);
        let copy = fold(&world.carry_over());
        consistent(&copy)?;
        let holders = |world: &World| -> Vec<_> {
            let of = |file: &super::file::File| (file.token, file.opener.map(|o| o.0), file.in_transit.min(8), file.holders.keys().copied().collect::<Vec<_>>());
            world.files().map(of).collect()
        };
        prop_assert_eq!(holders(&copy), holders(&world));
        let stages = |world: &World| world.processes().map(|p| (p.id(), p.stage())).collect::<Vec<_>>();
        prop_assert_eq!(stages(&copy), stages(&world));
    }
}
