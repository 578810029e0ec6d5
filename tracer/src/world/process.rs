//! What is known of one process: who it is, how it stands, which signals it got, and how it ended.
//!
//! Always true: a [`Process`] only ever learns; its [`Stage`] never goes back. Threads count: a process whose leader
//! exited is alive while any thread is.

use super::release::Released;
use super::signal::{self, SignalRecord, Signals};
use crate::event::{BootNs, ProcessId, ProcessInfo, ProcessState, Token};

/// Thread exits kept one by one; more are only counted.
pub const THREADS_KEPT: usize = 8;

/// How far a process has come. Ordered: later is further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It runs, sleeps, is stopped: its exit has not begun.
    Alive,
    /// Its exit has begun and it may still have its files.
    Exiting,
    /// Files released, waiting to be reaped.
    Zombie,
    /// Reaped, freed or no longer found.
    Gone,
}

/// One thread's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadExit {
    /// When.
    pub at: BootNs,
    /// Thread id.
    pub tid: u32,
    /// Its wait status.
    pub code: u32,
}

/// How a process ended, as far as was seen. Every time may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitRecord {
    /// The group's exit began: first thread to exit after the group was told to, or the last one.
    pub began: Option<BootNs>,
    /// The leader exited.
    pub leader: Option<BootNs>,
    /// Thread exits: the first ones and the newest, [`THREADS_KEPT`] in all.
    pub threads: Vec<ThreadExit>,
    /// All thread exits.
    pub thread_count: u32,
    /// Threads left after the last exit that was seen.
    pub live: Option<u32>,
    /// The last thread reached `sched_process_exit`.
    pub last_thread: Option<BootNs>,
    /// Wait status of the group.
    pub code: Option<u32>,
    /// What the driver released on its way, when that could be seen.
    pub releases: Option<Released>,
    /// It became a zombie (seen).
    pub zombie: Option<BootNs>,
    /// A scan found it as a zombie; when it became one was not seen.
    pub found_zombie: Option<BootNs>,
    /// Who was told.
    pub told: Option<ProcessId>,
    /// Who reaped it, and when.
    pub reaped: Option<(BootNs, ProcessId, Box<str>)>,
    /// `task_struct` freed.
    pub freed: Option<BootNs>,
    /// A scan no longer found it, or its PID was used again.
    pub gone: Option<BootNs>,
}

/// Everything that is known of one process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Who it is. `info.parent` is the parent now.
    pub info: ProcessInfo,
    /// Who forked it, when that was seen.
    pub born_of: Option<ProcessId>,
    /// The first parent that was known: its launcher, unless it had been adopted before.
    pub first_parent: Option<ProcessId>,
    /// When it was forked.
    pub forked_at: Option<BootNs>,
    /// Its last exec that was seen.
    pub execed_at: Option<BootNs>,
    /// How it stood, and when that was looked at.
    pub state: Option<(BootNs, Box<ProcessState>)>,
    /// Signals.
    pub signals: Signals,
    /// How it ended.
    pub exit: ExitRecord,
    /// The open file descriptions that it holds (sorted).
    pub files: Vec<Token>,
    /// It has held an NVIDIA file at some time.
    pub held: bool,
    /// The last description that it opened was released.
    pub released_at: Option<BootNs>,
    /// The OOM killer chose it.
    pub oom_at: Option<BootNs>,
    /// NVML charged memory to it.
    pub charged: bool,
    /// NVML stopped charging memory to it.
    pub uncharged_at: Option<BootNs>,
    /// First event that mentioned it.
    pub first_seen: BootNs,
}

