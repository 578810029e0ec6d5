//! The stand-in for NVIDIA's driver (tests/driver) keeps memory as the real one does: row by row what was measured on an H200, and
//! then what no real driver does on request.
//!
//! Always true: it runs only where the stand-in is loaded, in the guests of `cargo xtask vm`, and says SKIPPED elsewhere.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss, reason = "all of them 32-bit numbers")]

#[path = "driver/rm.rs"]
mod rm;
#[path = "driver/stage.rs"]
mod stage;

use rm::{Args, Cuda, INVALID_CLIENT, MIB, NOT_PERMITTED, status_of};
use stage::{BOOKS, Books, Line, Stage, books, json, kernel_thread, kill, send_fd, set, spawn, stack, state, until};
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a context holds before it allocates anything, as on an H200.
const CONTEXT: u64 = 518;

/// An owner of 2,048 MiB by cudaMalloc.
fn owner(line: &mut Line) -> io::Result<()> {
    let cuda = Cuda::open()?;
    let memory = cuda.malloc(2_048)?;
    cuda.share(memory)?;
    line.say(&[cuda.client, memory])?;
    line.wait()?;
    cuda.memory(1).map(drop)
}

/// An owner whose child closes all that it inherited but what `keep` says. The owner is dead and reaped when this returns.
fn dead_owner_with_child(stage: &mut Stage, keep: impl FnOnce(&Cuda) -> Vec<RawFd>) -> (u32, u32) {
    let owner = stage.start(|line| {
        let cuda = Cuda::open()?;
        cuda.malloc(2_048)?;
        let child = spawn(|child| {
            cuda.keep_only(&keep(&cuda));
            child.say(&[])
        })?;
        line.say(&[child.pid])
    });
    let child = stage.adopt(owner.said[0]);
    assert_eq!(books(), Books::of(2_048, &[(owner.pid, 2_048)]));
    stage.kill(owner.pid);
    (owner.pid, child)
}

fn freed(what: &str) {
    until(what, || books() == Books::default());
}

#[test]
fn the_owner_is_charged_and_its_memory_is_free_when_it_is_dead() {
    let Some(mut stage) = Stage::take("the_owner_is_charged") else { return };
    let one = stage.start(owner);
    let other = stage.start(owner);
    assert_eq!(books(), Books::of(4_096, &[(one.pid, 2_048), (other.pid, 2_048)]));
    stage.kill(one.pid);
    assert_eq!(books(), Books::of(2_048, &[(other.pid, 2_048)]));
    stage.kill(other.pid);
    assert_eq!(books(), Books::default());
}

#[test]
fn a_zombie_holds_nothing() {
    let Some(mut stage) = Stage::take("a_zombie_holds_nothing") else { return };
    let owner = stage.start(owner);
    kill(owner.pid);
    until("it is a zombie", || state(owner.pid) == 'Z');
    assert_eq!(books(), Books::default());
}

#[test]
fn a_child_with_everything_keeps_the_dead_owners_memory() {
    let Some(mut stage) = Stage::take("a_child_with_everything") else { return };
    let (owner, child) = dead_owner_with_child(&mut stage, |c| vec![c.control, c.first, c.registered, c.space, c.keeper]);
    assert_eq!(books(), Books::of(2_048, &[(owner, 2_048)]));
    stage.kill(child);
    assert_eq!(books(), Books::default());
}

#[test]
fn a_child_that_execs_keeps_nothing() {
    let Some(mut stage) = Stage::take("a_child_that_execs") else { return };
    let owner = stage.start(|line| {
        let cuda = Cuda::open()?;
        cuda.malloc(2_048)?;
        line.say(&[Command::new("sleep").arg("1000").spawn()?.id()])
    });
    stage.adopt(owner.said[0]);
    stage.kill(owner.pid);
    freed("the child's exec has closed everything");
}

