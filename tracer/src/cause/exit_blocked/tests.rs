//! Exits that do not end, told apart by what their threads do.

use crate::event::{Dev, Hold, KernelThread, ProcessId, ProcessState, Ran, StuckThread, What};
use crate::explanation::{CauseId, Confidence, Explanation, Holding, explain};
use crate::story::{CTL, GPU0, SECOND, Story, UVM, bare, fold};
use std::collections::BTreeMap;

mod files;

const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");
/// Another GPU: who has only that one need not be stopped.
const GPU1: Dev = Dev::new(195, 1);
const KILL: u64 = 1 << 8;
/// Start of the owner of [`vain`].
const TICKS: u64 = 100_000;
const SPIN: [&str; 2] = ["uvm_spin_loop+0x1c/0x90 [nvidia_uvm]", "uvm_ioctl+0x1/0x2 [nvidia_uvm]"];
const LOCK: [&str; 3] = ["rwsem_down_write_slowpath+0x1/0x2", "down_write+0x1/0x2", "os_acquire_rwlock_write+0x1/0x2 [nvidia]"];
const FUSE: [&str; 2] = ["request_wait_answer+0x1/0x2 [fuse]", "fuse_read+0x1/0x2 [fuse]"];

fn stuck(letter: &str, stack: &[&str]) -> StuckThread {
    let stack = stack.iter().map(|frame| (*frame).to_owned()).collect();
    StuckThread { tid: 577, state: letter.into(), stack, ..StuckThread::default() }
}

/// SIGKILL was sent half a minute ago and the memory stays.
fn vain(more: impl FnOnce(&mut ProcessState)) -> (Story, ProcessId) {
    let mut story = Story::warm();
    let trainer = story.process(574, "EngineCore");
    story.uses_cuda(trainer);
    story.nvml(2_560, &[(574, 2_560)]);
    story.signals(Some(BASH), trainer, 9);
    story.wait(30);
    story.used(2_560);
    story.stands(trainer, "R", |s| {
        s.pending = KILL;
        more(s);
    });
    (story, trainer)
}

fn killed_in_vain(thread: StuckThread) -> Holding {
    vain(|s| s.stuck = vec![thread]).0.holding()
}

fn commands(holding: &Holding) -> Vec<&str> {
    holding.remedy.iter().filter_map(|r| r.command.as_deref()).collect()
}

fn says(holding: &Holding, text: &str) -> bool {
    holding.evidence.iter().any(|e| e.what.contains(text))
}

#[track_caller]
fn assert_says(holding: &Holding, text: &str) {
    assert!(says(holding, text), "{text}\n{:#?}", holding.evidence);
}

#[test]
fn a_driver_frame_means_the_driver_even_for_a_spinning_thread() {
    let holding = killed_in_vain(stuck("R", &SPIN));
    assert_eq!((holding.cause, holding.confidence), (CauseId::ExitBlockedInDriver, Confidence::Exact));
    assert_eq!(
        holding.summary,
        "2.5 GiB on GPU 0 belongs to EngineCore (PID 574), which has not died in 30.0 s: thread 577 spins inside the NVIDIA \
         driver and waits for the GPU to finish its work (uvm_spin_loop [nvidia_uvm])."
    );
    assert_says(&holding, "uvm_spin_loop+0x1c/0x90 [nvidia_uvm] <- uvm_ioctl+0x1/0x2 [nvidia_uvm]");
    assert!(commands(&holding).iter().all(|c| !c.starts_with("kill")));
}

#[test]
fn a_thread_asleep_in_the_driver_is_told_with_its_cpu_use_and_name() {
    let thread = StuckThread {
        comm: Some("cuda-EvtHandlr".into()),
        ran: Some(Ran { cpu_ns: 0, over_ns: SECOND }),
        ..stuck("D", &["schedule+0x1/0x2", "_nv012345rm+0x1/0x2 [nvidia]"])
    };
    let holding = killed_in_vain(thread);
    assert_eq!(holding.cause, CauseId::ExitBlockedInDriver);
    assert!(holding.summary.contains("thread 577 (cuda-EvtHandlr) is stuck inside the NVIDIA driver (_nv012345rm"), "{}", holding.summary);
    assert_says(&holding, "Thread 577 (cuda-EvtHandlr) of EngineCore (PID 574) is in state D, asleep (0 % of a CPU over 1.0 s): schedule");
}

