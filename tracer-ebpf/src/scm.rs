//! Files on their way through unix sockets.
use aya_ebpf::cty::c_void;
use crate::{files::File, kernel::Typed, task::Task};
pub(crate) fn in_flight(_seq: *mut c_void, _task: Task<Typed>, _fd: u32, _file: File<Typed>) {}
