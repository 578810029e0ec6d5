//! The only reads through kernel and user pointers, and the constants that user space sets before loading.
//!
//! Two kinds of kernel address. [`Typed`]: the verifier knows what it points to (the current task, an iterator's
//! object, and what is reached from them), so a read is one instruction that it checks; a fault reads as zero.
//! [`Raw`]: a number (a raw tracepoint's argument, an array slot), read by `bpf_probe_read_kernel`, which costs a
//! call and cannot fault; a failed read is zero and counted.
#![expect(
    unsafe_code,
    reason = "reads kernel memory, which the verifier or a helper makes safe"
)]

use core::ffi::c_long;

use aya_ebpf::{
    bindings::pt_regs,
    cty::c_void,
    helpers::generated::{
        bpf_get_current_task_btf, bpf_loop, bpf_probe_read_kernel, bpf_probe_read_kernel_str,
        bpf_probe_read_user, bpf_task_pt_regs,
    },
};
use outlive_ebpf::{abi::{Abi, BRANCHES}, ioctl::UserMemory, limits::Lost, offsets::Offsets};

use crate::ring;

/// Where members lie in the running kernel; set before loading, so constants to the verifier.
#[unsafe(no_mangle)]
static OFFSETS: Offsets = Offsets::UNRESOLVED;
/// Signals that are noise: bit (signal - 1).
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata")]
static SIGNAL_SKIP_MASK: u64 = 0;
/// Address of `io_uring_fops`; 0 when it is not known.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata")]
static IO_URING_FOPS: u64 = 0;

/// The driver's ABI.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata")]
static ABI: Abi = BRANCHES[0].abi;

/// The driver's ABI, as the loader set it.
#[inline(always)]
pub(crate) fn abi() -> Abi {
    constant(&ABI)
}

/// [`Abi::xfer`] alone.
#[inline(always)]
pub(crate) fn abi_xfer() -> u32 {
    constant(&ABI.xfer)
}

/// All offsets; pass a reader for one field to [`constant`].
pub(crate) const fn offsets() -> &'static Offsets {
    &OFFSETS
}

/// Is this signal noise?
#[inline(always)]
pub(crate) fn is_noise(signal: u32) -> bool {
    constant(&SIGNAL_SKIP_MASK) & (1u64 << (signal.wrapping_sub(1) & 63)) != 0
}

/// Address of `io_uring_fops`; 0 when it is not known.
#[inline(always)]
pub(crate) fn io_uring_fops() -> u64 {
    constant(&IO_URING_FOPS)
}

/// A value in `.rodata`, as the loader set it and not as the compiler saw it.
#[inline(always)]
pub(crate) fn constant<T: Copy>(place: &'static T) -> T {
    // SAFETY: a reference is valid to read.
    unsafe { core::ptr::read_volatile(place) }
}

/// The offset of a member, by its field in [`Offsets`].
macro_rules! offset {
    ($field:ident) => {
        $crate::kernel::constant(&$crate::kernel::offsets().$field) as usize
    };
}
/// Does this kernel have the member?
macro_rules! has {
    ($field:ident) => {
        $crate::kernel::constant(&$crate::kernel::offsets().$field)
            != outlive_ebpf::offsets::MISSING
    };
}
pub(crate) use {has, offset};

/// An integer, or an array of them: any byte pattern is a value.
pub(crate) trait Plain: Copy {
    /// All bytes zero.
    const ZERO: Self;
}
macro_rules! plain {
    ($($t:ty = $zero:expr),*) => { $(impl Plain for $t { const ZERO: Self = $zero; })* };
}
plain!(
    u8 = 0,
    u16 = 0,
    u32 = 0,
    i32 = 0,
    u64 = 0,
    [u64; 2] = [0; 2],
    [u64; 3] = [0; 3]
);

/// Something in kernel memory that has members.
pub(crate) trait Memory: Copy {
    /// What a pointer member points to.
    type Target: Memory<Target = Self::Target>;
    /// The integer at `offset`.
    fn get<T: Plain>(self, offset: usize) -> T;
    /// 16 bytes of text at `offset`.
    fn text(self, offset: usize) -> [u8; 16];
    /// The object that the pointer at `offset` points to.
    fn follow(self, offset: usize) -> Self::Target;
    /// The address.
    fn address(self) -> u64;
}

/// A pointer whose type the verifier knows.
#[derive(Clone, Copy)]
pub(crate) struct Typed(*const u8);

