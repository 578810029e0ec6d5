//! The books: which client of the driver allocated which GPU memory, who took further references to it, and which open
//! file description each reference lives and dies with.
//!
//! Always true: every reference's other side exists and points back; memory without a reference is forgotten; everything
//! is bounded; an event costs a few look-ups plus what it frees. What may be missing is said: see [`Gap`].
//!
//! The driver's rules that are followed here (open-gpu-kernel-modules):
//! * A client and all its objects belong to the description of /dev/nvidiactl that it was made through, never to a process
//!   (`rmclientConstruct_IMPL`, client.c), and are freed when that is released (`rm_cleanup_file_private`, osapi.c).
//! * REGISTER_FD makes a description of /dev/nvidiaN keep that of /dev/nvidiactl open (escape.c); UVM_MM_INITIALIZE makes one of
//!   /dev/nvidia-uvm keep another one open (`uvm_api_mm_initialize`, uvm.c).
//! * All references to one memory are equal, except that the oldest is charged; when it goes, another one is
//!   (`memDestruct_IMPL`, mem.c).
//!
//! * [`memory`]: memory and its references. [`description`]: what a description keeps. [`gap`]: what may be missing.
//! * `fold`: requests; `release`: what frees; `carry`: the books as events again.

mod carry;
pub mod description;
mod fold;
pub mod gap;
pub mod memory;
mod release;
#[cfg(test)]
mod tests;

use crate::event::rm::{Handle, Missed};
use crate::event::{BootNs, ProcessId, Token};
use description::{Description, Space};
use gap::Loss;
use memory::{Memory, MemoryId, Ref};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Clients kept. Beyond any of these limits an event is dropped, which counts as a loss.
const CLIENTS_MAX: usize = 1 << 16;
/// Objects kept, of all clients.
const OBJECTS_MAX: usize = 1 << 20;
/// Mappings and exports kept.
const KEPT_MAX: usize = 1 << 20;
/// Descriptions kept.
const DESCRIPTIONS_MAX: usize = 1 << 18;
/// Released descriptions remembered, so that a late request does not bring one back.
const RELEASED_KEPT: usize = 1_024;

/// How a client is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Its making was seen, and so everything after it.
    Made,
    /// It was there before it could be seen: what it allocated earlier is not known.
    Named,
}

/// A client of the driver: the root of an object tree.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its handle.
    pub handle: Handle,
    /// The description that owns it; `None` while it was only used through descriptions of /dev/nvidiaN.
    pub file: Option<Token>,
    /// Who made it, or who named it first.
    pub process: ProcessId,
    /// When it was made, or named first.
    pub at: BootNs,
    /// How it is known.
    pub origin: Origin,
    /// A request that cannot be this client's named it: first when.
    pub inconsistent: Option<BootNs>,
    /// Its objects that hold memory, or can be the parent of some.
    pub objects: BTreeMap<Handle, Object>,
    /// (parent, object), where the parent is not the client itself.
    children: BTreeSet<(Handle, Handle)>,
    /// Device instances that it had objects on, one bit each; see [`bit`].
    devices: u64,
    /// Order of arrival.
    seq: u64,
}

/// An object of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its parent; the client's handle for the root's children and where it is not known.
    pub parent: Handle,
    /// RM class; 0 when it is not known.
    pub class: u32,
    /// The driver's device instance that it is on.
    pub device: Option<u32>,
    /// The memory that it is a reference to.
    pub memory: Option<MemoryId>,
    /// When it was made.
    pub at: BootNs,
    /// Order of arrival; names its reference among the memory's.
    seq: u64,
}

/// The books.
#[derive(Debug, Default)]
pub struct Books {
    clients: BTreeMap<Handle, Client>,
    memories: BTreeMap<MemoryId, Memory>,
    descriptions: BTreeMap<Token, Description>,
    by_process: BTreeMap<ProcessId, BTreeSet<Handle>>,
    /// Memory that is only known by what it was duplicated from: (client, object), the client being unknown then.
    named: BTreeMap<(Handle, Handle), MemoryId>,
    /// How many objects a client imported from an exported handle (by the description's `seq`).
    imports: BTreeMap<(Handle, u64), usize>,
    /// GPU id by device instance.
    gpu_ids: BTreeMap<u32, u32>,
    /// The latest loss.
    loss: Option<Loss>,
    /// Processes of which a request was not understood: last when, and why.
    missed: BTreeMap<ProcessId, (BootNs, Missed)>,
    /// Requests that were not believed.
    inconsistent: u64,
    /// Objects of all clients.
    objects: usize,
    /// Mappings and exports.
    kept: usize,
    /// The last number given out.
    seq: u64,
    /// Descriptions that were released lately, oldest first.
    released: VecDeque<(Token, BootNs)>,
}

impl Books {
    /// Clients, by handle.
    pub fn clients(&self) -> impl DoubleEndedIterator<Item = &Client> {
        self.clients.values()
    }

