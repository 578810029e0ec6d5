//! `TP_PROTO(int sig, struct kernel_siginfo *info, struct k_sigaction *ka)`, include/trace/events/signal.h; since 2.6.
//!
//! Called in the receiving thread, with the action that will be taken.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use outlive_ebpf::record::{Kind, Proc, Signal, flag};

use super::siginfo::Info;
use crate::{
    kernel::{self, Memory, Raw, offset},
    ring::{self, fill},
    tracked::{self, Current},
};

#[raw_tracepoint(tracepoint = "signal_deliver")]
pub(crate) fn signal_deliver(ctx: RawTracePointContext) -> i32 {
    let signal: u32 = ctx.arg(0);
    if kernel::is_noise(signal) {
        return 0;
    }
    let Some(Current {
        task,
        tgid,
        gpu_user,
    }) = tracked::current()
    else {
        return 0;
    };
    if tgid == tracked::INIT {
        return 0;
    }
    let handler: u64 = Raw(ctx.arg(2)).get(offset!(sigaction_handler));
    // SIG_DFL is 0 and SIG_IGN is 1 (include/uapi/asm-generic/signal-defs.h).
    let result = handler.min(2) as i32;
    let code = Info(ctx.arg(1)).code();
    let mut flags = if gpu_user { flag::GPU_USER } else { 0 };
    if code > 0 {
        flags |= flag::KERNEL;
    }
    ring::send::<Signal>(|entry| {
        fill!(
            entry,
            Signal {
                header: ring::header::<Signal>(
                    Kind::SignalDeliver,
                    flags,
                    task.thread(),
                    task.comm()
                ),
                sender: Proc {
                    tgid: 0,
                    tid: 0,
                    start: 0
                },
                sender_comm: [0; 16],
                number: signal as i32,
                code: code,
                result: result,
                sender_uid: 0,
            }
        );
    });
    0
}
