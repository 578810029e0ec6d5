//! How requests change the books.
//!
//! Always true: a request that contradicts the driver's rules is counted and changes nothing else; a handle that is given out again
//! was freed unseen before.

use super::description::{Description, Export, Mapping, Space};
use super::memory::{Maker, Memory, MemoryId, Ref, Refs, Taken};
use super::{Books, CLIENTS_MAX, Client, DESCRIPTIONS_MAX, KEPT_MAX, OBJECTS_MAX, Object, Origin, bit};
use crate::event::rm::{ExportKind, Handle, Op, Rm};
use crate::event::{BootNs, Node, ProcessId, Token};
use std::collections::BTreeSet;

/// GPU ids kept; the driver has fewer device instances.
const GPU_IDS_MAX: usize = 1_024;
/// No room is left for what an event says.
const FULL: &str = "books_full";

/// One request, and what the world knows of descriptions.
pub(super) struct Call<'a> {
    at: BootNs,
    rm: &'a Rm,
    held: &'a dyn Fn(Token) -> bool,
}

/// What an object that is named in a request is.
enum Named {
    /// GPU memory.
    Memory(MemoryId),
    /// An object of this class that is no GPU memory.
    Plain(u32),
    /// Nothing tells.
    Unknown,
}

impl Books {
    /// Folds one request in. `held` tells whether the world knows a description as open.
    pub(in crate::world) fn apply(&mut self, at: BootNs, rm: &Rm, held: &dyn Fn(Token) -> bool) {
        if self.is_late(at, rm.file, held) {
            return;
        }
        if let Some(description) = self.descriptions.get_mut(&rm.file) {
            description.last = description.last.max(at);
        }
        let call = &Call { at, rm, held };
        match rm.op {
            Op::Client { client } => self.makes_client(call, client),
            Op::Known { client } | Op::Share { client, .. } => _ = self.believes(call, client),
            Op::Object { client, parent, object, class, device } => {
                if self.has_room(call, client, object) {
                    let new = self.object(call, parent, class);
                    self.put(call, (client, object), Object { device, ..new });
                }
            }
            Op::Memory { client, parent, object, class, bytes } => {
                if self.has_room(call, client, object) {
                    let new = self.object(call, parent, class);
                    self.allocate(call, (client, object), new, Some(bytes));
                }
            }
            Op::Free { client, object } => self.frees(call, client, object),
            Op::Dup { client, parent, object, from_client, from_object } => {
                self.duplicates(call, (client, object), parent, (from_client, from_object));
            }
            Op::Import { client, parent, object, from } => self.imports(call, (client, object), parent, from),
            Op::Export { client, object, to, kind } => self.exports(call, (client, object), to, kind),
            Op::Register { control: target } | Op::SpaceMm { space: target } => self.pin(at, rm.file, target, held),
            Op::Space { flags } => self.becomes_space(call, flags),
            Op::SpaceGpu { uuid } => {
                if let Some(space) = self.space_mut(call) {
                    space.registers(uuid);
                }
            }
            Op::Map { client, object, base, length } => self.maps(call, (client, object), base, length),
            Op::Unmap { base, length } => self.unmap(rm.file, base, length),
            Op::Missed { why } => {
                // A child that uses its parent's client leaves a gap in the parent's books.
                let owners: BTreeSet<ProcessId> = self.of_file(rm.file).map(|client| client.process).chain([rm.id]).collect();
                owners.into_iter().for_each(|id| self.misses(at, id, why));
            }
            Op::Gpu { gpu_id, device } => {
                if self.gpu_ids.len() < GPU_IDS_MAX || self.gpu_ids.contains_key(&device) {
                    self.gpu_ids.insert(device, gpu_id);
                }
            }
        }
    }

    /// Events of two CPUs can change places: the description may be released in the books already.
    fn is_late(&self, at: BootNs, file: Token, held: &dyn Fn(Token) -> bool) -> bool {
        let known = self.descriptions.contains_key(&file) || held(file);
        !known && self.released.iter().any(|(token, released)| *token == file && at <= *released)
    }

    fn makes_client(&mut self, call: &Call, handle: Handle) {
        let owner = self.owner(call);
        if let Some(known) = self.clients.get(&handle) {
            let same = known.file.is_none() || known.file == owner;
            if known.origin == Origin::Named && call.at <= known.at && same {
                // Named by a request that was made later and came earlier.
                self.settle_owner(call, handle, owner);
                self.was_made(call, handle);
                return;
            }
            self.free_client(handle);
        }
        self.forget_names(handle);
        self.add_client(call, handle, owner, Origin::Made);
    }