    /// One client.
    #[must_use]
    pub fn client(&self, handle: Handle) -> Option<&Client> {
        self.clients.get(&handle)
    }

    /// The clients that this description owns.
    pub fn of_file(&self, token: Token) -> impl Iterator<Item = &Client> {
        let handles = self.descriptions.get(&token).into_iter().flat_map(|d| &d.clients);
        handles.filter_map(|handle| self.clients.get(handle))
    }

    /// The clients that this process made, or was the first to name.
    pub fn of_process(&self, id: ProcessId) -> impl Iterator<Item = &Client> {
        let handles = self.by_process.get(&id).into_iter().flatten();
        handles.filter_map(|handle| self.clients.get(handle))
    }

    /// All memory, in order of becoming known.
    pub fn memories(&self) -> impl DoubleEndedIterator<Item = &Memory> {
        self.memories.values()
    }

    /// One piece of memory.
    #[must_use]
    pub fn memory(&self, id: MemoryId) -> Option<&Memory> {
        self.memories.get(&id)
    }

    /// The address space that this description is.
    #[must_use]
    pub fn space(&self, token: Token) -> Option<&Space> {
        self.descriptions.get(&token).and_then(|d| d.space.as_deref())
    }

    /// The memory that this description keeps by itself: as owner of clients, as address space, as exported handle.
    #[must_use]
    pub fn kept_by(&self, token: Token) -> BTreeSet<MemoryId> {
        let of_clients = self.of_file(token).flat_map(|client| client.objects.values().filter_map(|o| o.memory));
        let own = self.descriptions.get(&token).into_iter().flat_map(Description::memories);
        of_clients.chain(own).collect()
    }

    /// The driver's GPU id of a device instance: (PCI domain << 16) | (bus << 8) | device.
    #[must_use]
    pub fn gpu_id(&self, device: u32) -> Option<u32> {
        self.gpu_ids.get(&device).copied()
    }

    /// The description that keeps this reference; unknown for an object of a client whose description is unknown.
    #[must_use]
    pub fn keeper(&self, reference: &Ref) -> Option<Token> {
        match reference {
            Ref::Object { client, .. } => self.clients.get(client)?.file,
            Ref::Space { file, .. } | Ref::Export { file, .. } => Some(*file),
        }
    }

    /// The descriptions that keep this one open.
    pub fn pinned_by(&self, token: Token) -> impl Iterator<Item = Token> {
        self.descriptions.get(&token).into_iter().flat_map(|d| d.pinned_by.iter().copied())
    }

    /// The description that this one keeps open.
    #[must_use]
    pub fn pins(&self, token: Token) -> Option<Token> {
        self.descriptions.get(&token)?.pins
    }

    /// Bytes that the driver charges to this process, as far as they are known: of memory whose oldest reference is an object of a
    /// client of it.
    #[must_use]
    pub fn charged(&self, id: ProcessId, device: Option<u32>) -> u64 {
        self.charged_memory(id, device).filter_map(|memory| memory.bytes).fold(0, u64::saturating_add)
    }

    /// When the latest of all memory that is still kept was allocated, or became known.
    #[must_use]
    pub fn newest(&self) -> Option<BootNs> {
        self.memories.values().map(|memory| memory.at).max()
    }

    /// How many pieces of memory that is.
    #[must_use]
    pub fn charged_objects(&self, id: ProcessId, device: Option<u32>) -> usize {
        self.charged_memory(id, device).count()
    }

    fn charged_memory(&self, id: ProcessId, device: Option<u32>) -> impl Iterator<Item = &Memory> {
        let objects = self.of_process(id).flat_map(|client| client.objects.values());
        objects.filter_map(move |object| {
            let memory = self.memories.get(&object.memory?)?;
            let here = device.is_none() || memory.device == device;
            (here && memory.refs.is_first(object.seq)).then_some(memory)
        })
    }

    /// When something was first exported to this description.
    #[must_use]
    pub fn exported_at(&self, token: Token) -> Option<BootNs> {
        self.descriptions.get(&token)?.exports.first().map(|export| export.at)
    }

    /// This description is an exported handle.
    #[must_use]
    pub fn is_export(&self, token: Token) -> bool {
        self.exported_at(token).is_some()
    }

    /// Requests that contradicted the driver's rules and were not believed.
    #[must_use]
    pub fn inconsistent(&self) -> u64 {
        self.inconsistent
    }

    /// Forgets everything but that events were lost.
    pub(super) fn restart(&mut self) {
        *self = Books { loss: self.loss.take(), ..Books::default() };
    }

    /// Processes that must not be forgotten: they made living clients or memory.
    pub(super) fn needed(&self) -> impl Iterator<Item = ProcessId> {
        let makers = self.memories.values().filter_map(|memory| memory.maker.process);
        self.by_process.keys().copied().chain(makers)
    }

    fn next(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }
}

/// The driver has 32 device instances (`NV_MAX_DEVICES`, nvlimits.h); what is beyond shares the last bit.
fn bit(device: u32) -> u64 {
    1 << device.min(63)
}
