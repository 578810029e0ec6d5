//! One case: memory (or open GPU files) of one owner on one GPU, with everything that a cause may look at.
//!
//! Always true: plain borrowed data made by [`account`](super::account); a cause reads it and decides, and changes
//! nothing.

use super::shares::{Share, device_of_gpu};
use super::words;
use crate::event::{BootNs, Dev, ProcessId, Via};
use crate::world::World;
use crate::world::books::gap::Gap;
use crate::world::file::{File, Sent};
use crate::world::gpu::Gpu;
use crate::world::process::{Process, Stage};

/// An exit or teardown that is younger than this may simply not be over. 243 GB of pinned host memory took 26 s, but
/// then used memory is falling; device memory alone takes well under a second.
pub const PATIENCE_NS: BootNs = 5_000_000_000;

/// What the case is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Open descriptions of one owner.
    Files,
    /// NVML charges a PID that holds nothing we know of.
    Listed,
    /// Memory that one process allocated and another one imported and keeps.
    Imported,
    /// Managed memory: no object of the driver and no figure of NVML, only used memory of the GPU.
    Managed,
    /// Used memory of a GPU that nobody accounts for.
    Leftover,
    /// The driver's reserve.
    Reserve,
}

/// How the bytes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesFrom {
    /// NVML charges them to the owner's PID.
    Nvml,
    /// They are the sum of the allocations that were seen.
    Books,
    /// The kernel tells the size of the dma-bufs.
    DmaBuf,
    /// What is left of the GPU's used memory after everyone else's.
    Remainder,
    /// Nobody says.
    Nobody,
}

/// How the owner is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerFrom {
    /// Its opens were seen, or the descriptions carry its credentials.
    Opener,
    /// It was seen to allocate the memory.
    Allocator,
    /// NVML charges memory to it, and it holds the files.
    NvmlHolder,
    /// NVML charges memory to this PID, and no other owner is left to match.
    NvmlAlone,
    /// NVML charges memory to this PID, which is the holder's process group or session.
    NvmlGroup,
    /// NVML charges as many dead PIDs as there are unknown owners, and this is its place in their order.
    NvmlOrder,
    /// It led the holder's process group or session and is gone.
    Leader,
    /// It holds them alone and shows no sign of having got them from anyone.
    SoleHolder,
    /// NVML charges memory to this PID; nothing else is known of it.
    NvmlOnly,
}

impl OwnerFrom {
    /// Why this is only deduced; nothing when it was seen.
    #[must_use]
    pub const fn deduced(self) -> Option<&'static str> {
        Some(match self {
            OwnerFrom::Opener | OwnerFrom::Allocator | OwnerFrom::NvmlOnly => return None,
            OwnerFrom::NvmlHolder => "it holds the files and NVML charges the memory to it",
            OwnerFrom::NvmlAlone => "NVML charges memory to this PID and no other owner fits these files",
            OwnerFrom::NvmlGroup => "NVML charges memory to this PID, and it led the holder's process group or session",
            OwnerFrom::NvmlOrder => {
                "NVML charges as many dead PIDs as there are unknown owners; the files that were opened first are taken for the lowest PID's"
            }
            OwnerFrom::Leader => "it led the holder's process group or session and no longer exists",
            OwnerFrom::SoleHolder => "nobody else holds these files, and nothing shows that it got them from another process",
        })
    }
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Who; start 0 when only the PID is known.
    pub id: ProcessId,
    /// What is known of it.
    pub process: Option<&'a Process>,
    /// How it is known to be the owner.
    pub from: OwnerFrom,
}

impl Owner<'_> {
    /// How far it has come; `None` when nothing is known of it.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.process.map(Process::stage)
    }
}

/// A sum of allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Bytes.
    pub bytes: u64,
    /// How many.
    pub objects: usize,
}

/// One process's share in keeping the case's descriptions open, in one way.
#[derive(Clone, Debug)]
pub struct HolderView<'a> {
    /// Who.
    pub process: &'a Process,
    /// How it got them.
    pub via: Via,
    /// Why `via` is only deduced; absent when it was seen.
    pub deduced: Option<&'static str>,
    /// From whom.
    pub from: Option<ProcessId>,
    /// Since when.
    pub since: Option<BootNs>,
    /// Descriptor, device, thread with a table of its own.
    pub descriptors: Vec<(i32, Dev, Option<u32>)>,
}

