//! The books against a model that has no indices, and looks at everything again after each step.
//!
//! Always true: the model's lists are all there is to it; what nothing keeps is found by looking whether anything does.

use super::super::memory::Ref;
use super::check::consistent;
use crate::event::rm::{ExportKind, Handle, Op, Rm};
use crate::event::{Event, ProcessId, Token, Via, What};
use crate::story::{CTL, GPU0, UVM, bare};
use crate::world::World;
use proptest::collection::vec;
use proptest::prelude::*;

/// What is done next; numbers choose among what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open(usize, usize),
    Close(usize),
    Fork(usize),
    Die(usize),
    Register(usize, usize),
    SpaceMm(usize, usize),
    Client(usize),
    Device(usize),
    Alloc(usize, usize, u64),
    Dup(usize, usize),
    Map(usize, usize, u64),
    Unmap(usize, u64),
    Export(usize),
    Import(usize, usize),
    Free(usize),
    FreeClient(usize),
}

#[derive(Clone, Copy, Debug)]
struct Object {
    client: Handle,
    handle: Handle,
    parent: Handle,
    memory: Option<usize>,
}

#[derive(Default)]
struct Model {
    world: World,
    now: u64,
    numbers: u32,
    processes: Vec<ProcessId>,
    /// (process, descriptor, description)
    descriptors: Vec<(ProcessId, i32, Token)>,
    /// All that were ever opened: description, kind.
    files: Vec<(Token, usize)>,
    pins: Vec<(Token, Token)>,
    clients: Vec<(Handle, Token, ProcessId)>,
    objects: Vec<Object>,
    /// Bytes by number.
    memories: Vec<u64>,
    refs: Vec<(usize, Ref)>,
}

const DEVS: [crate::event::Dev; 3] = [CTL, UVM, GPU0];

fn pick<T: Copy>(from: &[T], number: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[number % from.len()])
}

impl Model {
    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    fn tell(&mut self, what: What) {
        self.now += 1;
        self.world.apply(&Event { at: self.now, what });
    }

    fn ask(&mut self, id: ProcessId, file: Token, op: Op) {
        let dev = self.files.iter().find(|(token, _)| *token == file).map_or(CTL, |(_, kind)| DEVS[*kind]);
        self.tell(What::Rm(Box::new(Rm { id, file, dev, op })));
    }

    /// (process, description) of this kind that somebody holds.
    fn held(&self, kind: usize) -> Vec<(ProcessId, Token)> {
        let of_kind = |token: &Token| self.files.contains(&(*token, kind));
        self.descriptors.iter().filter(|(.., token)| of_kind(token)).map(|(id, _, token)| (*id, *token)).collect()
    }

    fn is_open(&self, file: Token) -> bool {
        let pinned = || self.pins.iter().any(|(from, to)| *to == file && self.is_open(*from));
        self.descriptors.iter().any(|(.., token)| *token == file) || pinned()
    }

    /// Clients that somebody can use, with who and through what.
    fn usable(&self) -> Vec<(ProcessId, Token, Handle)> {
        let by = |(client, file, _): &(Handle, Token, ProcessId)| {
            let (id, ..) = *self.descriptors.iter().find(|(.., token)| token == file)?;
            Some((id, *file, *client))
        };
        self.clients.iter().filter_map(by).collect()
    }

    fn is_below(&self, object: Object, above: Handle) -> bool {
        let parent = self.objects.iter().find(|o| (o.client, o.handle) == (object.client, object.parent));
        object.parent == above || parent.is_some_and(|parent| self.is_below(*parent, above))
    }

    /// Takes away whatever nothing keeps.
    fn sweep(&mut self) {
        let open: Vec<Token> = self.files.iter().map(|(token, _)| *token).filter(|t| self.is_open(*t)).collect();
        self.pins.retain(|(from, _)| open.contains(from));
        self.clients.retain(|(_, file, _)| open.contains(file));
        self.objects.retain(|object| self.clients.iter().any(|(client, ..)| *client == object.client));
        let has = |client, object| self.objects.iter().any(|o| (o.client, o.handle) == (client, object));
        self.refs.retain(|(_, what)| match what {
            Ref::Object { client, object } => has(*client, *object),
            Ref::Space { file, .. } | Ref::Export { file, .. } => open.contains(file),
        });
    }