#[test]
fn firmware_that_does_not_answer_is_named() {
    let holding = killed_in_vain(stuck("D", &["schedule_timeout+0x1/0x2", "_issueRpcAndWait+0x1/0x2 [nvidia]"]));
    assert!(holding.summary.contains("waits for the GPU's own firmware (GSP), which does not answer (_issueRpcAndWait"), "{}", holding.summary);
}

#[test]
fn of_threads_that_wait_for_each_other_the_one_that_waits_for_the_gpu_says_it() {
    let (story, _) = vain(|s| s.stuck = vec![stuck("D", &LOCK), StuckThread { tid: 579, ..stuck("R", &SPIN) }]);
    let holding = story.holding();
    assert!(holding.summary.contains("thread 579 spins inside the NVIDIA driver"), "{}", holding.summary);
}

#[test]
fn a_lock_that_a_living_process_holds_is_told_with_that_process_which_can_be_ended() {
    let (mut story, _) = vain(|s| s.stuck = vec![stuck("D", &LOCK)]);
    let other = story.process(890, "python3");
    let since = Some(story.now);
    story.stands(other, "S", |s| s.stuck = vec![StuckThread { tid: 900, same_since: since, ..stuck("R", &SPIN) }]);
    let holding = story.holding();
    assert_eq!(holding.cause, CauseId::ExitBlockedInDriver);
    assert!(
        holding.summary.contains("waits for a lock of the driver that another thread holds, perhaps thread 900 of python3 (PID 890) ("),
        "{}",
        holding.summary
    );
    assert_says(&holding, "Thread 900 of python3 (PID 890) is inside the driver too and may hold that lock: it is in state R, in the same place");
    let end = holding.remedy.iter().find(|r| r.command.as_deref().is_some_and(|c| c.contains("kill -TERM 890"))).unwrap();
    assert!(end.effect.ends_with("in case it is what holds the lock") && end.frees_bytes.is_none(), "{end:?}");
}

#[test]
fn nobody_is_to_be_ended_for_a_request_that_was_seen_once() {
    let (mut story, _) = vain(|s| s.stuck = vec![stuck("D", &LOCK)]);
    for pid in [890, 891, 892] {
        let other = story.process(pid, "python3");
        story.stands(other, "S", |s| s.stuck = vec![StuckThread { tid: pid, ..stuck("R", &SPIN) }]);
    }
    let holding = story.holding();
    assert_eq!(holding.cause, CauseId::ExitBlockedInDriver);
    assert_says(&holding, "Thread 890 of python3 (PID 890) is inside the driver too, perhaps for a moment only: it is in state R");
    assert!(!holding.summary.contains("python3"), "who reads only the sentence would end it: {}", holding.summary);
    assert!(commands(&holding).iter().all(|c| !c.contains("kill")), "{:?}", commands(&holding));
}

#[test]
fn who_came_into_the_driver_long_after_the_wait_began_does_not_hold_the_lock() {
    let named = |waited: u64, since: u64| {
        let (mut story, _) = vain(|s| s.stuck = vec![StuckThread { same_since: Some(waited * SECOND), ..stuck("D", &LOCK) }]);
        let other = story.process(890, "python3");
        story.stands(other, "S", |s| s.stuck = vec![StuckThread { tid: 900, same_since: Some(since * SECOND), ..stuck("R", &SPIN) }]);
        let holding = story.holding();
        let named = holding.summary.contains("python3");
        assert_eq!(commands(&holding).iter().any(|c| c.contains("kill")), named, "{:?}", commands(&holding));
        named
    };
    assert!(named(1_010, 1_000) && named(1_010, 1_012), "two looks at two processes are not at one time");
    assert!(!named(1_000, 1_020));
}