/// An address, only readable by helper.
#[derive(Clone, Copy)]
pub(crate) struct Raw(pub(crate) u64);

impl Memory for Typed {
    type Target = Typed;
    #[inline(always)]
    fn get<T: Plain>(self, offset: usize) -> T {
        // SAFETY: the verifier has checked the member's offset and width; the kernel turns a fault into zero. Volatile
        // keeps the compiler from merging neighbours into one load that the verifier would refuse.
        unsafe { core::ptr::read_volatile(self.0.wrapping_add(offset).cast::<T>()) }
    }
    #[inline(always)]
    fn text(self, offset: usize) -> [u8; 16] {
        bytes([self.get(offset), self.get(offset + 8)])
    }
    #[inline(always)]
    fn follow(self, offset: usize) -> Typed {
        // SAFETY: as in `get`; the verifier keeps track of what the loaded pointer points to.
        Typed(unsafe { core::ptr::read_volatile(self.0.wrapping_add(offset).cast::<*const u8>()) })
    }
    #[inline(always)]
    fn address(self) -> u64 {
        self.0 as u64
    }
}

impl Memory for Raw {
    type Target = Raw;
    #[inline(always)]
    fn get<T: Plain>(self, offset: usize) -> T {
        let mut value = T::ZERO;
        let source = self.0.wrapping_add(offset as u64) as *const c_void;
        // SAFETY: the helper checks the source; the destination is a local of that size.
        let result = unsafe {
            bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, source)
        };
        if result != 0 {
            ring::count(Lost::ReadFailed);
        }
        value
    }
    #[inline(always)]
    fn text(self, offset: usize) -> [u8; 16] {
        bytes(self.get(offset))
    }
    #[inline(always)]
    fn follow(self, offset: usize) -> Raw {
        Raw(self.get(offset))
    }
    #[inline(always)]
    fn address(self) -> u64 {
        self.0
    }
}

/// An iterator's object: its own members are read as [`Typed`], what its pointers point to as [`Raw`].
///
/// For each pointer that is loaded from a trusted object, the verifier of 6.2 and later searches all of the kernel's BTF by
/// name for the lists of trusted members, up to four times (btf_nested_type_is_trusted): 1.4 ms a pointer, 20 ms for
/// a whole task. A helper call costs 25 ns.
#[derive(Clone, Copy)]
pub(crate) struct Visited(pub(crate) Typed);

impl Memory for Visited {
    type Target = Raw;
    #[inline(always)]
    fn get<T: Plain>(self, offset: usize) -> T {
        self.0.get(offset)
    }
    #[inline(always)]
    fn text(self, offset: usize) -> [u8; 16] {
        self.0.text(offset)
    }
    #[inline(always)]
    fn follow(self, offset: usize) -> Raw {
        Raw(self.address()).follow(offset)
    }
    #[inline(always)]
    fn address(self) -> u64 {
        self.0.address()
    }
}

impl Typed {
    /// The running thread.
    #[inline(always)]
    pub(crate) fn current() -> Typed {
        // SAFETY: takes nothing, always answers.
        Typed(unsafe { bpf_get_current_task_btf() }.cast_const().cast())
    }
    /// A pointer from an iterator's context.
    #[inline(always)]
    pub(crate) const fn from_context(pointer: *const u8) -> Typed {
        Typed(pointer)
    }
    /// The pointer itself.
    #[inline(always)]
    pub(crate) const fn pointer(self) -> *const u8 {
        self.0
    }
}

/// Registers of a thread at its last entry into the kernel: a thread that is in the kernel has them on its stack, running or not.
#[derive(Clone, Copy)]
pub(crate) struct Registers(Typed);

/// `__USER32_CS`: the code segment of a thread in 32-bit mode (arch/x86/include/asm/segment.h).
const USER32_CS: u16 = 0x23;
/// arch/x86/entry/syscalls/syscall_64.tbl
const SYS_IOCTL: u64 = 16;

