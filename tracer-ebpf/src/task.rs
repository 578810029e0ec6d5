//! What is read of a `task_struct`, and the record that describes one.
//!
//! Always true: every read goes through [`Memory`], and nothing here filters.
#![expect(unsafe_code, reason = "records are filled in place")]

use core::mem::MaybeUninit;

use outlive_ebpf::record::{self, Kind, Proc, flag};

use crate::{
    kernel::{Memory, Raw, Typed, offset},
    ring::{self, fill},
};

/// `SIGNAL_GROUP_EXIT` (include/linux/sched/signal.h).
const SIGNAL_GROUP_EXIT: u32 = 4;
/// Index of the process group in `signal_struct.pids` (enum pid_type, include/linux/pid_types.h).
const PIDTYPE_PGID: usize = 2;
/// Index of the session in `signal_struct.pids`.
const PIDTYPE_SID: usize = 3;
/// Size of `struct upid`: one number per PID namespace (include/linux/pid.h).
const UPID_SIZE: u32 = 16;
/// `PF_EXITING` (include/linux/sched.h).
pub(crate) const PF_EXITING: u32 = 0x4;
/// `PF_KTHREAD`.
pub(crate) const PF_KTHREAD: u32 = 0x20_0000;

/// A `task_struct`.
#[derive(Clone, Copy)]
pub(crate) struct Task<M>(pub(crate) M);

impl Task<Typed> {
    /// The running thread.
    #[inline(always)]
    pub(crate) fn current() -> Task<Typed> {
        Task(Typed::current())
    }
}

impl<M: Memory> Task<M> {
    /// Thread id.
    #[inline(always)]
    pub(crate) fn tid(self) -> u32 {
        self.0.get(offset!(task_pid))
    }
    /// Thread-group id.
    #[inline(always)]
    pub(crate) fn tgid(self) -> u32 {
        self.0.get(offset!(task_tgid))
    }
    /// Leader of its thread group.
    #[inline(always)]
    pub(crate) fn leader(self) -> Task<M::Target> {
        Task(self.0.follow(offset!(task_group_leader)))
    }
    /// When this thread started.
    #[inline(always)]
    pub(crate) fn started(self) -> u64 {
        self.0.get(offset!(task_start_boottime))
    }
    /// Who is to wait for it, and adopts its orphans' history: `real_parent`.
    #[inline(always)]
    pub(crate) fn parent(self) -> Task<M::Target> {
        Task(self.0.follow(offset!(task_real_parent)))
    }
    /// Thread name.
    #[inline(always)]
    pub(crate) fn comm(self) -> [u8; 16] {
        self.0.text(offset!(task_comm))
    }
    /// `PF_*`.
    #[inline(always)]
    pub(crate) fn flags(self) -> u32 {
        self.0.get(offset!(task_flags))
    }
    /// Wait status.
    #[inline(always)]
    pub(crate) fn exit_code(self) -> u32 {
        self.0.get(offset!(task_exit_code))
    }
    /// Address of its credentials.
    #[inline(always)]
    pub(crate) fn cred(self) -> u64 {
        self.0.follow(offset!(task_cred)).address()
    }
    /// Its files table; address 0 once they are gone.
    #[inline(always)]
    pub(crate) fn files(self) -> M::Target {
        self.0.follow(offset!(task_files))
    }
    /// Does it use its leader's files table?
    #[inline(always)]
    pub(crate) fn shares_files(self) -> bool {
        let files = self.files().address();
        files != 0 && files == self.leader().files().address()
    }
    /// What its threads share.
    #[inline(always)]
    pub(crate) fn signal(self) -> Signal<M::Target> {
        Signal(self.0.follow(offset!(task_signal)))
    }
    /// The thread, as records name it.
    #[inline(always)]
    pub(crate) fn thread(self) -> Proc {
        Proc {
            tgid: self.tgid(),
            tid: self.tid(),
            start: self.leader().started(),
        }
    }
    /// The process, as records name it.
    #[inline(always)]
    pub(crate) fn process(self) -> Proc {
        Proc {
            tid: 0,
            ..self.thread()
        }
    }
    /// Its `struct pid`; none once it is reaped.
    #[inline(always)]
    pub(crate) fn pid(self) -> Pid {
        Pid(Raw(self.0.follow(offset!(task_thread_pid)).address()))
    }
}

/// A `signal_struct`.
#[derive(Clone, Copy)]
pub(crate) struct Signal<M>(M);

