//! What must hold for every request that a process could pass, plausible or not.
//!
//! Always true: which words name what a request is about, and where its status is, is written down here a second time ([`SHAPES`]), from the
//! driver's headers and not from the decoder.

use outlive_ebpf::abi::{Abi, class, for_driver, rm, uvm};
use outlive_ebpf::ioctl::{self, Done, Pending, Refused, UserMemory, ask, node, op};
use proptest::prelude::*;
use proptest::sample::select;

use super::replay::{ARGUMENTS, Memory, abi};

/// Where the nested parameters are in a plausible request.
const PARAMS: u64 = 0x10_0000;

/// One way to ask for something that matters.
struct Shape {
    node: u32,
    request: u32,
    ask: u32,
    /// What is told of it when it is granted.
    op: u32,
    /// Words of the arguments (offset, value) that make it this request.
    fixed: &'static [(u64, u32)],
    /// Words of the parameters, likewise.
    nested: &'static [(u64, u32)],
    /// Words of the arguments that name what it is about: client, objects, class, parameters, addresses.
    names: &'static [u64],
    /// Where the status is; None: there is none.
    status: Option<u64>,
}

const fn rm_request(number: u32, size: u32) -> u32 {
    0xc000_4600 | size << 16 | number
}

const ALLOC: Shape = Shape {
    node: node::CONTROL,
    request: rm_request(rm::ALLOC, 48),
    ask: ask::ALLOC,
    op: op::OBJECT,
    fixed: &[(12, class::SUBDEVICE)],
    nested: &[],
    names: &[0, 4, 8, 12, 16, 20],
    status: Some(40),
};
const CONTROL: Shape = Shape {
    request: rm_request(rm::CONTROL, 32),
    ask: ask::CONTROL,
    op: op::EXPORT,
    fixed: &[(8, 0x3d05)],
    nested: &[(0, 1), (20, 0)],
    status: Some(28),
    ..ALLOC
};
const VID_HEAP: Shape = Shape {
    request: rm_request(rm::VID_HEAP_CONTROL, 184),
    ask: ask::VID_HEAP,
    op: op::MEMORY,
    fixed: &[(8, 2), (52, 0), (56, 0)],
    names: &[0, 4, 8],
    status: Some(20),
    ..ALLOC
};
const UVM: Shape =
    Shape { node: node::UVM, request: uvm::INITIALIZE, ask: ask::UVM_INITIALIZE, op: op::SPACE, fixed: &[], names: &[0, 4], status: Some(8), ..ALLOC };

/// Layouts of driver 580.
const SHAPES: &[Shape] = &[
    // A client's own handle is an output, and its parent means nothing.
    Shape { op: op::CLIENT, fixed: &[(12, class::ROOT_CLIENT)], names: &[12, 16, 20], ..ALLOC },
    Shape { op: op::MEMORY, fixed: &[(12, class::MEMORY_LOCAL_USER)], ..ALLOC },
    Shape { fixed: &[(12, class::DEVICE)], ..ALLOC },
    ALLOC,
    Shape { op: op::DUP, fixed: &[(12, class::MEMORY_FABRIC)], nested: &[(40, 7)], ..ALLOC },
    Shape { fixed: &[(12, class::MEMORY_EXPORT)], ..ALLOC },
    Shape { fixed: &[(12, class::FABRIC_IMPORTED_REF)], ..ALLOC },
    Shape { op: op::MEMORY, request: rm_request(rm::ALLOC, 32), ask: ask::ALLOC_SHORT, fixed: &[(12, class::MEMORY_LOCAL_USER)], status: Some(28), ..ALLOC },
    Shape { request: rm_request(rm::FREE, 16), ask: ask::FREE, op: op::FREE, fixed: &[], names: &[0, 4, 8], status: Some(12), ..ALLOC },
    CONTROL,
    Shape { op: op::IMPORT, fixed: &[(8, 0x3d06)], nested: &[(4, 1)], ..CONTROL },
    Shape { fixed: &[(8, 0x3d0b)], nested: &[(2_124, 1)], ..CONTROL },
    Shape { op: op::IMPORT, fixed: &[(8, 0x3d0c)], nested: &[(648, 1)], ..CONTROL },
    Shape { op: op::GPU, fixed: &[(8, 0x202)], ..CONTROL },
    Shape { op: op::GPU, fixed: &[(8, 0x205)], ..CONTROL },
    Shape { request: rm_request(rm::DUP_OBJECT, 28), ask: ask::DUP, op: op::DUP, fixed: &[], names: &[0, 4, 8, 12, 16], status: Some(24), ..ALLOC },
    Shape { request: rm_request(rm::SHARE, 24), ask: ask::SHARE, op: op::SHARE, fixed: &[], names: &[0, 4, 8, 12, 16], status: Some(20), ..ALLOC },
    VID_HEAP,
    Shape { op: op::FREE, fixed: &[(8, 3)], names: &[0, 4, 8, 44], ..VID_HEAP },
    Shape { node: node::GPU, request: rm_request(rm::REGISTER_FD, 4), ask: ask::REGISTER, op: op::REGISTER, fixed: &[], names: &[0], status: None, ..ALLOC },
    Shape { node: node::GPU, request: rm_request(rm::EXPORT_TO_DMABUF_FD, 2_608), ask: ask::DMA_BUF, op: op::EXPORT_DMA_BUF, fixed: &[], names: &[4, 8, 12], status: Some(2_600), ..ALLOC },
    UVM,
    Shape { request: uvm::MM_INITIALIZE, ask: ask::UVM_MM, op: op::SPACE_MM, names: &[0], status: Some(4), ..UVM },
    Shape { request: uvm::REGISTER_GPU, ask: ask::UVM_GPU, op: op::SPACE_GPU, status: Some(36), ..UVM },
    Shape { request: uvm::MAP_EXTERNAL_ALLOCATION, ask: ask::UVM_MAP, op: op::MAP, names: &[0, 4, 9_248, 9_252, 9_256], status: Some(9_260), ..UVM },
    Shape { request: uvm::FREE, ask: ask::UVM_FREE, op: op::UNMAP, names: &[0, 4, 8, 12], status: Some(16), ..UVM },
    Shape { request: uvm::UNMAP_EXTERNAL, ask: ask::UVM_UNMAP, op: op::UNMAP, names: &[0, 4, 8, 12], status: Some(32), ..UVM },
];

