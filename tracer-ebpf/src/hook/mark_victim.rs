//! `oom:mark_victim`, include/trace/events/oom.h; since 4.15. `int pid` at offset 8 on all kernels; newer ones add more.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use outlive_ebpf::record::{Kind, Oom, Proc};

use super::field;
use crate::ring::{self, fill};

#[tracepoint]
pub(crate) fn mark_victim(ctx: TracePointContext) -> u32 {
    let tid: u32 = field(&ctx, 8);
    ring::send::<Oom>(|entry| {
        let who = Proc {
            tgid: 0,
            tid,
            start: 0,
        };
        fill!(
            entry,
            Oom {
                header: ring::header::<Oom>(Kind::OomVictim, 0, who, [0; 16])
            }
        );
    });
    0
}
