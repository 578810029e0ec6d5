//! Snapshots against worlds: what is told, what is read, and what is never undone.

use super::*;
use crate::event::{Dev, Via};
use crate::explanation::{CauseId, explain};
use crate::story::{CTL, Story, bare, fold};

const SEC: u64 = 1_000_000_000;

fn task(pid: u32, parent: u32, comm: &str) -> TaskLine {
    let id = |pid: u32| ProcessId(pid, u64::from(pid));
    TaskLine {
        id: id(pid),
        tid: pid,
        comm: comm.into(),
        parent: id(parent),
        cred: u64::from(pid),
        state: 1,
        live: 1,
        pgrp: pid,
        session: pid,
        ..TaskLine::default()
    }
}

fn held(pid: u32, fd: i32, dev: Dev, cred: Token) -> Hold {
    let hold = bare(ProcessId(pid, u64::from(pid)), fd, 0x100 + fd as u64, dev);
    Hold { cred: Some(cred), cloexec: Some(true), opened_cloexec: Some(true), ..hold }
}

/// PID 580 has what PID 574, a zombie, opened.
fn inherited() -> Snapshot {
    let zombie = TaskLine { exit_state: EXIT_ZOMBIE, live: 0, exit_code: 9, ..task(574, 12, "python3") };
    let child = TaskLine { flags: PF_FORKNOEXEC, pgrp: 574, session: 12, ..task(580, 1, "python3") };
    Snapshot {
        began: 10 * SEC,
        ended: 11 * SEC,
        tasks: vec![task(1, 0, "systemd"), task(12, 1, "bash"), zombie, child, task(99, 1, "cron")],
        holds: vec![held(580, 5, CTL, 574)],
        complete: true,
        ..Snapshot::default()
    }
}

fn applied(world: &mut World, snapshot: &Snapshot) -> Vec<Event> {
    let events = snapshot.events(world);
    events.iter().for_each(|event| world.apply(event));
    events
}

#[test]
fn a_process_that_gave_up_capabilities_after_it_opened_is_still_the_opener() {
    let dev = Dev::new(195, 255);
    let leader = TaskLine { cred: 999, ..task(574, 12, "record") };
    let thread = TaskLine { tid: 575, cred: 574, ..task(574, 12, "record") };
    let snapshot = Snapshot { tasks: vec![leader, thread], holds: vec![held(574, 8, dev, 574)], complete: true, ..Snapshot::default() };
    let mut world = World::default();
    snapshot.events(&world).iter().for_each(|event| world.apply(event));
    let told = crate::explanation::explain(&world);
    assert_eq!(told.holdings[0].owner.as_ref().map(|owner| owner.pid), Some(574));
    assert_eq!(told.holdings[0].cause, crate::explanation::CauseId::OwnerAlive);
}

#[test]
fn one_cold_look_explains_an_inherited_descriptor_by_the_zombies_credentials() {
    let mut world = World::default();
    applied(&mut world, &inherited());
    let told = explain(&world);
    assert_eq!(told.holdings[0].cause, CauseId::InheritedDescriptor);
    assert_eq!(told.holdings[0].owner.as_ref().unwrap().pid, 574);
    assert_eq!(told.zombies[0].parent.as_ref().unwrap().comm.as_deref(), Some("bash"));
}

#[test]
fn zombies_that_have_nothing_to_do_with_a_gpu_are_told_and_not_read() {
    let mut snapshot = inherited();
    let other = TaskLine { exit_state: EXIT_ZOMBIE, live: 0, ..task(900, 99, "true") };
    snapshot.tasks.push(other);
    let mut world = World::default();
    // Of the second look it is known.
    for _ in 0..2 {
        let read = worth_reading(&world, &snapshot.tasks, &snapshot.holds);
        let pids: Vec<u32> = read.iter().map(|id| id.tgid()).collect();
        assert!(pids.contains(&99) && pids.contains(&574) && !pids.contains(&900), "{pids:?}");
        applied(&mut world, &snapshot);
    }
    let told = explain(&world).zombies;
    let zombie = told.iter().find(|zombie| zombie.pid == 900).unwrap();
    assert_eq!((zombie.comm.as_str(), zombie.used_gpu), ("true", false));
    assert_eq!(zombie.parent.as_ref().unwrap().comm.as_deref(), Some("cron"));
}

