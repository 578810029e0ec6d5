//! What frees: requests, releases of descriptions, and scans that no longer find them.
//!
//! Always true: freeing costs what is freed (times a logarithm), never what stays.

use super::description::Mapping;
use super::fold::Call;
use super::memory::MemoryId;
use super::{Books, Object, RELEASED_KEPT};
use crate::event::rm::Handle;
use crate::event::{BootNs, ProcessId, Token};

impl Books {
    /// A description is held: the world will say when it is released.
    pub(in crate::world) fn holds(
        &mut self,
        at: BootNs,
        token: Token,
        pins: Option<Token>,
        held: &dyn Fn(Token) -> bool,
    ) {
        if let Some(description) = self.descriptions.get_mut(&token) {
            description.held = true;
        }
        if let Some(target) = pins {
            self.pin(at, token, target, held);
        }
    }

    /// Nobody holds the description any more. It lives on while another one keeps it open.
    pub(in crate::world) fn release(&mut self, at: BootNs, token: Token) {
        if self.released.len() == RELEASED_KEPT {
            self.released.pop_front();
        }
        self.released.push_back((token, at));
        if let Some(description) = self.descriptions.get_mut(&token) {
            description.held = false;
            self.settle(token);
        }
    }

    /// Its address belongs to another description by now, so nothing can have kept it open. Says what was thought to.
    pub(in crate::world) fn reuse(&mut self, token: Token) -> Vec<Token> {
        let Some(description) = self.descriptions.get_mut(&token) else { return Vec::new() };
        description.held = false;
        let pinned_by: Vec<Token> = std::mem::take(&mut description.pinned_by).into_iter().collect();
        for by in &pinned_by {
            if let Some(description) = self.descriptions.get_mut(by) {
                description.pins = None;
            }
            self.prune(*by);
        }
        self.settle(token);
        pinned_by
    }

    /// A complete scan that began then found every holder: what was last used before and is not held is released.
    pub(in crate::world) fn scanned(&mut self, began: BootNs, is_dead: &dyn Fn(ProcessId) -> bool) {
        let unheld = self.descriptions.iter().filter(|(_, d)| !d.held && d.last < began);
        let unheld: Vec<Token> = unheld.map(|(token, _)| *token).collect();
        for token in unheld {
            self.settle(token);
        }
        let ownerless = self.clients.values().filter(|c| c.file.is_none() && c.at < began && is_dead(c.process));
        let ownerless: Vec<Handle> = ownerless.map(|client| client.handle).collect();
        for handle in ownerless {
            self.free_client(handle);
        }
    }

    /// `token` keeps `target` open, and only that.
    pub(super) fn pin(&mut self, at: BootNs, token: Token, target: Token, held: &dyn Fn(Token) -> bool) {
        if token == target || self.pins(token) == Some(target) {
            return;
        }
        if self.describe(at, token, held).is_none() || self.describe(at, target, held).is_none() {
            self.prune(token);
            return;
        }
        if let Some(kept) = self.descriptions.get_mut(&target) {
            kept.pinned_by.insert(token);
        }
        let before = self.descriptions.get_mut(&token).and_then(|d| d.pins.replace(target));
        if let Some(before) = before {
            self.unpin(token, before);
            self.settle(before);
        }
    }

    fn unpin(&mut self, token: Token, target: Token) {
        if let Some(kept) = self.descriptions.get_mut(&target) {
            kept.pinned_by.remove(&token);
        }
    }

    /// Releases the description if nothing holds it or keeps it open, and then what only it kept open.
    fn settle(&mut self, token: Token) {
        let mut next = Some(token);
        while let Some(token) = next {
            next = None;
            let Some(description) = self.descriptions.get(&token) else { continue };
            if description.held || !description.pinned_by.is_empty() {
                self.prune(token);
                continue;
            }
            if let Some(description) = self.descriptions.remove(&token) {
                description.clients.iter().for_each(|client| self.free_client(*client));
                let maps = description.space.iter().flat_map(|space| space.maps.values());
                let maps = maps.map(|map| (map.memory, map.seq));
                let kept = description.exports.iter().map(|export| (export.memory, export.seq)).chain(maps);
                kept.for_each(|(memory, seq)| self.drop_kept(memory, seq));
                next = description.pins;
            }
            if let Some(target) = next {
                self.unpin(token, target);
            }
        }
    }

