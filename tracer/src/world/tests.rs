//! What the fold must hold to, from small stories.

use super::process::Stage;
use crate::event::{Action, Event, GpuProcess, GpuUse, Hold, ProcessId, SignalResult, Via, What};
use crate::explanation::{Explanation, explain};
use crate::story::{CTL, MIB, SECOND, Story, UVM, fold};

const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

#[test]
fn the_last_thread_keeps_the_files_until_the_parent_is_told() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.opens(trainer, CTL);
    story.thread_exits(trainer, 574, 9, Some(9), 0);
    assert_eq!(story.world().files().count(), 1);
    story.push(What::Zombie { id: trainer, parent: ProcessId(1, 1) });
    assert_eq!(story.world().files().count(), 0);
}

#[test]
fn a_free_without_any_notice_releases_too() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.opens(trainer, CTL);
    story.push(What::Free { id: trainer });
    assert_eq!(story.world().files().count(), 0);
}

#[test]
fn an_open_of_a_known_address_is_another_description() {
    let mut story = Story::warm();
    let old = story.process(574, "old");
    let hold = story.opens(old, CTL);
    let child = story.forks(old, 575, "child");
    let new = story.process(600, "new");
    story.push(What::Hold(Box::new(Hold { id: new, opener: Some(new), ..hold })));
    let world = story.world();
    let file = world.files().next().unwrap();
    assert_eq!(file.opener.map(|o| o.0), Some(new));
    assert!(!file.is_held_by(old) && !file.is_held_by(child));
    assert!(world.process(child).unwrap().files.is_empty());
}

#[test]
fn an_open_that_arrives_after_the_scan_that_saw_it_is_the_same_description() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    let opened = story.now;
    let found = Hold { via: None, opener: None, ..story.opens(trainer, CTL) };
    story.events.pop();
    story.found(&found);
    let seen = Hold { via: Some(Via::Opened), ..found.clone() };
    story.events.push(Event { at: opened, what: What::Hold(Box::new(seen)) });
    let world = story.world();
    let file = world.file(found.file).unwrap();
    assert_eq!(file.opener.map(|o| o.0), Some(trainer));
    assert_eq!(file.opened_at, Some(opened));
}

#[test]
fn a_childs_exec_that_arrives_before_its_fork_still_closes() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.opens(trainer, CTL);
    let child = story.forks(trainer, 580, "python3");
    story.execs(child, "sleep");
    let last = story.events.len() - 1;
    story.events.swap(last, last - 1);
    assert!(!story.world().files().next().unwrap().is_held_by(child));
}

#[test]
fn a_descriptor_without_close_on_exec_survives_exec() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    let hold = story.opens(trainer, CTL);
    story.push(What::Hold(Box::new(Hold { fd: 40, cloexec: Some(false), via: None, ..hold.clone() })));
    story.execs(trainer, "sleep");
    let world = story.world();
    let fds: Vec<i32> = world.file(hold.file).unwrap().holders.values().flat_map(|h| &h.slots).map(|s| s.fd).collect();
    assert_eq!(fds, [40]);
}

#[test]
fn a_new_process_with_a_known_pid_means_that_the_old_one_is_gone() {
    let mut story = Story::warm();
    let old = story.process(574, "python3");
    story.opens(old, CTL);
    story.process(574, "vim");
    let world = story.world();
    assert_eq!(world.process(old).unwrap().stage(), Stage::Gone);
    assert_eq!(world.files().count(), 0);
}

#[test]
fn a_reap_inside_a_container_finds_the_child_by_its_inner_pid() {
    let mut story = Story::warm();
    let parent = story.process(900, "tini");
    story.info(parent, "tini", |info| info.ns_pid = Some(1));
    let child = story.forks(parent, 901, "python3");
    story.info(child, "python3", |info| info.ns_pid = Some(7));
    story.push(What::Zombie { id: child, parent });
    story.push(What::Reap { by: parent, comm: "tini".into(), child: 7 });
    let world = story.world();
    assert_eq!(world.process(child).unwrap().exit.reaped.as_ref().map(|r| r.1), Some(parent));
}

#[test]
fn a_fatal_signal_is_kept_through_a_storm_of_others() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.signals(Some(BASH), trainer, 9);
    for _ in 0..100 {
        story.signals(Some(BASH), trainer, 10);
        story.signal_with(Some(BASH), trainer, 9, SignalResult::AlreadyPending);
    }
    let world = story.world();
    let signals = &world.process(trainer).unwrap().signals;
    assert_eq!(signals.iter().count(), super::signal::KEPT);
    assert_eq!(signals.iter().filter(|r| r.sig == 9 && r.result == SignalResult::Queued).count(), 1);
}