impl Process {
    /// Who.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.info.id
    }

    /// comm, "?" when unknown.
    #[must_use]
    pub fn comm(&self) -> &str {
        self.info.comm.as_deref().unwrap_or("?")
    }

    /// How far it has come.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let exit = &self.exit;
        if exit.reaped.is_some() || exit.freed.is_some() || exit.gone.is_some() {
            Stage::Gone
        } else if exit.zombie.is_some() || exit.found_zombie.is_some() {
            Stage::Zombie
        } else if exit.began.is_some() || exit.last_thread.is_some() || self.state().is_some_and(|s| s.exiting) {
            Stage::Exiting
        } else {
            Stage::Alive
        }
    }

    /// It can still hold files.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.stage() <= Stage::Exiting
    }

    /// How it stood when last looked at.
    #[must_use]
    pub fn state(&self) -> Option<&ProcessState> {
        self.state.as_ref().map(|(_, state)| &**state)
    }

    /// NVML charged memory to it, and it ended since: it may have left some.
    #[must_use]
    pub fn left_since(&self, settled: BootNs) -> bool {
        self.charged && self.stage() >= Stage::Zombie && self.ended_at().is_none_or(|at| at >= settled)
    }

    /// The first time at which it was certainly past its end.
    #[must_use]
    pub fn ended_at(&self) -> Option<BootNs> {
        let exit = &self.exit;
        exit.last_thread.or(exit.zombie).or(exit.began).or(exit.reaped.as_ref().map(|r| r.0)).or(exit.freed)
    }

    /// The signal that ended it, by its wait status.
    #[must_use]
    pub fn killed_by(&self) -> Option<i32> {
        let sig = self.exit.code? & 0x7f;
        (sig != 0).then(|| sig.cast_signed())
    }

    /// The record of the signal that ended it.
    #[must_use]
    pub fn fatal_signal(&self) -> Option<&SignalRecord> {
        let sig = self.killed_by()?;
        // Later signals of the same number found it already dying.
        let of_it = || self.signals.iter().filter(|r| r.sig == sig);
        of_it().find(|r| r.delivered.is_some()).or_else(|| of_it().next())
    }

    /// The signal that stopped it, when it is still stopped by it.
    #[must_use]
    pub fn stop_signal(&self) -> Option<&SignalRecord> {
        let last = self.signals.iter().rev().find(|r| signal::is_stop(r.sig) || r.sig == signal::SIGCONT)?;
        (last.sig != signal::SIGCONT && last.delivered.is_none_or(|(_, a)| a == crate::event::Action::Default))
            .then_some(last)
    }

    /// Adds what a later event says to what is known.
    pub fn learn(&mut self, news: &ProcessInfo) {
        macro_rules! take {
            ($($field:ident),*) => { $(
                if news.$field.is_some() && news.$field != self.info.$field { self.info.$field.clone_from(&news.$field); }
            )* };
        }
        self.first_parent = self.first_parent.or(news.parent);
        take!(parent, comm, cmdline, uid, ns_pid, pgrp, session, cgroup, container, never_execed, cred, gpu_user, pids);
    }

    /// It executes a new program. The thread that does so becomes the leader, and all others have exited (`de_thread`,
    /// fs/exec.c): of a process that lives on, their exits mean nothing any more.
    pub fn executes(&mut self, at: BootNs, comm: &str, path: &str) {
        self.execed_at = Some(at);
        self.info.never_execed = Some(false);
        self.info.comm = Some(comm.to_owned());
        self.info.cmdline = Some(path.to_owned());
        if self.stage() == Stage::Alive {
            self.exit = ExitRecord::default();
            if let Some((_, state)) = &mut self.state {
                state.leader_exited = false;
            }
        }
    }

    /// A thread exits.
    pub fn thread_exits(&mut self, at: BootNs, thread: ThreadExit, live: u32, last: bool, group: Option<u32>) {
        let leader = thread.tid == self.id().tgid();
        let exit = &mut self.exit;
        if leader {
            exit.leader = Some(at);
        }
        exit.thread_count = exit.thread_count.saturating_add(1);
        // The first ones and the newest: the last thread's exit is always there.
        exit.threads.truncate(THREADS_KEPT - 1);
        exit.threads.push(thread);
        exit.live = Some(exit.live.map_or(live, |known| known.min(live)));
        if last {
            exit.last_thread = Some(at);
        }
        if group.is_some() || last {
            exit.began = Some(exit.began.map_or(at, |known| known.min(at)));
            // Of a group that was never told to exit, the wait status is its leader's.
            let own = exit.threads.iter().find(|t| t.tid == self.info.id.tgid()).map(|t| t.code);
            exit.code = group.or(exit.code).or(own).or(Some(thread.code));
        }
    }

    /// Keeps only what a timeline needs.
    pub fn shrink(&mut self) {
        self.files = Vec::new();
        self.state = None;
        self.signals.shrink();
        self.info.cgroup = None;
        self.info.pids = None;
        self.exit.threads.shrink_to_fit();
    }
}

impl ExitRecord {
    /// The last thing that was seen of its end.
    #[must_use]
    pub fn last_known(&self) -> Option<BootNs> {
        let reaped = self.reaped.as_ref().map(|reaped| reaped.0);
        self.gone.max(self.freed).max(reaped).max(self.zombie).max(self.last_thread)
    }
}