    pub(super) fn frees(&mut self, call: &Call, client: Handle, object: Handle) {
        let whole = object == client;
        if whole && !self.clients.contains_key(&client) || !self.believes(call, client) {
            return;
        }
        if whole {
            self.free_client(client);
        } else {
            self.free_tree(client, object);
        }
    }

    pub(super) fn free_client(&mut self, handle: Handle) {
        let Some(client) = self.clients.remove(&handle) else { return };
        for object in client.objects.values() {
            self.drop_object(object);
        }
        self.leave_process(client.process, handle);
        if let Some(file) = client.file {
            if let Some(description) = self.descriptions.get_mut(&file) {
                description.clients.remove(&handle);
            }
            self.prune(file);
        }
        self.forget_names(handle);
        while let Some((key, _)) = self.imports.range((handle, 0)..=(handle, u64::MAX)).next() {
            let key = *key;
            self.imports.remove(&key);
        }
    }

    pub(super) fn leave_process(&mut self, id: ProcessId, handle: Handle) {
        if let Some(clients) = self.by_process.get_mut(&id) {
            clients.remove(&handle);
            if clients.is_empty() {
                self.by_process.remove(&id);
            }
        }
    }

    /// The handle's objects are no longer what they were duplicated from.
    pub(super) fn forget_names(&mut self, handle: Handle) {
        while let Some((key, _)) = self.named.range((handle, 0)..=(handle, Handle::MAX)).next() {
            let key = *key;
            self.named.remove(&key);
        }
    }

    /// Frees an object and everything below it. The object itself may be of a kind that is not reported.
    pub(super) fn free_tree(&mut self, client: Handle, object: Handle) {
        let mut doomed = vec![object];
        while let Some(handle) = doomed.pop() {
            let Some(client) = self.clients.get_mut(&client) else { return };
            let children = client.children.range((handle, 0)..=(handle, Handle::MAX));
            doomed.extend(children.map(|(_, child)| *child));
            if let Some(object) = client.objects.remove(&handle) {
                client.children.remove(&(object.parent, handle));
                self.drop_object(&object);
            }
        }
    }

    fn drop_object(&mut self, object: &Object) {
        self.objects -= 1;
        if let Some(memory) = object.memory {
            self.drop_ref(memory, object.seq);
        }
    }

    /// What is mapped from `base` on and ends within `length` bytes; without a length what is mapped there. A mapping of which only a part
    /// goes still keeps its memory (uvm_ext_gpu_map_split, uvm_map_external.c).
    pub(super) fn unmap(&mut self, file: Token, base: u64, length: u64) {
        let end = base.saturating_add(length);
        let Some(space) = self.space(file) else { return };
        let inside = |(at, map): &(&u64, &Mapping)| length == 0 || at.saturating_add(map.length) <= end;
        let gone: Vec<(u64, Mapping)> =
            space.maps.range(base..end.max(base.saturating_add(1))).filter(inside).map(|(at, map)| (*at, *map)).collect();
        for (at, map) in &gone {
            if let Some(space) = self.descriptions.get_mut(&file).and_then(|description| description.space.as_mut()) {
                space.maps.remove(at);
            }
            self.drop_kept(map.memory, map.seq);
        }
        if !gone.is_empty() {
            self.prune(file);
        }
    }

    pub(super) fn unmap_all(&mut self, file: Token) {
        let Some(space) = self.descriptions.get_mut(&file).and_then(|d| d.space.take()) else { return };
        space.maps.values().for_each(|map| self.drop_kept(map.memory, map.seq));
        self.prune(file);
    }

    fn drop_kept(&mut self, memory: MemoryId, seq: u64) {
        self.kept -= 1;
        self.drop_ref(memory, seq);
    }

    pub(super) fn drop_ref(&mut self, id: MemoryId, seq: u64) {
        let Some(memory) = self.memories.get_mut(&id) else { return };
        memory.refs.remove(seq);
        if !memory.refs.is_empty() {
            return;
        }
        let maker = memory.maker;
        self.memories.remove(&id);
        let name = (maker.client.unwrap_or_default(), maker.object.unwrap_or_default());
        if self.named.get(&name) == Some(&id) {
            self.named.remove(&name);
        }
    }
}