#[test]
fn the_deliveries_of_exit_group_are_no_signal() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.opens(trainer, CTL);
    story.thread_exits(trainer, 574, 0, Some(0), 1);
    story.delivered(trainer, 9, Action::Default);
    let world = story.world();
    assert_eq!(world.process(trainer).unwrap().signals.iter().count(), 0);
}

#[test]
fn fork_storms_are_forgotten_and_the_living_are_not() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.opens(trainer, CTL);
    for pid in 10_000..30_000 {
        let child = story.forks(trainer, pid, "worker");
        story.dies(child, 0);
        story.reaped(child);
    }
    let world = story.world();
    assert!(world.processes().count() < 5_000, "{}", world.processes().count());
    assert!(world.finished().count() <= super::retire::FINISHED_KEPT);
    assert_eq!(world.files().next().unwrap().holders.len(), 1);
    assert!(world.process(trainer).unwrap().is_alive());
}

#[test]
fn a_dead_owner_is_remembered_through_a_storm_while_its_files_are_open() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.opens(trainer, CTL);
    story.forks(trainer, 580, "python3");
    story.killed(BASH, trainer);
    let other = story.process(700, "other");
    for pid in 10_000..20_000 {
        let child = story.forks(other, pid, "worker");
        story.dies(child, 0);
        story.reaped(child);
    }
    let holding = story.holding();
    assert!(holding.summary.contains("killed by SIGKILL from bash (PID 12)"), "{}", holding.summary);
}

#[test]
fn used_memory_falls_only_while_it_falls() {
    let mut story = Story::warm();
    story.nvml(1_000, &[]);
    story.wait(10).used(800);
    story.used(600);
    let falling = |story: &Story| story.world().gpus()[&0].falling(story.now).map(|f| f.1);
    assert_eq!(falling(&story), Some(1_000 * MIB));
    story.used(600);
    assert_eq!(falling(&story), Some(1_000 * MIB));
    story.wait(4).used(600);
    assert_eq!(falling(&story), None);
    story.used(700);
    assert_eq!(falling(&story), None);
}

#[test]
fn a_line_of_nvml_keeps_its_first_time_and_two_lists_are_one_charge() {
    let line = |usage, bytes| GpuProcess { pid: 574, bytes, usage, name: None };
    let both = || vec![line(GpuUse::Compute, Some(100)), line(GpuUse::Graphics, Some(40))];
    let mut gpu = super::gpu::Gpu::default();
    assert!(gpu.list(10, &both()).is_empty());
    assert!(gpu.list(20, &both()).is_empty());
    assert_eq!(gpu.charged(574), Some(Some(100)));
    assert_eq!(gpu.charged(575), None);
    assert_eq!(gpu.of_pid(574).map(|l| l.first_seen).collect::<Vec<_>>(), [10, 10]);
    assert_eq!(gpu.list(30, &[]), [(574, 10), (574, 10)]);
}

#[test]
fn two_spellings_of_a_pci_address_are_one_gpu() {
    use super::host::same_gpu;
    assert!(same_gpu("0000:0b:00.0", "00000000:0B:00.0"));
    assert!(same_gpu("0000:0b:00", "0000:0B:00.0"));
    assert!(!same_gpu("0000:0b:00", "0000:0c:00"));
    assert!(!same_gpu("0000:0b:00", ""));
}

#[test]
fn a_stepped_wall_clock_is_used_from_its_step_on() {
    let mut story = Story::warm();
    let before = story.now;
    story.wait(60).push(What::Clock { real_ns: 1_900_000_000 * SECOND });
    let world = story.world();
    assert_eq!(world.host().wall(before).as_deref(), Some("2025-06-01T12:00:00.001Z"));
    assert_eq!(world.host().wall(story.now).as_deref(), Some("2030-03-17T17:46:40.000Z"));
}

/// Everything that a reader would compare.
fn essence(told: &Explanation) -> impl PartialEq + std::fmt::Debug + use<> {
    let holdings: Vec<_> = told
        .holdings
        .iter()
        .map(|h| (h.gpu, h.bytes, h.cause, h.confidence, h.owner.clone(), h.holders.clone(), h.summary.clone()))
        .collect();
    (holdings, told.zombies.clone(), told.gpus.clone(), told.exit_code())
}

