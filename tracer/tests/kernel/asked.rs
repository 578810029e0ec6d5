//! Requests to the driver, on a kernel without it: a test double of "a device that grants anything".
//!
//! The double is the slave of a pseudo-terminal under the name nvidiactl. TIOCSWINSZ takes 8 bytes and always succeeds, so the
//! table of the driver's ABI gets that number for the request that wraps another (NV_ESC_IOCTL_XFER_CMD), whose first 8 bytes are
//! a number and a size. All requests then go through the wrapping; what they "return" is what the process wrote there itself.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use outlive::event::rm::{ExportKind, Missed, Op, Rm};
use outlive::event::{Dev, DeviceNode, Event, What};
use outlive_ebpf::abi::{Abi, class, control, rm};

use crate::actors::Actor;
use crate::{Bench, Test};

/// `TIOCSWINSZ` (include/uapi/asm-generic/ioctls.h): number 0x14, and no size in it.
const GRANTED: libc::c_ulong = 0x5414;

macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn(&mut Bench))),*] };
}

pub(crate) const TESTS: &[Test] = tests![
    allocations_duplicates_exports_and_frees_are_told,
    what_the_driver_refused_is_not_told,
    a_client_that_was_there_before_is_told_once,
    what_does_not_matter_is_not_told,
    an_unknown_size_that_is_granted_is_counted,
    arguments_that_change_meanwhile_are_not_believed,
    arguments_that_vanish_meanwhile_are_counted,
    a_list_of_objects_is_told_one_by_one,
];

/// A pseudo-terminal whose slave stands for /dev/nvidiactl.
pub(crate) struct Terminal {
    _master: OwnedFd,
    slave: String,
}

impl Terminal {
    pub(crate) fn new() -> Terminal {
        // SAFETY: no pointers.
        let master = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) };
        assert!(master >= 0, "posix_openpt: {} (is devpts mounted?)", std::io::Error::last_os_error());
        let mut name = [0; 64];
        // SAFETY: the descriptor is ours, and the buffer as long as it says.
        unsafe {
            assert_eq!(libc::unlockpt(master), 0);
            assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        }
        let slave = name.iter().take_while(|byte| **byte != 0).map(|byte| char::from(byte.cast_unsigned())).collect();
        // SAFETY: the descriptor is new.
        Terminal { _master: unsafe { OwnedFd::from_raw_fd(master) }, slave }
    }

    /// As the device that it stands for.
    pub(crate) fn node(&self) -> DeviceNode {
        let rdev = std::fs::metadata(&self.slave).unwrap().rdev();
        DeviceNode { dev: Dev::new(libc::major(rdev), libc::minor(rdev)), path: "/dev/nvidiactl".to_owned() }
    }

    /// The ABI in which the terminal's request wraps others.
    pub(crate) fn abi(abi: Abi) -> Abi {
        Abi { xfer: (GRANTED & 0xff) as u32, xfer_size: 0, private_data: 0, ..abi }
    }

    fn open(&self) -> Caller {
        Caller { file: File::options().read(true).write(true).open(&self.slave).unwrap() }
    }
}

/// A process that asks.
struct Caller {
    file: File,
}

impl Caller {
    /// Asks with a copy of these arguments: the driver would bring in the page of a constant, the double does not.
    fn ask(&self, number: u32, arguments: &[u32]) {
        let copy = arguments.to_vec();
        self.ask_sized(number, size_of_val(arguments), copy.as_ptr());
    }

    fn ask_sized(&self, number: u32, size: usize, arguments: *const u32) {
        let wrapped = [u64::from(number) | (size as u64) << 32, arguments as u64];
        // SAFETY: the kernel reads 8 bytes.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), GRANTED, wrapped.as_ptr()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        // The arguments must be there until now.
        std::hint::black_box(&wrapped);
    }

    fn allocate(&self, client: u32, parent: u32, object: u32, class: u32, parameters: &[u32]) {
        let parameters = parameters.to_vec();
        self.ask(rm::ALLOC, &nvos64(client, parent, object, class, &parameters, 0));
    }

    fn control(&self, client: u32, command: u32, parameters: &[u32]) {
        let parameters = parameters.to_vec();
        let [low, high] = halves(&parameters);
        self.ask(rm::CONTROL, &[client, client, command, 0, low, high, 0, 0]);
        drop(parameters);
    }
}

fn halves(parameters: &[u32]) -> [u32; 2] {
    let address = if parameters.is_empty() { 0 } else { parameters.as_ptr() as u64 };
    [address as u32, (address >> 32) as u32]
}

fn nvos64(client: u32, parent: u32, object: u32, class: u32, parameters: &[u32], status: u32) -> [u32; 12] {
    let [low, high] = halves(parameters);
    [client, parent, object, class, low, high, 0, 0, 0, 0, status, 0]
}

/// `NV_MEMORY_ALLOCATION_PARAMS` with this size.
fn memory(bytes: u64) -> [u32; 32] {
    let mut parameters = [0; 32];
    (parameters[16], parameters[17]) = (bytes as u32, (bytes >> 32) as u32);
    parameters
}