#[test]
fn a_lock_that_an_unseen_busy_thread_may_hold_does_not_make_the_gpu_innocent() {
    let ran = Some(Ran { cpu_ns: SECOND, over_ns: SECOND });
    let kernels_lock = ["rwsem_down_read_slowpath+0x1/0x2", "down_read+0x1/0x2", "exit_mm+0x1/0x2"];
    let threads = || vec![stuck("D", &kernels_lock), StuckThread { tid: 579, ran, ..stuck("R", &[]) }];
    let (mut story, _) = vain(|s| s.stuck = threads());
    assert_eq!(story.holding().cause, CauseId::Unknown);
    story.push(What::Xid { pci: "0000:0b:00".into(), code: 119, pid: Some(574), message: "Timeout".into() });
    assert_eq!(story.holding().cause, CauseId::ExitBlockedInDriver, "the GPU's firmware failed");
    let (mut story, _) = vain(|s| s.stuck = vec![stuck("D", &kernels_lock)]);
    assert_eq!(story.holding().cause, CauseId::ExitBlockedElsewhere);
    story.push(What::KernelThreads { list: vec![kworker("UVM GPU1 BH", &["hmm_evict+0x1/0x2 [nvidia_uvm]"])] });
    assert_eq!(story.holding().cause, CauseId::Unknown, "the driver's own thread may hold it");
}

#[test]
fn a_signal_that_a_handler_takes_need_not_end_anybody() {
    let mut story = Story::warm();
    let trainer = story.process(574, "EngineCore");
    story.uses_cuda(trainer);
    story.nvml(2_560, &[(574, 2_560)]);
    story.signals(Some(BASH), trainer, 15);
    story.wait(30);
    story.used(2_560);
    let term = 1 << 14;
    story.stands(trainer, "D", |s| (s.pending, s.caught, s.stuck) = (term, term, vec![stuck("D", &FUSE)]));
    assert_ne!(story.holding().cause, CauseId::ExitBlockedElsewhere);
    story.stands(trainer, "D", |s| (s.pending, s.caught, s.stuck) = (term, 0, vec![stuck("D", &FUSE)]));
    assert_eq!(story.holding().cause, CauseId::ExitBlockedElsewhere);
}

#[test]
fn a_lock_that_a_kernel_thread_holds_is_told_with_it() {
    let (mut story, _) = vain(|s| s.stuck = vec![stuck("D", &LOCK)]);
    story.push(What::KernelThreads { list: vec![kworker("UVM GPU1 BH", &["hmm_evict+0x1/0x2 [nvidia_uvm]"])] });
    let holding = story.holding();
    assert!(holding.summary.contains("perhaps the kernel thread UVM GPU1 BH (PID 77)"), "{}", holding.summary);
}

#[test]
fn without_a_stack_it_cannot_be_told_and_says_what_to_read() {
    let holding = killed_in_vain(stuck("D", &[]));
    assert_eq!(holding.cause, CauseId::Unknown);
    assert!(holding.summary.contains("cat /proc/574/task/*/stack"), "{}", holding.summary);
}

#[test]
fn a_busy_thread_without_a_stack_cannot_be_told_and_says_how_to_see_it() {
    let ran = Some(Ran { cpu_ns: SECOND, over_ns: SECOND });
    let holding = killed_in_vain(StuckThread { ran, ..stuck("R", &[]) });
    assert_eq!(holding.cause, CauseId::Unknown);
    assert!(holding.summary.contains("where thread 577 runs: it uses a CPU in the kernel, 100 % of it over 1.0 s, and shows no stack"), "{}", holding.summary);
    assert!(holding.summary.contains("perf record -g -t 577"), "{}", holding.summary);
}