#[test]
fn the_control_descriptor_alone_keeps_it_under_the_dead_pid() {
    let Some(mut stage) = Stage::take("the_control_descriptor_alone") else { return };
    let (owner, child) = dead_owner_with_child(&mut stage, |c| vec![c.control]);
    assert_eq!(books(), Books::of(2_048, &[(owner, 2_048)]));
    stage.kill(child);
    assert_eq!(books(), Books::default());
}

#[test]
fn the_first_gpu_descriptor_keeps_nothing_and_a_registered_one_keeps_all() {
    let Some(mut stage) = Stage::take("gpu_descriptors") else { return };
    dead_owner_with_child(&mut stage, |c| vec![c.first]);
    assert_eq!(books(), Books::default());
    let (owner, child) = dead_owner_with_child(&mut stage, |c| vec![c.registered]);
    assert_eq!(books(), Books::of(2_048, &[(owner, 2_048)]));
    stage.kill(child);
    freed("the registered description has let go");
}

#[test]
fn uvm_descriptors_keep_it_and_nobody_is_listed() {
    let Some(mut stage) = Stage::take("uvm_descriptors") else { return };
    for kept in [|c: &Cuda| vec![c.space], |c: &Cuda| vec![c.keeper], |c: &Cuda| vec![c.space, c.keeper]] {
        let (_, child) = dead_owner_with_child(&mut stage, kept);
        assert_eq!(books(), Books::of(2_048, &[]));
        stage.kill(child);
        freed("the space is gone");
    }
}

#[test]
fn an_exported_handle_in_flight_keeps_it_and_nobody_is_listed() {
    let Some(mut stage) = Stage::take("an_exported_handle_in_flight") else { return };
    let (here, there) = UnixStream::pair().unwrap();
    let owner = stage.start(|line| {
        let cuda = Cuda::open()?;
        send_fd(&there, cuda.export(cuda.memory(2_048)?)?)?;
        line.say(&[])
    });
    assert_eq!(books(), Books::of(2_048, &[(owner.pid, 2_048)]));
    stage.kill(owner.pid);
    assert_eq!(books(), Books::of(2_048, &[]));
    drop((here, there));
    freed("the socket is gone");
}

#[test]
fn an_importer_by_ipc_is_charged_when_the_exporter_is_dead() {
    let Some(mut stage) = Stage::take("an_importer_by_ipc") else { return };
    let exporter = stage.start(owner);
    let (client, memory) = (exporter.said[0], exporter.said[1]);
    let importer = stage.start(|line| {
        let cuda = Cuda::open()?;
        cuda.malloc(CONTEXT)?;
        cuda.import_ipc(client, memory, 2_048)?;
        line.say(&[])
    });
    assert_eq!(books(), Books::of(2_566, &[(exporter.pid, 2_048), (importer.pid, CONTEXT)]));
    stage.kill(exporter.pid);
    assert_eq!(books(), Books::of(2_566, &[(importer.pid, 2_566)]));
    stage.kill(importer.pid);
    assert_eq!(books(), Books::default());
}

#[test]
fn an_importer_from_a_descriptor_is_charged_when_the_exporter_is_dead() {
    let Some(mut stage) = Stage::take("an_importer_from_a_descriptor") else { return };
    let exporter = stage.start(|line| {
        let cuda = Cuda::open()?;
        let (one, other) = (cuda.export(cuda.memory(1_024)?)?, cuda.export_one(cuda.memory(1_024)?)?);
        let importer = spawn(|child| {
            cuda.keep_only(&[]);
            let own = Cuda::open()?;
            own.import(one)?;
            own.import_one(other)?;
            rm::close(one);
            rm::close(other);
            child.say(&[])
        })?;
        line.say(&[importer.pid])
    });
    let importer = stage.adopt(exporter.said[0]);
    assert_eq!(books(), Books::of(2_048, &[(exporter.pid, 2_048)]));
    stage.kill(exporter.pid);
    assert_eq!(books(), Books::of(2_048, &[(importer, 2_048)]));
    stage.kill(importer);
    assert_eq!(books(), Books::default());
}

