//! Signals that one process received: bounded, the ones that decide its fate kept longest.
//!
//! Always true: at most [`KEPT`] records; a record is one signal as it was generated, joined with its delivery when
//! that was seen.

use crate::event::{Action, BootNs, ProcessId, SignalResult};

/// Records kept for one process.
pub const KEPT: usize = 16;

/// One signal, from generation to delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalRecord {
    /// Number.
    pub sig: i32,
    /// When it was generated; absent when only the delivery was seen.
    pub sent: Option<BootNs>,
    /// Target thread, when directed at one.
    pub tid: Option<u32>,
    /// Sender; absent when the kernel sent it or the sending was not seen.
    pub from: Option<ProcessId>,
    /// Sender's comm.
    pub comm: Box<str>,
    /// Sender's uid.
    pub uid: Option<u32>,
    /// `si_code`; > 0 when the kernel made it (include/uapi/asm-generic/siginfo.h, SI_FROMKERNEL).
    pub code: i32,
    /// What became of it when it was generated.
    pub result: SignalResult,
    /// When and with which action it was delivered.
    pub delivered: Option<(BootNs, Action)>,
}

/// The signals of one process, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Signals(Vec<SignalRecord>);

impl Signals {
    /// Oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SignalRecord> {
        self.0.iter()
    }

    /// A signal was generated.
    pub fn sent(&mut self, record: SignalRecord) {
        self.make_room();
        self.0.push(record);
    }

    /// A signal was delivered: joins it to the record of its generation.
    ///
    /// A group that dies of any signal sees SIGKILL delivered to its threads (`complete_signal`, kernel/signal.c
    /// queues it to each), and so does one whose thread calls exit_group: such a delivery belongs to the signal that
    /// started the exit, and to none when there was none.
    pub fn delivered(&mut self, at: BootNs, sig: i32, action: Action) {
        let waiting = |r: &&mut SignalRecord| r.delivered.is_none() && r.result != SignalResult::Ignored;
        if let Some(record) = self.0.iter_mut().rev().filter(waiting).find(|r| r.sig == sig) {
            record.delivered = Some((at, action));
        } else if sig == SIGKILL {
            if let Some(record) = self.0.iter_mut().rev().filter(waiting).find(|r| is_fatal_by_default(r.sig)) {
                record.delivered = Some((at, Action::Default));
            }
        } else {
            self.sent(SignalRecord {
                sig,
                sent: None,
                tid: None,
                from: None,
                comm: "".into(),
                uid: None,
                code: 0,
                result: SignalResult::Queued,
                delivered: Some((at, action)),
            });
        }
    }

    /// The newest record of this number.
    #[must_use]
    pub fn last_of(&self, sig: i32) -> Option<&SignalRecord> {
        self.0.iter().rev().find(|r| r.sig == sig)
    }

    /// Drops all but what explains an exit: used when a process is only remembered.
    pub fn shrink(&mut self) {
        self.0.retain(is_decisive);
        self.0.truncate(4);
        self.0.shrink_to_fit();
    }

    fn make_room(&mut self) {
        if self.0.len() < KEPT {
            return;
        }
        // The first decisive signal is what killed it: it goes last of all.
        let victim = self.0.iter().position(|r| !is_decisive(r)).unwrap_or(1);
        self.0.remove(victim);
    }
}

/// SIGKILL.
pub const SIGKILL: i32 = 9;
/// SIGCONT.
pub const SIGCONT: i32 = 18;

fn is_decisive(record: &SignalRecord) -> bool {
    if record.result == SignalResult::Ignored || record.result == SignalResult::AlreadyPending {
        return false;
    }
    match record.delivered {
        Some((_, Action::Default)) => is_fatal_by_default(record.sig) || is_stop(record.sig),
        Some(_) => false,
        None => record.sig == SIGKILL,
    }
}

/// The default action ends the process (signal(7)).
#[must_use]
pub const fn is_fatal_by_default(sig: i32) -> bool {
    // CHLD, CONT, URG and WINCH are ignored by default.
    !is_stop(sig) && !matches!(sig, 17 | 18 | 23 | 28)
}

/// The default action dumps core (`SIG_KERNEL_COREDUMP_MASK`, include/linux/signal.h).
#[must_use]
pub const fn dumps_core(sig: i32) -> bool {
    matches!(sig, 3 | 4 | 5 | 6 | 7 | 8 | 11 | 24 | 25 | 31)
}

/// The default action stops the process.
#[must_use]
pub const fn is_stop(sig: i32) -> bool {
    matches!(sig, 19..=22)
}

/// People and job managers send it to end a process.
#[must_use]
pub const fn asks_to_end(sig: i32) -> bool {
    matches!(sig, 1 | 2 | 3 | 9 | 15)
}

/// "SIGKILL", "signal 40".
#[must_use]
pub fn name(sig: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(sig).ok().and_then(|n| n.checked_sub(1)).and_then(|n| NAMES.get(n)) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {sig}"),
    }
}