#[test]
fn a_process_whose_last_thread_is_still_on_its_way_out_is_no_zombie() {
    let mut snapshot = inherited();
    let leader = TaskLine { exit_state: EXIT_ZOMBIE, live: 0, ..task(900, 99, "python3") };
    snapshot.tasks.extend([leader.clone(), TaskLine { tid: 901, exit_state: 0, flags: PF_EXITING, ..leader }]);
    assert!(!zombies(&snapshot.tasks).contains(&ProcessId(900, 900)));
    let events = snapshot.events(&World::default());
    assert!(events.iter().any(|event| matches!(event.what, What::Scan { zombies: 1, .. })));
    // Once it matters it is read.
    let mut story = crate::story::Story::cold();
    story.nvml(1_024, &[(900, 1_024)]);
    assert!(worth_reading(&story.world(), &snapshot.tasks, &snapshot.holds).contains(&ProcessId(900, 900)));
}

#[test]
fn only_what_matters_is_told() {
    let events = inherited().events(&World::default());
    assert!(!events.iter().any(|e| matches!(&e.what, What::Process(info) if info.id.tgid() == 99)));
}

#[test]
fn a_second_look_at_an_unchanged_host_says_only_that_it_looked() {
    let mut world = World::default();
    let snapshot = inherited();
    applied(&mut world, &snapshot);
    let again = Snapshot { began: 20 * SEC, ended: 21 * SEC, ..snapshot };
    let events = applied(&mut world, &again);
    assert_eq!(events.len(), 1, "{events:#?}");
    assert!(matches!(events[0].what, What::Scan { processes: 5, zombies: 1, complete: true, .. }));
}

#[test]
fn what_is_not_found_any_more_is_dropped_and_who_is_gone_is_gone() {
    let mut world = World::default();
    applied(&mut world, &inherited());
    let mut later = Snapshot { began: 20 * SEC, ended: 21 * SEC, ..inherited() };
    later.holds.clear();
    later.tasks.retain(|t| t.id.tgid() != 580);
    applied(&mut world, &later);
    assert_eq!(world.files().count(), 0);
    assert_eq!(world.process(ProcessId(580, 580)).unwrap().stage(), Stage::Gone);
}

#[test]
fn what_only_the_exiting_held_is_theirs_until_they_are_zombies() {
    let mut world = World::default();
    let exiting = |pid, parent| TaskLine { flags: PF_EXITING, live: 0, ..task(pid, parent, "python3") };
    let at = |secs: u64, tasks, holds| Snapshot { began: secs * SEC, ended: (secs + 1) * SEC, tasks, holds, complete: true, ..Snapshot::default() };
    let (first, second) = (held(574, 3, CTL, 574), held(574, 4, CTL, 574));
    let shared = Hold { fd: 4, ..held(580, 4, CTL, 574) };
    let all = vec![first, second, shared.clone()];
    applied(&mut world, &at(10, vec![task(574, 12, "python3"), task(580, 574, "python3")], all));
    // Its table is gone: a child has one of its descriptions, and the other may still be released.
    applied(&mut world, &at(20, vec![exiting(574, 12), task(580, 574, "python3")], vec![shared]));
    let holders = |world: &World| -> Vec<Vec<u32>> {
        world.files().map(|file| file.holders.keys().map(|(id, _)| id.tgid()).collect()).collect()
    };
    assert_eq!(holders(&world), [vec![574], vec![580]]);
    let zombie = TaskLine { exit_state: EXIT_ZOMBIE, ..exiting(574, 12) };
    applied(&mut world, &at(30, vec![zombie, exiting(580, 1)], vec![]));
    assert_eq!(holders(&world), [vec![580]]);
    applied(&mut world, &at(40, vec![], vec![]));
    assert_eq!(world.files().count(), 0);
}

