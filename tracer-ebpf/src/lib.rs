//! Record types that the eBPF programs write and user space reads, and the driver's ABI with the decoder of its requests, which both run.
//!
//! Always true: every record is `repr(C)`, starts with a [`record::Header`], has no implicit padding and
//! holds only integers and byte arrays, so any byte pattern is a valid value and the bytes on the ring
//! are the bytes in memory. Sizes and offsets are asserted here, and because this one file is compiled
//! for both sides, they are asserted on both sides.
//!
//! Numbers that name things ([`record::Kind`], [`limits::Lost`]) are stable: never reuse one.
#![no_std]

pub mod abi;
pub mod ioctl;
pub mod limits;
pub mod offsets;
pub mod record;