#[test]
fn a_busy_thread_without_a_stack_is_in_the_driver_when_the_gpus_firmware_failed() {
    let ran = Some(Ran { cpu_ns: SECOND, over_ns: SECOND });
    let (mut story, _) = vain(|s| s.stuck = vec![StuckThread { ran, ..stuck("R", &[]) }]);
    story.push(What::Xid { pci: "0000:0b:00".into(), code: 119, pid: Some(574), message: "Timeout".into() });
    let holding = story.holding();
    assert_eq!((holding.cause, holding.confidence), (CauseId::ExitBlockedInDriver, Confidence::Inferred));
    assert_says(&holding, "That thread 577 is in the driver is deduced: it uses a CPU in the kernel, its stack could not be read, and the GPU");
}

#[test]
fn the_function_or_the_request_of_a_sleeping_thread_do_for_a_stack() {
    let holding = killed_in_vain(StuckThread { wchan: Some("uvm_spin_loop".into()), ..stuck("D", &[]) });
    assert_eq!((holding.cause, holding.confidence), (CauseId::ExitBlockedInDriver, Confidence::Inferred));
    let call = |exiting| StuckThread { syscall: Some("ioctl".into()), file: Some("/dev/nvidia-uvm".into()), exiting, ..stuck("D", &[]) };
    let holding = killed_in_vain(call(false));
    assert_eq!((holding.cause, holding.confidence), (CauseId::ExitBlockedInDriver, Confidence::Inferred));
    assert!(holding.summary.contains("in a request to the driver"), "{}", holding.summary);
    assert_eq!(killed_in_vain(StuckThread { wchan: Some("request_wait_answer".into()), ..stuck("D", &[]) }).cause, CauseId::ExitBlockedElsewhere);
    assert_eq!(killed_in_vain(call(true)).cause, CauseId::Unknown, "the last call of an exiting thread is over");
}

#[test]
fn a_fresh_sigkill_is_given_time() {
    let mut story = Story::warm();
    let trainer = story.process(574, "EngineCore");
    story.uses_cuda(trainer);
    story.signals(Some(BASH), trainer, 9);
    story.stands(trainer, "D", |s| s.stuck = vec![stuck("D", &["x+0x1/0x2 [nvidia]"])]);
    assert_eq!(story.holding().cause, CauseId::TeardownRunning);
}

#[test]
fn a_thread_in_the_driver_without_any_signal_is_a_living_owner() {
    let mut story = Story::warm();
    let trainer = story.process(574, "EngineCore");
    story.uses_cuda(trainer);
    story.wait(600);
    story.stands(trainer, "D", |s| s.stuck = vec![StuckThread { same_since: Some(SECOND), ..stuck("D", &["x+0x1/0x2 [nvidia]"]) }]);
    let holding = story.holding();
    assert_eq!(holding.cause, CauseId::OwnerAlive);
    assert_says(&holding, "Thread 577 of EngineCore (PID 574) is inside the NVIDIA driver: it is in state D, in the same place since");
}

#[test]
fn the_next_file_of_a_recording_says_the_same() {
    let (mut story, _) = vain(|s| s.stuck = vec![stuck("D", &LOCK)]);
    story.push(What::KernelThreads { list: vec![kworker("UVM GPU1 BH", &["hmm_evict+0x1/0x2 [nvidia_uvm]"])] });
    story.push(What::Modules { users: BTreeMap::from([("nvidia_uvm".to_owned(), 2)]) });
    story.push(What::GpuHealth { gpu: 0, recovery: Some(2), lost: false, reset_required: false });
    let told = story.told();
    let again = explain(&fold(&story.world().carry_over()));
    let of = |told: &Explanation| (told.holdings[0].summary.clone(), told.holdings[0].remedy.clone(), told.gpus[0].health.clone());
    assert_eq!(of(&told), of(&again));
    assert!(told.holdings[0].summary.contains("UVM GPU1 BH"));
    assert_eq!(told.gpus[0].health.as_ref().unwrap().asks_for.as_deref(), Some("a reboot of the host"));
}