/// The numbers of their descriptors, each once and in order.
#[must_use]
pub fn descriptor_numbers(holders: &[&HolderView<'_>]) -> Vec<String> {
    let mut fds: Vec<i32> = holders.iter().flat_map(|h| h.descriptors.iter().map(|d| d.0)).collect();
    fds.sort_unstable();
    fds.dedup();
    fds.iter().map(ToString::to_string).collect()
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// Everything that is known.
    pub world: &'a World,
    /// What it is about.
    pub kind: Kind,
    /// NVML index.
    pub gpu: Option<u32>,
    /// Bytes.
    pub bytes: Option<u64>,
    /// How they are known.
    pub bytes_from: BytesFrom,
    /// What NVML charges to the owner's PID on this GPU.
    pub nvml: Option<u64>,
    /// Bytes in that figure that another process allocated: they are not in `bytes`.
    pub of_others: u64,
    /// The books' memory of this case.
    pub share: Option<Share<'a>>,
    /// Whose it is.
    pub owner: Option<Owner<'a>>,
    /// The descriptions.
    pub files: Vec<&'a File>,
    /// Who keeps them open, the owner included.
    pub holders: Vec<HolderView<'a>>,
    /// Other owners that fit as well (when the owner is unknown).
    pub candidates: Vec<u32>,
}

impl<'a> Case<'a> {
    /// Time of the latest event.
    #[must_use]
    pub fn now(&self) -> BootNs {
        self.world.host().now
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> Option<&'a Gpu> {
        self.gpu.and_then(|gpu| self.world.gpus().get(&gpu))
    }

    /// The owner, when it is known to exist still (alive or exiting).
    #[must_use]
    pub fn living_owner(&self) -> Option<&'a Process> {
        self.owner.and_then(|owner| owner.process).filter(|process| process.is_alive())
    }

    /// The owner is known and dead.
    #[must_use]
    pub fn owner_is_dead(&self) -> bool {
        self.owner.is_some_and(|owner| match owner.process {
            Some(process) => !process.is_alive(),
            None => self.world.is_dead(owner.id),
        })
    }

    /// What the allocations that were seen add up to, where NVML charges the owner: what it should charge; else: what is held.
    #[must_use]
    pub fn books(&self) -> Option<Sum> {
        if !matches!(self.kind, Kind::Files | Kind::Imported | Kind::Listed) {
            return None;
        }
        let books = self.world.books();
        let of_share = |share: &Share<'_>| Sum { bytes: share.bytes(), objects: share.memories.len() };
        let owner = self.owner.map(|owner| owner.id).filter(|_| self.nvml.is_some());
        let Some(id) = owner else { return self.share.as_ref().map(of_share) };
        books.of_process(id).next()?;
        let device = self.gpu.and_then(|gpu| device_of_gpu(self.world, gpu));
        Some(Sum { bytes: books.charged(id, device), objects: books.charged_objects(id, device) })
    }

    /// What may be missing of the owner's memory in the books.
    #[must_use]
    pub fn gap(&self) -> Option<Gap<'a>> {
        self.world.gap_of_process(self.owner?.id)
    }

    /// Why something may be missing in the books of this case.
    #[must_use]
    pub fn gap_words(&self) -> Option<String> {
        if self.owner.is_none() {
            return Some("the process that allocated it is not known".to_owned());
        }
        self.gap().map(|gap| words::gap(&gap))
    }

    /// Holders other than the owner.
    pub fn others(&self) -> impl Iterator<Item = &HolderView<'a>> {
        let owner = self.owner.map(|owner| owner.id);
        self.holders.iter().filter(move |holder| Some(holder.process.id()) != owner)
    }

    /// Holders other than the owner that got the descriptions in one of these ways.
    #[must_use]
    pub fn others_via(&self, ways: &[Via]) -> Vec<&HolderView<'a>> {
        self.others().filter(|holder| ways.contains(&holder.via)).collect()
    }

    /// Sendings that were not seen to arrive.
    pub fn in_transit(&self) -> impl Iterator<Item = (&'a File, &'a Sent)> + '_ {
        self.files.iter().filter(|file| file.in_transit > 0).filter_map(|file| file.sent.last().map(|sent| (*file, sent)))
    }

    /// Used memory of the GPU is falling: from how much, since when.
    #[must_use]
    pub fn falling(&self) -> Option<(BootNs, u64)> {
        self.gpu()?.falling(self.now())
    }

    /// "2.5 GiB on GPU 0", "GPU memory", ...
    #[must_use]
    pub fn what(&self) -> String {
        if let (Kind::Managed, Some(bytes), Some(gpu)) = (self.kind, self.bytes, self.gpu) {
            return format!("{} of managed memory on GPU {gpu}", words::size(bytes));
        }
        match (self.bytes, self.gpu) {
            (Some(0), Some(gpu)) => format!("A GPU context that holds no memory on GPU {gpu}"),
            (Some(0), None) => "A GPU context that holds no memory".to_owned(),
            (Some(bytes), Some(gpu)) => format!("{} on GPU {gpu}", words::size(bytes)),
            (Some(bytes), None) => format!("{} of GPU memory", words::size(bytes)),
            (None, Some(gpu)) => format!("Memory on GPU {gpu} (how much is not known)"),
            (None, None) => "GPU memory (how much is not known)".to_owned(),
        }
    }

    /// The owner's name in a sentence.
    #[must_use]
    pub fn owner_name(&self) -> String {
        match self.owner {
            Some(Owner { process: Some(process), .. }) => words::process(process),
            Some(owner) => {
                let lines = self.world.gpus().values().flat_map(|gpu| gpu.of_pid(owner.id.tgid()));
                let name = lines.filter_map(|line| line.name.as_deref()).find(|name| !name.starts_with('['));
                words::named(name, owner.id)
            }
            None => "an unknown process".to_owned(),
        }
    }

    /// Who owns what no known process owns. Only a look at everything proves that the owner is gone.
    #[must_use]
    pub fn unknown_owner(&self) -> &'static str {
        if self.world.host().scan.is_some_and(|scan| scan.complete) { "a process that is gone" } else { "a process that was not found" }
    }
}
