//! Which of the books' memory belongs to which case.
//!
//! Always true: every piece of memory is in one share: that of whoever its maker's own client still belongs to, else of the first
//! other process that refers to it (an import), else of the address space, else of the exported handle that keeps it. Sizes
//! are those that the driver rounded.

use crate::event::{ProcessId, Token};
use crate::world::World;
use crate::world::books::Client;
use crate::world::books::memory::{Memory, MemoryId, Ref};
use crate::world::process::Process;
use std::collections::{BTreeMap, BTreeSet};

/// Descriptions that keep each other open, followed to one that somebody holds.
const PINS_MAX: usize = 64;

/// What keeps memory, as far as the account is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Keeper {
    /// An open file description (which somebody holds, or had better).
    File(Token),
    /// A process that imported it from another.
    Import {
        /// Who allocated it.
        maker: ProcessId,
        /// Who imported it first.
        importer: ProcessId,
        /// The importer's description of /dev/nvidiactl.
        file: Option<Token>,
    },
}

/// Memory of one case on one GPU.
#[derive(Clone, Debug, Default)]
pub struct Share<'a> {
    /// The memory, in order of becoming known.
    pub memories: Vec<&'a Memory>,
}

impl Share<'_> {
    /// Sum of the sizes that are known.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memories.iter().filter_map(|memory| memory.bytes).fold(0, u64::saturating_add)
    }

    /// Bytes that the driver charges to nobody: their oldest reference is no object of a client.
    #[must_use]
    pub fn uncharged(&self) -> u64 {
        let nobodys = |memory: &&&Memory| memory.first().is_some_and(|taken| !matches!(taken.what, Ref::Object { .. }));
        self.memories.iter().filter(nobodys).filter_map(|memory| memory.bytes).fold(0, u64::saturating_add)
    }

    /// The size of each piece is known.
    #[must_use]
    pub fn is_sized(&self) -> bool {
        self.memories.iter().all(|memory| memory.bytes.is_some())
    }
}

/// Memory that outlived its maker's handle in another process.
#[derive(Clone, Debug)]
pub struct Imported<'a> {
    /// Who allocated it.
    pub maker: ProcessId,
    /// Who imported it first: the driver charges it from now on.
    pub importer: ProcessId,
    /// The importer's description of /dev/nvidiactl.
    pub file: Option<Token>,
    /// NVML index of the GPU.
    pub gpu: Option<u32>,
    /// The memory.
    pub share: Share<'a>,
}

/// All shares of a world.
#[derive(Debug, Default)]
pub struct Shares<'a> {
    files: BTreeMap<(Token, Option<u32>), Share<'a>>,
    /// What was imported.
    pub imported: Vec<Imported<'a>>,
}

impl<'a> Shares<'a> {
    /// Of everything in the books.
    #[must_use]
    pub fn of(world: &'a World) -> Shares<'a> {
        let mut shares = Shares::default();
        let mut imports: BTreeMap<(Keeper, Option<u32>), Share<'a>> = BTreeMap::new();
        for memory in world.books().memories() {
            let gpu = gpu_of(world, memory);
            match keeper(world, memory) {
                Some(Keeper::File(token)) => {
                    let held = held(world, token).unwrap_or(token);
                    shares.files.entry((held, gpu)).or_default().memories.push(memory);
                }
                Some(import) => imports.entry((import, gpu)).or_default().memories.push(memory),
                None => {}
            }
        }
        for ((keeper, gpu), share) in imports {
            if let Keeper::Import { maker, importer, file } = keeper {
                shares.imported.push(Imported { maker, importer, file, gpu, share });
            }
        }
        shares
    }

    /// Of these descriptions, by GPU.
    #[must_use]
    pub fn of_files(&self, files: &BTreeSet<Token>) -> BTreeMap<Option<u32>, Share<'a>> {
        let mut shares: BTreeMap<Option<u32>, Share<'a>> = BTreeMap::new();
        for token in files {
            for ((_, gpu), share) in self.files.range((*token, None)..=(*token, Some(u32::MAX))) {
                shares.entry(*gpu).or_default().memories.extend(&share.memories);
            }
        }
        shares
    }

    /// Bytes on this GPU that the driver charges to this process although another one allocated them.
    #[must_use]
    pub fn charged_for_others(&self, world: &World, id: ProcessId, gpu: u32) -> u64 {
        let here = self.imported.iter().filter(|import| import.gpu == Some(gpu)).flat_map(|import| &import.share.memories);
        let charged = here.filter(|memory| charged_to(world, memory) == Some(id)).filter_map(|memory| memory.bytes);
        charged.fold(0, u64::saturating_add)
    }

    /// This memory was imported, so it is told of as such.
    #[must_use]
    pub fn is_imported(&self, id: MemoryId) -> bool {
        self.imported.iter().flat_map(|import| &import.share.memories).any(|memory| memory.id == id)
    }
}