    /// The client that a request names is, or can be, the caller's. One that was never announced is announced by this.
    pub(super) fn believes(&mut self, call: &Call, handle: Handle) -> bool {
        let owner = self.owner(call);
        let Some(client) = self.clients.get_mut(&handle) else {
            return self.add_client(call, handle, owner, Origin::Named);
        };
        match (client.file, owner) {
            // A client can only be used through the description that owns it (rmclientValidate_IMPL, client.c).
            (Some(file), Some(owner)) if file != owner && call.rm.dev.node() != Node::Gpu => {
                client.inconsistent = client.inconsistent.or(Some(call.at));
                self.inconsistent += 1;
                false
            }
            (None, Some(_)) => {
                self.settle_owner(call, handle, owner);
                true
            }
            _ => true,
        }
    }

    /// The description that owns the clients which can be named through the caller's (`RmIoctl`, escape.c).
    fn owner(&self, call: &Call) -> Option<Token> {
        if call.rm.dev.node() == Node::Gpu { self.pins(call.rm.file) } else { Some(call.rm.file) }
    }

    fn add_client(&mut self, call: &Call, handle: Handle, file: Option<Token>, origin: Origin) -> bool {
        if handle == 0 || self.clients.len() >= CLIENTS_MAX {
            self.refuse(call.at, handle != 0);
            return false;
        }
        if let Some(file) = file {
            let Some(description) = self.describe(call.at, file, call.held) else { return false };
            description.clients.insert(handle);
        }
        let seq = self.next();
        let (process, at) = (call.rm.id, call.at);
        let (inconsistent, devices) = (None, 0);
        let (objects, children) = Default::default();
        self.by_process.entry(process).or_default().insert(handle);
        let client = Client { handle, file, process, at, origin, inconsistent, objects, children, devices, seq };
        self.clients.insert(handle, client);
        true
    }

    /// The description that owns a client becomes known.
    fn settle_owner(&mut self, call: &Call, handle: Handle, owner: Option<Token>) {
        let Some(file) = owner else { return };
        let Some(description) = self.describe(call.at, file, call.held) else { return };
        description.clients.insert(handle);
        if let Some(client) = self.clients.get_mut(&handle) {
            client.file = owner;
        }
        self.rewrite_makers(handle);
    }

    fn was_made(&mut self, call: &Call, handle: Handle) {
        self.forget_names(handle);
        let Some(client) = self.clients.get_mut(&handle) else { return };
        client.origin = Origin::Made;
        client.at = call.at;
        let named_by = std::mem::replace(&mut client.process, call.rm.id);
        self.leave_process(named_by, handle);
        self.by_process.entry(call.rm.id).or_default().insert(handle);
        self.rewrite_makers(handle);
    }

    /// Happens at most twice to a client.
    fn rewrite_makers(&mut self, handle: Handle) {
        let Some(client) = self.clients.get(&handle) else { return };
        for object in client.objects.values() {
            if let Some(memory) = object.memory.and_then(|id| self.memories.get_mut(&id))
                && memory.id.0 == object.seq
            {
                memory.maker.process = Some(client.process);
                memory.maker.file = client.file;
            }
        }
    }

    /// The request's new object can be put there: what had the handle before was freed unseen.
    fn has_room(&mut self, call: &Call, client: Handle, object: Handle) -> bool {
        if !self.believes(call, client) || object == 0 || object == client {
            return false;
        }
        if self.clients.get(&client).is_some_and(|c| c.objects.contains_key(&object)) {
            self.free_tree(client, object);
        }
        let room = self.objects < OBJECTS_MAX;
        self.refuse(call.at, !room);
        room
    }

    fn object(&mut self, call: &Call, parent: Handle, class: u32) -> Object {
        Object { parent, class, device: None, memory: None, at: call.at, seq: self.next() }
    }

    /// Puts an object where there is none; it is on its parent's device unless it is one itself.
    fn put(&mut self, call: &Call, (client, object): (Handle, Handle), mut new: Object) {
        let Some(owner) = self.clients.get_mut(&client) else { return };
        let inherited = owner.objects.get(&new.parent).and_then(|parent| parent.device);
        new.device = new.device.or(inherited);
        owner.devices |= new.device.map_or(0, bit);
        if new.parent != client {
            owner.children.insert((new.parent, object));
        }
        owner.objects.insert(object, new);
        self.objects += 1;
        if let Some(id) = new.memory {
            self.refer(id, new.seq, Ref::Object { client, object }, call.at);
        }
    }

