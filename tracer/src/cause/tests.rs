//! Cases in which several causes, owners or GPUs meet: what must not be said.
//!
//! Always true: nobody is blamed for what is another's, and no byte is told twice.

use crate::event::rm::*;
use crate::event::*;
use crate::explanation::*;
use crate::story::*;
use crate::world::World;
const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

fn user(story: &mut Story, pid: u32, comm: &str, client: u32, mib: u64) -> (ProcessId, Vec<Hold>) {
    let id = story.process(pid, comm);
    let files = story.uses_cuda(id);
    story.client(id, &files[0], client);
    story.device(id, &files[0], client, 0);
    story.memory(id, &files[0], client, 3, mib);
    (id, files)
}

#[test]
fn what_an_older_exported_handle_is_charged_for_is_not_taken_from_the_importers_own() {
    let mut story = Story::warm();
    let (a, af) = user(&mut story, 574, "vllm", 0xc1, 2_048);
    let (b, bf) = user(&mut story, 580, "worker", 0xc2, 512);
    let handle = story.export(a, &af[0], (0xc1, 3));
    story.found(&Hold { id: b, fd: 9, via: Some(Via::ScmRights), from: Some(a), opener: None, ..handle.clone() });
    story.import(b, &bf[0], (0xc2, 4), &handle);
    story.killed(BASH, a);
    // The export's reference is older than the import: NVML charges nobody.
    story.nvml(2_560, &[(580, 512)]);
    story.scanned();
    let told = story.told();
    let of = |pid| told.holdings.iter().find(|h| h.owner.as_ref().is_some_and(|o| o.pid == pid)).unwrap();
    assert_eq!(of(580).bytes, Some(512 * MIB));
}

#[test]
fn a_child_of_a_dead_importer_imported_nothing() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "vllm", 0xc1, 2_048);
    let (b, bf) = user(&mut story, 580, "worker", 0xc2, 512);
    story.dup(b, &bf[0], (0xc2, 4), (0xc1, 3));
    story.forks(b, 590, "loader");
    story.killed(BASH, a);
    story.killed(BASH, b);
    story.nvml(2_560, &[(580, 2_560)]);
    story.scanned();
    assert!(story.told().holdings.iter().all(|h| !h.summary.contains("loader (PID 590) imported it")));
}

#[test]
fn a_client_handle_that_is_given_out_again_is_another_client() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "vllm", 0xc1, 2_048);
    let (b, bf) = user(&mut story, 580, "worker", 0xc2, 512);
    story.dup(b, &bf[0], (0xc2, 4), (0xc1, 3));
    story.killed(BASH, a);
    let (c, cf) = user(&mut story, 600, "other", 0xc1, 100);
    story.dup(c, &cf[0], (0xc1, 4), (0xc2, 4));
    story.nvml(2_660, &[(580, 2_560), (600, 100)]);
    story.scanned();
    assert!(story.told().holdings.iter().any(|h| h.cause == CauseId::ImportedMemory));
}

#[test]
fn an_exporter_from_before_the_recording_is_not_thought_dead() {
    let mut story = Story::warm();
    let a = ProcessId(574, 900 * SECOND);
    story.info(a, "vllm", |i| i.cred = Some(66));
    for (fd, dev) in [(3, CTL), (4, UVM), (5, GPU0)] { story.found(&Hold { cred: Some(66), cloexec: Some(true), ..bare(a, fd, 0x900 + fd as u64, dev) }); }
    let (b, bf) = user(&mut story, 580, "worker", 0xc2, 512);
    story.dup(b, &bf[0], (0xc2, 4), (0xc1, 3));
    story.nvml(2_560, &[(574, 2_048), (580, 512)]);
    story.scanned();
    assert_eq!(story.told().exit_code(), 0);
}