const CLIENT: u32 = 0xc1d0_0001;
const OTHER: u32 = 0xc1d0_0002;

/// A process that opens the double and does this; what it asked is told before its end.
fn asks(bench: &mut Bench, what: impl FnOnce(&Caller)) -> Vec<Op> {
    let actor = Actor::start(&bench.stand, |_, gate| {
        let caller = bench.terminal.open();
        what(&caller);
        gate.arrive();
        gate.wait();
    });
    actor.await_arrival();
    let pid = actor.pid;
    actor.go();
    actor.wait();
    bench.has("its end", |what| matches!(what, What::Exit { id, last: true, .. } if id.tgid() == pid));
    let dev = bench.terminal.node().dev;
    let asked = bench.events.iter().filter_map(|event: &Event| match &event.what {
        What::Rm(rm) if rm.id.tgid() == pid => Some(&**rm),
        _ => None,
    });
    asked.inspect(|rm: &&Rm| assert_eq!(rm.dev, dev)).map(|rm| rm.op).collect()
}

fn allocations_duplicates_exports_and_frees_are_told(bench: &mut Bench) {
    let asked = asks(bench, |caller| {
        caller.allocate(0, 0, CLIENT, class::ROOT_CLIENT, &[]);
        caller.allocate(CLIENT, CLIENT, 2, class::DEVICE, &[3, 0, 0, 0]);
        caller.allocate(CLIENT, 2, 3, class::MEMORY_LOCAL_USER, &memory(5 << 30));
        // RM_ALLOC in its short form: status at 28.
        let parameters = memory(64 << 20);
        let [low, high] = halves(&parameters);
        caller.ask(rm::ALLOC, &[CLIENT, 2, 4, class::MEMORY_LOCAL_USER, low, high, 0, 0]);
        caller.ask(rm::DUP_OBJECT, &[CLIENT, 2, 5, OTHER, 77, 0, 0]);
        let fd = caller.file.as_raw_fd().cast_unsigned();
        caller.control(CLIENT, control::EXPORT_OBJECT_TO_FD, &[1, 2, 2, 3, fd, 0]);
        caller.control(CLIENT, control::IMPORT_OBJECT_FROM_FD, &[fd, 1, 2, 2, 6]);
        caller.ask(rm::SHARE, &[CLIENT, 3, 0, 0, 1, 0]);
        let mut heap = [0; 46];
        (heap[0], heap[1], heap[2], heap[11], heap[22]) = (CLIENT, 2, 2, 8, 4096);
        caller.ask(rm::VID_HEAP_CONTROL, &heap);
        caller.ask(rm::FREE, &[CLIENT, 2, 3, 0]);
        caller.ask(rm::FREE, &[CLIENT, CLIENT, CLIENT, 0]);
    });
    let local = class::MEMORY_LOCAL_USER;
    assert_eq!(asked[0], Op::Client { client: CLIENT });
    assert_eq!(asked[1], Op::Object { client: CLIENT, parent: CLIENT, object: 2, class: class::DEVICE, device: Some(3) });
    assert_eq!(asked[2], Op::Memory { client: CLIENT, parent: 2, object: 3, class: local, bytes: 5 << 30 });
    assert_eq!(asked[3], Op::Memory { client: CLIENT, parent: 2, object: 4, class: local, bytes: 64 << 20 });
    assert_eq!(asked[4], Op::Dup { client: CLIENT, parent: 2, object: 5, from_client: OTHER, from_object: 77 });
    let Op::Export { client: CLIENT, object: 3, to, kind: ExportKind::Fd } = asked[5] else { panic!("{asked:#?}") };
    assert_eq!(asked[6], Op::Import { client: CLIENT, parent: 2, object: 6, from: to });
    assert_eq!(asked[7], Op::Share { client: CLIENT, object: 3, with: 1 });
    assert_eq!(asked[8], Op::Memory { client: CLIENT, parent: 2, object: 8, class: local, bytes: 4096 });
    assert_eq!(asked[9..], [Op::Free { client: CLIENT, object: 3 }, Op::Free { client: CLIENT, object: CLIENT }]);
}

fn what_the_driver_refused_is_not_told(bench: &mut Bench) {
    const NO_MEMORY: u32 = 0x51;
    let asked = asks(bench, |caller| {
        caller.ask(rm::ALLOC, &nvos64(0, 0, CLIENT, class::ROOT_CLIENT, &[], NO_MEMORY));
        caller.ask(rm::FREE, &[CLIENT, CLIENT, CLIENT, NO_MEMORY]);
        caller.ask(rm::DUP_OBJECT, &[CLIENT, 2, 5, OTHER, 77, 0, NO_MEMORY]);
    });
    assert_eq!(asked, []);
}

fn a_client_that_was_there_before_is_told_once(bench: &mut Bench) {
    const UNINTERESTING: u32 = 0x101;
    let asked = asks(bench, |caller| {
        for _ in 0..3 {
            caller.control(CLIENT, UNINTERESTING, &[]);
        }
        caller.control(OTHER, UNINTERESTING, &[]);
    });
    assert_eq!(asked, [Op::Known { client: CLIENT }, Op::Known { client: OTHER }]);
}