impl<M: Memory> Signal<M> {
    /// Threads that have not exited.
    #[inline(always)]
    pub(crate) fn live(self) -> u32 {
        self.0.get(offset!(signal_live))
    }
    /// Wait status that the whole group was told to exit with.
    #[inline(always)]
    pub(crate) fn group_exit_code(self) -> u32 {
        self.0.get(offset!(signal_group_exit_code))
    }
    /// [`flag::GROUP_EXIT`] when the whole group was told to exit.
    #[inline(always)]
    pub(crate) fn group_exit_flag(self) -> u32 {
        if self.0.get::<u32>(offset!(signal_flags)) & SIGNAL_GROUP_EXIT != 0 {
            flag::GROUP_EXIT
        } else {
            0
        }
    }
    /// A `struct pid` of the group, by enum pid_type.
    #[inline(always)]
    fn pid(self, kind: usize) -> Pid {
        Pid(Raw(self
            .0
            .follow(offset!(signal_pids) + kind * 8)
            .address()))
    }
}

/// A `struct pid`, possibly none.
#[derive(Clone, Copy)]
pub(crate) struct Pid(Raw);

impl Pid {
    /// Depth of its PID namespace.
    #[inline(always)]
    pub(crate) fn level(self) -> u32 {
        if self.0.address() == 0 {
            0
        } else {
            self.0.get(offset!(pid_level))
        }
    }
    /// Its number in the namespace at depth `level`, which it must be in.
    #[inline(always)]
    pub(crate) fn number(self, level: u32) -> u32 {
        if self.0.address() == 0 {
            0
        } else {
            self.0
                .get(offset!(pid_numbers) + (level.wrapping_mul(UPID_SIZE)) as usize)
        }
    }
}

/// Writes the whole description of a thread; `at` is when, or 0 when the reader stamps it.
#[inline(always)]
pub(crate) fn describe<M: Memory>(
    place: &mut MaybeUninit<record::Task>,
    task: Task<M>,
    flags: u32,
    ioctl: u32,
    at: u64,
) {
    let memory = task.0;
    let signal = task.signal();
    let pid = task.pid();
    let level = pid.level();
    fill!(
        place,
        record::Task {
            header: record::Header {
                kind: Kind::Task as u16,
                size: size_of::<record::Task>() as u16,
                flags: flags | state_flags(task),
                at,
                who: task.thread(),
                comm: task.comm(),
            },
            parent: task.parent().process(),
            tracer: tracer(task),
            cred: task.cred(),
            files: task.files().address(),
            cpu_ns: memory
                .get::<u64>(offset!(task_utime))
                .wrapping_add(memory.get(offset!(task_stime))),
            state: memory.get(offset!(task_state)),
            exit_state: memory.get(offset!(task_exit_state)),
            task_flags: task.flags(),
            exit_code: task.exit_code(),
            live: signal.live(),
            jobctl: memory.get::<u64>(offset!(task_jobctl)) as u32,
            uid: memory.follow(offset!(task_cred)).get(offset!(cred_uid)),
            ns_pid: pid.number(level),
            ns_level: level,
            session: signal.pid(PIDTYPE_SID).number(0),
            pgrp: signal.pid(PIDTYPE_PGID).number(0),
            ioctl: ioctl,
        }
    );
}

/// Bits of [`flag`] that say how a thread stands.
#[inline(always)]
fn state_flags<M: Memory>(task: Task<M>) -> u32 {
    let mut flags = task.signal().group_exit_flag();
    if task.shares_files() {
        flags |= flag::SHARED_FILES;
    }
    if task.0.follow(offset!(task_mm)).address() == 0 {
        flags |= flag::NO_MM;
    }
    flags
}

/// Who traces this thread with ptrace; all zero when nobody does.
#[inline(always)]
fn tracer<M: Memory>(task: Task<M>) -> Proc {
    if task.0.get::<u32>(offset!(task_ptrace)) == 0 {
        return Proc {
            tgid: 0,
            tid: 0,
            start: 0,
        };
    }
    Task(task.0.follow(offset!(task_parent))).process()
}

/// Sends the description of a process that starts to be followed. Never inlined: it is long and rare.
#[inline(never)]
pub(crate) fn introduce(task: *const u8, flags: u32) {
    let task = Task(Typed::from_context(task));
    ring::send::<record::Task>(|entry| describe(entry, task, flags, 0, ring::now()));
}
