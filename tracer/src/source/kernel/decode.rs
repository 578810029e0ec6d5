//! Bytes of the ring and of the iterators to events and lines. Pure.
//!
//! Always true: nothing is trusted. A record's number is looked at first, then its length; a number that is not known
//! or a length that does not fit is counted and skipped. Kernel addresses end here: they become tokens.

use std::mem::{offset_of, size_of};

use outlive_ebpf::record::{self, Kind, flag, step};

use crate::event::{Action, BootNs, Dev, Event, Hold, ProcessId, ProcessInfo, ReleaseStep, Role, SignalResult, Token, Via, What};
use crate::snapshot::TaskLine;

/// `PF_FORKNOEXEC` (include/linux/sched.h): forked but never executed a program.
const PF_FORKNOEXEC: u32 = 0x40;
/// Bits of a token: exact as a JSON number.
const TOKEN_MASK: u64 = (1 << 48) - 1;

/// Turns kernel addresses into tokens, with a random key that no trace file contains.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    key: u64,
}

impl Tokens {
    /// With this key; ring and iterators of one run must share it.
    #[must_use]
    pub const fn with_key(key: u64) -> Tokens {
        Tokens { key }
    }

    /// With a random key.
    #[must_use]
    pub fn random() -> Tokens {
        use std::hash::{BuildHasher as _, Hasher as _};
        // RandomState is keyed by the system's random numbers; the hash of nothing is a function of that key alone.
        Tokens { key: std::hash::RandomState::new().build_hasher().finish() }
    }

    /// The token of an address: 0 for NULL, and otherwise equal exactly when the addresses are (they differ in their
    /// lower 48 bits: even with 57-bit addresses, slab memory lies within one 256 TiB direct map).
    #[must_use]
    pub const fn of(self, address: u64) -> Token {
        if address == 0 { 0 } else { (address ^ self.key) & TOKEN_MASK }
    }

    /// The token of the `index`-th file registered in the io_uring instance whose `struct file` has token `ring`.
    ///
    /// fdinfo tells no file's identity, so this is one that no file has: a `struct file` is at least 8-byte aligned, and
    /// this stands for an odd address just behind the ring's own. It is stable from scan to scan.
    #[must_use]
    pub const fn registered(self, ring: Token, index: u32) -> Token {
        self.of((ring ^ self.key & TOKEN_MASK).wrapping_add(1 + 2 * index as u64))
    }
}

/// What one record of the ring is.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// An event.
    Event(Event),
    /// This process changed its descriptors in a way that only a scan can follow.
    FilesChanged(ProcessId),
    /// Not a record of the ring that this version knows, or one that is too short.
    Unknown,
}

/// One line of `iter/task_file`.
#[derive(Clone, Debug, PartialEq)]
pub struct FileLine {
    /// Held, InFlight or IoUring.
    pub kind: Kind,
    /// What is held. For IoUring: `file` is the ring's own token and `dev` means nothing.
    pub hold: Hold,
    /// Token of the files table that the descriptor is in.
    pub files: Token,
}

/// One line of an iterator.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// `iter/task`.
    Task(TaskLine),
    /// `iter/task_file`.
    File(FileLine),
    /// Neither.
    Unknown,
}

/// A record's bytes, known to be long enough for `T`'s fields when made by [`Record::sized`].
#[derive(Clone, Copy)]
struct Record<'a>(&'a [u8]);

/// A field of a record, by its place in the shared struct.
macro_rules! get {
    ($record:expr, $read:ident, $structure:ident, $($field:tt)+) => {
        $record.$read(offset_of!(record::$structure, $($field)+))
    };
}

impl<'a> Record<'a> {
    fn sized<T>(bytes: &'a [u8]) -> Option<Record<'a>> {
        (bytes.len() >= size_of::<T>()).then_some(Record(bytes))
    }
    /// Zero when out of range, which a record of checked size never is.
    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
    fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }
    fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }
    fn i32(self, at: usize) -> i32 {
        i32::from_ne_bytes(self.array(at))
    }
    fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }
    fn comm(self, at: usize) -> String {
        text(&self.array::<{ outlive_ebpf::limits::COMM_LEN }>(at))
    }
    fn process(self, at: usize) -> ProcessId {
        ProcessId(self.u32(at + offset_of!(record::Proc, tgid)), self.u64(at + offset_of!(record::Proc, start)))
    }
    /// `None` for tgid 0: nobody.
    fn somebody(self, at: usize) -> Option<ProcessId> {
        Some(self.process(at)).filter(|id| id.tgid() != 0)
    }
    fn who(self) -> ProcessId {
        get!(self, process, Header, who)
    }
    fn tid(self) -> u32 {
        get!(self, u32, Header, who.tid)
    }
    fn has(self, bit: u32) -> bool {
        get!(self, u32, Header, flags) & bit != 0
    }
}