fn what_does_not_matter_is_not_told(bench: &mut Bench) {
    const CHANNEL: u32 = 0xc86f;
    let asked = asks(bench, |caller| {
        caller.allocate(0, 0, CLIENT, class::ROOT_CLIENT, &[]);
        for object in 0..50 {
            caller.allocate(CLIENT, 2, 100 + object, CHANNEL, &[0; 8]);
            caller.control(CLIENT, 0x2080_1303, &[]);
        }
        // Not of this number space at all.
        caller.ask(0x4e, &[0; 14]);
    });
    assert_eq!(asked, [Op::Client { client: CLIENT }]);
}

fn an_unknown_size_that_is_granted_is_counted(bench: &mut Bench) {
    let asked = asks(bench, |caller| caller.ask(rm::ALLOC, &[0; 10]));
    assert_eq!(asked, [Op::Missed { why: Missed::UnknownLayout }]);
}

/// A thread that does this until told to stop.
fn meanwhile(what: impl Fn() + Sync, then: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                what();
            }
        });
        then();
        stop.store(true, Ordering::Relaxed);
    });
}

/// Whether the two threads meet is up to the scheduler: they get several chances.
const CHANCES: usize = 20;

fn arguments_that_change_meanwhile_are_not_believed(bench: &mut Bench) {
    let met = (0..CHANCES).any(|_| arguments_change(bench));
    assert!(met, "no change was noticed");
}

/// True when a change was noticed. Whatever is told is one of the two that were there.
fn arguments_change(bench: &mut Bench) -> bool {
    const TIMES: usize = 3_000;
    bench.start_over();
    let asked = asks(bench, |caller| {
        caller.allocate(0, 0, CLIENT, class::ROOT_CLIENT, &[]);
        let object = [CLIENT, 2, 5, 0].map(AtomicU32::new);
        meanwhile(
            || {
                object[0].fetch_xor(CLIENT ^ OTHER, Ordering::Relaxed);
            },
            || {
                for _ in 0..TIMES {
                    caller.ask_sized(rm::FREE, 16, object.as_ptr().cast());
                }
            },
        );
    });
    assert!(asked.len() <= TIMES + 2, "{}", asked.len());
    let is_one = |op: &Op| matches!(op, Op::Free { client: CLIENT | OTHER, object: 5 });
    let others = asked.iter().filter(|op| !is_one(op) && !matches!(op, Op::Missed { .. } | Op::Client { .. } | Op::Known { .. }));
    assert_eq!(others.count(), 0, "{asked:#?}");
    asked.contains(&Op::Missed { why: Missed::Changed })
}

fn arguments_that_vanish_meanwhile_are_counted(bench: &mut Bench) {
    let met = (0..CHANCES).any(|_| arguments_vanish(bench));
    assert!(met, "nothing was unreadable");
}

fn arguments_vanish(bench: &mut Bench) -> bool {
    const PAGE: usize = 4096;
    bench.start_over();
    let asked = asks(bench, |caller| {
        caller.allocate(0, 0, CLIENT, class::ROOT_CLIENT, &[]);
        let (read, anonymous) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, read, anonymous, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let address = page as usize;
        // SAFETY: the page is ours.
        unsafe { page.cast::<[u32; 4]>().write([CLIENT, 2, 5, 0]) };
        meanwhile(
            // SAFETY: the page is ours and nobody but the kernel looks at it meanwhile.
            || unsafe {
                libc::mprotect(address as *mut libc::c_void, PAGE, libc::PROT_NONE);
                libc::mprotect(address as *mut libc::c_void, PAGE, read);
            },
            || {
                for _ in 0..30_000 {
                    caller.ask_sized(rm::FREE, 16, page.cast());
                }
            },
        );
    });
    let believable = |op: &&Op| {
        matches!(op, Op::Client { client: CLIENT } | Op::Free { client: CLIENT, object: 5 } | Op::Missed { why: Missed::Unreadable })
    };
    assert_eq!(asked.iter().filter(believable).count(), asked.len(), "{asked:#?}");
    asked.contains(&Op::Missed { why: Missed::Unreadable })
}

fn a_list_of_objects_is_told_one_by_one(bench: &mut Bench) {
    let asked = asks(bench, |caller| {
        let mut exports = [0_u32; 532];
        exports[0] = caller.file.as_raw_fd().cast_unsigned();
        (exports[1], exports[531]) = (2, 4);
        exports[19..23].copy_from_slice(&[11, 0, 12, 13]);
        caller.allocate(0, 0, CLIENT, class::ROOT_CLIENT, &[]);
        caller.control(CLIENT, control::EXPORT_OBJECTS_TO_FD, &exports);
    });
    let objects: Vec<u32> = asked.iter().filter_map(|op| match op {
        Op::Export { client: CLIENT, object, .. } => Some(*object),
        _ => None,
    }).collect();
    assert_eq!(objects, [11, 12, 13]);
}
