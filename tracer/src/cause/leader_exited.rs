//! `leader_exited`: the main thread is gone, other threads live and hold everything.
//!
//! `ps` shows the process as a zombie (`Zl`, `<defunct>`), /proc/PID/fd is empty, fuser and lsof find nothing and
//! nvidia-smi cannot name it; yet it is a living process: its threads have its memory and its descriptors.
//!
//! * **Must be seen:** the leader exited and the group has live threads.
//! * **Would refute it:** no live thread (then it is a real zombie and holds nothing).
//! * **Confidence:** exact.
//! * **Remedy:** signal the PID as usual: signals go to the whole group.

use super::case::Case;
use super::evidence::{confidence, note};
use super::{Verdict, remedy, words};
use crate::world::process::Stage;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    let process = case.living_owner().filter(|process| process.stage() == Stage::Alive)?;
    let state = process.state();
    if process.exit.leader.is_none() && !state.is_some_and(|state| state.leader_exited) {
        return None;
    }
    let looked = process.state.as_ref().filter(|(at, _)| Some(*at) > process.exit.leader);
    let live = looked.map(|(_, state)| state.live_threads).or(process.exit.live).filter(|live| *live > 0)?;
    let name = words::process(process);
    let threads = words::count(live as usize, "thread lives on and holds", "threads live on and hold");
    let at = words::at(case.world, process.exit.leader);
    let mut notes = vec![note(process.exit.leader, format!("The main thread of {name} exited; {threads} what it had"))];
    let mut tids: Vec<u32> = case.holders.iter().flat_map(|h| h.descriptors.iter().filter_map(|d| d.2)).collect();
    tids.sort_unstable();
    tids.dedup();
    if !tids.is_empty() {
        let tids: Vec<String> = tids.iter().map(ToString::to_string).collect();
        let tids = words::list(&tids, 8);
        let pid = process.id().tgid();
        notes.push(note(None, format!("The descriptors are in /proc/{pid}/task/TID/fd of thread {tids}, not in /proc/{pid}/fd")));
    }
    Some(Verdict {
        confidence: confidence(case),
        summary: format!("{} belongs to {name}: its main thread exited{at}, so it looks like a zombie, but {threads} everything.", case.what()),
        notes,
        remedies: remedy::end_all(case, &[process]),
    })
}
