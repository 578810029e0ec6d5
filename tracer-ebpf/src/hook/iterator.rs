//! What the iterators share: their output.

use core::mem::MaybeUninit;

use aya_ebpf::{cty::c_void, helpers::generated::bpf_seq_write};

/// `struct bpf_iter_meta` (include/linux/bpf.h).
#[repr(C)]
pub(crate) struct Meta {
    seq: *mut c_void,
}

impl Meta {
    /// The output.
    #[inline(always)]
    pub(crate) fn seq(meta: *const Meta) -> *mut c_void {
        // SAFETY: comes from the context; the verifier checks the read.
        unsafe { (*meta).seq }
    }
}

/// Appends one record, which `fill` writes wholly, to the output `seq`. A full buffer is not a loss: the kernel calls again
/// for the same object when there is room.
#[inline(always)]
pub(crate) fn write<T>(seq: *mut c_void, fill: impl FnOnce(&mut MaybeUninit<T>)) {
    let mut record = MaybeUninit::uninit();
    fill(&mut record);
    // SAFETY: the record is `size_of::<T>()` bytes without padding, all written.
    unsafe {
        bpf_seq_write(
            seq.cast(),
            record.as_mut_ptr().cast(),
            size_of::<T>() as u32,
        )
    };
}