impl Registers {
    /// Of a user thread.
    #[inline(always)]
    pub(crate) fn of(task: Typed) -> Registers {
        // SAFETY: `task` is the running task or an iterator's, a trusted pointer as the helper demands and the verifier checks.
        let regs = unsafe { bpf_task_pt_regs(task.0.cast_mut().cast()) };
        Registers(Typed(regs as *const u8))
    }
    /// First argument.
    #[inline(always)]
    pub(crate) fn first(self) -> u64 {
        self.0.get(core::mem::offset_of!(pt_regs, rdi))
    }
    /// Number of the system call.
    #[inline(always)]
    pub(crate) fn call(self) -> u64 {
        self.0.get(core::mem::offset_of!(pt_regs, orig_rax))
    }
    /// One more than the descriptor of the ioctl that it asked for; 0: its last entry was for something else.
    #[inline(always)]
    pub(crate) fn ioctl(self) -> u32 {
        if self.call() == SYS_IOCTL { (self.first() as u32).wrapping_add(1) } else { 0 }
    }
    /// Second argument.
    #[inline(always)]
    pub(crate) fn second(self) -> u64 {
        self.0.get(core::mem::offset_of!(pt_regs, rsi))
    }
    /// Third argument.
    #[inline(always)]
    pub(crate) fn third(self) -> u64 {
        self.0.get(core::mem::offset_of!(pt_regs, rdx))
    }
    /// Fourth argument.
    #[inline(always)]
    pub(crate) fn fourth(self) -> u64 {
        self.0.get(core::mem::offset_of!(pt_regs, r10))
    }
    /// Does the thread run 32-bit code?
    #[inline(always)]
    pub(crate) fn is_32_bit(self) -> bool {
        self.0.get::<u16>(core::mem::offset_of!(pt_regs, cs)) == USER32_CS
    }
}

/// Calls `step` until it returns 1, at most `limit` times. `bpf_loop` (since 5.17) and not a Rust loop: the verifier
/// checks the body once and not once per iteration.
#[inline(always)]
pub(crate) fn repeat<T>(
    limit: u32,
    step: unsafe extern "C" fn(u32, *mut T) -> c_long,
    state: &mut T,
) {
    let state = core::ptr::from_mut(state).cast();
    // SAFETY: `step` has the signature that the helper calls, and `state` is its state.
    unsafe { bpf_loop(limit, step as *mut c_void, state, 0) };
}

/// Makes the verifier forget what it knows of a loop's first state, by copying it onto itself. Where it knows a constant
/// it explores each iteration on its own; where it knows nothing, one iteration stands for all.
#[inline(always)]
pub(crate) fn opaque<T: Copy>(state: &mut T) {
    let place = core::ptr::from_mut(state).cast::<c_void>();
    // SAFETY: source and destination are the same readable and writable local; any failure leaves a zeroed one.
    unsafe { bpf_probe_read_kernel(place, size_of::<T>() as u32, place) };
}

/// The running process's memory, for the decoder of requests: a failed read is the caller's to report.
pub(crate) struct UserReads;

impl UserMemory for UserReads {
    #[inline(always)]
    fn u32(&self, address: u64) -> Option<u32> {
        try_user(address)
    }
    #[inline(always)]
    fn u64(&self, address: u64) -> Option<u64> {
        try_user(address)
    }
    #[inline(always)]
    fn two(&self, address: u64) -> Option<[u64; 2]> {
        try_user(address)
    }
    #[inline(always)]
    fn three(&self, address: u64) -> Option<[u64; 3]> {
        try_user(address)
    }
}

/// An integer in the running process's memory; None (counted) when it cannot be read.
#[inline(always)]
pub(crate) fn user<T: Plain>(address: u64) -> Option<T> {
    let value = try_user(address);
    if value.is_none() {
        ring::count(Lost::ReadFailed);
    }
    value
}

#[inline(always)]
fn try_user<T: Plain>(address: u64) -> Option<T> {
    let mut value = T::ZERO;
    // SAFETY: the helper checks the source; the destination is a local of that size.
    let result = unsafe {
        bpf_probe_read_user(
            (&raw mut value).cast(),
            size_of::<T>() as u32,
            address as *const c_void,
        )
    };
    (result == 0).then_some(value)
}

/// Copies a NUL-terminated kernel string; what it does not fill stays as it was.
#[inline(always)]
pub(crate) fn string<const N: usize>(into: &mut [u8; N], address: u64) {
    // SAFETY: the helper checks the source and writes at most N bytes.
    let length = unsafe {
        bpf_probe_read_kernel_str(into.as_mut_ptr().cast(), N as u32, address as *const c_void)
    };
    if length < 0 {
        ring::count(Lost::ReadFailed);
    }
}

/// Two words as the 16 bytes that they are in memory.
#[inline(always)]
fn bytes(words: [u64; 2]) -> [u8; 16] {
    // SAFETY: same size, no invalid values.
    unsafe { core::mem::transmute(words) }
}