impl Shape {
    /// The arguments in memory, `seed` making the handles; the status is OK.
    fn memory(&self, seed: u32) -> Memory {
        let mut memory = Memory::default();
        let filled = |words: u32| (0..words).flat_map(|word| (seed ^ word << 4 | 1).to_le_bytes()).collect::<Vec<u8>>();
        memory.put(ARGUMENTS, &filled(2_400));
        memory.put(PARAMS, &filled(600));
        // No request has an address of parameters anywhere else.
        if matches!(self.ask, ask::ALLOC | ask::ALLOC_SHORT | ask::CONTROL) {
            memory.put(ARGUMENTS + 16, &PARAMS.to_le_bytes());
        }
        self.fixed.iter().for_each(|(offset, value)| memory.put(ARGUMENTS + offset, &value.to_le_bytes()));
        self.nested.iter().for_each(|(offset, value)| memory.put(PARAMS + offset, &value.to_le_bytes()));
        self.status.iter().for_each(|status| memory.put(ARGUMENTS + status, &rm::OK.to_le_bytes()));
        memory
    }

    /// Asked with the one memory, returned with the other.
    fn asked(&self, entry: &Memory, after: &Memory) -> Result<Done, Refused> {
        let (mut pending, mut done) = (Pending::default(), Done::default());
        let call = ioctl::unwrap(entry, &abi(), self.node, self.request, ARGUMENTS).unwrap();
        ioctl::begin(entry, &abi(), self.node, call, &mut pending).unwrap();
        assert_eq!((pending.ask, pending.matters), (self.ask, 1));
        ioctl::finish(after, &abi(), &pending, &mut done).map(|()| done)
    }
}

/// Client, whatever it asks to become.
fn is_root(class: Option<u32>) -> bool {
    matches!(class, Some(class::ROOT | class::ROOT_NON_PRIV | class::ROOT_CLIENT))
}

#[test]
fn every_request_is_believed_when_it_was_granted_and_did_not_change() {
    for (place, shape) in SHAPES.iter().enumerate() {
        let memory = shape.memory(0x5c00_0000);
        let done = shape.asked(&memory, &memory).unwrap_or_else(|why| panic!("{place}: {why:?}"));
        assert_eq!(done.op, shape.op, "{place}: {done:?}");
    }
}

