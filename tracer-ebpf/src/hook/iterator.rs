//! What the iterators share: their output.

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

/// Appends one record. A full buffer is not a loss: the kernel calls again for the same object with room.
#[inline(always)]
pub(crate) fn write<T>(meta: *const Meta, record: &T) {
    put(Meta::seq(meta), record);
}

/// Appends one record to the output `seq`.
#[inline(always)]
pub(crate) fn put<T>(seq: *mut c_void, record: &T) {
    // SAFETY: the record is `size_of::<T>()` initialised bytes without padding.
    unsafe { bpf_seq_write(seq.cast(), core::ptr::from_ref(record).cast_mut().cast(), size_of::<T>() as u32) };
}