    /// Puts an object that is the original of new memory.
    fn allocate(&mut self, call: &Call, place: (Handle, Handle), new: Object, bytes: Option<u64>) -> Option<MemoryId> {
        let client = self.clients.get(&place.0)?;
        let (process, file) = (Some(client.process), client.file);
        let device = client.objects.get(&new.parent).and_then(|parent| parent.device);
        let maker = Maker { process, client: Some(place.0), object: Some(place.1), file };
        let id = MemoryId(new.seq);
        let memory = Memory { id, bytes, class: new.class, device, maker, at: call.at, refs: Refs::default() };
        self.memories.insert(id, memory);
        self.put(call, place, Object { memory: Some(id), ..new });
        Some(id)
    }

    /// Memory of which neither size nor allocation was seen. The caller takes a reference to it at once.
    fn unknown_memory(&mut self, at: BootNs, maker: Maker) -> MemoryId {
        let id = MemoryId(self.next());
        let memory = Memory { id, bytes: None, class: 0, device: None, maker, at, refs: Refs::default() };
        self.memories.insert(id, memory);
        id
    }

    fn refer(&mut self, id: MemoryId, seq: u64, what: Ref, at: BootNs) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.refs.push(seq, Taken { what, at });
        }
    }

    fn look(&self, client: Handle, object: Handle) -> Named {
        let owner = self.clients.get(&client);
        if let Some(known) = owner.and_then(|owner| owner.objects.get(&object)) {
            return known.memory.map_or(Named::Plain(known.class), Named::Memory);
        }
        match self.named.get(&(client, object)) {
            Some(id) => Named::Memory(*id),
            None if owner.is_some_and(|owner| self.is_complete(owner)) => Named::Plain(0),
            None => Named::Unknown,
        }
    }

    /// Like `look`, but takes what only memory is done with for memory: a client that was named late had it before.
    fn source(&mut self, call: &Call, client: Handle, object: Handle) -> Named {
        let found = self.look(client, object);
        let can_have_it = self.clients.contains_key(&client) && object != 0 && object != client;
        if !matches!(found, Named::Unknown) || !can_have_it {
            return found;
        }
        if self.objects >= OBJECTS_MAX {
            self.refuse(call.at, true);
            return Named::Plain(0);
        }
        let new = self.object(call, client, 0);
        self.allocate(call, (client, object), new, None).map_or(Named::Unknown, Named::Memory)
    }

    fn duplicates(&mut self, call: &Call, place: (Handle, Handle), parent: Handle, from: (Handle, Handle)) {
        if !self.has_room(call, place.0, place.1) {
            return;
        }
        let (class, memory) = match self.source(call, from.0, from.1) {
            Named::Plain(class) => (class, None),
            Named::Memory(id) => (self.class_of(id), Some(id)),
            Named::Unknown => (0, Some(self.memory_of_unknown(call, from))),
        };
        // It may be its own source, and then it was taken for the original just now.
        if place == from {
            return;
        }
        let new = self.object(call, parent, class);
        self.put(call, place, Object { memory, ..new });
    }

    /// Null handles name nothing, so that a carried-over reference can have no known origin.
    fn memory_of_unknown(&mut self, call: &Call, (client, object): (Handle, Handle)) -> MemoryId {
        if client == 0 || object == 0 || object == client {
            return self.unknown_memory(call.at, Maker::default());
        }
        let maker = Maker { client: Some(client), object: Some(object), ..Maker::default() };
        let id = self.unknown_memory(call.at, maker);
        self.named.insert((client, object), id);
        id
    }

    fn class_of(&self, id: MemoryId) -> u32 {
        self.memories.get(&id).map_or(0, |memory| memory.class)
    }

    /// A handle with several objects is imported object by object, in order, by each client.
    fn imports(&mut self, call: &Call, place: (Handle, Handle), parent: Handle, from: Token) {
        if !self.has_room(call, place.0, place.1) {
            return;
        }
        let exported = self.descriptions.get(&from).map_or(0, |d| d.exports.len());
        if exported == 0 {
            let id = self.unknown_memory(call.at, Maker::default());
            if !self.export_to(call, id, from, ExportKind::Fd) {
                self.memories.remove(&id);
                return;
            }
        }
        let Some(description) = self.descriptions.get(&from) else { return };
        let key = (place.0, description.seq);
        let turn = self.imports.get(&key).copied().unwrap_or_default();
        let Some(export) = description.exports.get(turn % description.exports.len().max(1)) else { return };
        let memory = export.memory;
        // One object is always the same one.
        if description.exports.len() > 1 && (turn > 0 || self.imports.len() < OBJECTS_MAX) {
            self.imports.insert(key, turn.wrapping_add(1));
        }
        let new = self.object(call, parent, self.class_of(memory));
        self.put(call, place, Object { memory: Some(memory), ..new });
    }

    fn exports(&mut self, call: &Call, place: (Handle, Handle), to: Token, kind: ExportKind) {
        if self.believes(call, place.0)
            && let Named::Memory(id) = self.source(call, place.0, place.1)
        {
            self.export_to(call, id, to, kind);
        }
    }

    fn export_to(&mut self, call: &Call, memory: MemoryId, to: Token, kind: ExportKind) -> bool {
        let (seq, at) = (self.next(), call.at);
        if self.kept >= KEPT_MAX {
            self.refuse(at, true);
            return false;
        }
        let Some(description) = self.describe(at, to, call.held) else { return false };
        description.last = description.last.max(at);
        description.exports.push(Export { seq, memory, kind, at });
        self.kept += 1;
        self.refer(memory, seq, Ref::Export { file: to, kind }, at);
        true
    }

    fn becomes_space(&mut self, call: &Call, flags: u64) {
        let (file, at) = (call.rm.file, call.at);
        // A description becomes a space once: what was mapped before that was another one's.
        if self.space(file).is_some_and(|space| space.at < at) {
            self.unmap_all(file);
        }
        if let Some(space) = self.space_mut(call) {
            (space.made, space.flags, space.at) = (true, flags, at);
        }
    }

    /// The address space that the caller's description is.
    fn space_mut(&mut self, call: &Call) -> Option<&mut Space> {
        let at = call.at;
        let description = self.describe(at, call.rm.file, call.held)?;
        Some(description.space.get_or_insert_with(|| Box::new(Space { at, ..Space::default() })))
    }

    fn maps(&mut self, call: &Call, place: (Handle, Handle), base: u64, length: u64) {
        let (file, at) = (call.rm.file, call.at);
        // A new mapping takes the place of what it covers.
        self.unmap(file, base, length);
        let found = self.look(place.0, place.1);
        if let Named::Memory(memory) = found {
            let seq = self.next();
            self.replace(call, base, Mapping { seq, memory, length, at });
            return;
        }
        self.unmap(file, base, 0);
        // System memory is mapped too, and is not in the books: what is unknown must not count as memory of the GPU.
        if matches!(found, Named::Unknown)
            && let Some(space) = self.space_mut(call)
        {
            space.unknown = space.unknown.or(Some(at));
        }
    }

    fn replace(&mut self, call: &Call, base: u64, map: Mapping) {
        if self.kept >= KEPT_MAX {
            self.refuse(call.at, true);
            return;
        }
        let file = call.rm.file;
        let Some(space) = self.space_mut(call) else { return };
        let before = space.maps.insert(base, map);
        self.kept += 1;
        self.refer(map.memory, map.seq, Ref::Space { file, base, length: map.length }, map.at);
        if let Some(before) = before {
            self.kept -= 1;
            self.drop_ref(before.memory, before.seq);
        }
    }

    /// The description, made when it is new and there is room.
    pub(super) fn describe(
        &mut self,
        at: BootNs,
        token: Token,
        held: &dyn Fn(Token) -> bool,
    ) -> Option<&mut Description> {
        if !self.descriptions.contains_key(&token) {
            if self.descriptions.len() >= DESCRIPTIONS_MAX {
                self.refuse(at, true);
                return None;
            }
            let seq = self.next();
            let new = Description { seq, held: held(token), first: at, last: at, ..Description::default() };
            self.descriptions.insert(token, new);
        }
        self.descriptions.get_mut(&token)
    }

    /// What there is no room for is lost.
    fn refuse(&mut self, at: BootNs, refused: bool) {
        if refused {
            self.loses(at, FULL, 1);
        }
    }
}
