//! What outlive says: the answer types, schema `outlive.explanation/1` (fields are only ever added).
//!
//! Always true: an explanation is a pure function of a [`World`](crate::world::World) (see [`explain`]); it holds no
//! clock reading of its own, is in a fixed order, and serialises to the documented JSON as it stands.

mod ids;
pub(crate) mod limits;
mod parts;

pub use ids::{CauseId, Confidence};

use crate::cause::{self, account};
use crate::event::Via;
use crate::world::World;
use serde::{Deserialize, Serialize};

/// Schema name written into every JSON explanation.
pub const SCHEMA: &str = "outlive.explanation/1";

/// Everything that outlive has to say at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// [`SCHEMA`].
    pub schema: String,
    /// RFC 3339, UTC.
    pub taken_at: String,
    /// The host.
    pub host: HostPart,
    /// What span of time the evidence covers.
    pub covers: Covers,
    /// Account of each GPU.
    pub gpus: Vec<GpuPart>,
    /// Held memory, each with its cause; most important first.
    pub holdings: Vec<Holding>,
    /// Processes nobody waits for. They hold no GPU memory.
    pub zombies: Vec<ZombiePart>,
    /// Room for zombies: how many PIDs the host and the tightest cgroup still have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<PidsPart>,
    /// What could not be seen, and which conclusions that voids.
    pub limits: Vec<LimitPart>,
}

/// The host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPart {
    /// Host name.
    pub name: String,
    /// `uname -r`.
    pub kernel: String,
    /// NVIDIA driver version.
    pub driver: Option<String>,
    /// Version of outlive.
    pub outlive: String,
}

/// Span of the evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covers {
    /// RFC 3339; absent when nothing was watched before now (a pure snapshot).
    pub from: Option<String>,
    /// RFC 3339.
    pub to: String,
    /// Nothing was lost, of a trace nothing was passed over (but a torn end, which is a limit), and every hook was attached since `from`.
    pub complete: bool,
}

/// Account of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPart {
    /// NVML index.
    pub index: u32,
    /// UUID.
    pub uuid: String,
    /// Product.
    pub name: String,
    /// Bytes; absent without NVML.
    pub total_bytes: Option<u64>,
    /// Used, reserve left out.
    pub used_bytes: Option<u64>,
    /// Driver's reserve.
    pub reserved_bytes: Option<u64>,
    /// Σ bytes of holdings.
    pub attributed_bytes: Option<u64>,
    /// used − attributed.
    pub unexplained_bytes: Option<u64>,
    /// What the used bytes are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountPart>,
    /// How it is, where NVML says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthPart>,
}

/// used = owners + Σ held + unexplained, when no figure contradicts another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountPart {
    /// Of living owners, in order.
    pub owners_bytes: u64,
    /// What outlives its owner or the attempt to end it, by cause.
    pub held: Vec<HeldPart>,
    /// Nobody's, as far as is known.
    pub unexplained_bytes: u64,
}

/// A GPU's health in NVML's words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthPart {
    /// `nvmlDeviceGpuRecoveryAction_t`: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset; null when NVML does not offer it.
    pub recovery_action: Option<u32>,
    /// The same in words.
    pub asks_for: Option<String>,
    /// It has fallen off the bus.
    pub lost: bool,
    /// It does not answer before a reset.
    pub reset_required: bool,
}

/// Held memory of one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPart {
    /// Why.
    pub cause: CauseId,
    /// Bytes.
    pub bytes: u64,
}

/// Memory (or, without NVML, descriptions) held for one owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    /// NVML index; null when it cannot be told.
    pub gpu: Option<u32>,
    /// Bytes; null when nobody says.
    pub bytes: Option<u64>,
    /// Why.
    pub cause: CauseId,
    /// How sure.
    pub confidence: Confidence,
    /// Whose memory it is; null when unknown.
    pub owner: Option<OwnerPart>,
    /// Who keeps it.
    pub holders: Vec<HolderPart>,
    /// One sentence.
    pub summary: String,
    /// What was seen, in order of time.
    pub evidence: Vec<Evidence>,
    /// Least harmful first.
    pub remedy: Vec<Remedy>,
    /// What the allocations that were seen add up to; absent when none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub books: Option<BooksPart>,
    /// The largest allocations of it, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectPart>,
}