    fn step(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Open(p, kind) => self.opens(p, kind % 3),
            Step::Close(d) => {
                let (id, fd, file) = pick(&self.descriptors, d)?;
                self.descriptors.retain(|known| *known != (id, fd, file));
                self.tell(What::Drop { id, tid: None, fd, file });
            }
            Step::Fork(p) => self.forks(pick(&self.processes, p).filter(|_| self.processes.len() < 6)?),
            Step::Die(p) => {
                let id = pick(&self.processes, p)?;
                self.processes.retain(|known| *known != id);
                self.descriptors.retain(|(holder, ..)| *holder != id);
                self.tell(What::Zombie { id, parent: ProcessId(1, 0) });
            }
            Step::Register(g, c) => self.pins(pick(&self.held(2), g)?, pick(&self.held(0), c)?.1, false),
            Step::SpaceMm(u, s) => self.pins(pick(&self.held(1), u)?, pick(&self.held(1), s)?.1, true),
            Step::Client(c) => {
                let (id, file) = pick(&self.held(0), c)?;
                let client = self.number();
                self.clients.push((client, file, id));
                self.ask(id, file, Op::Client { client });
            }
            Step::Free(o) => {
                let object = pick(&self.objects, o)?;
                let (id, file, client) = self.usable().into_iter().find(|(.., client)| *client == object.client)?;
                let doomed = |o: &Object| o.client == client && (o.handle == object.handle || self.is_below(*o, object.handle));
                let doomed: Vec<Handle> = self.objects.iter().filter(|o| doomed(o)).map(|o| o.handle).collect();
                self.objects.retain(|o| !doomed.contains(&o.handle));
                self.ask(id, file, Op::Free { client, object: object.handle });
            }
            Step::FreeClient(c) => {
                let (id, file, client) = pick(&self.usable(), c)?;
                self.clients.retain(|(known, ..)| *known != client);
                self.ask(id, file, Op::Free { client, object: client });
            }
            _ => self.memory_step(step)?,
        }
        Some(())
    }

    fn memory_step(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Device(c) => {
                let (id, file, client) = pick(&self.usable(), c)?;
                let object = self.puts(client, client, None);
                self.ask(id, file, Op::Object { client, parent: client, object, class: 0x80, device: Some(0) });
            }
            Step::Alloc(c, p, bytes) => {
                let (id, file, client) = pick(&self.usable(), c)?;
                let own: Vec<Object> = self.objects.iter().copied().filter(|o| o.client == client).collect();
                let parent = pick(&own, p).map_or(client, |object| object.handle);
                self.memories.push(bytes);
                let object = self.puts(client, parent, Some(self.memories.len() - 1));
                self.ask(id, file, Op::Memory { client, parent, object, class: 0x40, bytes });
            }
            Step::Dup(c, o) => {
                let (id, file, client) = pick(&self.usable(), c)?;
                let from = pick(&self.objects, o)?;
                let object = self.puts(client, client, from.memory);
                let (from_client, from_object) = (from.client, from.handle);
                self.ask(id, file, Op::Dup { client, parent: client, object, from_client, from_object });
            }
            Step::Map(u, o, base) => {
                let (id, file) = pick(&self.held(1), u)?;
                let from = pick(&self.objects, o)?;
                self.unmaps(file, base);
                if let Some(memory) = from.memory {
                    self.refs.push((memory, Ref::Space { file, base, length: 1 }));
                }
                self.ask(id, file, Op::Map { client: from.client, object: from.handle, base, length: 1 });
            }
            Step::Unmap(u, base) => {
                let (id, file) = pick(&self.held(1), u)?;
                self.unmaps(file, base);
                self.ask(id, file, Op::Unmap { base, length: 0 });
            }
            Step::Export(o) => {
                let from = pick(&self.objects, o)?;
                let (id, file, client) = self.usable().into_iter().find(|(.., client)| *client == from.client)?;
                let (_, to) = pick(&self.held(0), o)?;
                let kind = ExportKind::Fd;
                self.refs.extend(from.memory.map(|memory| (memory, Ref::Export { file: to, kind })));
                self.ask(id, file, Op::Export { client, object: from.handle, to, kind });
            }
            Step::Import(c, e) => {
                let (id, file, client) = pick(&self.usable(), c)?;
                let exports = self.refs.iter().filter_map(|(memory, what)| match what {
                    Ref::Export { file, .. } => Some((*memory, *file)),
                    _ => None,
                });
                let exports: Vec<(usize, Token)> = exports.collect();
                let (memory, from) = pick(&exports, e)?;
                // Which of several is next is a story of its own.
                if exports.iter().filter(|(_, file)| *file == from).count() == 1 {
                    let object = self.puts(client, client, Some(memory));
                    self.ask(id, file, Op::Import { client, parent: client, object, from });
                }
            }
            _ => {}
        }
        Some(())
    }

    fn opens(&mut self, p: usize, kind: usize) {
        let number = self.number();
        let id = match pick(&self.processes, p).filter(|_| self.processes.len() > 2) {
            Some(id) => id,
            None => {
                self.processes.push(ProcessId(number + 100, 1));
                ProcessId(number + 100, 1)
            }
        };
        let (fd, file) = (number.cast_signed(), u64::from(number));
        self.files.push((file, kind));
        self.descriptors.push((id, fd, file));
        let hold = crate::event::Hold { via: Some(Via::Opened), ..bare(id, fd, file, DEVS[kind]) };
        self.tell(What::Hold(Box::new(hold)));
    }

    fn forks(&mut self, parent: ProcessId) {
        let child = ProcessId(self.number() + 100, 1);
        self.processes.push(child);
        let copies = self.descriptors.iter().filter(|(id, ..)| *id == parent).map(|(_, fd, file)| (child, *fd, *file));
        let copies: Vec<_> = copies.collect();
        self.descriptors.extend(copies);
        self.tell(What::Fork { parent, child, comm: String::new(), cred: None });
    }

    /// Once per description, and never in a chain.
    fn pins(&mut self, (id, from): (ProcessId, Token), to: Token, mm: bool) {
        let used = |(pinning, pinned): &(Token, Token)| *pinning == from || *pinned == from || *pinning == to;
        if from != to && !self.pins.iter().any(used) {
            self.pins.push((from, to));
            self.ask(id, from, if mm { Op::SpaceMm { space: to } } else { Op::Register { control: to } });
        }
    }

    fn puts(&mut self, client: Handle, parent: Handle, memory: Option<usize>) -> Handle {
        let handle = self.number();
        self.objects.push(Object { client, handle, parent, memory });
        self.refs.extend(memory.map(|memory| (memory, Ref::Object { client, object: handle })));
        handle
    }

    fn unmaps(&mut self, space: Token, at: u64) {
        self.refs.retain(|(_, what)| !matches!(what, Ref::Space { file, base, .. } if (*file, *base) == (space, at)));
    }

    fn agrees(&self, world: &World) -> Result<(), TestCaseError> {
        let books = world.books();
        consistent(books).map_err(TestCaseError::fail)?;
        let mut kept: Vec<(u64, Vec<Ref>)> = Vec::new();
        for (number, bytes) in self.memories.iter().enumerate() {
            let refs: Vec<Ref> = self.refs.iter().filter(|(m, _)| *m == number).map(|(_, what)| *what).collect();
            if !refs.is_empty() {
                kept.push((*bytes, refs));
            }
        }
        let in_books = books.memories().map(|m| (m.bytes.unwrap(), m.refs().map(|taken| taken.what).collect()));
        let mut in_books: Vec<(u64, Vec<Ref>)> = in_books.collect();
        kept.sort();
        in_books.sort();
        prop_assert_eq!(&in_books, &kept);
        let mut clients = self.clients.clone();
        clients.sort_unstable();
        let in_books: Vec<_> = books.clients().map(|c| (c.handle, c.file.unwrap(), c.process)).collect();
        prop_assert_eq!(in_books, clients);
        let process = |handle: Handle| self.clients.iter().find(|(client, ..)| *client == handle).map(|(.., id)| *id);
        for id in self.clients.iter().map(|(.., id)| *id) {
            let of_it = |refs: &[Ref]| matches!(refs[0], Ref::Object { client, .. } if process(client) == Some(id));
            let bytes: u64 = kept.iter().filter(|(_, refs)| of_it(refs)).map(|(bytes, _)| bytes).sum();
            prop_assert_eq!(books.charged(id, None), bytes);
        }
        prop_assert!(books.clients().all(|client| books.gap_of_client(client.handle).is_none()));
        Ok(())
    }
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0_usize..1_000;
    let two = || (0_usize..1_000, 0_usize..1_000);
    prop_oneof![
        4 => two().prop_map(|(p, kind)| Step::Open(p, kind)),
        2 => n.clone().prop_map(Step::Close),
        1 => n.clone().prop_map(Step::Fork),
        1 => n.clone().prop_map(Step::Die),
        2 => two().prop_map(|(g, c)| Step::Register(g, c)),
        1 => two().prop_map(|(u, s)| Step::SpaceMm(u, s)),
        3 => n.clone().prop_map(Step::Client),
        2 => n.clone().prop_map(Step::Device),
        4 => (two(), 1_u64..1 << 40).prop_map(|((c, p), bytes)| Step::Alloc(c, p, bytes)),
        3 => two().prop_map(|(c, o)| Step::Dup(c, o)),
        3 => (two(), 0_u64..4).prop_map(|((u, o), base)| Step::Map(u, o, base)),
        1 => (n.clone(), 0_u64..4).prop_map(|(u, base)| Step::Unmap(u, base)),
        2 => n.clone().prop_map(Step::Export),
        2 => two().prop_map(|(c, e)| Step::Import(c, e)),
        2 => n.clone().prop_map(Step::Free),
        1 => n.prop_map(Step::FreeClient),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_say_what_a_model_without_indices_says(steps in vec(step(), 0..120)) {
        let mut model = Model::default();
        for step in steps {
            model.step(step);
            model.sweep();
            model.agrees(&model.world)?;
        }
        model.agrees(&crate::story::fold(&model.world.carry_over()))?;
    }
}