#[test]
fn a_dma_buf_keeps_it_and_nobody_is_listed() {
    let Some(mut stage) = Stage::take("a_dma_buf") else { return };
    let owner = stage.start(|line| {
        let cuda = Cuda::open()?;
        let buffer = cuda.dma_buf(cuda.memory(64)?, 64)?;
        let child = spawn(|child| {
            cuda.keep_only(&[]);
            child.say(&[])
        })?;
        assert!(buffer > 2);
        line.say(&[child.pid])
    });
    let child = stage.adopt(owner.said[0]);
    stage.kill(owner.pid);
    assert_eq!(books(), Books::of(64, &[]));
    stage.kill(child);
    freed("the dma-buf is gone");
}

#[test]
fn managed_memory_is_nobodys_and_goes_with_the_memory_map() {
    let Some(mut stage) = Stage::take("managed_memory") else { return };
    let owner = stage.start(|line| {
        let cuda = Cuda::open()?;
        cuda.managed(64)?;
        let child = spawn(|child| child.say(&[]))?;
        cuda.keep_only(&[]);
        line.say(&[child.pid])
    });
    let child = stage.adopt(owner.said[0]);
    assert_eq!(books(), Books::of(64, &[]));
    stage.kill(owner.pid);
    // The child inherited the keeper of the dead owner's memory map, but no managed mapping.
    assert_eq!(books(), Books::of(64, &[]));
    stage.kill(child);
    freed("the memory map is gone");
}

#[test]
fn requests_of_every_form_are_understood() {
    let Some(mut stage) = Stage::take("requests_of_every_form") else { return };
    let other = stage.start(|line| {
        let cuda = Cuda::open()?;
        line.say(&[cuda.client, cuda.memory(2)?])
    });
    let me = std::process::id();
    let theirs = (other.pid, 2);
    let cuda = Cuda::open().unwrap();
    // NVOS21, wrapped; the size is rounded up and written back.
    let mut params = Args::new(128).u64(64, 3 * MIB - 1);
    let short = Args::new(32).u32(0, cuda.client).u32(4, cuda.device).u32(8, 0x5c00_0001).u32(12, 0x40);
    let short = short.u64(16, params.address());
    assert_eq!(rm::rm_wrapped(cuda.control, 0x2b, 32, 28, short).unwrap().get(8), 0x5c00_0001);
    assert_eq!(u64::from(params.get(64)), 3 * MIB);
    assert_eq!(books(), Books::of(5, &[theirs, (me, 3)]));
    // NVOS32.
    let heap = Args::new(184).u32(0, cuda.client).u32(4, cuda.device).u32(8, 2).u64(88, 4 * MIB);
    let memory = rm::rm(cuda.control, 0x4a, 184, 20, heap).unwrap().get(44);
    assert_eq!(books(), Books::of(9, &[theirs, (me, 7)]));
    cuda.free(memory).unwrap();
    assert_eq!(books(), Books::of(5, &[theirs, (me, 3)]));
    // UVM's mapping is a reference of its own.
    let mapped = cuda.malloc(8).unwrap();
    cuda.free(mapped).unwrap();
    assert_eq!(books(), Books::of(13, &[theirs, (me, 3)]));
    cuda.unmap(mapped, 8).unwrap();
    assert_eq!(books(), Books::of(5, &[theirs, (me, 3)]));
    // Nobody duplicates what was not offered, nor uses another's client.
    let stolen = cuda.import_ipc(other.said[0], other.said[1], 2);
    assert_eq!(status_of(&stolen), Some(NOT_PERMITTED));
    let borrowed = Cuda { client: other.said[0], ..cuda }.memory(1);
    assert_eq!(status_of(&borrowed), Some(INVALID_CLIENT));
    // A GPU's id.
    let mut id = Args::new(32).u32(0, 0x0b00).u32(8, 77);
    rm::command(cuda.control, cuda.client, 0x205, &mut id, 32).unwrap();
    assert_eq!(id.get(8), 0);
    // A parent takes its children along.
    cuda.free(cuda.device).unwrap();
    assert_eq!(books(), Books::of(2, &[theirs]));
    cuda.keep_only(&[]);
}