#[test]
fn a_zombie_leader_whose_last_thread_is_in_the_driver_is_stuck_and_no_mere_zombie() {
    let mut story = Story::cold();
    let trainer = ProcessId(574, 900);
    story.info(trainer, "EngineCore", |info| info.cred = Some(66));
    story.found(&Hold { tid: Some(577), cred: Some(66), ..bare(trainer, 5, 5, CTL) });
    let zombie = |story: &mut Story, thread: StuckThread| {
        story.stands(trainer, "Z", |s| (s.leader_exited, s.live_threads, s.stuck) = (true, 1, vec![thread]));
    };
    zombie(&mut story, stuck("D", &SPIN));
    assert_eq!(story.holding().cause, CauseId::LeaderExited, "one look: it may be a request that ends at once");
    let since = Some(story.now);
    story.wait(1);
    zombie(&mut story, StuckThread { same_since: since, ..stuck("D", &SPIN) });
    let holding = story.holding();
    assert_eq!(holding.cause, CauseId::ExitBlockedInDriver);
    assert_says(&holding, "The main thread of EngineCore (PID 574) has exited, and what is left of it is in the driver");
    let mut killed = story;
    killed.stands(trainer, "Z", |s| (s.leader_exited, s.live_threads, s.pending, s.stuck) = (true, 1, KILL, vec![stuck("D", &SPIN)]));
    assert_eq!(killed.holding().cause, CauseId::ExitBlockedInDriver, "killed: one look is enough");
}

#[test]
fn memory_that_falls_while_a_thread_is_in_the_driver_is_teardown() {
    let (mut story, _) = vain(|s| s.stuck = vec![stuck("D", &["nv_free_pages+0x1/0x2 [nvidia]"])]);
    story.used(2_000);
    let holding = story.holding();
    assert_eq!((holding.cause, holding.confidence), (CauseId::TeardownRunning, Confidence::Exact));
    assert_says(&holding, "nv_free_pages");
}

fn unmaps(seconds: u64, cpu_ns: u64) -> CauseId {
    let mut story = Story::warm();
    let trainer = story.process(574, "EngineCore");
    story.uses_cuda(trainer);
    story.nvml(2_560, &[(574, 2_560)]);
    story.thread_exits(trainer, 575, 9, Some(9), 1);
    story.wait(seconds);
    story.used(2_560);
    let stack = ["unpin_user_pages+0x1/0x2", "os_unlock_user_pages+0x1/0x2 [nvidia]", "nvidia_close+0x1/0x2 [nvidia]"];
    let ran = Some(Ran { cpu_ns, over_ns: SECOND });
    story.stands(trainer, "R", |s| (s.exiting, s.stuck) = (true, vec![StuckThread { exiting: true, ran, ..stuck("R", &stack) }]));
    story.holding().cause
}

#[test]
fn unmapping_host_memory_is_work_until_it_takes_too_long_or_uses_no_cpu() {
    assert_eq!(unmaps(20, SECOND), CauseId::TeardownRunning);
    assert_eq!(unmaps(20, 0), CauseId::ExitBlockedInDriver);
    assert_eq!(unmaps(600, SECOND), CauseId::ExitBlockedInDriver);
}

/// What an H200 shows of an ordinary exit with pinned memory.
fn busy_exit(seconds: u64, xid: bool) -> Holding {
    let mut story = Story::warm();
    let trainer = story.process(574, "EngineCore");
    story.uses_cuda(trainer);
    story.nvml(2_560, &[(574, 2_560)]);
    story.thread_exits(trainer, 574, 9, Some(9), 1);
    story.wait(seconds);
    story.used(2_560);
    if xid {
        story.push(What::Xid { pci: "0000:0b:00".into(), code: 119, pid: None, message: "Timeout".into() });
    }
    let ran = Some(Ran { cpu_ns: SECOND, over_ns: SECOND });
    story.stands(trainer, "Z", |s| (s.leader_exited, s.exiting, s.stuck) = (true, true, vec![StuckThread { exiting: true, ran, ..stuck("R", &[]) }]));
    story.holding()
}

