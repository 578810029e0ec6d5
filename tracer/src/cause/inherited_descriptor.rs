//! `inherited_descriptor`: a forked process still has the dead owner's GPU files open.
//!
//! The driver frees a client's memory when the last copy of its open file goes away. fork(2) copies every descriptor,
//! so a helper that was forked after CUDA started (a data loader, a compile worker, a shell) keeps the memory of a
//! dead process although it never touched the GPU itself. NVML still charges the dead PID, or names nobody.
//!
//! * **Must be seen:** the owner is dead (or unknown), and a living process holds descriptions that it did not open,
//!   which it got by fork, itself or through processes that died since.
//! * **Would refute it:** the owner lives; the holder opened the files itself; it received them (`passed_descriptor`).
//! * **Confidence:** exact when the fork was seen and the opener is proven; else inferred, and the evidence says from
//!   what.
//! * **Remedy:** end the holders, all of them. To prevent it: start helpers before CUDA, with the spawn method, or let
//!   them close /dev/nvidia* and die with their parent (PR_SET_PDEATHSIG).

use super::case::{Case, HolderView};
use super::evidence::{confidence, ended};
use super::{Verdict, remedy, words};
use crate::event::Via;

/// Whether this is the cause.
#[must_use]
pub fn judge(case: &Case<'_>) -> Option<Verdict> {
    if case.living_owner().is_some() {
        return None;
    }
    let forked = case.others_via(&[Via::Fork]);
    if forked.is_empty() {
        return None;
    }
    let all: Vec<_> = case.others().map(|holder| holder.process).collect();
    Some(Verdict {
        confidence: confidence(case),
        summary: summary(case, &forked),
        notes: Vec::new(),
        remedies: remedy::end_all(case, &all),
    })
}

fn summary(case: &Case<'_>, forked: &[&HolderView<'_>]) -> String {
    let what = case.what();
    let names: Vec<String> = forked.iter().map(|holder| words::process(holder.process)).collect();
    let who = words::list(&names, 3);
    let Some(owner) = case.owner else {
        let has = if forked.len() == 1 { "has" } else { "have" };
        return format!("{what} belongs to {}; {who} inherited its GPU files and still {has} them open.", case.unknown_owner());
    };
    let children = forked.iter().all(|h| h.from == Some(owner.id) || h.process.born_of == Some(owner.id));
    let holders = match (forked.len(), children) {
        (1, true) => format!("its forked child {who} still has"),
        (1, false) => format!("its forked descendant {who} still has"),
        (n, true) => format!("{n} forked children ({who}) still have"),
        (n, false) => format!("{n} forked descendants ({who}) still have"),
    };
    format!("{what} belonged to {}{}; {holders} its GPU files open.", case.owner_name(), ended(case))
}

#[cfg(test)]
mod tests {
    use crate::event::{ProcessId, Via};
    use crate::explanation::{CauseId, Confidence};
    use crate::story::{CTL, Story, UVM, bare};

    const BASH: (ProcessId, &str) = (ProcessId(12, 5), "bash");