#[test]
fn a_slow_release_lets_the_memory_fall_in_steps() {
    let Some(mut stage) = Stage::take("a_slow_release") else { return };
    let owner = stage.start(owner);
    set("release_ms", 1_600);
    let began = Instant::now();
    kill(owner.pid);
    let mut seen = Vec::new();
    until("all is free", || {
        seen.push(books().used);
        seen.last() == Some(&0)
    });
    seen.dedup();
    assert!(began.elapsed() > Duration::from_millis(1_500) && seen.len() > 5, "{seen:?} in {:?}", began.elapsed());
}

#[test]
fn a_deferred_release_is_a_kernel_threads_after_the_owner_is_gone() {
    let Some(mut stage) = Stage::take("a_deferred_release") else { return };
    let owner = stage.start(owner);
    set("defer_ms", 60_000);
    stage.kill(owner.pid);
    assert_eq!(books(), Books::of(2_048, &[(owner.pid, 2_048)]));
    until("nv_queue has it", || stack(kernel_thread("nv_queue")).contains("nvidia_close_deferred"));
    until("UVM's queue has it", || stack(kernel_thread("UVM deferred release queue")).contains("uvm_release_deferred"));
    set("defer_ms", 0);
    freed("the kernel threads are done");
}

#[test]
fn a_release_stuck_asleep_keeps_the_dying_owner_and_its_memory() {
    let Some(mut stage) = Stage::take("a_release_stuck_asleep") else { return };
    for (mapped, function) in [(false, "nvidia_close"), (true, "uvm_release_entry")] {
        let owner = stage.start(|line| {
            let cuda = Cuda::open()?;
            if mapped {
                cuda.free(cuda.malloc(2_048)?)?;
                // Without a client only UVM has something to do.
                cuda.free(cuda.client)?;
            } else {
                cuda.memory(2_048)?;
            }
            line.say(&[])
        });
        set("release_sleep", 1);
        kill(owner.pid);
        until(&format!("it sleeps in {function}"), || state(owner.pid) == 'D' && stack(owner.pid).contains(function));
        assert_eq!(books().used, 2_048);
        set("release_sleep", 0);
        stage.kill(owner.pid);
        assert_eq!(books(), Books::default());
    }
}

#[test]
fn a_release_that_spins_keeps_the_dying_owner_and_its_memory() {
    let Some(mut stage) = Stage::take("a_release_that_spins") else { return };
    let owner = stage.start(owner);
    set("release_spin", 1);
    kill(owner.pid);
    spins(owner.pid);
    assert_eq!(books().used, 2_048);
    set("release_spin", 0);
    stage.kill(owner.pid);
    assert_eq!(books(), Books::default());
}

/// Running, in the kernel, although killed.
fn spins(pid: u32) {
    let system_ticks = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[12].parse::<u64>().unwrap()
    };
    let before = system_ticks();
    until("it has spun for 0.3 s", || state(pid) == 'R' && system_ticks() > before + 30);
}

#[test]
fn a_request_that_hangs_keeps_a_killed_process() {
    let Some(mut stage) = Stage::take("a_request_that_hangs") else { return };
    for knob in ["ioctl_sleep", "ioctl_spin"] {
        let mut owner = stage.start(owner);
        set(knob, 1);
        owner.go();
        if knob == "ioctl_sleep" {
            until("it sleeps", || state(owner.pid) == 'D' && stack(owner.pid).contains("nvidia_unlocked_ioctl"));
        } else {
            spins(owner.pid);
        }
        kill(owner.pid);
        if knob == "ioctl_sleep" {
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(state(owner.pid), 'D');
        } else {
            spins(owner.pid);
        }
        assert_eq!(books(), Books::of(2_048, &[(owner.pid, 2_048)]));
        set(knob, 0);
        stage.kill(owner.pid);
        assert_eq!(books(), Books::default());
    }
}

