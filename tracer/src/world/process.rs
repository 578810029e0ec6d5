//! One process: who it is, what was done to it, how it ended.
//!
//! Always true: everything is bounded ([`SIGNALS_MAX`], [`THREADS_MAX`]); a step of the exit that was not seen is absent,
//! never guessed here.

use crate::event::{Action, BootNs, ProcessId, ProcessInfo, ProcessState, SignalResult, Token};

/// Signals kept per process; the newest fatal ones win.
pub const SIGNALS_MAX: usize = 32;
/// Thread exits kept per process.
pub const THREADS_MAX: usize = 64;

/// A signal that was sent to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalSent {
    /// When.
    pub at: BootNs,
    /// Number.
    pub sig: i32,
    /// Sender; `None` when the kernel sent it.
    pub from: Option<ProcessId>,
    /// Sender's comm.
    pub comm: String,
    /// `si_code`.
    pub code: i32,
    /// What became of it.
    pub result: SignalResult,
    /// Delivered when, and with which action.
    pub delivered: Option<(BootNs, Action)>,
}

/// How a process ended, step by step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitRecord {
    /// First thread that exited.
    pub began: Option<BootNs>,
    /// The leader exited.
    pub leader: Option<BootNs>,
    /// (thread, when) of each exit that was seen.
    pub threads: Vec<(u32, BootNs)>,
    /// The last thread exited.
    pub last: Option<BootNs>,
    /// Wait status of the process.
    pub status: Option<u32>,
    /// Files are released and the parent was told.
    pub zombie: Option<BootNs>,
    /// Who was told.
    pub told: Option<ProcessId>,
    /// (when, by whom, comm) it was collected.
    pub reaped: Option<(BootNs, ProcessId, String)>,
    /// Its task_struct was freed, or a scan no longer found it.
    pub gone: Option<BootNs>,
    /// Threads alive when the leader or last seen thread exited.
    pub live: Option<u32>,
    /// The OOM killer chose it.
    pub oom: Option<BootNs>,
    /// NVML no longer charged it with memory.
    pub memory_back: Option<BootNs>,
}

/// Everything known of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Who it is.
    pub info: ProcessInfo,
    /// How it stood at the last scan, and when that was.
    pub state: Option<(BootNs, ProcessState)>,
    /// CPU time at the scan before, for "is it spinning".
    pub earlier_cpu: Option<(BootNs, u64)>,
    /// When a scan first saw it exiting.
    pub exiting_since: Option<BootNs>,
    /// Parent at the time that it was forked or first seen.
    pub launcher: Option<ProcessId>,
    /// Forked by it and seen.
    pub forked_at: Option<BootNs>,
    /// Executed a program since it was forked, as seen.
    pub execed: bool,
    /// It opened an NVIDIA file itself, or had memory.
    pub used_gpu: bool,
    /// The open file descriptions that it holds.
    pub held: Vec<Token>,
    /// Number of living descriptions that it opened.
    pub opened: usize,
    /// Signals sent to it.
    pub signals: Vec<SignalSent>,
    /// Its end.
    pub exit: ExitRecord,
    /// When it was last seen alive.
    pub seen: BootNs,
}

impl Process {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.info.id
    }

    /// A zombie: every thread has exited, and nobody has collected it.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        if self.is_gone() {
            return false;
        }
        self.exit.zombie.is_some()
            || self.state.as_ref().is_some_and(|(_, s)| s.leader_exited && s.live_threads == 0 && !s.exiting)
    }

    /// It is no longer in the process table.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.exit.gone.is_some() || self.exit.reaped.is_some()
    }

    /// Its threads can no longer run user code.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.is_gone() || self.is_zombie()
    }

    /// Its exit has begun and is not complete.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        !self.is_dead()
            && (self.exit.last.is_some() || self.state.as_ref().is_some_and(|(_, s)| s.exiting && (s.live_threads == 0 || !s.leader_exited)))
    }

    /// The main thread has exited and others live.
    #[must_use]
    pub fn leader_exited(&self) -> bool {
        if self.is_dead() || self.exit.last.is_some() {
            return false;
        }
        let by_scan = self.state.as_ref().is_some_and(|(_, s)| s.leader_exited && s.live_threads > 0);
        by_scan || (self.exit.leader.is_some() && self.exit.live.is_some_and(|n| n > 0))
    }

    /// Merges what an event adds.
    pub fn learn(&mut self, info: &ProcessInfo) {
        fn fill<T: Clone>(mine: &mut Option<T>, theirs: &Option<T>) {
            if theirs.is_some() {
                mine.clone_from(theirs);
            }
        }
        let mine = &mut self.info;
        mine.id = info.id;
        fill(&mut mine.parent, &info.parent);
        fill(&mut mine.comm, &info.comm);
        fill(&mut mine.cmdline, &info.cmdline);
        fill(&mut mine.uid, &info.uid);
        fill(&mut mine.ns_pid, &info.ns_pid);
        fill(&mut mine.pgrp, &info.pgrp);
        fill(&mut mine.session, &info.session);
        fill(&mut mine.cgroup, &info.cgroup);
        fill(&mut mine.container, &info.container);
        fill(&mut mine.never_execed, &info.never_execed);
        fill(&mut mine.cred, &info.cred);
        fill(&mut mine.gpu_user, &info.gpu_user);
    }

    /// Keeps a signal; when there are too many, the oldest that was not fatal by default goes first.
    pub fn signalled(&mut self, signal: SignalSent) {
        if self.signals.len() >= SIGNALS_MAX {
            let victim = self.signals.iter().position(|s| !kills_by_default(s.sig)).unwrap_or(0);
            self.signals.remove(victim);
        }
        self.signals.push(signal);
    }

    /// The newest undelivered signal of that number was delivered.
    pub fn delivered(&mut self, at: BootNs, sig: i32, action: Action) {
        if let Some(signal) = self.signals.iter_mut().rev().find(|s| s.sig == sig && s.delivered.is_none()) {
            signal.delivered = Some((at, action));
        }
    }
}

/// The default action of this signal ends the process (signal(7)).
#[must_use]
pub fn kills_by_default(sig: i32) -> bool {
    // SIGCHLD 17, SIGCONT 18, SIGSTOP 19, SIGTSTP 20, SIGTTIN 21, SIGTTOU 22, SIGURG 23, SIGWINCH 28.
    (1..=64).contains(&sig) && !matches!(sig, 17..=23 | 28)
}

/// "SIGKILL", or "signal 42".
#[must_use]
pub fn signal_name(sig: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
        "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
        "PWR", "SYS",
    ];
    usize::try_from(sig)
        .ok()
        .and_then(|n| NAMES.get(n.wrapping_sub(1)))
        .map_or_else(|| format!("signal {sig}"), |name| format!("SIG{name}"))
}