    fn trainer_with_worker(story: &mut Story) -> (ProcessId, ProcessId) {
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_560, &[(574, 2_560)]);
        let worker = story.forks(trainer, 580, "python3");
        (trainer, worker)
    }

    #[test]
    fn a_forked_child_keeps_the_memory_of_a_killed_owner() {
        let mut story = Story::warm();
        let (trainer, worker) = trainer_with_worker(&mut story);
        story.killed(BASH, trainer);
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::InheritedDescriptor);
        assert_eq!(holding.confidence, Confidence::Exact);
        assert_eq!(holding.bytes, Some(2_560 << 20));
        assert_eq!(
            holding.summary,
            "2.5 GiB on GPU 0 belonged to python3 (PID 574), killed by SIGKILL from bash (PID 12) at 12:00:00 UTC; \
             its forked child python3 (PID 580) still has its GPU files open."
        );
        assert_eq!(holding.holders.len(), 1);
        assert_eq!((holding.holders[0].pid, holding.holders[0].via), (worker.tgid(), Via::Fork));
        assert_eq!(holding.holders[0].descriptors.len(), 3);
        let exit = holding.owner.unwrap().exit.unwrap();
        assert_eq!((exit.signal, exit.by.as_deref()), (Some(9), Some("bash (PID 12)")));
        assert_eq!(exit.reaped_by.as_deref(), Some("systemd (PID 1)"));
        assert!(holding.remedy[0].command.as_deref().unwrap().contains("kill -INT 580   # python3, started 2025-06-01"));
        assert_eq!(story.told().exit_code(), 3);
    }

    #[test]
    fn a_child_that_executed_a_program_holds_nothing() {
        let mut story = Story::warm();
        let (trainer, worker) = trainer_with_worker(&mut story);
        story.execs(worker, "sleep");
        story.killed(BASH, trainer);
        story.nvml(0, &[]);
        story.scanned();
        let told = story.told();
        assert!(told.holdings.iter().all(|h| h.cause == CauseId::DriverReserve), "{:#?}", told.holdings);
        assert_eq!(told.exit_code(), 0);
    }

    #[test]
    fn a_child_of_a_living_owner_is_no_cause() {
        let mut story = Story::warm();
        trainer_with_worker(&mut story);
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::OwnerAlive);
        assert_eq!(holding.holders.len(), 2);
    }

    #[test]
    fn the_grandchild_is_named_with_the_chain_through_the_dead_middle() {
        let mut story = Story::warm();
        let (trainer, middle) = trainer_with_worker(&mut story);
        let last = story.forks(middle, 590, "worker");
        story.killed(BASH, trainer);
        story.killed(BASH, middle);
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::InheritedDescriptor);
        assert_eq!(holding.holders.iter().map(|h| h.pid).collect::<Vec<_>>(), [last.tgid()]);
        assert!(holding.summary.contains("its forked descendant worker (PID 590) still has"), "{}", holding.summary);
        let evidence: Vec<&str> = holding.evidence.iter().map(|e| e.what.as_str()).collect();
        assert!(evidence.contains(&"worker (PID 590) was forked from python3 (PID 580) and got 3 GPU files"), "{evidence:#?}");
        assert!(evidence.contains(&"python3 (PID 580) was forked from python3 (PID 574)"));
        assert!(evidence.contains(&"systemd (PID 1) reaped python3 (PID 580)"));
    }

    #[test]
    fn cold_the_owner_is_the_one_dead_pid_that_nvml_names() {
        let mut story = Story::cold();
        let child = ProcessId(580, 900);
        story.info(child, "python3", |info| {
            info.never_execed = Some(true);
            info.cred = Some(77);
        });
        for (fd, dev) in [(5, CTL), (6, UVM)] {
            let mut hold = bare(child, fd, fd as u64, dev);
            (hold.cred, hold.cloexec, hold.opened_cloexec) = (Some(66), Some(true), Some(true));
            story.found(&hold);
        }
        story.nvml(2_574, &[(574, 2_566)]);
        story.push(crate::event::What::ProcessGone { id: ProcessId(574, 0) });
        story.scanned();
        let holding = story.holding();
        assert_eq!(holding.cause, CauseId::InheritedDescriptor);
        assert_eq!(holding.confidence, Confidence::Inferred);
        let owner = holding.owner.unwrap();
        assert_eq!((owner.pid, owner.state.as_str()), (574, "gone"));
        assert_eq!(holding.holders[0].via, Via::Fork);
    }

    #[test]
    fn two_owners_held_by_one_process_are_two_holdings() {
        let mut story = Story::warm();
        let first = story.process(574, "python3");
        story.uses_cuda(first);
        let second = story.forks(first, 575, "python3");
        story.uses_cuda(second);
        let child = story.forks(second, 576, "worker");
        story.killed(BASH, first);
        story.killed(BASH, second);
        story.nvml(300, &[(574, 100), (575, 200)]);
        story.scanned();
        let told = story.told();
        let of: Vec<_> = told.holdings.iter().map(|h| (h.owner.as_ref().unwrap().pid, h.bytes, h.holders[0].pid)).collect();
        assert_eq!(of, [(575, Some(200 << 20), child.tgid()), (574, Some(100 << 20), child.tgid())]);
        assert!(told.holdings.iter().all(|h| h.cause == CauseId::InheritedDescriptor));
    }

    #[test]
    fn one_owner_held_by_many_is_one_holding() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        for pid in 600..606 {
            story.forks(trainer, pid, "pt_data_worker");
        }
        story.killed(BASH, trainer);
        story.nvml(100, &[(574, 100)]);
        let holding = story.holding();
        assert_eq!(holding.holders.len(), 6);
        assert!(holding.summary.contains("6 forked children (pt_data_worker (PID 600), pt_data_worker (PID 601), pt_data_worker (PID 602) and 3 more) still have"), "{}", holding.summary);
        let command = holding.remedy[1].command.as_deref().unwrap();
        assert!(command.starts_with("for p in 600:") && command.contains("; do grep -qw ${p#*:} /proc/${p%:*}/stat && kill -TERM ${p%:*}; done   # "), "{command}");
    }
}
