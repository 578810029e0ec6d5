//! The kernel's view against this machine's kernel: processes misbehave with stand-in device files, and what is seen
//! must be exactly that.
//!
//! Needs root and BTF; without them it says so and passes; with them, failing to load is a failure. It is its own
//! harness (`harness = false`), because the process that forks must have one thread, and because one attachment
//! serves all tests.
#![expect(unsafe_code, reason = "the misbehaving processes are made of bare system calls")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "this is a test, with a harness of its own")]

mod actors;
mod asked;
mod verifier;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use actors::{Actor, Device, Stand};
use asked::Terminal;
use outlive::event::{Action, Event, Hold, ProcessId, SignalResult, Via, What};
use outlive::source::devices;
use outlive::source::kernel::{Facts, Kernel, KernelError, Options, ScanPart};
use outlive::sys;

/// `EXIT_ZOMBIE` (include/linux/sched.h).
const EXIT_ZOMBIE: u32 = 0x20;

macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn(&mut Bench))),*] };
}

type Test = (&'static str, fn(&mut Bench));

const TESTS: &[Test] = tests![
    open_fork_exec_exit_and_reap_are_seen_in_order,
    a_kill_names_its_sender_and_ends_in_a_zombie_that_holds_nothing,
    an_ignored_signal_is_ignored_and_a_caught_one_handled,
    a_sent_descriptor_is_found_in_flight_and_then_with_its_receiver,
    a_stolen_descriptor_is_the_same_file,
    threads_of_a_dead_leader_still_hold,
    a_scan_shows_exactly_the_holders,
    a_file_registered_in_an_io_uring_is_found,
    duplicates_and_closes_are_seen_and_close_range_asks_for_a_scan,
    a_descriptor_that_dup2_replaces_asks_for_a_scan,
    a_process_that_opened_earlier_is_followed_once_tracked,
    a_flood_wakes_the_reader_and_nothing_is_lost,
    no_program_became_much_harder_to_verify,
    without_capabilities_the_error_says_what_to_do,
    // Last: it gives up capabilities of this process for good.
    scans_and_events_go_on_with_fewer_capabilities,
];

/// What must be seen: its name, and whether this is it.
type Step<'a> = (&'a str, &'a dyn Fn(&What) -> bool);

/// What the tests share.
struct Bench {
    stand: Stand,
    /// Grants every request.
    terminal: Terminal,
    /// Has had a device open since before anything was attached.
    early: Option<Actor>,
    kernel: Kernel,
    events: Vec<Event>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        asked::TESTS.iter().chain(TESTS).for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let facts = Facts::gather();
    if !facts.root || !facts.btf {
        println!("skipped: needs root (have it: {}) and a kernel with BTF (is one: {})", facts.root, facts.btf);
        return;
    }
    sys::private_tracefs().unwrap();
    let mut bench = Bench::new();
    let named: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen = |name: &str| named.is_empty() || named.iter().any(|part| name.contains(part.as_str()));
    let mut failed = 0;
    for (name, test) in asked::TESTS.iter().chain(TESTS).filter(|(name, _)| chosen(name)) {
        bench.start_over();
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&mut bench))).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += i32::from(!passed);
    }
    std::process::exit(failed);
}

impl Bench {
    /// Loads and attaches. Whatever this kernel has must be attached; it may only lack what it does not have.
    fn new() -> Bench {
        let stand = Stand::new();
        let early = holder(&stand, Device::Zero);
        early.await_arrival();
        let terminal = Terminal::new();
        let mut options = Options::new(devices::find(&stand.pattern()).unwrap());
        options.devices.push(terminal.node());
        options.abi = Terminal::abi(options.abi);
        let kernel = Kernel::for_watching(options).unwrap();
        for hook in kernel.hooks().iter().filter(|hook| !hook.attached) {
            assert_eq!(hook.why_not.as_deref(), Some("this kernel has no such tracepoint"), "{}", hook.name);
        }
        let attached = |name: &str| kernel.hooks().iter().any(|hook| hook.name == name && hook.attached);
        for name in ["iter/task", "iter/task_file", "sched:sched_process_exit", "signal:signal_generate", "syscalls:sys_exit_openat", "syscalls:sys_exit_ioctl"] {
            assert!(attached(name), "{name}: {:?}", kernel.hooks());
        }
        assert!(kernel.watching_since().is_some());
        Bench { stand, terminal, early: Some(early), kernel, events: Vec::new() }
    }

