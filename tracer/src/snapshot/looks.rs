//! What two looks at the same thread say that one cannot: whether it uses the CPU, and since when it is in one place.
//!
//! Always true: pure. What is found is written into the new state, so that a trace says it without the older one.

use crate::event::{BootNs, KernelThread, ProcessState, Ran, StuckThread};
use crate::stack::function;

/// The new state, with what the older one adds.
pub(super) fn compared(old: Option<(BootNs, &ProcessState)>, new: &ProcessState, at: BootNs) -> ProcessState {
    let mut state = new.clone();
    if let Some((before, old)) = old {
        for thread in &mut state.stuck {
            learn(thread, before, old.stuck.iter().find(|known| known.tid == thread.tid), at);
        }
    }
    state
}

/// The same for the kernel's own threads.
pub(super) fn kernel_threads(old: Option<(BootNs, &[KernelThread])>, new: &[KernelThread], at: BootNs) -> Vec<KernelThread> {
    let mut list = new.to_vec();
    if let Some((before, old)) = old {
        for found in &mut list {
            learn(&mut found.thread, before, old.iter().find(|known| known.id == found.id).map(|known| &known.thread), at);
        }
    }
    list
}

fn learn(thread: &mut StuckThread, before: BootNs, known: Option<&StuckThread>, at: BootNs) {
    let Some(known) = known else { return };
    let over_ns = at.saturating_sub(before);
    if let (Some(now), Some(then), true) = (thread.cpu_ns, known.cpu_ns, over_ns > 0) {
        thread.ran = Some(Ran { cpu_ns: now.saturating_sub(then), over_ns });
    }
    // A spinning thread's innermost frames change: the place is where most of the stack is the same.
    let place = |thread: &StuckThread| -> Vec<String> {
        let depth = thread.stack.len().saturating_sub(2).min(8);
        thread.stack.iter().rev().take(depth.max(1)).map(|frame| function(frame).to_owned()).collect()
    };
    if place(thread) == place(known) && thread.wchan == known.wchan {
        thread.same_since = known.same_since.or(Some(before));
    }
}

/// As much of a thread as makes it worth an event: a sleeping thread's times change nothing.
pub(super) fn shape(thread: &StuckThread) -> StuckThread {
    let busy = thread.ran.is_some_and(|ran| ran.spins());
    let ran = thread.ran.map(|_| Ran { cpu_ns: u64::from(busy), over_ns: 1 });
    StuckThread { ran, cpu_ns: thread.cpu_ns.filter(|_| busy), ..thread.clone() }
}

/// That a thread is still there is news for so long: after it, nobody takes it for one that is merely slow.
const STILL_NEWS_NS: BootNs = 60_000_000_000;

/// Some of them were in the same place before, and not for long.
pub(super) fn are_still_there(list: &[KernelThread], at: BootNs) -> bool {
    list.iter().filter_map(|found| found.thread.same_since).any(|since| at.saturating_sub(since) < STILL_NEWS_NS)
}

/// Whether two lists differ in more than times.
pub(super) fn differ(old: &[KernelThread], new: &[KernelThread]) -> bool {
    let shaped = |list: &[KernelThread]| -> Vec<KernelThread> {
        list.iter().map(|found| KernelThread { thread: shape(&found.thread), ..found.clone() }).collect()
    };
    shaped(old) != shaped(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(cpu_ns: u64, stack: &[&str]) -> ProcessState {
        let stack = stack.iter().map(|frame| (*frame).to_owned()).collect();
        let thread = StuckThread { tid: 577, state: "D".into(), cpu_ns: Some(cpu_ns), stack, ..StuckThread::default() };
        ProcessState { stuck: vec![thread], ..ProcessState::default() }
    }

    #[test]
    fn two_looks_tell_a_spinning_thread_from_a_sleeping_one_and_since_when() {
        let stack = ["a+0x1/0x2", "b+0x1/0x2 [nvidia]", "c+0x1/0x2"];
        let first = state(5_000, &stack);
        let second = compared(Some((100, &first)), &state(5_900, &["a+0x9/0x2", stack[1], stack[2]]), 1_100);
        assert_eq!(second.stuck[0].ran, Some(Ran { cpu_ns: 900, over_ns: 1_000 }));
        assert!(second.stuck[0].ran.unwrap().spins());
        assert_eq!(second.stuck[0].same_since, Some(100));
        let third = compared(Some((1_100, &second)), &state(5_900, &stack), 2_100);
        assert_eq!((third.stuck[0].ran.unwrap().spins(), third.stuck[0].same_since), (false, Some(100)));
        let moved = compared(Some((1_100, &third)), &state(5_900, &["x+0x1/0x2"]), 2_100);
        assert_eq!(moved.stuck[0].same_since, None);
    }

    #[test]
    fn times_alone_are_no_news_of_a_sleeping_thread() {
        let first = state(5_000, &["a"]);
        let looked = |known: &ProcessState, at| compared(Some((100, known)), &state(5_000, &["a"]), at);
        let (second, third) = (looked(&first, 500), looked(&first, 900));
        assert_ne!(shape(&first.stuck[0]), shape(&second.stuck[0]));
        assert_eq!(shape(&second.stuck[0]), shape(&third.stuck[0]));
    }
}