/// The text before the first NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// The kind of a record and the process that it is about, if it has a whole header and a known number.
#[must_use]
pub fn kind_of(bytes: &[u8]) -> Option<(Kind, ProcessId)> {
    let record = Record::sized::<record::Header>(bytes)?;
    Some((Kind::from_number(get!(record, u16, Header, kind))?, record.who()))
}

/// One record of the ring.
#[must_use]
pub fn ring(bytes: &[u8], tokens: Tokens) -> Decoded {
    let Some((kind, who)) = kind_of(bytes) else { return Decoded::Unknown };
    if kind == Kind::FilesChanged {
        return Decoded::FilesChanged(who);
    }
    match what(kind, bytes, tokens) {
        Some(what) => Decoded::Event(Event { at: get!(Record(bytes), u64, Header, at), what }),
        None => Decoded::Unknown,
    }
}

fn what(kind: Kind, bytes: &[u8], tokens: Tokens) -> Option<What> {
    match kind {
        Kind::Task => task_info(bytes, tokens),
        Kind::Fork | Kind::Exec | Kind::Exit | Kind::Free | Kind::Reap | Kind::OomVictim => life(kind, bytes, tokens),
        Kind::SignalGenerate => generated(Record::sized::<record::Signal>(bytes)?),
        Kind::SignalDeliver => delivered(Record::sized::<record::Signal>(bytes)?),
        Kind::Open | Kind::Dup | Kind::Close | Kind::Sent | Kind::Received | Kind::Stolen => file(kind, bytes, tokens),
        Kind::Rm => rm::granted(Record::sized::<record::Rm>(bytes)?, tokens).map(|rm| What::Rm(Box::new(rm))),
        Kind::Release => release(Record::sized::<record::Release>(bytes)?, tokens),
        Kind::Xid => xid(Record::sized::<record::Xid>(bytes)?),
        Kind::FilesChanged | Kind::Held | Kind::InFlight | Kind::IoUring => None,
    }
}

fn task_info(bytes: &[u8], tokens: Tokens) -> Option<What> {
    let record = Record::sized::<record::Task>(bytes)?;
    Some(What::Process(Box::new(ProcessInfo {
        id: record.who(),
        parent: get!(record, somebody, Task, parent),
        comm: Some(get!(record, comm, Task, header.comm)),
        uid: Some(get!(record, u32, Task, uid)),
        ns_pid: (get!(record, u32, Task, ns_level) > 0).then(|| get!(record, u32, Task, ns_pid)),
        pgrp: Some(get!(record, u32, Task, pgrp)),
        session: Some(get!(record, u32, Task, session)),
        never_execed: Some(get!(record, u32, Task, task_flags) & PF_FORKNOEXEC != 0),
        cred: Some(tokens.of(get!(record, u64, Task, cred))),
        gpu_user: Some(record.has(flag::GPU_USER)),
        ..ProcessInfo::default()
    })))
}

fn life(kind: Kind, bytes: &[u8], tokens: Tokens) -> Option<What> {
    let id = Record(bytes).who();
    let comm = |record: Record<'_>| get!(record, comm, Header, comm);
    Some(match kind {
        Kind::Fork => {
            let record = Record::sized::<record::Fork>(bytes)?;
            let cred = tokens.of(get!(record, u64, Fork, cred));
            What::Fork { parent: get!(record, process, Fork, parent), child: id, comm: comm(record), cred: Some(cred) }
        }
        Kind::Exec => {
            let record = Record::sized::<record::Exec>(bytes)?;
            let path = text(&record.array::<{ outlive_ebpf::limits::PATH_LEN }>(offset_of!(record::Exec, path)));
            What::Exec { id, comm: comm(record), path, cred: Some(tokens.of(get!(record, u64, Exec, cred))) }
        }
        Kind::Exit => {
            let record = Record::sized::<record::Exit>(bytes)?;
            What::Exit {
                id,
                tid: record.tid(),
                code: get!(record, u32, Exit, code),
                group_code: record.has(flag::GROUP_EXIT).then(|| get!(record, u32, Exit, group_code)),
                live: get!(record, u32, Exit, live),
                last: record.has(flag::LAST_THREAD),
                parent: get!(record, somebody, Exit, parent),
            }
        }
        Kind::Free => What::Free { id },
        Kind::Reap => {
            let record = Record::sized::<record::Reap>(bytes)?;
            What::Reap { by: id, comm: comm(record), child: get!(record, u32, Reap, child) }
        }
        Kind::OomVictim => What::OomVictim { pid: Record(bytes).tid() },
        _ => return None,
    })
}