#[test]
fn an_exit_that_began_between_the_threads_and_the_files_drops_nothing() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.opens(trainer, CTL);
    story.wait(2);
    let began = story.now;
    story.thread_exits(trainer, 574, 9, Some(9), 0);
    // Its thread was read before that, and its files after it.
    let line = TaskLine { id: trainer, ..task(574, 1, "python3") };
    let look = Snapshot { began, ended: story.now + 1, tasks: vec![line], complete: true, ..Snapshot::default() };
    assert!(!look.events(&story.world()).iter().any(|e| matches!(e.what, What::Drop { .. })));
}

#[test]
fn an_incomplete_look_proves_no_absence() {
    let mut world = World::default();
    applied(&mut world, &inherited());
    let blind = Snapshot { began: 20 * SEC, ended: 21 * SEC, complete: false, ..Snapshot::default() };
    applied(&mut world, &blind);
    assert_eq!(world.files().count(), 1);
    assert!(world.process(ProcessId(580, 580)).unwrap().is_alive());
}

#[test]
fn what_came_while_the_look_ran_is_not_dropped() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    let hold = story.opens(trainer, CTL);
    let world = story.world();
    let line = TaskLine { id: trainer, ..task(574, 1, "python3") };
    let look = Snapshot { began: 1, ended: story.now + 1, tasks: vec![line], complete: true, ..Snapshot::default() };
    assert!(!look.events(&world).iter().any(|e| matches!(e.what, What::Drop { .. })), "{hold:?}");
}

#[test]
fn a_cgroup_is_told_again_only_when_its_room_changed() {
    let limit = |current| PidsLimit { cgroup: "/a".into(), current, max: 100 };
    assert!(about_the_same(&limit(20), &limit(28)));
    assert!(!about_the_same(&limit(20), &limit(31)));
    assert!(!about_the_same(&limit(98), &limit(99)), "when there is little room one counts");
    assert!(!about_the_same(&limit(20), &PidsLimit { max: 200, ..limit(20) }));
}

#[test]
fn what_was_closed_while_the_look_ran_does_not_come_back() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    let hold = story.opens(trainer, CTL);
    let began = story.now;
    story.push(What::Drop { id: trainer, tid: None, fd: hold.fd, file: hold.file });
    let mut world = story.world();
    let line = TaskLine { id: trainer, ..task(574, 1, "python3") };
    let seen = Hold { via: None, opener: None, ..hold };
    let look = Snapshot { began, ended: story.now + 1, tasks: vec![line], holds: vec![seen], complete: true, ..Snapshot::default() };
    applied(&mut world, &look);
    assert_eq!(world.files().count(), 0);
}

#[test]
fn a_scan_never_overrides_what_a_hook_saw() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    let hold = story.opens(trainer, CTL);
    let child = story.forks(trainer, 580, "python3");
    let mut world = story.world();
    let lines = [(trainer, 574), (child, 580)].map(|(id, pid)| TaskLine { id, ..task(pid, 1, "python3") });
    let seen = |id| Hold { id, via: None, opener: None, cred: Some(574), ..hold.clone() };
    let look = Snapshot {
        began: story.now + 1,
        ended: story.now + 2,
        tasks: lines.to_vec(),
        holds: vec![seen(trainer), seen(child)],
        complete: true,
        ..Snapshot::default()
    };
    applied(&mut world, &look);
    let file = world.files().next().unwrap();
    let via: Vec<Option<Via>> = file.holders.values().map(|holder| holder.via).collect();
    assert_eq!(via, [Some(Via::Opened), Some(Via::Fork)]);
}

#[test]
fn a_pid_that_nvml_names_and_nobody_has_is_said_to_be_absent_once() {
    let mut story = Story::cold();
    story.nvml(700, &[(4_000, 700)]);
    let mut world = fold(&story.events);
    let look = Snapshot { began: story.now, ended: story.now + 1, ..inherited() };
    let absent = |events: &[Event]| events.iter().filter(|e| e.what == What::ProcessGone { id: ProcessId(4_000, 0) }).count();
    assert_eq!(absent(&applied(&mut world, &look)), 1);
    assert_eq!(absent(&applied(&mut world, &look)), 0);
    assert!(world.is_absent(4_000) && world.unknown_pids().is_empty());
}
