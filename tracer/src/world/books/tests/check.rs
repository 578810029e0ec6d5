//! Checks of the books' own rules, and a form in which two worlds' books can be compared.

use super::super::Books;
use super::super::memory::Ref;
use std::collections::BTreeMap;

type Checked = Result<(), String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// Every reference's two sides agree, indices hold what they are made from, and counters equal a recount.
pub(crate) fn consistent(books: &Books) -> Checked {
    memories(books)?;
    clients(books)?;
    descriptions(books)?;
    let objects: usize = books.clients.values().map(|client| client.objects.len()).sum();
    ensure(objects == books.objects, || format!("{objects} objects, not {}", books.objects))?;
    let kept: usize = books.descriptions.values().map(|d| d.memories().count()).sum();
    ensure(kept == books.kept, || format!("{kept} mappings and exports, not {}", books.kept))?;
    let refs: usize = books.memories.values().map(|memory| memory.refs().count()).sum();
    let of_objects = books.clients.values().flat_map(|c| c.objects.values()).filter(|o| o.memory.is_some()).count();
    ensure(refs == of_objects + kept, || format!("{refs} references, not {of_objects} + {kept}"))?;
    for (name, id) in &books.named {
        let maker = books.memories.get(id).map(|memory| (memory.maker.client, memory.maker.object));
        ensure(maker == Some((Some(name.0), Some(name.1))), || format!("{name:?} names {maker:?}"))?;
    }
    let counted = |(handle, _): &(u32, u64)| books.clients.contains_key(handle);
    ensure(books.imports.keys().all(counted), || "imports of a client that is gone".into())
}

fn memories(books: &Books) -> Checked {
    for memory in books.memories.values() {
        ensure(memory.refs().next().is_some(), || format!("no reference: {memory:?}"))?;
        let first = memory.refs.iter().next().map(|(seq, _)| seq);
        ensure(first.is_some_and(|seq| memory.refs.is_first(seq)), || format!("first is gone: {memory:?}"))?;
        for (seq, taken) in memory.refs.iter() {
            let found = match taken.what {
                Ref::Object { client, object } => {
                    let object = books.clients.get(&client).and_then(|client| client.objects.get(&object));
                    object.is_some_and(|o| (o.memory, o.seq, o.at) == (Some(memory.id), seq, taken.at))
                }
                Ref::Space { file, base, length } => {
                    let map = books.space(file).and_then(|space| space.maps.get(&base));
                    map.is_some_and(|m| (m.memory, m.seq, m.length, m.at) == (memory.id, seq, length, taken.at))
                }
                Ref::Export { file, kind } => {
                    let exports = books.descriptions.get(&file).map_or(&[][..], |d| &d.exports);
                    exports.iter().any(|e| (e.memory, e.seq, e.kind, e.at) == (memory.id, seq, kind, taken.at))
                }
            };
            ensure(found, || format!("no other side: {taken:?} of {memory:?}"))?;
        }
    }
    Ok(())
}

fn clients(books: &Books) -> Checked {
    for (handle, client) in &books.clients {
        ensure(*handle == client.handle && *handle != 0, || format!("{handle}: {client:?}"))?;
        let listed = books.by_process.get(&client.process).is_some_and(|of| of.contains(handle));
        ensure(listed, || format!("not of its process: {client:?}"))?;
        let owned = |file| books.descriptions.get(&file).is_some_and(|d| d.clients.contains(handle));
        ensure(client.file.is_none_or(owned), || format!("not of its description: {client:?}"))?;
        let below = client.objects.iter().filter(|(_, o)| o.parent != *handle).map(|(h, o)| (o.parent, *h));
        let mut below: Vec<(u32, u32)> = below.collect();
        below.sort_unstable();
        ensure(below.iter().eq(client.children.iter()), || format!("children: {client:?}"))?;
    }
    let listed: usize = books.by_process.values().map(|of| of.len()).sum();
    ensure(listed == books.clients.len(), || "a process lists a client that is gone".into())?;
    let owned: usize = books.descriptions.values().map(|d| d.clients.len()).sum();
    let with_owner = books.clients.values().filter(|client| client.file.is_some()).count();
    ensure(owned == with_owner, || "a description lists a client that is gone".into())
}

fn descriptions(books: &Books) -> Checked {
    for (token, description) in &books.descriptions {
        for by in &description.pinned_by {
            ensure(books.pins(*by) == Some(*token), || format!("{by} does not pin {token}"))?;
        }
        if let Some(target) = description.pins {
            ensure(books.pinned_by(target).any(|by| by == *token), || format!("{target} is not pinned by {token}"))?;
        }
    }
    let empty = books.descriptions.keys().find(|token| {
        let mut copy = Books::default();
        copy.descriptions.insert(**token, books.descriptions[token].clone());
        copy.prune(**token);
        copy.descriptions.is_empty()
    });
    ensure(empty.is_none(), || format!("{empty:?} keeps nothing"))
}

/// Everything that is said of the books, without the numbers that only order it.
pub(crate) fn dump(books: &Books) -> Vec<String> {
    let mut lines = Vec::new();
    for memory in books.memories.values() {
        let refs: Vec<_> = memory.refs().collect();
        let (bytes, class, device, maker, at) = (memory.bytes, memory.class, memory.device, memory.maker, memory.at);
        lines.push(format!("memory {bytes:?} {class:x} {device:?} {maker:?} {at} {refs:?}"));
    }
    lines.sort();
    for client in books.clients.values() {
        let objects = client.objects.iter().map(|(handle, o)| (*handle, (o.parent, o.class, o.device, o.memory.is_some(), o.at)));
        let objects: BTreeMap<_, _> = objects.collect();
        let (handle, file, process, at) = (client.handle, client.file, client.process, client.at);
        lines.push(format!("client {handle:x} {file:?} {process:?} {at} {:?} {:?} {objects:?}", client.origin, client.inconsistent));
    }
    for (token, d) in &books.descriptions {
        let space = d.space.as_ref().map(|s| (s.made.then_some((s.at, s.flags)), &s.gpus, s.unknown));
        lines.push(format!("description {token:x} {} {:?} {:?} {space:?}", d.held, d.pins, d.pinned_by));
    }
    lines.push(format!("{:?} {:?}", books.gpu_ids, (&books.loss, &books.missed)));
    lines
}