#[test]
fn of_two_gpus_the_one_that_the_files_belong_to_has_the_memory_once() {
    let mut story = Story::warm();
    let a = ProcessId(574, 900 * SECOND);
    story.info(a, "train", |i| i.cred = Some(66));
    let files: Vec<_> = [(3, CTL), (4, UVM), (5, GPU0)].into_iter().map(|(fd, dev)| Hold { cred: Some(66), cloexec: Some(true), ..bare(a, fd, 0x900 + fd as u64, dev) }).collect();
    files.iter().for_each(|f| story.found(f));
    story.memory(a, &files[0], 0xc1, 3, 2_048);
    story.forks(a, 580, "train");
    story.killed(BASH, a);
    story.nvml(2_560, &[]);
    story.push(What::Gpu { gpu: 1, uuid: "GPU-1".into(), name: "H200".into(), minor: Some(1), pci: Some("00000000:0C:00.0".into()), settled_at: None });
    story.push(What::GpuMemory { gpu: 1, total: 143_771 * MIB, used: 0, reserved: Some(615 * MIB) });
    story.push(What::GpuProcesses { gpu: 1, list: vec![] });
    story.scanned();
    assert_eq!(story.told().holdings.iter().filter(|h| h.cause == CauseId::InheritedDescriptor).count(), 1);
}

#[test]
fn what_the_books_know_is_not_called_lost_on_the_gpu_whose_id_is_not_known() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "train", 0xc1, 2_048);
    story.forks(a, 580, "train");
    story.killed(BASH, a);
    story.wait(60);
    story.nvml(2_050, &[]);
    story.push(What::Gpu { gpu: 1, uuid: "GPU-1".into(), name: "H200".into(), minor: Some(1), pci: Some("00000000:0C:00.0".into()), settled_at: None });
    story.push(What::GpuMemory { gpu: 1, total: 143_771 * MIB, used: 0, reserved: Some(615 * MIB) });
    story.push(What::GpuProcesses { gpu: 1, list: vec![] });
    story.scanned();
    assert!(story.told().holdings.iter().all(|h| h.cause != CauseId::NoHolder));
}

#[test]
fn falling_memory_of_the_dead_is_no_managed_memory_of_a_bystander() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "train", 0xc1, 40_000);
    let (_b, _) = user(&mut story, 580, "notebook", 0xc2, 512);
    story.nvml(40_512, &[(574, 40_000), (580, 512)]);
    story.killed(BASH, a);
    story.nvml(30_512, &[(580, 512)]);
    story.nvml(20_512, &[(580, 512)]);
    story.scanned();
    assert!(story.told().holdings.iter().any(|h| h.cause == CauseId::TeardownRunning));
}

#[test]
fn what_the_dead_may_have_left_is_no_managed_memory_of_a_bystander() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "train", 0xc1, 40_000);
    let (_b, _) = user(&mut story, 580, "notebook", 0xc2, 512);
    story.nvml(40_512, &[(574, 40_000), (580, 512)]);
    story.killed(BASH, a);
    story.wait(600);
    story.nvml(40_512, &[(580, 512)]);
    story.scanned();
    assert_ne!(story.told().exit_code(), 0);
    assert_ne!(in_the_next_file(&story).exit_code(), 0);
}

/// What is said by the file that follows, whose world has the carried events only.
fn in_the_next_file(story: &Story) -> Explanation {
    let mut next = World::default();
    story.world().carry_over().iter().for_each(|event| next.apply(event));
    explain(&next)
}

#[test]
fn who_was_charged_no_longer_when_the_next_file_began_may_have_left_something_too() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "train", 0xc1, 40_000);
    let (_b, _) = user(&mut story, 580, "notebook", 0xc2, 512);
    story.nvml(40_512, &[(574, 40_000), (580, 512)]);
    story.nvml(40_512, &[(580, 512)]);
    let mut next = World::default();
    story.world().carry_over().iter().for_each(|event| next.apply(event));
    let so_far = story.events.len();
    story.killed(BASH, a);
    story.wait(600);
    story.nvml(40_512, &[(580, 512)]);
    story.scanned();
    story.events.iter().skip(so_far).for_each(|event| next.apply(event));
    assert_ne!(explain(&next).exit_code(), 0);
}

