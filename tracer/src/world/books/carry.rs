//! The books as events again: what the next trace file opens with.
//!
//! Always true: folded into a fresh world that knows the same descriptions, the events give the same books: same clients, objects,
//! references in the same order, makers and times. Only how far a client got with importing a handle of several objects is
//! not carried.
//!
//! Everything living is told in the order in which it came. Memory whose original is gone is made first, by its maker, and parked
//! with a client that exists for nothing else; the living references are then taken from there. At the end that client is
//! freed.

use super::description::{Export, Mapping};
use super::memory::{Maker, Memory, MemoryId, Ref};
use super::{Books, Client, Object, Origin};
use crate::event::rm::{Handle, Op, Rm};
use crate::event::{BootNs, Dev, Event, ProcessId, Token, What};
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};

const NVIDIACTL: Dev = Dev::new(195, 255);
const NVIDIA0: Dev = Dev::new(195, 0);
const DEVICE_CLASS: u32 = 0x80;

/// Something living, told by one request.
enum Item<'a> {
    Client(&'a Client),
    Object(&'a Client, Handle, &'a Object),
    Map(Token, u64, &'a Mapping),
    Export(Token, &'a Export),
}

struct Carrier<'a> {
    books: &'a Books,
    world: &'a World,
    out: &'a mut Vec<Event>,
    /// Memory that is parked, by the handle that it has there.
    parked: BTreeMap<MemoryId, Handle>,
    /// The client where it is.
    lot: Handle,
    /// A client that never was.
    nobody: Handle,
    /// A description that never was.
    nowhere: Token,
}

impl World {
    pub(in crate::world) fn carry_books(&self, out: &mut Vec<Event>) {
        let books = &self.books;
        let taken: BTreeSet<Handle> = books.handles().collect();
        let mut free = (0..Handle::MAX).rev().filter(|handle| !taken.contains(handle));
        let (lot, nobody) = (free.next().unwrap_or_default(), free.next().unwrap_or_default());
        let tokens = books.tokens();
        let nowhere = (0..Token::MAX).rev().find(|t| !tokens.contains(t) && self.file(*t).is_none()).unwrap_or_default();
        let parked = BTreeMap::new();
        Carrier { books, world: self, out, parked, lot, nobody, nowhere }.carry();
    }
}

impl Books {
    fn handles(&self) -> impl Iterator<Item = Handle> {
        let makers = self.memories.values().filter_map(|memory| memory.maker.client);
        self.clients.keys().copied().chain(makers)
    }

    /// It is still known by what it was duplicated from.
    fn is_named(&self, memory: &Memory) -> bool {
        let Maker { client: Some(client), object: Some(object), .. } = memory.maker else { return false };
        self.named.get(&(client, object)) == Some(&memory.id)
    }

    fn tokens(&self) -> BTreeSet<Token> {
        let makers = self.memories.values().filter_map(|memory| memory.maker.file);
        self.descriptions.keys().copied().chain(makers).collect()
    }
}

impl<'a> Carrier<'a> {
    fn carry(&mut self) {
        self.loss();
        for (device, gpu_id) in &self.books.gpu_ids {
            let op = Op::Gpu { gpu_id: *gpu_id, device: *device };
            self.ask(self.world.host.now, ProcessId::default(), (self.nowhere, NVIDIACTL), op);
        }
        for (id, (at, why)) in &self.books.missed {
            self.ask(*at, *id, (self.nowhere, NVIDIACTL), Op::Missed { why: *why });
        }
        self.descriptions();
        self.park_orphans();
        for (_, item) in living(self.books) {
            self.item(&item);
        }
        self.marks();
        if !self.parked.is_empty() {
            self.frees(self.world.host.now, (self.lot, self.lot), Some(self.nowhere));
        }
    }

    /// A loss that only the books know of: there was no room.
    fn loss(&mut self) {
        let Some(loss) = &self.books.loss else { return };
        let known = self.world.host.lost.get(&*loss.cause).is_some_and(|(_, at)| *at >= loss.at);
        if !known {
            let cause = loss.cause.to_string();
            self.out.push(Event { at: loss.at, what: What::Lost { cause, count: 1 } });
        }
    }

    /// What keeps what open, and address spaces.
    fn descriptions(&mut self) {
        for (token, description) in &self.books.descriptions {
            let id = ProcessId::default();
            let door = (*token, self.dev(*token));
            if let Some(target) = description.pins {
                let is_space = self.books.space(target).is_some();
                let op = if is_space { Op::SpaceMm { space: target } } else { Op::Register { control: target } };
                self.ask(description.first, id, door, op);
            }
            let Some(space) = &description.space else { continue };
            if space.made {
                self.ask(space.at, id, door, Op::Space { flags: space.flags });
            }
            for uuid in &space.gpus {
                self.ask(space.at, id, door, Op::SpaceGpu { uuid: *uuid });
            }
            if let Some(at) = space.unknown {
                let base = (0..u64::MAX).rev().find(|base| !space.maps.contains_key(base)).unwrap_or_default();
                self.ask(at, id, door, Op::Map { client: self.nobody, object: 1, base, length: 0 });
            }
        }
    }

    fn park_orphans(&mut self) {
        let original = |memory: &Memory| memory.refs.is_first(memory.id.0) && memory.bytes.is_some();
        let orphans: Vec<&Memory> = self.books.memories.values().filter(|memory| !original(memory)).collect();
        if let Some(first) = orphans.first() {
            self.ask(first.at, ProcessId::default(), (self.nowhere, NVIDIACTL), Op::Client { client: self.lot });
        }
        // What is still known by what it was duplicated from comes last: making a client of that handle would void it.
        let (named, others): (Vec<&Memory>, Vec<&Memory>) = orphans.into_iter().partition(|memory| self.books.is_named(memory));
        let handles = (1..).filter(|handle| *handle != self.lot);
        let all: Vec<(Handle, &Memory)> = handles.zip(others.into_iter().chain(named)).collect();
        for (handle, memory) in all {
            self.parked.insert(memory.id, handle);
            self.park(handle, memory);
        }
    }

    fn park(&mut self, handle: Handle, memory: &Memory) {
        let maker = memory.maker;
        let (client, object) = (maker.client.unwrap_or_default(), maker.object.unwrap_or_default());
        let Some(process) = maker.process else {
            self.lot_takes(memory.at, handle, (client, object));
            if client != 0 && !self.books.is_named(memory) {
                let door = (self.nowhere, NVIDIACTL);
                self.ask(memory.at, ProcessId::default(), door, Op::Client { client });
                self.frees(memory.at, (client, client), Some(self.nowhere));
            }
            return;
        };
        if memory.refs.is_first(memory.id.0) {
            // Taken for memory because something was done with it; told in its turn.
            return;
        }
        let door = self.door(maker.file);
        match memory.bytes {
            Some(bytes) => {
                self.ask(memory.at, process, door, Op::Client { client });
                let parent = if object == 1 { 2 } else { 1 };
                let class = DEVICE_CLASS;
                let device = memory.device;
                self.ask(memory.at, process, door, Op::Object { client, parent: client, object: parent, class, device });
                let class = memory.class;
                self.ask(memory.at, process, door, Op::Memory { client, parent, object, class, bytes });
            }
            None => self.ask(memory.at, process, door, Op::Known { client }),
        }
        self.lot_takes(memory.at, handle, (client, object));
        self.ask(memory.at, process, door, Op::Free { client, object: client });
    }

    fn lot_takes(&mut self, at: BootNs, object: Handle, (from_client, from_object): (Handle, Handle)) {
        let op = Op::Dup { client: self.lot, parent: self.lot, object, from_client, from_object };
        self.ask(at, ProcessId::default(), (self.nowhere, NVIDIACTL), op);
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Client(client) if client.origin == Origin::Made && !self.has_guessed(client) => self.makes(client),
            Item::Client(client) => {
                let door = self.door(client.file);
                self.ask(client.at, client.process, door, Op::Known { client: client.handle });
            }
            Item::Object(client, handle, object) => self.object(client, *handle, object),
            Item::Map(file, base, map) => {
                let ((client, object), ..) = self.source(map.memory);
                let door = (*file, self.dev(*file));
                let op = Op::Map { client, object, base: *base, length: map.length };
                self.ask(map.at, ProcessId::default(), door, op);
            }
            Item::Export(file, export) => {
                let ((client, object), process, owner) = self.source(export.memory);
                let op = Op::Export { client, object, to: *file, kind: export.kind };
                self.ask(export.at, process, self.door(owner), op);
            }
        }
    }

    fn object(&mut self, owner: &Client, object: Handle, known: &Object) {
        let Object { parent, class, device, at, .. } = *known;
        let client = owner.handle;
        let memory = known.memory.and_then(|id| self.books.memories.get(&id));
        let op = match memory {
            None => Op::Object { client, parent, object, class, device },
            Some(memory) if memory.id.0 != known.seq => {
                let ((from_client, from_object), ..) = self.source(memory.id);
                Op::Dup { client, parent, object, from_client, from_object }
            }
            Some(memory) => match memory.bytes {
                Some(bytes) => Op::Memory { client, parent, object, class, bytes },
                None => {
                    let handle = self.parked.get(&memory.id).copied().unwrap_or_default();
                    self.lot_takes(at, handle, (client, object));
                    return;
                }
            },
        };
        self.ask(at, owner.process, self.door(owner.file), op);
    }

    /// What another reference to this memory can be taken from: the object, and its client's process and description.
    fn source(&self, id: MemoryId) -> ((Handle, Handle), ProcessId, Option<Token>) {
        let parked = self.parked.get(&id).map(|handle| (self.lot, *handle));
        let first = self.books.memories.get(&id).and_then(Memory::first);
        match (parked, first.map(|taken| taken.what)) {
            (None, Some(Ref::Object { client, object })) => {
                let owner = self.books.clients.get(&client);
                let process = owner.map(|owner| owner.process).unwrap_or_default();
                ((client, object), process, owner.and_then(|owner| owner.file))
            }
            (parked, _) => (parked.unwrap_or_default(), ProcessId::default(), Some(self.nowhere)),
        }
    }

    /// What is said of clients when all their objects are told.
    fn marks(&mut self) {
        for client in self.books.clients.values() {
            if client.origin == Origin::Made && self.has_guessed(client) {
                self.makes(client);
            }
            // A request through a description that does not own it.
            if let Some(at) = client.inconsistent {
                let door = (self.nowhere, NVIDIACTL);
                self.ask(at, client.process, door, Op::Known { client: client.handle });
            }
        }
    }

    /// It has objects that were taken for memory before it was known that it was seen from its making.
    fn has_guessed(&self, client: &Client) -> bool {
        let is_guessed = |object: &Object| {
            let memory = object.memory.and_then(|id| self.books.memories.get(&id));
            memory.is_some_and(|memory| memory.bytes.is_none() && memory.id.0 == object.seq)
        };
        client.objects.values().any(is_guessed)
    }

    fn makes(&mut self, client: &Client) {
        let op = Op::Client { client: client.handle };
        self.ask(client.at, client.process, self.door(client.file), op);
    }

    fn frees(&mut self, at: BootNs, (client, object): (Handle, Handle), file: Option<Token>) {
        self.ask(at, ProcessId::default(), self.door(file), Op::Free { client, object });
    }

    /// Where a client of this description is used. One without is used through a /dev/nvidiaN that keeps nothing known open.
    fn door(&self, file: Option<Token>) -> (Token, Dev) {
        file.map_or((self.nowhere, NVIDIA0), |file| (file, NVIDIACTL))
    }

    fn dev(&self, file: Token) -> Dev {
        self.world.file(file).map_or(Dev(0), |file| file.dev)
    }

    fn ask(&mut self, at: BootNs, id: ProcessId, (file, dev): (Token, Dev), op: Op) {
        self.out.push(Event { at, what: What::Rm(Box::new(Rm { id, file, dev, op })) });
    }
}

/// Everything living, in order of arrival.
fn living(books: &Books) -> Vec<(u64, Item<'_>)> {
    let mut items = Vec::new();
    for client in books.clients.values() {
        items.push((client.seq, Item::Client(client)));
        let objects = client.objects.iter();
        items.extend(objects.map(|(handle, object)| (object.seq, Item::Object(client, *handle, object))));
    }
    for (token, description) in &books.descriptions {
        let maps = description.space.iter().flat_map(|space| &space.maps);
        items.extend(maps.map(|(base, map)| (map.seq, Item::Map(*token, *base, map))));
        items.extend(description.exports.iter().map(|export| (export.seq, Item::Export(*token, export))));
    }
    items.sort_by_key(|(seq, _)| *seq);
    items
}