/// A signal, or, when it is SIGCHLD, the moment in which its sender became a zombie: the programs let only that one
/// through (see [`Kind::SignalGenerate`]).
fn generated(record: Record<'_>) -> Option<What> {
    let sig = get!(record, i32, Signal, number);
    let sender = get!(record, process, Signal, sender);
    if sig == libc::SIGCHLD {
        return Some(What::Zombie { id: sender, parent: record.who() });
    }
    // TRACE_SIGNAL_* of include/trace/events/signal.h.
    let result = match get!(record, i32, Signal, result) {
        0 => SignalResult::Queued,
        1 => SignalResult::Ignored,
        2 => SignalResult::AlreadyPending,
        3 => SignalResult::Overflow,
        4 => SignalResult::LostInfo,
        _ => return None,
    };
    let by_process = !record.has(flag::KERNEL);
    Some(What::Signal {
        to: record.who(),
        tid: (!record.has(flag::GROUP)).then(|| record.tid()),
        sig,
        from: by_process.then_some(sender),
        comm: if by_process { get!(record, comm, Signal, sender_comm) } else { String::new() },
        uid: by_process.then(|| get!(record, u32, Signal, sender_uid)),
        code: get!(record, i32, Signal, code),
        result,
    })
}

fn delivered(record: Record<'_>) -> Option<What> {
    let action = match get!(record, i32, Signal, result) {
        0 => Action::Default,
        1 => Action::Ignored,
        2 => Action::Handled,
        _ => return None,
    };
    Some(What::Deliver { id: record.who(), tid: record.tid(), sig: get!(record, i32, Signal, number), action })
}

fn file(kind: Kind, bytes: &[u8], tokens: Tokens) -> Option<What> {
    let record = Record::sized::<record::File>(bytes)?;
    let id = record.who();
    let mut hold = hold(record, tokens);
    match kind {
        Kind::Close => return Some(What::Drop { id, tid: hold.tid, fd: hold.fd, file: hold.file }),
        Kind::Sent => {
            let socket = Some(get!(record, u64, File, socket)).filter(|inode| *inode != 0);
            return Some(What::Sent { id, file: hold.file, dev: hold.dev, socket });
        }
        Kind::Open => {
            hold.via = Some(Via::Opened);
            // open(2) sets the descriptor's bit and, since 5.14, keeps O_CLOEXEC out of `f_flags` (build_open_flags,
            // fs/open.c): how a file was opened is only known at this moment.
            hold.opened_cloexec = hold.cloexec;
            hold.opener = Some(id);
        }
        Kind::Received => hold.via = Some(Via::ScmRights),
        Kind::Stolen => hold.via = Some(Via::PidfdGetfd),
        _ => {}
    }
    hold.since = Some(get!(record, u64, Header, at));
    Some(What::Hold(Box::new(hold)))
}

/// What is common to all records of one descriptor.
fn hold(record: Record<'_>, tokens: Tokens) -> Hold {
    let id = record.who();
    let tid = record.tid();
    Hold {
        id,
        tid: (!record.has(flag::SHARED_FILES) && tid != id.tgid()).then_some(tid),
        fd: get!(record, i32, File, fd),
        file: tokens.of(get!(record, u64, File, file)),
        dev: Dev(get!(record, u32, File, dev)),
        cred: Some(tokens.of(get!(record, u64, File, cred))).filter(|token| *token != 0),
        cloexec: Some(record.has(flag::CLOEXEC)),
        opened_cloexec: record.has(flag::OPENED_CLOEXEC).then_some(true),
        role: role(record),
        pins: Some(tokens.of(get!(record, u64, File, pins))).filter(|token| *token != 0),
        bytes: Some(get!(record, u64, File, bytes)).filter(|bytes| *bytes != 0),
        ..Hold::default()
    }
}

/// What the driver made of the description, as far as the programs could read it.
fn role(record: Record<'_>) -> Option<Role> {
    let roles = [(flag::EXPORTED, Role::Exported), (flag::UVM_SPACE, Role::Space), (flag::UVM_MM, Role::SpaceMm)];
    roles.into_iter().find(|(bit, _)| record.has(*bit)).map(|(_, role)| role)
}