#[test]
fn a_busy_exit_without_a_stack_is_work_for_some_minutes() {
    let holding = busy_exit(20, false);
    assert_eq!((holding.cause, holding.confidence), (CauseId::TeardownRunning, Confidence::Inferred));
    assert!(holding.summary.contains("thread 577 is busy in the kernel, as while host memory is unpinned"), "{}", holding.summary);
    let holding = busy_exit(600, false);
    assert_eq!(holding.cause, CauseId::Unknown);
    assert_eq!(busy_exit(20, true).cause, CauseId::ExitBlockedInDriver, "the GPU's firmware does not answer");
}

/// An old exit with flat memory, and what its threads do.
fn exit_with(threads: Vec<StuckThread>) -> CauseId {
    let mut story = Story::warm();
    let trainer = story.process(574, "EngineCore");
    story.uses_cuda(trainer);
    story.nvml(2_560, &[(574, 2_560)]);
    story.thread_exits(trainer, 574, 9, Some(9), 1);
    story.wait(20);
    story.used(2_560);
    story.stands(trainer, "Z", |s| (s.leader_exited, s.exiting, s.stuck) = (true, true, threads));
    story.holding().cause
}

#[test]
fn a_thread_at_work_hides_one_that_is_stuck_only_where_it_may_be_what_that_one_waits_for() {
    let ran = Some(Ran { cpu_ns: SECOND, over_ns: SECOND });
    let same_since = Some(1_015 * SECOND);
    let unpins = ["unpin_user_pages+0x1/0x2", "os_unlock_user_pages+0x1/0x2 [nvidia]", "nvidia_close+0x1/0x2 [nvidia]"];
    let at_work = [stuck("R", &[]), stuck("R", &unpins)].map(|thread| StuckThread { exiting: true, ran, same_since, ..thread });
    for busy in at_work {
        assert_eq!(exit_with(vec![busy.clone()]), CauseId::TeardownRunning, "two looks at work that takes 26 s are no proof of being stuck: {busy:?}");
        let beside = |stack: &[&str], same_since| exit_with(vec![busy.clone(), StuckThread { tid: 579, same_since, ..stuck("D", stack) }]);
        assert_eq!(beside(&SPIN, same_since), CauseId::ExitBlockedInDriver);
        assert_eq!(beside(&SPIN, None), CauseId::TeardownRunning, "one look");
        assert_eq!(beside(&LOCK, same_since), CauseId::TeardownRunning, "the one at work may hold the lock");
    }
}

#[test]
fn cold_an_exit_that_sleeps_in_the_driver_for_a_moment_is_no_stuck_one() {
    let look = |same_since| {
        let mut story = Story::cold();
        let trainer = ProcessId(574, 900);
        story.info(trainer, "python3", |info| info.cred = Some(66));
        story.found(&Hold { cred: Some(66), ..bare(trainer, 5, 5, CTL) });
        let stack = ["rcu_barrier+0x1/0x2", "uvm_va_space_destroy+0x1/0x2 [nvidia_uvm]"];
        let thread = StuckThread { exiting: true, cpu_ns: Some(5), same_since, ..stuck("D", &stack) };
        story.stands(trainer, "D", |s| (s.exiting, s.stuck) = (true, vec![thread]));
        story.scanned();
        story.holding().cause
    };
    assert_eq!(look(None), CauseId::TeardownRunning);
    assert_eq!(look(Some(SECOND)), CauseId::ExitBlockedInDriver);
}

fn kworker(comm: &str, stack: &[&str]) -> KernelThread {
    KernelThread { id: ProcessId(77, 3), comm: comm.into(), thread: StuckThread { tid: 77, ..stuck("D", stack) } }
}

/// The owner is dead for long, nobody holds anything, and a kernel thread is seen twice, `seconds` apart.
fn released_by(stack: &[&str], seconds: u64, used: u64) -> Holding {
    let mut story = Story::warm();
    let trainer = story.process(574, "python3");
    story.uses_cuda(trainer);
    story.nvml(2_560, &[(574, 2_560)]);
    story.killed(BASH, trainer);
    story.wait(60);
    story.used(2_560);
    let since = story.now;
    let mut found = kworker("kworker/3:1", stack);
    story.push(What::KernelThreads { list: vec![found.clone()] });
    story.wait(seconds);
    story.used(used);
    found.thread.same_since = Some(since);
    story.push(What::KernelThreads { list: vec![found] });
    story.scanned();
    story.holding()
}