#[test]
fn a_wrapped_request_is_the_request_that_is_inside() {
    const WRAPPING: u64 = 0x20_0000;
    for shape in SHAPES.iter().filter(|shape| shape.node != node::UVM) {
        let mut memory = shape.memory(0x5c00_0000);
        let inner = [shape.request & 0xff, shape.request >> 16 & 0x3fff].map(u32::to_le_bytes).concat();
        memory.put(WRAPPING, &inner);
        memory.put(WRAPPING + 8, &ARGUMENTS.to_le_bytes());
        let wrapped = ioctl::unwrap(&memory, &abi(), shape.node, rm_request(rm::XFER, 16), WRAPPING);
        assert_eq!(wrapped, ioctl::unwrap(&memory, &abi(), shape.node, shape.request, ARGUMENTS));
        // It cannot be read: nothing is known of it.
        assert_eq!(ioctl::unwrap(&memory, &abi(), shape.node, rm_request(rm::XFER, 16), WRAPPING + 8), None);
    }
}

/// Memory of a hostile process: at every address there is something, or nothing.
#[derive(Clone, Debug)]
struct Noise {
    seed: u64,
    /// One piece of 32 bytes of so many cannot be read; 0: all can.
    holes: u64,
    /// Words that are something else.
    patches: Vec<(u64, u32)>,
}

/// What handles, classes, commands, functions and statuses are made of.
const LIKELY: [u32; 16] = [0, 0, 0, 0, 1, 2, 3, 0x40, 0x41, 0x80, 0x2080, 0xf8, 0x3d05, 0x3d06, 0x3d0b, 0x3d0c];

fn mixed(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 8
}

impl Noise {
    fn byte(&self, address: u64) -> Option<u8> {
        let (word, within) = (address & !3, (address & 3) as usize);
        if self.holes != 0 && mixed(self.seed ^ address >> 5).is_multiple_of(self.holes) {
            return None;
        }
        let patched = self.patches.iter().rev().find(|(place, _)| *place == word).map(|(_, value)| *value);
        let noise = mixed(self.seed ^ word);
        let value = patched.unwrap_or(if noise & 3 == 0 { noise as u32 } else { LIKELY[(noise >> 40) as usize % LIKELY.len()] });
        Some(value.to_le_bytes()[within])
    }
    fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(address.wrapping_add(place as u64))?;
        }
        Some(bytes)
    }
}

impl UserMemory for Noise {
    fn u32(&self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }
    fn u64(&self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_le_bytes)
    }
}

fn request() -> impl Strategy<Value = (u32, u32)> {
    let known: Vec<(u32, u32)> = SHAPES.iter().map(|shape| (shape.node, shape.request)).collect();
    let number = select(vec![rm::FREE, rm::CONTROL, rm::ALLOC, rm::DUP_OBJECT, rm::SHARE, rm::VID_HEAP_CONTROL, rm::REGISTER_FD, rm::XFER, 217]);
    prop_oneof![
        6 => select(known),
        1 => (0_u32..6, number, 0_u32..1 << 14).prop_map(|(node, number, size)| (node, rm_request(number, size))),
        1 => Just((node::CONTROL, rm_request(rm::XFER, 16))),
        1 => (0_u32..6, any::<u32>()),
        1 => (Just(node::UVM), 0_u32..128),
    ]
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![2 => any::<u64>(), 2 => (0_u64..10_000).prop_map(|back| u64::MAX - back), 1 => 0_u64..64]
}

