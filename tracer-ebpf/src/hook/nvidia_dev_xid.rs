//! `nvidia:nvidia_dev_xid`, kernel-open/nvidia/nv-tracepoint.h of the open driver; since 575.51.
//!
//! A tracepoint in use keeps its module from being unloaded (perf_trace_event_init, kernel/trace/trace_event_perf.c), so it is attached
//! only where the kernel log cannot be read.
//!
//! Record: `__data_loc char[] dev` at 8, `u32 error_code` at 12, `__data_loc char[] msg` at 16. The low half of a
//! `__data_loc` is where the string lies in the record.

use aya_ebpf::{EbpfContext, macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::{
    limits::PATH_LEN,
    record::{Kind, Xid},
};

use super::field;
use crate::{kernel::string, ring, task::Task};

#[tracepoint]
pub(crate) fn nvidia_dev_xid(ctx: TracePointContext) -> u32 {
    let record = ctx.as_ptr() as u64;
    let (device, code, message): (u32, u32, u32) =
        (field(&ctx, 8), field(&ctx, 12), field(&ctx, 16));
    let task = Task::current();
    ring::send::<Xid>(|entry| {
        let header = ring::header::<Xid>(Kind::Xid, 0, task.thread(), task.comm());
        let xid = entry.write(Xid {
            header,
            code,
            pad: 0,
            device: [0; 32],
            message: [0; PATH_LEN],
        });
        string(&mut xid.device, record + u64::from(device & 0xffff));
        string(&mut xid.message, record + u64::from(message & 0xffff));
    });
    0
}