/// The allocations that were seen, beside NVML's figure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BooksPart {
    /// What NVML should charge: memory of which this process has the oldest reference. Where NVML charges nobody: what is held.
    pub bytes: u64,
    /// Allocations in that.
    pub objects: usize,
    /// Everything was seen.
    pub complete: bool,
    /// Why something may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// NVML's figure for the owner's PID on this GPU.
    pub nvml_bytes: Option<u64>,
    /// Bytes in both figures that another process allocated; they are not in the holding's `bytes`.
    #[serde(default)]
    pub of_others_bytes: u64,
}

/// One allocation: an object of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectPart {
    /// Bytes; null when its allocation was not seen.
    pub bytes: Option<u64>,
    /// Handle of the client that allocated it, in hexadecimal.
    pub client: Option<String>,
    /// Its handle there.
    pub object: Option<String>,
    /// RFC 3339.
    pub since: Option<String>,
    /// What keeps it, oldest first: "client c1d0001e of python3 (PID 574)", "nvidia-uvm mapping", "exported handle".
    pub kept_by: Vec<String>,
}

impl Holding {
    /// Something outlives its owner here (exit code 3). A server that keeps its own memory, and files that hold none, are no such thing.
    #[must_use]
    pub fn outlives(&self) -> bool {
        self.rank() == 0
    }

    /// Neither outlives anything nor asks for anything.
    #[must_use]
    pub fn is_ordinary(&self) -> bool {
        self.rank() >= 2
    }

    /// 0 what outlives its owner, 1 what cannot be told, 2 the living and what holds nothing, 3 the reserve.
    fn rank(&self) -> u8 {
        let lives = || self.owner.as_ref().is_some_and(|owner| !matches!(owner.state.as_str(), "gone" | "zombie"));
        match self.cause {
            CauseId::DriverReserve => 3,
            CauseId::OwnerAlive => 2,
            // A server keeps its own; an allocator that freed what another still uses works together with it.
            CauseId::MpsServer | CauseId::ImportedMemory if lives() => 2,
            _ if self.bytes == Some(0) => 2,
            CauseId::Unknown => 1,
            _ => 0,
        }
    }
}

/// The owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerPart {
    /// tgid in the initial PID namespace.
    pub pid: u32,
    /// RFC 3339 with milliseconds; null when never seen alive.
    pub start_time: Option<String>,
    /// comm.
    pub comm: Option<String>,
    /// Command line.
    pub cmdline: Option<String>,
    /// Uid.
    pub uid: Option<u32>,
    /// "running", "sleeping", "stopped", "exiting", "zombie", "gone", "unknown".
    pub state: String,
    /// How it ended.
    pub exit: Option<ExitPart>,
    /// "docker 3f2a...", "pod ...", null.
    pub container: Option<String>,
}

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitPart {
    /// RFC 3339; null when not seen.
    pub at: Option<String>,
    /// Exit code, when it exited.
    pub code: Option<i32>,
    /// Signal number, when one killed it.
    pub signal: Option<i32>,
    /// "kill from bash (PID 12)", "OOM killer", ...
    pub by: Option<String>,
    /// A core was dumped.
    pub core_dumped: bool,
    /// Who reaped it ("bash (PID 12)"); null when not yet or unseen.
    pub reaped_by: Option<String>,
}

/// A holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HolderPart {
    /// tgid.
    pub pid: u32,
    /// RFC 3339 with milliseconds.
    pub start_time: Option<String>,
    /// comm.
    pub comm: Option<String>,
    /// Like [`OwnerPart::state`].
    pub state: String,
    /// How it came to hold.
    pub via: Via,
    /// Its descriptors.
    pub descriptors: Vec<Descriptor>,
}