/// The process that the driver charges: that of the client with the oldest reference, when that is an object of a client.
fn charged_to(world: &World, memory: &Memory) -> Option<ProcessId> {
    match memory.first()?.what {
        Ref::Object { client, .. } => Some(world.books().client(client)?.process),
        Ref::Space { .. } | Ref::Export { .. } => None,
    }
}

fn keeper(world: &World, memory: &Memory) -> Option<Keeper> {
    let books = world.books();
    let objects = || {
        memory.refs().filter_map(|taken| match taken.what {
            Ref::Object { client, .. } => books.client(client),
            _ => None,
        })
    };
    // A handle alone proves nothing: the driver gives it out again.
    let of_maker = |client: &&Client| match memory.maker.process {
        Some(maker) => client.process == maker,
        None => Some(client.handle) == memory.maker.client,
    };
    if let Some(own) = objects().find(of_maker) {
        return own.file.map(Keeper::File);
    }
    // A maker that lives and still maps it, or has it exported, has not given it up.
    if let Some(kept) = memory.first().filter(|_| charged_to(world, memory).is_none()).and_then(|taken| books.keeper(&taken.what))
        && let Some(maker) = memory.maker.process.filter(|maker| world.process(*maker).is_some_and(Process::is_alive))
        && world.file(kept).is_some_and(|file| file.is_held_by(maker))
    {
        return Some(Keeper::File(kept));
    }
    if let Some(first) = objects().next() {
        // Who allocated it was not seen: nothing tells that it has gone.
        let Some(maker) = memory.maker.process else { return first.file.map(Keeper::File) };
        return Some(Keeper::Import { maker, importer: first.process, file: first.file });
    }
    let is_space = |reference: &Ref| matches!(reference, Ref::Space { .. });
    let references: Vec<Ref> = memory.refs().map(|taken| taken.what).collect();
    let kept = references.iter().find(|r| is_space(r)).or_else(|| references.first())?;
    books.keeper(kept).map(Keeper::File)
}

/// The description itself when somebody holds it, else one that keeps it open and is held.
fn held(world: &World, token: Token) -> Option<Token> {
    let mut seen = BTreeSet::new();
    let mut next = vec![token];
    while let Some(token) = next.pop() {
        if world.file(token).is_some() {
            return Some(token);
        }
        if seen.len() < PINS_MAX && seen.insert(token) {
            next.extend(world.books().pinned_by(token));
        }
    }
    None
}

/// NVML's index of the GPU that memory is on: by the id that the driver gave to the device instance, which is its place on the PCI
/// bus; of a host with one GPU, that one.
fn gpu_of(world: &World, memory: &Memory) -> Option<u32> {
    match memory.device {
        Some(device) => gpu_of_device(world, device),
        None => only_gpu(world),
    }
}

/// The index of a host's only GPU.
#[must_use]
pub fn only_gpu(world: &World) -> Option<u32> {
    match world.gpus().keys().collect::<Vec<_>>()[..] {
        [only] => Some(*only),
        _ => None,
    }
}

/// See [`gpu_of`].
#[must_use]
pub fn gpu_of_device(world: &World, device: u32) -> Option<u32> {
    let gpus = world.gpus();
    if let Some(id) = world.books().gpu_id(device)
        && let Some((index, _)) = gpus.iter().find(|(_, gpu)| gpu.pci.as_deref().and_then(gpu_id) == Some(id))
    {
        return Some(*index);
    }
    only_gpu(world)
}

/// The driver's device instance of a GPU, as far as requests told it.
#[must_use]
pub fn device_of_gpu(world: &World, gpu: u32) -> Option<u32> {
    // The driver has 32 (NV_MAX_DEVICES, nvlimits.h).
    (0..32).find(|device| world.books().gpu_id(*device).is_some() && gpu_of_device(world, *device) == Some(gpu))
}

/// "00000000:0B:00.0" as the driver's GPU id (gpuGenerate32BitId, gpu.c).
fn gpu_id(pci: &str) -> Option<u32> {
    let mut parts = pci.split([':', '.']);
    let mut part = || u32::from_str_radix(parts.next()?, 16).ok();
    let (domain, bus, device) = (part()?, part()?, part()?);
    Some((domain & 0xffff) << 16 | (bus & 0xff) << 8 | (device & 0x1f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_is_a_gpu_id() {
        assert_eq!(gpu_id("00000000:0B:00.0"), Some(0x0b00));
        assert_eq!(gpu_id("0000:00:06.0"), Some(6));
        assert_eq!(gpu_id("0001:c1:1f.7"), Some(0x1_c11f));
        assert_eq!(gpu_id("nonsense"), None);
        assert_eq!(gpu_id(""), None);
    }
}
