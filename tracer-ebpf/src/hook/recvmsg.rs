//! Return of recvmsg(fd, msghdr, flags) and recvmmsg(fd, mmsghdr, vlen, flags, timeout): `syscalls:sys_exit_*`; since 2.6.
//!
//! The kernel has written back how much control data it delivered, so a message without any ends after one read.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};

use super::returned;
use crate::{
    kernel::{Registers, Typed},
    scm,
};

#[tracepoint]
pub(crate) fn sys_exit_recvmsg(ctx: TracePointContext) -> u32 {
    if returned(&ctx) < 0 {
        return 0;
    }
    let registers = Registers::of(Typed::current());
    scm::walk_message::<true>(registers.first() as u32, registers.second());
    0
}

#[tracepoint]
pub(crate) fn sys_exit_recvmmsg(ctx: TracePointContext) -> u32 {
    let received = returned(&ctx);
    if received > 0 {
        let registers = Registers::of(Typed::current());
        scm::walk_messages::<true>(
            registers.first() as u32,
            registers.second(),
            received as u64,
        );
    }
    0
}