const RELEASE: [&str; 3] = ["uvm_va_space_destroy+0x1/0x2 [nvidia_uvm]", "uvm_release_deferred+0x1/0x2 [nvidia_uvm]", "kthread+0x1/0x2"];

#[test]
fn a_kernel_thread_that_releases_is_teardown_while_memory_falls_or_it_is_young() {
    let holding = released_by(&RELEASE, 2, 2_000);
    assert_eq!((holding.cause, holding.confidence), (CauseId::TeardownRunning, Confidence::Exact));
    assert!(holding.summary.contains("the kernel thread kworker/3:1 (PID 77) is releasing files inside the NVIDIA driver (uvm_va_space_destroy"), "{}", holding.summary);
    assert_eq!(released_by(&RELEASE, 0, 2_560).cause, CauseId::TeardownRunning);
}

#[test]
fn a_kernel_thread_that_does_not_get_on_blocks_in_the_driver() {
    let holding = released_by(&RELEASE, 10, 2_560);
    assert_eq!((holding.cause, holding.confidence), (CauseId::ExitBlockedInDriver, Confidence::Inferred));
    assert!(holding.summary.starts_with("2.5 GiB on GPU 0 belonged to python3 (PID 574), killed by SIGKILL from bash (PID 12)"), "{}", holding.summary);
    assert!(holding.summary.contains("; the kernel thread kworker/3:1 (PID 77), which releases files inside the NVIDIA driver, has been stuck there for at least 10.0 s"), "{}", holding.summary);
    assert_says(&holding, "The kernel thread kworker/3:1 (PID 77) is in state D, in the same place since");
    assert_says(&holding, "Used memory of GPU 0 has stayed at 2.5 GiB for 1 min 10 s");
    assert_eq!(commands(&holding).last(), Some(&"systemctl reboot"));
    assert!(says(&holding, "A reset of GPU 0 is no way out") && !commands(&holding).iter().any(|c| c.contains("gpu-reset")));
}

#[test]
fn cold_how_long_a_kernel_thread_has_been_at_it_is_not_known_and_nothing_is_promised() {
    let look = |nvml: bool, same_since: Option<u64>| {
        let mut story = Story::cold();
        story.nvml(2_560, &[(574, 2_560)]);
        if !nvml {
            story.events.retain(|event| !matches!(event.what, What::GpuMemory { .. }));
        }
        story.push(What::ProcessGone { id: ProcessId(574, 0) });
        let mut found = kworker("kworker/3:1", &RELEASE);
        found.thread.same_since = same_since;
        story.wait(60);
        story.push(What::KernelThreads { list: vec![found] });
        story.scanned();
        story.holding()
    };
    let holding = look(true, None);
    assert_eq!(holding.cause, CauseId::TeardownRunning);
    assert!(holding.summary.ends_with(", and for how long it has done that is not known."), "{}", holding.summary);
    assert!(holding.remedy[0].effect.starts_with("look again in ten seconds: if the thread is in the same place then, it is stuck"));
    assert_eq!(holding.remedy[0].frees_bytes, None);
    assert_eq!(look(false, Some(1_000 * SECOND)).cause, CauseId::ExitBlockedInDriver, "no memory can be seen to move");
    assert_eq!(look(false, None).cause, CauseId::TeardownRunning);
}

#[test]
fn a_kernel_thread_that_serves_faults_releases_nothing() {
    assert_eq!(released_by(&["uvm_gpu_service_faults+0x1/0x2 [nvidia_uvm]"], 10, 2_560).cause, CauseId::NoHolder);
}

