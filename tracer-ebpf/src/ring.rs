//! The event ring: the only reserve and submit, and the count of what was lost.
#![expect(unsafe_code, reason = "maps and reserved ring memory are raw pointers")]

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::bpf_ktime_get_boot_ns,
    macros::map,
    maps::{PerCpuArray, RingBuf},
};
use outlive_ebpf::{
    limits::{LOST_CAUSES, Lost, RING_BYTES, RING_WAKE_NS},
    record::{Header, Kind, Proc},
};

#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOST_CAUSES, 0);
#[map]
static LAST_WAKE: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Counts one loss; how many of this cause there were on this CPU, this one included.
#[inline(always)]
pub(crate) fn count(cause: Lost) -> u64 {
    count_lost(cause as u32)
}

/// A global function (exported, C ABI, returns a number): the verifier checks it once and not at every call.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_lost(cause: u32) -> u64 {
    let Some(counter) = LOST.get_ptr_mut(cause) else {
        return 0;
    };
    // SAFETY: this CPU's slot, which lives as long as the program. A program that interrupts this one just here
    // can cost one count, never the fact that something was lost.
    unsafe {
        *counter = (*counter).wrapping_add(1);
        *counter
    }
}

/// Now, ns of CLOCK_BOOTTIME.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: takes nothing, always answers.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// The header of a record of type `T`, stamped now.
#[inline(always)]
pub(crate) fn header<T>(kind: Kind, flags: u32, who: Proc, comm: [u8; 16]) -> Header {
    Header {
        kind: kind as u16,
        size: size_of::<T>() as u16,
        flags,
        at: now(),
        who,
        comm,
    }
}

/// Writes every member of a record in place, one after the other. (A record built as a value and copied would go through
/// the stack, of which nested programs have 512 bytes between them.)
macro_rules! fill {
    ($place:expr, $record:path { $($member:ident: $value:expr),* $(,)? }) => {{
        let place: *mut $record = $place.as_mut_ptr();
        // Does not compile when a member is left out.
        let _all_members = |$record { $($member: _),* }: $record| ();
        // SAFETY: `place` is memory for one record, so each member is valid to write.
        $(unsafe { (&raw mut (*place).$member).write($value) };)*
    }};
}
pub(crate) use fill;

/// Puts one record on the ring; `fill` writes every byte of it. Counts the loss when the ring is full.
#[inline(always)]
pub(crate) fn send<T: 'static>(fill: impl FnOnce(&mut MaybeUninit<T>)) {
    let _counted = try_send(fill);
}

/// [`send`], for what must be told again if it could not be: false when the ring was full.
#[inline(always)]
pub(crate) fn try_send<T: 'static>(fill: impl FnOnce(&mut MaybeUninit<T>)) -> bool {
    let Some(mut entry) = EVENTS.reserve::<T>(0) else {
        count(Lost::RingFull);
        return false;
    };
    fill(&mut entry);
    // SAFETY: every record begins with a header, and `fill` has written it.
    let at = unsafe { (*entry.as_ptr().cast::<Header>()).at };
    entry.submit(u64::from(wake(at)));
    true
}

/// Wakes the reader unless this CPU did so a moment ago.
#[inline(always)]
fn wake(at: u64) -> u32 {
    let Some(last) = LAST_WAKE.get_ptr_mut(0) else {
        return BPF_RB_NO_WAKEUP;
    };
    // SAFETY: this CPU's slot; a program that interrupts this one here costs one wake-up more or less, and the reader
    // drains on a timer too.
    unsafe {
        if at.wrapping_sub(*last) < RING_WAKE_NS {
            return BPF_RB_NO_WAKEUP;
        }
        *last = at;
    }
    BPF_RB_FORCE_WAKEUP
}