fn carried(story: &Story) {
    let world = story.world();
    let copy = fold(&world.carry_over());
    assert_eq!(essence(&explain(&copy)), essence(&explain(&world)));
    let again = fold(&copy.carry_over());
    assert_eq!(essence(&explain(&again)), essence(&explain(&world)));
}

#[test]
fn what_is_carried_over_explains_the_same() {
    let mut story = Story::warm();
    let broker = story.process(300, "broker");
    let reader = story.process(301, "reader");
    let trainer = story.process(574, "python3");
    let files = story.uses_cuda(trainer);
    story.nvml(2_560, &[(574, 2_560)]);
    let middle = story.forks(trainer, 580, "python3");
    story.forks(middle, 590, "worker");
    carried(&story);
    story.push(What::Sent { id: trainer, file: files[0].file, dev: CTL, socket: Some(1) });
    story.found(&Hold { id: broker, fd: 9, via: Some(Via::ScmRights), ..files[0].clone() });
    story.push(What::Sent { id: trainer, file: files[1].file, dev: UVM, socket: Some(2) });
    story.found(&Hold { id: reader, fd: 9, via: Some(Via::InFlight), ..files[1].clone() });
    carried(&story);
    story.killed(BASH, trainer);
    story.signals(Some(BASH), middle, 15);
    story.delivered(middle, 9, Action::Default);
    story.dies(middle, 15);
    carried(&story);
    story.scanned();
    carried(&story);
}

#[test]
fn a_message_in_transit_is_carried_over() {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    let files = story.uses_cuda(trainer);
    story.push(What::Sent { id: trainer, file: files[0].file, dev: CTL, socket: Some(1) });
    story.killed(BASH, trainer);
    assert_eq!(story.told().holdings.len(), 1);
    carried(&story);
}

#[test]
fn living_owners_of_every_kind_are_carried_over() {
    let mut story = Story::warm();
    for (pid, letter) in [(600, "T"), (601, "t"), (602, "S"), (603, "R")] {
        let id = story.process(pid, "python3");
        story.uses_cuda(id);
        story.stands(id, letter, |_| {});
    }
    let threaded = story.process(610, "threaded");
    story.uses_cuda(threaded);
    story.thread_exits(threaded, 610, 0, None, 2);
    let exiting = story.process(611, "exiting");
    story.uses_cuda(exiting);
    story.thread_exits(exiting, 612, 9, Some(9), 1);
    let caught = story.process(620, "caught");
    story.uses_cuda(caught);
    story.signals(Some(BASH), caught, 15);
    story.delivered(caught, 15, Action::Handled);
    let launcher = story.process(630, "launcher");
    let orphan = story.forks(launcher, 631, "orphan");
    story.uses_cuda(orphan);
    story.killed(BASH, launcher);
    story.nvml(500, &[(600, 100), (610, 100), (631, 300)]);
    carried(&story);
}

#[test]
fn a_zombie_whose_parent_died_is_collected_by_whoever_adopted_it() {
    let mut story = Story::warm();
    let (bash, init) = (story.process(12, "bash"), ProcessId(1, 1));
    let trainer = story.process(574, "python3");
    story.info(trainer, "python3", |info| info.parent = Some(bash));
    story.uses_cuda(trainer);
    story.thread_exits(trainer, 574, 9, Some(9), 0);
    story.push(What::Zombie { id: trainer, parent: bash });
    story.push(What::Reap { by: init, comm: "systemd".into(), child: 574 });
    let world = story.world();
    let reaped = world.process(trainer).and_then(|process| process.exit.reaped.clone());
    assert_eq!(reaped.map(|(_, by, _)| by), Some(init));
}

#[test]
fn an_address_with_other_credentials_is_another_description() {
    let mut story = Story::warm();
    let (trainer, other) = (story.process(574, "python3"), story.process(600, "serve"));
    let first = story.opens(trainer, CTL);
    // Its close and the other's open were lost.
    let first = Hold { cred: Some(5), ..first };
    story.found(&first);
    let second = Hold { id: other, via: None, opener: None, since: None, cred: Some(6), ..first.clone() };
    story.found(&second);
    let world = story.world();
    let file = world.file(first.file).unwrap();
    assert_eq!(file.opener.map(|(id, _)| id), None, "{file:#?}");
    assert!(!file.is_held_by(trainer));
}