#[test]
fn a_stuck_thread_makes_a_reset_impossible_and_says_so() {
    let (mut story, _) = vain(|s| s.stuck = vec![stuck("D", &SPIN)]);
    story.push(What::Modules { users: BTreeMap::from([("nvidia_uvm".to_owned(), 2)]) });
    let holding = story.holding();
    assert_eq!(commands(&holding), ["dmesg --time-format iso | grep -iE 'xid|nvrm|nvidia'", "systemctl reboot"]);
    assert_says(
        &holding,
        "A reset of GPU 0 is no way out: it is refused while anything has the GPU open, and thread 577 of EngineCore (PID 574) cannot be stopped",
    );
    assert_says(&holding, "Reloading nvidia_uvm is no way out: 2 open files or modules use it");
    assert!(holding.remedy.last().unwrap().risk.contains("only switching the power off helps"));
}

#[test]
fn others_that_have_the_files_are_ended_first() {
    let (mut story, trainer) = vain(|s| s.stuck = vec![stuck("D", &SPIN)]);
    story.forks(trainer, 580, "python3");
    let holding = story.holding();
    assert_eq!(holding.cause, CauseId::ExitBlockedInDriver);
    let kills: Vec<&str> = commands(&holding).into_iter().filter(|c| c.contains("kill")).collect();
    assert!(kills.len() == 3 && kills.iter().all(|c| c.contains(" 580 ") && !c.contains("574")), "{kills:?}");
}

/// Memory that nobody holds, a persistence daemon and a program that lives.
fn lost() -> Story {
    let mut story = Story::warm();
    for (pid, comm, dev) in [(900, "nvidia-persiste", GPU0), (901, "python3", UVM), (902, "other", GPU1), (902, "other", UVM)] {
        let id = story.world().living(pid).map(|known| known.id());
        let id = id.unwrap_or_else(|| story.process(pid, comm));
        story.opens(id, dev);
    }
    story.nvml(5_000, &[(901, 2_440), (574, 2_560)]);
    story.push(What::ProcessGone { id: ProcessId(574, 0) });
    story.wait(60);
    story.used(5_000);
    story.scanned();
    story
}

fn lost_holding(story: &Story) -> Holding {
    story.told().holdings.into_iter().find(|h| h.cause == CauseId::NoHolder).unwrap()
}

#[test]
fn a_reset_names_what_must_be_stopped_before_it() {
    let mut story = lost();
    story.push(What::Modules { users: BTreeMap::from([("nvidia_uvm".to_owned(), 0)]) });
    let holding = lost_holding(&story);
    let expected = [
        "dmesg --time-format iso | grep -iE 'xid|nvrm|nvidia'",
        "modprobe -r nvidia_uvm && modprobe nvidia_uvm",
        "nvidia-smi --gpu-reset -i 00000000:0B:00.0",
        "systemctl reboot",
    ];
    assert_eq!(commands(&holding), expected);
    assert_eq!(
        holding.remedy[2].effect,
        "resets the GPU, once these are stopped, which have it open: nvidia-persiste (PID 900: systemctl stop nvidia-persistenced) \
         and python3 (PID 901)"
    );
}

#[test]
fn where_another_process_is_stuck_or_the_gpu_is_lost_no_reset_is_offered() {
    let mut story = lost();
    let other = story.world().living(901).unwrap().id();
    story.stands(other, "D", |s| (s.pending, s.stuck) = (KILL, vec![stuck("D", &FUSE)]));
    let holding = lost_holding(&story);
    assert!(!commands(&holding).iter().any(|c| c.contains("gpu-reset")));
    assert_says(&holding, "it is refused while anything has the GPU open, and python3 (PID 901) cannot be stopped");
    let mut story = lost();
    story.push(What::Xid { pci: "0000:0b:00".into(), code: 79, pid: None, message: "GPU has fallen off the bus.".into() });
    let holding = lost_holding(&story);
    assert_eq!(commands(&holding).last(), Some(&"systemctl reboot"));
    assert_says(&holding, "A reset of GPU 0 is no way out: Xid 79 says that only a reboot helps");
}