/// What a granted request that is believed must look like: the oracle of the test below.
fn believable(abi: &Abi, p: &Pending, before: &Noise, after: &Noise) -> Result<(), TestCaseError> {
    let word = |memory: &Noise, offset: u64| memory.u32(p.address.wrapping_add(offset));
    let shape = SHAPES.iter().find(|shape| shape.ask == p.ask).ok_or_else(|| TestCaseError::fail("believed what is not known"))?;
    let status = match p.ask {
        ask::DMA_BUF => Some(u64::from(abi.dma_buf_status)),
        ask::UVM_MAP => Some(u64::from(abi.uvm_map_tail) + 12),
        ask::UVM_FREE => Some(u64::from(abi.uvm_free_status)),
        _ => shape.status,
    };
    prop_assert!(status.is_none_or(|status| word(after, status) == Some(rm::OK)));
    // The first shape of an `ask` has the fewest names, but for RM_ALLOC, where it is that of a client.
    let alloc = matches!(p.ask, ask::ALLOC | ask::ALLOC_SHORT);
    let root = alloc && is_root(word(before, 12));
    if root {
        prop_assert!(is_root(word(after, 12)));
    }
    let names: &[u64] = if root { &[16, 20] } else if alloc { ALLOC.names } else { shape.names };
    for offset in names {
        // Where these lie depends on the branch.
        let offset = match (p.ask, *offset) {
            (ask::UVM_MAP, 9_248..) => *offset - 9_248 + u64::from(abi.uvm_map_tail),
            (ask::UVM_FREE, 8..) if abi.uvm_free_status == 8 => continue,
            (_, offset) => offset,
        };
        let (was, is) = (word(before, offset), word(after, offset));
        // A handle that was not chosen by who asked.
        let chosen = offset == 8 && (alloc || p.ask == ask::DUP) && was == Some(0);
        prop_assert!(was == is || chosen, "{offset}: {was:x?} {is:x?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_word_that_changed_or_a_status_is_never_believed(
        place in 0..SHAPES.len(), seed in any::<u32>(), which in any::<prop::sample::Index>(), mask in 1_u32.., status in 1_u32..,
    ) {
        let shape = &SHAPES[place];
        let entry = shape.memory(seed);
        let offset = *which.get(shape.names);
        let mut after = entry.clone();
        let word = entry.u32(ARGUMENTS + offset).unwrap() ^ mask;
        after.put(ARGUMENTS + offset, &word.to_le_bytes());
        // A client asked for by another of its names; RM itself rewrites the class.
        let renamed = shape.op == op::CLIENT && offset == 12 && is_root(Some(word));
        let told = shape.asked(&entry, &after);
        prop_assert!(renamed || !told.is_ok_and(|done| done.op != 0), "{place} at {offset}: {told:?}");
        if let Some(at) = shape.status {
            for memory in [&entry, &after] {
                let mut refused = memory.clone();
                refused.put(ARGUMENTS + at, &status.to_le_bytes());
                prop_assert_eq!(shape.asked(&entry, &refused), Err(Refused::Failed));
            }
        }
    }

    #[test]
    fn the_driver_may_round_a_size_up_by_less_than_the_largest_page_and_nothing_else(
        asked in prop_oneof![any::<u64>(), 0_u64..1 << 40, (0_u64..1 << 31).prop_map(|back| u64::MAX - back)],
        more in prop_oneof![-3_i64..3, (-3_i64..3).prop_map(|more| more + (512 << 20)), any::<i64>()],
    ) {
        for shape in SHAPES.iter().filter(|shape| shape.op == op::MEMORY) {
            let place = if shape.ask == ask::VID_HEAP { ARGUMENTS + 88 } else { PARAMS + 64 };
            let mut entry = shape.memory(0x5c00_0000);
            entry.put(place, &asked.to_le_bytes());
            let mut after = entry.clone();
            let given = asked.wrapping_add_signed(more);
            after.put(place, &given.to_le_bytes());
            let rounded = (0..512 << 20).contains(&(i128::from(given) - i128::from(asked)));
            let expected = if rounded { Ok((op::MEMORY, given)) } else { Err(Refused::Changed) };
            prop_assert_eq!(shape.asked(&entry, &after).map(|done| (done.op, done.bytes)), expected);
        }
    }

    #[test]
    fn whatever_a_process_passes_nothing_panics_and_only_what_stayed_the_same_is_believed(
        (node, request) in request(), address in address(), branch in 530_u32..600, seed in any::<u64>(), holes in select(vec![0_u64, 0, 5, 40]),
        changed in prop::collection::vec((0_u64..48, select(LIKELY.to_vec())), 0..3), other in prop_oneof![4 => Just(0_u64), 1 => any::<u64>()],
    ) {
        let abi = for_driver(&branch.to_string()).0.abi;
        let before = Noise { seed, holes, patches: Vec::new() };
        let Some(call) = ioctl::unwrap(&before, &abi, node, request, address) else { return Ok(()) };
        let mut pending = Pending::default();
        let begun = ioctl::begin(&before, &abi, node, call, &mut pending);
        if begun.is_none() || pending.matters != 0 || pending.client != 0 {
            prop_assert!(ioctl::may_matter(request, abi.xfer), "{request:x} on {node}");
        }
        if begun.is_none() { return Ok(()) }
        let patches = changed.iter().map(|(word, value)| (call.address.wrapping_add(word * 4) & !3, *value)).collect();
        let after = Noise { seed: seed ^ other, holes, patches };
        let mut done = Done::default();
        if ioctl::finish(&after, &abi, &pending, &mut done).is_ok() {
            believable(&abi, &pending, &before, &after)?;
            // Lists are walked as the hook does.
            for index in 0..done.count.min(u32::from(done.list != 0) * 600) {
                let _ = after.u32(done.list.wrapping_add(u64::from(index) * 4));
            }
        }
    }
}