/// A descriptor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Descriptor {
    /// Number.
    pub fd: i32,
    /// "/dev/nvidia0".
    pub device: String,
}

/// One thing that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// RFC 3339 with milliseconds; null when it is a standing fact.
    pub at: Option<String>,
    /// A sentence.
    pub what: String,
}

/// What would free it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// A shell command, or null when only waiting helps.
    pub command: Option<String>,
    /// What it does.
    pub effect: String,
    /// Bytes that it frees, when known.
    pub frees_bytes: Option<u64>,
    /// What it may cost.
    pub risk: String,
}

/// A zombie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZombiePart {
    /// PID.
    pub pid: u32,
    /// comm.
    pub comm: String,
    /// RFC 3339; null when its end was not seen.
    pub since: Option<String>,
    /// Who must wait for it.
    pub parent: Option<ParentPart>,
    /// It held NVIDIA files when it lived.
    pub used_gpu: bool,
}

/// A zombie's parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentPart {
    /// PID.
    pub pid: u32,
    /// comm.
    pub comm: Option<String>,
    /// State.
    pub state: String,
}

/// PIDs in use and allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PidsPart {
    /// Zombies on the host.
    pub zombies: u32,
    /// Processes on the host.
    pub processes: u32,
    /// /proc/sys/kernel/pid_max.
    pub pid_max: Option<u32>,
    /// The cgroup with a pids limit that a zombie's parent is closest to, e.g. "/docker/3f2a: 98 of 100".
    pub cgroup: Option<String>,
}

/// Something that could not be seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LimitPart {
    /// What is missing.
    pub missing: String,
    /// Which conclusions that voids.
    pub voids: String,
}

/// Explains everything that the world knows to be held. Pure: equal worlds give equal explanations.
#[must_use]
pub fn explain(world: &World) -> Explanation {
    let mut holdings: Vec<Holding> = account::cases(world)
        .iter()
        .map(|case| {
            let (id, verdict) = cause::judge(case);
            parts::holding(case, id, verdict)
        })
        .collect();
    // Most important first: what outlives its owner, what cannot be told, the living, the reserve; then by size.
    holdings.sort_by_cached_key(|h| {
        let pid = h.owner.as_ref().map(|owner| owner.pid);
        (h.rank(), std::cmp::Reverse(h.bytes), h.gpu, pid, h.summary.clone())
    });
    let host = world.host();
    let header = host.header.as_deref();
    let gpus = parts::gpus(world, &holdings);
    Explanation {
        schema: SCHEMA.to_owned(),
        taken_at: parts::time(world, host.now),
        host: HostPart {
            name: header.map(|h| h.hostname.clone()).unwrap_or_default(),
            kernel: header.map(|h| h.kernel.clone()).unwrap_or_default(),
            driver: header.and_then(|h| h.driver.clone()),
            outlive: header.map(|h| h.version.clone()).unwrap_or_default(),
        },
        covers: Covers {
            from: host.watching_since().and_then(|at| host.wall(at)),
            to: parts::time(world, host.now),
            complete: limits::is_complete(world),
        },
        limits: limits::limits(world, &gpus),
        gpus,
        holdings,
        zombies: parts::zombies(world),
        pids: parts::pids(world),
    }
}