#[test]
fn managed_memory_of_the_living_is_still_its_own_in_the_next_file() {
    let mut story = Story::warm();
    user(&mut story, 574, "train", 0xc1, 512);
    story.nvml(512, &[(574, 512)]);
    story.nvml(8_704, &[(574, 512)]);
    story.scanned();
    for told in [story.told(), in_the_next_file(&story)] {
        assert!(told.holdings.iter().any(|h| h.summary.contains("managed memory")), "{:#?}", told.holdings);
    }
}

#[test]
fn what_only_an_exported_handle_keeps_is_still_its_living_makers() {
    let mut story = Story::warm();
    let broker = story.process(300, "broker");
    let (a, af) = user(&mut story, 574, "train", 0xc1, 2_048);
    story.memory(a, &af[0], 0xc1, 5, 512);
    let handle = story.export(a, &af[0], (0xc1, 3));
    story.found(&Hold { id: broker, fd: 9, via: Some(Via::ScmRights), from: Some(a), opener: None, ..handle.clone() });
    story.closes(&handle);
    story.frees(a, &af[0], 0xc1, 3);
    story.nvml(2_560, &[(574, 512)]);
    story.scanned();
    assert!(story.told().holdings.iter().all(|h| !h.summary.contains("managed memory")));
}

#[test]
fn without_lists_nothing_is_called_managed() {
    let mut story = Story::warm();
    user(&mut story, 574, "train", 0xc1, 2_048);
    story.push(What::Gpu { gpu: 0, uuid: "GPU-0".into(), name: "H200".into(), minor: Some(0), pci: Some("00000000:0B:00.0".into()), settled_at: None });
    story.used(2_562);
    story.scanned();
    assert!(story.told().holdings.iter().all(|h| !h.summary.contains("managed memory")));
}

#[test]
fn a_forked_child_and_a_broker_are_both_named() {
    let mut story = Story::warm();
    let broker = story.process(300, "broker");
    let (a, af) = user(&mut story, 574, "train", 0xc1, 2_048);
    let handle = story.export(a, &af[0], (0xc1, 3));
    story.found(&Hold { id: broker, fd: 9, via: Some(Via::ScmRights), from: Some(a), opener: None, ..handle.clone() });
    story.closes(&handle);
    story.forks(a, 590, "loader");
    story.killed(BASH, a);
    story.nvml(2_560, &[(574, 2_560)]);
    story.scanned();
}

#[test]
fn without_nvml_nothing_is_said_of_what_it_charges() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "train", 0xc1, 2_048);
    story.forks(a, 590, "loader");
    story.killed(BASH, a);
    story.scanned();
    assert!(story.holding().evidence.iter().all(|e| !e.what.contains("NVML")));
}

#[test]
fn a_control_file_of_an_unknown_opener_leaves_a_gap_in_its_holders_books() {
    let mut story = Story::warm();
    let a = ProcessId(574, 900 * SECOND);
    story.info(a, "train", |i| (i.cred, i.never_execed) = (Some(77), Some(false)));
    let files: Vec<_> = [(3, CTL), (4, UVM), (5, GPU0)].into_iter().map(|(fd, dev)| Hold { cred: Some(66), cloexec: Some(true), ..bare(a, fd, 0x900 + fd as u64, dev) }).collect();
    files.iter().for_each(|f| story.found(f));
    story.client(a, &files[0], 0xc1);
    story.device(a, &files[0], 0xc1, 0);
    story.memory(a, &files[0], 0xc1, 3, 512);
    story.nvml(2_560, &[(574, 2_560)]);
    story.scanned();
    assert!(!story.holding().books.unwrap().complete);
}

#[test]
fn a_mapping_of_which_a_part_goes_keeps_its_memory() {
    let mut story = Story::warm();
    let (a, af) = user(&mut story, 574, "train", 0xc1, 2_048);
    story.asks(a, &af[1], Op::Map { client: 0xc1, object: 3, base: 0x7000_0000, length: 4 * MIB });
    story.asks(a, &af[1], Op::Unmap { base: 0x7000_0000, length: 2 * MIB });
    let child = story.forks(a, 580, "train");
    for file in [&af[0], &af[2]] { story.push(What::Drop { id: child, tid: None, fd: file.fd, file: file.file }); }
    story.killed(BASH, a);
    story.nvml(2_050, &[]);
    story.scanned();
    assert_eq!(story.world().books().memories().count(), 1);
}