fn release(record: Record<'_>, tokens: Tokens) -> Option<What> {
    Some(What::Release {
        by: record.who(),
        tid: record.tid(),
        comm: get!(record, comm, Header, comm),
        file: Some(tokens.of(get!(record, u64, Release, file))).filter(|token| *token != 0),
        dev: Dev(get!(record, u32, Release, dev)),
        step: match get!(record, u32, Release, step) {
            step::BEGIN => ReleaseStep::Begin,
            step::END => ReleaseStep::End,
            step::DEFERRED_BEGIN => ReleaseStep::DeferredBegin,
            step::DEFERRED_END => ReleaseStep::DeferredEnd,
            _ => return None,
        },
    })
}

fn xid(record: Record<'_>) -> Option<What> {
    let message = text(&record.array::<{ outlive_ebpf::limits::PATH_LEN }>(offset_of!(record::Xid, message)));
    let pid = message.split_once("pid=").and_then(|(_, rest)| {
        let digits: String = rest.trim_start_matches('\'').chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    let pci = text(&record.array::<32>(offset_of!(record::Xid, device)));
    Some(What::Xid { pci, code: get!(record, u32, Xid, code), pid, message })
}

/// One record of an iterator.
#[must_use]
pub fn line(bytes: &[u8], tokens: Tokens) -> Line {
    let decoded = kind_of(bytes).and_then(|(kind, _)| match kind {
        Kind::Task => task_line(Record::sized::<record::Task>(bytes)?, tokens).map(Line::Task),
        Kind::Held | Kind::InFlight | Kind::IoUring => {
            file_line(kind, Record::sized::<record::File>(bytes)?, tokens).map(Line::File)
        }
        _ => None,
    });
    decoded.unwrap_or(Line::Unknown)
}

fn task_line(record: Record<'_>, tokens: Tokens) -> Option<TaskLine> {
    Some(TaskLine {
        id: record.who(),
        tid: record.tid(),
        comm: get!(record, comm, Task, header.comm),
        parent: get!(record, process, Task, parent),
        tracer: get!(record, somebody, Task, tracer),
        cred: tokens.of(get!(record, u64, Task, cred)),
        files: tokens.of(get!(record, u64, Task, files)),
        cpu_ns: get!(record, u64, Task, cpu_ns),
        state: get!(record, u32, Task, state),
        exit_state: get!(record, u32, Task, exit_state),
        flags: get!(record, u32, Task, task_flags),
        exit_code: get!(record, u32, Task, exit_code),
        live: get!(record, u32, Task, live),
        jobctl: get!(record, u32, Task, jobctl),
        uid: get!(record, u32, Task, uid),
        ns_pid: get!(record, u32, Task, ns_pid),
        ns_level: get!(record, u32, Task, ns_level),
        ioctl: get!(record, u32, Task, ioctl).checked_sub(1).and_then(|fd| i32::try_from(fd).ok()),
        session: get!(record, u32, Task, session),
        pgrp: get!(record, u32, Task, pgrp),
    })
}

fn file_line(kind: Kind, record: Record<'_>, tokens: Tokens) -> Option<FileLine> {
    let mut hold = hold(record, tokens);
    hold.via = match kind {
        Kind::InFlight => Some(Via::InFlight),
        Kind::IoUring => Some(Via::IoUring),
        _ => None,
    };
    if hold.via.is_some() {
        // This bit is that of the socket or ring, not of the NVIDIA file.
        hold.cloexec = None;
    }
    if kind == Kind::IoUring {
        hold.cred = None;
    }
    Some(FileLine { kind, hold, files: tokens.of(get!(record, u64, File, files)) })
}

/// Cuts a stream of records into records: each one's header says how long it is.
///
/// Returns the bytes that are used up; what is left is the beginning of a record, to be completed. A header that
/// cannot be (shorter than itself) ends the stream: `None`.
pub fn split<'a>(mut bytes: &'a [u8], mut each: impl FnMut(&'a [u8])) -> Option<usize> {
    let mut used = 0;
    while let Some(record) = Record::sized::<record::Header>(bytes) {
        let size = usize::from(get!(record, u16, Header, size));
        if size < size_of::<record::Header>() {
            return None;
        }
        let Some((record, rest)) = bytes.split_at_checked(size) else { break };
        each(record);
        used += size;
        bytes = rest;
    }
    Some(used)
}

/// An event that says that records were lost or could not be read.
#[must_use]
pub fn lost(at: BootNs, cause: &str, count: u64) -> Event {
    Event { at, what: What::Lost { cause: cause.to_owned(), count } }
}

mod rm;
#[cfg(test)]
mod tests;