    fn start_over(&mut self) {
        self.kernel.drain(&mut Vec::new());
        self.kernel.take_changed();
        self.events.clear();
    }

    /// Drains until it is `enough`; fails with everything that was seen after some seconds.
    fn until(&mut self, what: &str, enough: impl Fn(&[Event]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            self.kernel.drain(&mut self.events);
            if enough(&self.events) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: not among {:#?}", self.events);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn has(&mut self, what: &str, is: impl Fn(&What) -> bool) {
        self.until(what, |events| events.iter().any(|event| is(&event.what)));
    }

    /// All these come, in this order; others may come between.
    fn in_order(&mut self, steps: &[Step<'_>]) {
        for (count, (name, _)) in steps.iter().enumerate() {
            self.until(name, |events| {
                let mut rest = events.iter();
                steps.iter().take(count + 1).all(|(_, step)| rest.any(|event| step(&event.what)))
            });
        }
    }

    fn scan(&mut self) -> ScanPart {
        let part = self.kernel.scan().unwrap();
        assert!(part.complete && part.began > 0 && part.began <= part.ended);
        part
    }

    /// The first open of a process, once it is seen.
    fn opened(&mut self, pid: u32) -> Hold {
        self.has("open", |what| is_hold(what, pid, Some(Via::Opened)));
        let found = self.events.iter().find_map(|event| match &event.what {
            What::Hold(hold) if is_hold(&event.what, pid, Some(Via::Opened)) => Some((**hold).clone()),
            _ => None,
        });
        found.unwrap()
    }
}

fn holder(stand: &Stand, device: Device) -> Actor {
    Actor::start(stand, move |stand, gate| {
        let _held = stand.open(device, libc::O_CLOEXEC);
        gate.arrive();
        gate.wait();
    })
}

fn of(part: &ScanPart, pid: u32) -> Vec<&Hold> {
    part.holds.iter().filter(|hold| hold.id.tgid() == pid).collect()
}

fn only(part: &ScanPart, pid: u32) -> &Hold {
    let held = of(part, pid);
    assert_eq!(held.len(), 1, "{:?}", part.holds);
    held[0]
}

fn is_hold(what: &What, pid: u32, via: Option<Via>) -> bool {
    matches!(what, What::Hold(hold) if hold.id.tgid() == pid && hold.via == via)
}

fn open_fork_exec_exit_and_reap_are_seen_in_order(bench: &mut Bench) {
    // One process between us and the opener, because what we do ourselves is left out.
    let middle = Actor::start(&bench.stand, |stand, gate| {
        let opener = Actor::start(stand, |stand, gate| {
            let _zero = stand.open(Device::Zero, libc::O_CLOEXEC);
            let _full = stand.open(Device::Full, 0);
            let child = Actor::exec(stand, "/bin/true");
            gate.report(child.pid);
            child.wait();
            actors::exit(7);
        });
        gate.report(opener.pid);
        gate.report(opener.reported());
        opener.wait();
        gate.wait();
    });
    let (opener, child) = (middle.reported(), middle.reported());
    let opens = |what: &What, device: Device, cloexec| {
        matches!(what, What::Hold(hold) if hold.id.tgid() == opener && hold.dev == device.dev() && hold.via == Some(Via::Opened)
            && hold.cloexec == Some(cloexec) && hold.opened_cloexec == Some(cloexec) && hold.opener == Some(hold.id)
            && hold.tid.is_none())
    };
    bench.in_order(&[
        ("the opener is introduced", &|what| matches!(what, What::Process(info) if info.id.tgid() == opener
            && info.gpu_user == Some(true) && info.parent.is_some_and(|parent| parent.tgid() == middle.pid))),
        ("its parent too", &|what| matches!(what, What::Process(info) if info.id.tgid() == middle.pid && info.gpu_user == Some(false))),
        ("opens zero", &|what| opens(what, Device::Zero, true)),
        ("opens full", &|what| opens(what, Device::Full, false)),
        ("forks", &|what| matches!(what, What::Fork { parent, child: who, .. } if parent.tgid() == opener && who.tgid() == child)),
        ("executes", &|what| matches!(what, What::Exec { id, comm, path, .. } if id.tgid() == child && comm == "true" && path == "/bin/true")),
        ("child exits", &|what| matches!(what, What::Exit { id, code: 0, last: true, live: 0, .. } if id.tgid() == child)),
        ("child is a zombie", &|what| matches!(what, What::Zombie { id, parent } if id.tgid() == child && parent.tgid() == opener)),
        ("child is reaped", &|what| matches!(what, What::Reap { by, child: who, .. } if by.tgid() == opener && *who == child)),
        ("opener exits", &|what| matches!(what, What::Exit { id, code: 0x700, last: true, parent: Some(parent), .. }
            if id.tgid() == opener && parent.tgid() == middle.pid)),
        ("opener is a zombie", &|what| matches!(what, What::Zombie { id, parent } if id.tgid() == opener && parent.tgid() == middle.pid)),
        ("opener is reaped", &|what| matches!(what, What::Reap { by, child, .. } if by.tgid() == middle.pid && *child == opener)),
    ]);
    for pid in [child, opener] {
        bench.has("freed, an RCU grace period later", |what| matches!(what, What::Free { id } if id.tgid() == pid));
    }
    // Its credentials are those of its files: exact proof that it opened them.
    let cred = bench.events.iter().find_map(|event| match &event.what {
        What::Process(info) if info.id.tgid() == opener => info.cred,
        _ => None,
    });
    assert!(cred.is_some());
    assert_eq!(bench.opened(opener).cred, cred);
}

fn a_kill_names_its_sender_and_ends_in_a_zombie_that_holds_nothing(bench: &mut Bench) {
    let middle = Actor::start(&bench.stand, |stand, gate| {
        let victim = holder(stand, Device::Zero);
        victim.await_arrival();
        gate.report(victim.pid);
        victim.signal(libc::SIGKILL);
        gate.wait();
        victim.wait();
        gate.wait();
    });
    let victim = middle.reported();
    bench.in_order(&[
        ("opened", &|what| is_hold(what, victim, Some(Via::Opened))),
        ("killed", &|what| matches!(what, What::Signal { to, tid: None, sig: libc::SIGKILL, from: Some(from), uid: Some(0), result: SignalResult::Queued, .. }
            if to.tgid() == victim && from.tgid() == middle.pid)),
        ("exits", &|what| matches!(what, What::Exit { id, code: 9, group_code: Some(9), last: true, .. } if id.tgid() == victim)),
        ("zombie", &|what| matches!(what, What::Zombie { id, parent } if id.tgid() == victim && parent.tgid() == middle.pid)),
    ]);
    let part = bench.scan();
    assert!(of(&part, victim).is_empty(), "a zombie holds nothing");
    let line = part.tasks.iter().find(|line| line.tid == victim).unwrap();
    assert_eq!((line.exit_state & EXIT_ZOMBIE, line.exit_code, line.live, line.files), (EXIT_ZOMBIE, 9, 0, 0));
    middle.go();
    bench.has("reaped", |what| matches!(what, What::Reap { child, .. } if *child == victim));
}

fn an_ignored_signal_is_ignored_and_a_caught_one_handled(bench: &mut Bench) {
    let deaf = Actor::start(&bench.stand, |stand, gate| {
        actors::ignore(libc::SIGTERM);
        actors::catch(libc::SIGUSR1);
        let _held = stand.open(Device::Zero, 0);
        gate.arrive();
        gate.wait();
    });
    deaf.await_arrival();
    deaf.signal(libc::SIGTERM);
    deaf.signal(libc::SIGUSR1);
    bench.in_order(&[
        ("ignored", &|what| matches!(what, What::Signal { to, sig: libc::SIGTERM, result: SignalResult::Ignored, .. } if to.tgid() == deaf.pid)),
        ("handled", &|what| matches!(what, What::Deliver { id, sig: libc::SIGUSR1, action: Action::Handled, .. } if id.tgid() == deaf.pid)),
    ]);
}

fn a_sent_descriptor_is_found_in_flight_and_then_with_its_receiver(bench: &mut Bench) {
    let (here, there) = UnixDatagram::pair().unwrap();
    let socket = there.as_raw_fd();
    let receiver = Actor::start(&bench.stand, |_, gate| {
        actors::close(here.as_raw_fd());
        gate.wait();
        let _received = actors::receive(&there);
        gate.arrive();
        gate.wait();
    });
    let sender = Actor::start(&bench.stand, |stand, gate| {
        actors::close(socket);
        let file = stand.open(Device::Zero, 0);
        actors::send(&here, &file);
        drop(file);
        gate.arrive();
        gate.wait();
    });
    drop((here, there));
    sender.await_arrival();
    bench.has("closed", |what| matches!(what, What::Drop { id, .. } if id.tgid() == sender.pid));
    let opened = bench.opened(sender.pid);
    bench.has("sent", |what| matches!(what, What::Sent { id, file, dev, socket: Some(_) }
        if id.tgid() == sender.pid && *file == opened.file && *dev == opened.dev));

    let part = bench.scan();
    assert!(of(&part, sender.pid).is_empty(), "it closed its own");
    let waiting = only(&part, receiver.pid);
    assert_eq!((waiting.via, waiting.fd), (Some(Via::InFlight), socket));
    assert_eq!((waiting.file, waiting.dev, waiting.cred), (opened.file, opened.dev, opened.cred));

    receiver.go();
    receiver.await_arrival();
    bench.has("received", |what| is_hold(what, receiver.pid, Some(Via::ScmRights)));
    let part = bench.scan();
    let held = only(&part, receiver.pid);
    assert_eq!((held.via, held.file, held.cred), (None, opened.file, opened.cred));
    let line = part.tasks.iter().find(|line| line.tid == receiver.pid).unwrap();
    assert_ne!(Some(line.cred), held.cred, "it did not open the file");
}

fn a_stolen_descriptor_is_the_same_file(bench: &mut Bench) {
    let owner = holder(&bench.stand, Device::Full);
    let opened = bench.opened(owner.pid);
    let thief = Actor::start(&bench.stand, |_, gate| {
        let _stolen = actors::steal(owner.pid, opened.fd);
        gate.wait();
    });
    bench.has("stolen", |what| matches!(what, What::Hold(hold) if hold.id.tgid() == thief.pid
        && hold.via == Some(Via::PidfdGetfd) && hold.file == opened.file && hold.cred == opened.cred));
}

fn threads_of_a_dead_leader_still_hold(bench: &mut Bench) {
    let actor = Actor::start(&bench.stand, |stand, gate| {
        let _held = stand.open(Device::Zero, 0);
        // Two threads, so that the table that they share would be found twice.
        for _ in 0..2 {
            let gate = gate.clone();
            std::thread::spawn(move || gate.wait());
        }
        actors::exit_this_thread();
    });
    bench.has("the leader exits, not as the last", |what| {
        matches!(what, What::Exit { id, tid, last: false, live: 2, .. } if id.tgid() == actor.pid && *tid == actor.pid)
    });
    let deadline = Instant::now() + Duration::from_secs(5);
    let part = loop {
        let part = bench.scan();
        let leader = part.tasks.iter().find(|line| line.tid == actor.pid).unwrap();
        if leader.exit_state & EXIT_ZOMBIE != 0 {
            assert_eq!((leader.live, leader.files), (2, 0));
            break part;
        }
        assert!(Instant::now() < deadline, "the leader does not become a zombie: {leader:?}");
    };
    let held = only(&part, actor.pid);
    assert!(held.tid.is_some_and(|tid| tid != actor.pid), "{held:?}");
}

fn a_scan_shows_exactly_the_holders(bench: &mut Bench) {
    let path_only = Actor::start(&bench.stand, |stand, gate| {
        let _path = stand.open(Device::Zero, libc::O_PATH);
        gate.arrive();
        gate.wait();
    });
    let twice = Actor::start(&bench.stand, |stand, gate| {
        let first = stand.open(Device::Full, 0);
        let _second = first.try_clone().unwrap();
        let _other = std::fs::File::open("/dev/null").unwrap();
        let child = Actor::start(stand, |_, gate| gate.wait());
        gate.report(child.pid);
        gate.wait();
    });
    let child = twice.reported();
    path_only.await_arrival();
    let part = bench.scan();
    for pid in [twice.pid, child] {
        let held = of(&part, pid);
        assert_eq!(held.len(), 2, "{held:?}");
        assert!(held[0].file == held[1].file && held[0].fd != held[1].fd && held[0].tid.is_none());
        assert_eq!((held[0].dev, held[0].opened_cloexec), (Device::Full.dev(), None));
        // try_clone makes the duplicate close-on-exec.
        assert_eq!(held.iter().filter(|hold| hold.cloexec == Some(true)).count(), 1);
    }
    assert!(of(&part, path_only.pid).is_empty(), "O_PATH holds nothing");
    // The same as what /proc says, where that did not change meanwhile: other processes use these devices too, and some
    // come and go.
    let (before, part, after) = (actors::descriptors_in_proc(), bench.scan(), actors::descriptors_in_proc());
    let scanned: BTreeSet<(u32, i32)> = part.holds.iter().filter(|hold| hold.via.is_none()).map(|hold| (hold.id.tgid(), hold.fd)).collect();
    assert!(before.intersection(&after).all(|one| scanned.contains(one)), "{before:?} {scanned:?} {after:?}");
    let lasting = |pid: u32| [&before, &after].iter().all(|listing| listing.iter().any(|(holder, _)| *holder == pid));
    let mut seen = scanned.iter().filter(|(pid, _)| lasting(*pid));
    assert!(seen.all(|one| before.contains(one) || after.contains(one)), "{before:?} {scanned:?} {after:?}");
    assert!(lasting(child) && lasting(twice.pid));
    let me = part.tasks.iter().find(|line| line.tid == std::process::id()).unwrap();
    assert_eq!((me.uid, me.exit_state, me.ns_level), (0, 0, 0));
    assert!(me.id.start() > 0 && me.id.start() < part.began);
}

fn a_file_registered_in_an_io_uring_is_found(bench: &mut Bench) {
    if let Some(limit) = bench.kernel.limits().iter().find(|(missing, _)| missing.contains("io_uring")) {
        println!("  skipped: {limit:?}");
        return;
    }
    let actor = Actor::start(&bench.stand, |stand, gate| {
        let file = stand.open(Device::Zero, 0);
        let ring = actors::ring_with(&file);
        drop(file);
        gate.report(ring.unsigned_abs());
        gate.wait();
    });
    let ring = actor.reported();
    let part = bench.scan();
    let held = only(&part, actor.pid);
    assert_eq!((held.via, held.fd, held.dev), (Some(Via::IoUring), ring.cast_signed(), Device::Zero.dev()));
    assert_eq!(only(&bench.scan(), actor.pid), held, "its token is stable");
}

fn duplicates_and_closes_are_seen_and_close_range_asks_for_a_scan(bench: &mut Bench) {
    let actor = Actor::start(&bench.stand, |stand, gate| {
        let file = stand.open(Device::Zero, 0);
        let copy = actors::duplicate(&file);
        actors::close(copy);
        actors::close_range(copy);
        gate.arrive();
        gate.wait();
    });
    actor.await_arrival();
    bench.in_order(&[
        ("open", &|what| is_hold(what, actor.pid, Some(Via::Opened))),
        ("dup", &|what| is_hold(what, actor.pid, None)),
        ("close", &|what| matches!(what, What::Drop { id, .. } if id.tgid() == actor.pid)),
    ]);
    assert!(bench.kernel.take_changed().iter().any(|id| id.tgid() == actor.pid));
}

fn a_descriptor_that_dup2_replaces_asks_for_a_scan(bench: &mut Bench) {
    let actor = Actor::start(&bench.stand, |stand, gate| {
        let file = stand.open(Device::Zero, 0);
        let other = std::fs::File::open("/dev/null").unwrap();
        actors::replace(&other, libc::STDERR_FILENO);
        gate.arrive();
        gate.wait();
        actors::replace(&other, file.as_raw_fd());
        gate.arrive();
        gate.wait();
    });
    let changed = |bench: &mut Bench| {
        bench.kernel.drain(&mut bench.events);
        bench.kernel.take_changed().iter().any(|id| id.tgid() == actor.pid)
    };
    actor.await_arrival();
    assert!(!changed(bench), "standard error is no NVIDIA file");
    actor.go();
    actor.await_arrival();
    assert!(changed(bench));
}

fn a_process_that_opened_earlier_is_followed_once_tracked(bench: &mut Bench) {
    let early = bench.early.take().unwrap();
    let id = only(&bench.scan(), early.pid).id;
    early.signal(libc::SIGCONT);
    // Left over by an earlier process with this number.
    bench.kernel.track(&[(ProcessId(id.tgid(), 1), true)]);
    bench.kernel.track(&[(id, false)]);
    early.signal(libc::SIGCONT);
    bench.in_order(&[("as an ancestor", &|what| matches!(what, What::Signal { to, sig: libc::SIGCONT, .. } if *to == id))]);
    let signals = bench.events.iter().filter(|event| matches!(event.what, What::Signal { to, .. } if to == id));
    assert_eq!(signals.count(), 1, "not the one before it was tracked");
    bench.start_over();
    bench.kernel.track(&[(id, true)]);
    // An ancestor's entry must not replace a user's.
    bench.kernel.track(&[(id, false)]);
    early.signal(libc::SIGWINCH);
    early.signal(libc::SIGTERM);
    bench.in_order(&[
        ("sent", &|what| matches!(what, What::Signal { to, sig: libc::SIGTERM, .. } if *to == id)),
        // The kernel turns any fatal signal into SIGKILL for each thread (complete_signal, kernel/signal.c).
        ("delivered", &|what| matches!(what, What::Deliver { id: to, sig: libc::SIGKILL, action: Action::Default, .. } if *to == id)),
        ("exit", &|what| matches!(what, What::Exit { id: who, code: 15, last: true, .. } if *who == id)),
        ("zombie", &|what| matches!(what, What::Zombie { id: who, .. } if *who == id)),
    ]);
    let signals: Vec<i32> = bench.events.iter().filter_map(|event| match event.what {
        What::Signal { to, sig, .. } if to == id => Some(sig),
        _ => None,
    }).collect();
    assert_eq!(signals, [libc::SIGTERM], "not noise");
}

fn a_flood_wakes_the_reader_and_nothing_is_lost(bench: &mut Bench) {
    const TIMES: usize = 10_000;
    let actor = Actor::start(&bench.stand, |stand, gate| {
        let file = stand.open(Device::Zero, 0);
        gate.arrive();
        gate.wait();
        for _ in 0..TIMES {
            actors::close(actors::duplicate(&file));
        }
        gate.arrive();
        gate.wait();
    });
    actor.await_arrival();
    bench.start_over();
    bench.kernel.lost();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    actor.go();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), bench.kernel.readable()).await.unwrap().unwrap();
    });
    let is_close = |event: &&Event| matches!(&event.what, What::Drop { id, .. } if id.tgid() == actor.pid);
    bench.until("every close", |events| events.iter().filter(is_close).count() == TIMES);
    let dups = bench.events.iter().filter(|event| is_hold(&event.what, actor.pid, None)).count();
    assert_eq!(dups, TIMES);
    assert_eq!(bench.kernel.lost(), []);
    let of_actor = |event: &&Event| is_close(event) || is_hold(&event.what, actor.pid, None);
    assert!(bench.events.iter().filter(of_actor).is_sorted_by_key(|event| event.at), "a process's events are in order of time");
}

fn no_program_became_much_harder_to_verify(bench: &mut Bench) {
    verifier::no_program_became_much_harder_to_verify(&Options::new(devices::find(&bench.stand.pattern()).unwrap()));
}

fn without_capabilities_the_error_says_what_to_do(bench: &mut Bench) {
    let actor = Actor::start(&bench.stand, |stand, gate| {
        sys::drop_capabilities(&[]).unwrap();
        let refused = match Kernel::for_scan(Options::new(devices::find(&stand.pattern()).unwrap())) {
            Err(error @ KernelError::NotPermitted(_)) => error.to_string().contains("run as root"),
            _ => false,
        };
        gate.report(u32::from(refused));
    });
    assert_eq!(actor.reported(), 1);
}

fn scans_and_events_go_on_with_fewer_capabilities(bench: &mut Bench) {
    sys::drop_capabilities(sys::WATCHING).unwrap();
    let actor = holder(&bench.stand, Device::Zero);
    let id: ProcessId = bench.opened(actor.pid).id;
    assert_eq!(only(&bench.scan(), actor.pid).id, id);
    bench.kernel.track(&[(id, true)]);
    assert_eq!(bench.kernel.lost(), []);
}