#[test]
fn an_importer_without_a_known_control_file_is_named() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "vllm", 0xc1, 2_048);
    let b = ProcessId(580, 900 * SECOND);
    story.info(b, "worker", |i| i.cred = Some(66));
    let files: Vec<_> = [(3, CTL), (4, UVM), (5, GPU0)].into_iter().map(|(fd, dev)| Hold { cred: Some(66), cloexec: Some(true), ..bare(b, fd, 0x900 + fd as u64, dev) }).collect();
    files.iter().for_each(|f| story.found(f));
    story.dup(b, &files[2], (0xc2, 4), (0xc1, 3));
    story.killed(BASH, a);
    story.nvml(2_560, &[(580, 2_560)]);
    story.scanned();
    assert!(!story.told().holdings[0].summary.contains(";  imported"));
}

#[test]
fn cold_a_dma_buf_of_what_somebody_is_charged_for_is_no_leak() {
    let mut story = Story::cold();
    let a = ProcessId(574, 900);
    story.info(a, "train", |i| (i.cred, i.never_execed) = (Some(77), Some(false)));
    for (fd, dev) in [(3, CTL), (4, UVM), (5, GPU0)] { story.found(&Hold { cred: Some(77), cloexec: Some(true), ..bare(a, fd, 0x900 + fd as u64, dev) }); }
    let broker = ProcessId(300, 300);
    story.info(broker, "broker", |i| (i.cred, i.never_execed) = (Some(5), Some(false)));
    story.found(&Hold { cred: Some(66), bytes: Some(512 * MIB), cloexec: Some(false), ..bare(broker, 7, 7, Dev::DMA_BUF) });
    story.nvml(2_560, &[(574, 2_560)]);
    story.scanned();
    assert!(story.told().holdings.iter().all(|h| !h.summary.contains("a process that is gone")));
}

#[test]
fn two_dma_bufs_of_one_memory_do_not_count_twice() {
    let mut story = Story::cold();
    let broker = ProcessId(300, 300);
    story.info(broker, "broker", |info| info.never_execed = Some(false));
    for fd in [7, 8] { story.found(&Hold { cred: Some(66), bytes: Some(512 * MIB), ..bare(broker, fd, fd as u64, Dev::DMA_BUF) }); }
    story.nvml(514, &[]);
    story.scanned();
    assert!(story.told().gpus[0].attributed_bytes <= Some(514 * MIB));
}

#[test]
fn a_maker_that_still_maps_its_memory_has_not_given_it_up() {
    let mut story = Story::warm();
    let (a, af) = user(&mut story, 574, "vllm", 0xc1, 2_048);
    let (b, bf) = user(&mut story, 580, "worker", 0xc2, 512);
    story.map(a, &af[1], (0xc1, 3), 0x7000_0000);
    story.dup(b, &bf[0], (0xc2, 4), (0xc1, 3));
    story.frees(a, &af[0], 0xc1, 3);
    story.nvml(2_560, &[(580, 512)]);
    story.scanned();
    assert_ne!(story.told().exit_code(), 3);
}

#[test]
fn a_dead_mps_client_whose_files_a_child_has_is_the_childs() {
    let mut story = Story::warm();
    let (a, _) = user(&mut story, 574, "vllm", 0xc1, 2_048);
    let (s, sf) = user(&mut story, 2441, "nvidia-cuda-mps", 0xc2, 66);
    story.dup(s, &sf[0], (0xc2, 4), (0xc1, 3));
    story.killed(BASH, a);
    story.wait(60);
    story.nvml(2_114, &[(2441, 2_114)]);
    story.scanned();
}

#[test]
fn a_name_rules_nobody_out() {
    let mut story = Story::cold();
    user(&mut story, 574, "outlive", 0xc1, 512);
    story.nvml(40_512, &[(574, 512)]);
    story.scanned();
    assert!(story.told().holdings.iter().all(|h| h.cause != CauseId::NoHolder), "{:#?}", story.told().holdings);
}
