//! Stable identifiers: causes, and how sure they are.
//!
//! Always true: the names are those of the JSON contract and never change; new ones are only added.

use serde::{Deserialize, Serialize};

/// Why memory outlives its owner. Stable identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseId {
    /// A forked child still has the dead owner's descriptions.
    InheritedDescriptor,
    /// Another process received one.
    PassedDescriptor,
    /// One sits unread in a unix socket, or is registered in an io_uring.
    DescriptorInFlight,
    /// The main thread is a zombie, other threads live and hold everything.
    LeaderExited,
    /// The launcher died; a worker with its own context lives on.
    OrphanedProcess,
    /// What was killed was not the owner; nothing was sent to the owner, or it survived it.
    OwnerAlive,
    /// A signal is handled, ignored, blocked or still pending.
    SignalNotFatal,
    /// Stop signal, freezer, ptrace stop.
    OwnerStopped,
    /// The dump is still being written.
    CoreDump,
    /// A thread is stuck in the NVIDIA driver.
    ExitBlockedInDriver,
    /// A thread is stuck in other kernel code.
    ExitBlockedElsewhere,
    /// Memory is falling, or the exit is under way.
    TeardownRunning,
    /// Another process imported the memory object.
    ImportedMemory,
    /// An exported handle is the reference, held by someone who need not have touched CUDA.
    ExportedHandle,
    /// A client inside the kernel has it, and no PID.
    KernelClient,
    /// An MPS server has it, for itself or on behalf of clients.
    MpsServer,
    /// The driver's and firmware's own reserve: not a leak.
    DriverReserve,
    /// Nothing holds it.
    NoHolder,
    /// Not enough evidence.
    Unknown,
}

/// How sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Every link was seen.
    Exact,
    /// A link was deduced; the evidence says which.
    Inferred,
    /// Not enough evidence.
    Unknown,
}

impl CauseId {
    /// The stable identifier.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CauseId::InheritedDescriptor => "inherited_descriptor",
            CauseId::PassedDescriptor => "passed_descriptor",
            CauseId::DescriptorInFlight => "descriptor_in_flight",
            CauseId::LeaderExited => "leader_exited",
            CauseId::OrphanedProcess => "orphaned_process",
            CauseId::OwnerAlive => "owner_alive",
            CauseId::SignalNotFatal => "signal_not_fatal",
            CauseId::OwnerStopped => "owner_stopped",
            CauseId::CoreDump => "core_dump",
            CauseId::ExitBlockedInDriver => "exit_blocked_in_driver",
            CauseId::ExitBlockedElsewhere => "exit_blocked_elsewhere",
            CauseId::TeardownRunning => "teardown_running",
            CauseId::ImportedMemory => "imported_memory",
            CauseId::ExportedHandle => "exported_handle",
            CauseId::KernelClient => "kernel_client",
            CauseId::MpsServer => "mps_server",
            CauseId::DriverReserve => "driver_reserve",
            CauseId::NoHolder => "no_holder",
            CauseId::Unknown => "unknown",
        }
    }
}

impl Confidence {
    /// "exact", "inferred", "unknown".
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Confidence::Exact => "exact",
            Confidence::Inferred => "inferred",
            Confidence::Unknown => "unknown",
        }
    }
}