impl Explanation {
    /// The verdict as an exit code: 3 when memory outlives its owner, 4 when that cannot be told, else 0.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let worst = self.holdings.iter().map(Holding::rank).min();
        match worst {
            Some(0) => 3,
            Some(1) => 4,
            // Not having looked, or having looked at a part of the host only, is no proof that there is nothing. Nor is a look without
            // NVML: memory that no process holds has no other witness.
            _ if !self.is_scanned() || !self.is_whole() || !self.is_measured() => 4,
            _ => 0,
        }
    }

    /// Open files were scanned.
    #[must_use]
    pub fn is_scanned(&self) -> bool {
        self.lacks_not(limits::NO_SCAN)
    }

    /// All processes of the host were to be seen.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.lacks_not(limits::OTHER_NAMESPACES)
    }

    /// NVML told how much of every GPU is used.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        let lost = |gpu: &GpuPart| gpu.health.as_ref().is_some_and(|health| health.lost);
        let measured = self.gpus.iter().all(|gpu| gpu.used_bytes.is_some() && !lost(gpu));
        measured && !self.gpus.is_empty() && self.lacks_not(limits::NO_FIGURES)
    }

    fn lacks_not(&self, missing: &str) -> bool {
        self.limits.iter().all(|limit| limit.missing != missing)
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{PidsLimit, ProcessId, ProcessInfo, What};
    use crate::story::Story;

    #[test]
    fn having_looked_at_nothing_is_no_proof_that_nothing_is_held() {
        assert_eq!(Story::cold().told().exit_code(), 4);
        let mut story = Story::cold();
        story.scanned();
        assert_eq!(story.told().exit_code(), 4, "memory that no process holds has no witness but NVML");
        story.nvml(0, &[]);
        assert_eq!(story.told().exit_code(), 0);
    }

    #[test]
    fn a_gpu_whose_memory_nvml_cannot_tell_is_not_called_free() {
        let mut story = Story::warm();
        story.nvml(0, &[]);
        story.scanned();
        assert_eq!(story.told().exit_code(), 0);
        let health = |lost| What::GpuHealth { gpu: 0, recovery: None, lost, reset_required: false };
        story.push(health(true));
        assert_eq!(story.told().exit_code(), 4, "it fell off the bus");
        story.push(health(false));
        story.push(What::Gpu { gpu: 1, uuid: "GPU-1".into(), name: "H200".into(), minor: Some(1), pci: None, settled_at: None });
        assert_eq!(story.told().exit_code(), 4, "the other's memory cannot be read");
    }

    #[test]
    fn a_figure_of_nvml_that_is_older_than_the_allocations_is_called_so() {
        let mut story = Story::warm();
        story.nvml(0, &[]);
        let trainer = story.process(574, "python3");
        let files = story.uses_cuda(trainer);
        story.client(trainer, &files[0], 0xc1);
        story.device(trainer, &files[0], 0xc1, 0);
        story.memory(trainer, &files[0], 0xc1, 3, 512);
        story.scanned();
        let outdated = |story: &Story| story.told().limits.iter().any(|limit| limit.missing.starts_with("NVML's word on GPU 0"));
        assert!(outdated(&story));
        story.nvml(512, &[(574, 512)]);
        assert!(!outdated(&story));
        // The list is still that of before when memory falls.
        story.killed((crate::event::ProcessId(12, 5), "bash"), trainer);
        story.used(100);
        assert!(!outdated(&story));
    }

    #[test]
    fn a_zombie_holds_nothing_and_names_who_must_wait() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.dies(trainer, 0);
        let told = story.told();
        assert!(told.holdings.is_empty());
        let zombie = &told.zombies[0];
        assert_eq!((zombie.pid, zombie.comm.as_str(), zombie.used_gpu), (574, "python3", true));
        assert_eq!(zombie.since.as_deref(), Some("2025-06-01T12:00:00.007Z"));
        let parent = zombie.parent.as_ref().unwrap();
        assert_eq!((parent.pid, parent.comm.as_deref()), (1, Some("systemd")));
        story.scanned();
        assert_eq!(story.told().pids.unwrap().cgroup, None);
        let pids = PidsLimit { cgroup: "/docker/3f2a".into(), current: 98, max: 100 };
        let parent = ProcessId(parent.pid, story.world().living(parent.pid).unwrap().id().start());
        story.push(What::Process(Box::new(ProcessInfo { id: parent, pids: Some(pids), ..ProcessInfo::default() })));
        assert_eq!(story.told().pids.unwrap().cgroup.as_deref(), Some("/docker/3f2a: 98 of 100"));
        story.reaped(trainer);
        assert!(story.told().zombies.is_empty());
        assert_eq!(story.told().pids.unwrap().cgroup, None, "nobody must wait any more");
    }

    #[test]
    fn losses_missing_hooks_and_a_late_start_are_limits_and_void_completeness() {
        let mut story = Story::warm();
        story.scanned();
        assert!(story.told().covers.complete);
        story.push(What::Lost { cause: "ring_full".into(), count: 7 });
        let told = story.told();
        assert!(!told.covers.complete);
        assert!(told.limits.iter().any(|l| l.missing == "7 events lost (ring_full)"), "{:#?}", told.limits);
        assert!(told.limits.iter().any(|l| l.missing == "NVML"));
        assert!(Story::cold().told().limits.iter().any(|l| l.missing.contains("nothing was watching")));
    }

    #[test]
    fn the_oom_killer_is_named() {
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.forks(trainer, 580, "python3");
        story.push(What::OomVictim { pid: 574 });
        story.signals(None, trainer, 9);
        story.dies(trainer, 9);
        let holding = story.holding();
        assert!(holding.summary.contains("killed by the OOM killer at"), "{}", holding.summary);
        assert_eq!(holding.owner.unwrap().exit.unwrap().by.as_deref(), Some("OOM killer"));
    }

    #[test]
    fn an_xid_near_the_end_is_told_and_a_distant_one_is_not() {
        let xid = |code| What::Xid { pci: "0000:0b:00".into(), code, pid: None, message: "GPU has fallen off".into() };
        let mut story = Story::warm();
        let trainer = story.process(574, "python3");
        story.uses_cuda(trainer);
        story.nvml(2_560, &[(574, 2_560)]);
        story.forks(trainer, 580, "python3");
        story.push(xid(31));
        story.wait(300);
        story.push(xid(79));
        story.killed((ProcessId(12, 5), "bash"), trainer);
        let evidence = story.holding().evidence;
        assert!(evidence.iter().any(|e| e.what.contains("Xid 79")), "{evidence:#?}");
        assert!(!evidence.iter().any(|e| e.what.contains("Xid 31")));
    }

    #[test]
    fn names_cannot_break_out_of_a_command() {
        let mut story = Story::warm();
        let trainer = story.process(574, "x\nrm -rf /\u{1b}[2J");
        story.uses_cuda(trainer);
        let holding = story.holding();
        let commands = holding.remedy.iter().filter_map(|r| r.command.as_deref());
        assert!(commands.clone().count() == 3 && commands.clone().all(|c| !c.chars().any(char::is_control)));
        assert!(!holding.summary.chars().any(char::is_control));
    }

    #[test]
    fn a_name_is_not_run_by_a_shell_that_knows_no_comments() {
        let mut story = Story::warm();
        let trainer = story.process(574, "$(reboot)`id`;*");
        story.uses_cuda(trainer);
        let holding = story.holding();
        let commands: Vec<&str> = holding.remedy.iter().filter_map(|r| r.command.as_deref()).collect();
        let comments: Vec<&str> = commands.iter().filter_map(|c| c.split_once('#')).map(|(_, comment)| comment).collect();
        assert_eq!(comments.len(), 3);
        assert!(comments.iter().all(|c| !c.contains(['$', '`', ';', '*', '(', '|', '&', '<', '>'])), "{comments:?}");
    }

    #[test]
    fn pid_1_is_never_a_target() {
        let mut story = Story::warm();
        story.uses_cuda(ProcessId(1, 1));
        let holding = story.holding();
        assert_eq!(holding.owner.as_ref().map(|o| o.pid), Some(1));
        assert!(holding.remedy.is_empty(), "{:#?}", holding.remedy);
    }
}
