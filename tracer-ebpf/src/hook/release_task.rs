//! `void release_task(struct task_struct *)` (kernel/exit.c), entry, by kprobe: a zombie is collected. `current` is whoever waited.
//!
//! Takes the place of the return of wait4 and waitid. A process that nobody waits for collects itself: that is no reap. Of the
//! threads of a process only the leader stands for it.

use aya_ebpf::{macros::kprobe, programs::ProbeContext};

use super::{argument, wait::reaped};
use crate::{kernel::Raw, task::Task, tracked};

#[kprobe]
pub(crate) fn task_released(ctx: ProbeContext) -> u32 {
    let child = Task(Raw(argument(&ctx, 0)));
    let tgid = child.tgid();
    if child.tid() != tgid || tracked::get(tgid).is_none() {
        return 0;
    }
    let Some(parent) = tracked::current() else {
        return 0;
    };
    if parent.tgid == tgid {
        return 0;
    }
    let level = parent.task.pid().level();
    let number = if level == 0 { tgid } else { child.pid().number(level) };
    reaped(parent, number);
    0
}