#[test]
fn lost_memory_stays_used_by_nobody() {
    let Some(mut stage) = Stage::take("lost_memory") else { return };
    let owner = stage.start(owner);
    set("lose", 1);
    stage.kill(owner.pid);
    assert_eq!(books(), Books::of(2_048, &[]));
    set("lose", 0);
    assert_eq!(books(), Books::default());
}

#[test]
fn a_gpu_that_is_gone_refuses_everything() {
    let Some(_stage) = Stage::take("a_gpu_that_is_gone") else { return };
    let cuda = Cuda::open().unwrap();
    set("gone", 1);
    let error = |result: io::Result<RawFd>| result.unwrap_err().raw_os_error();
    assert_eq!(error(cuda.memory(1).map(|handle| handle as RawFd)), Some(libc::EIO));
    assert_eq!(error(rm::open("nvidia0")), Some(libc::EIO));
    assert_eq!(json()["errors"]["nvmlDeviceGetMemoryInfo_v2"], 15);
    set("gone", 0);
    cuda.memory(1).unwrap();
    cuda.keep_only(&[]);
    freed("all is closed");
}

#[test]
fn an_xid_is_printed_and_traced() {
    let Some(_stage) = Stage::take("an_xid") else { return };
    stage::mount_tracefs();
    let tracing = "/sys/kernel/tracing";
    let mut kmsg = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").unwrap();
    // Of a log that is full, each message costs the oldest one, and reading that is an error.
    kmsg.seek(SeekFrom::End(0)).unwrap();
    fs::write(format!("{tracing}/events/nvidia/nvidia_dev_xid/enable"), "1").unwrap();
    fs::write("/sys/module/nvidia/parameters/xid", "79 1234 python3 GPU has fallen off the bus.").unwrap();
    fs::write(format!("{tracing}/events/nvidia/nvidia_dev_xid/enable"), "0").unwrap();
    let trace = fs::read_to_string(format!("{tracing}/trace")).unwrap();
    assert!(trace.contains("nvidia_dev_xid: Dev: 0000:0b:00.0 - Xid: 79 - Message: GPU has fallen off the bus."), "{trace}");
    let mut record = [0; 8_192];
    let mut log = String::new();
    while let Ok(bytes) = kmsg.read(&mut record) {
        log.push_str(&String::from_utf8_lossy(&record[..bytes]));
    }
    assert!(log.contains(";NVRM: Xid (PCI:0000:0b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."), "{log}");
}

/// In a process of its own, because the double is told by the environment where the books are.
#[test]
fn the_nvml_double_reads_the_books_at_every_call() {
    use outlive::source::nvml::{Options, Sampler};
    if std::env::var_os("OUTLIVE_NVML_DOUBLE").is_none() {
        let Some(_stage) = Stage::take("the_nvml_double") else { return };
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "the_nvml_double_reads_the_books_at_every_call", "--nocapture"]).env("OUTLIVE_NVML_DOUBLE", BOOKS);
        assert!(again.status().unwrap().success());
        return;
    }
    let library = std::env::current_exe().unwrap().parent().unwrap().with_file_name("libnvml_double.so");
    let rest = Duration::from_secs(3_600);
    let mut sampler = Sampler::start(Options { library: Some(library), rest, ..Options::default() }).unwrap();
    assert!(sampler.wait(Sampler::FIRST, stage::DEADLINE));
    let Some(mut stage) = Stage::take("the_nvml_double") else { return };
    let owner = stage.start(owner);
    assert!(sampler.wait(sampler.sample_now(), stage::DEADLINE));
    let seen: Vec<_> = std::iter::from_fn(|| sampler.try_recv()).map(|event| format!("{:?}", event.what)).collect();
    let changes = [format!("used: {}", 2_048 * MIB), format!("pid: {}", owner.pid)];
    assert!(changes.iter().all(|change| seen.iter().any(|event| event.contains(change))), "{seen:#?}");
}
