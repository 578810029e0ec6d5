//! What the books must hold to, from small stories.

mod check;
mod garbage;
mod look;
mod model;

use super::gap::Gap;
use super::memory::{Memory, Ref};
use super::{Books, Origin};
use crate::event::rm::{ExportKind, Handle, Missed, Op};
use crate::event::{Dev, Event, Hold, ProcessId, Role, Via, What};
use crate::story::{CTL, DEVICE, GPU0, MIB, Story, UVM, bare, fold};
use crate::world::World;
use check::{consistent, dump};

const CLIENT: Handle = 0xc1d0_0001;
const OTHER: Handle = 0xc1d0_0002;
const OBJECT: Handle = 0xca00_0001;

/// A process with what CUDA opens, a client and 512 MiB.
struct Cuda {
    story: Story,
    id: ProcessId,
    ctl: Hold,
    uvm: Hold,
    gpu: Hold,
}

fn cuda() -> Cuda {
    let mut story = Story::warm();
    let id = story.process(574, "python3");
    let [ctl, uvm, gpu] = <[Hold; 3]>::try_from(story.uses_cuda(id)).unwrap();
    story.client(id, &ctl, CLIENT);
    story.device(id, &ctl, CLIENT, 0);
    story.memory(id, &ctl, CLIENT, OBJECT, 512);
    Cuda { story, id, ctl, uvm, gpu }
}

impl Cuda {
    /// Another process with a client.
    fn importer(&mut self) -> (ProcessId, Hold) {
        let id = self.story.process(600, "importer");
        let ctl = self.story.opens(id, CTL);
        self.story.client(id, &ctl, OTHER);
        self.story.device(id, &ctl, OTHER, 0);
        (id, ctl)
    }

    /// A client that was there before the recording.
    fn late(&mut self) -> (ProcessId, Hold) {
        let id = self.story.process(600, "late");
        let ctl = self.story.opens(id, CTL);
        self.story.asks(id, &ctl, Op::Known { client: OTHER });
        (id, ctl)
    }
}

/// The world, after a look at its books and at what is carried over.
fn checked(story: &Story) -> World {
    let world = story.world();
    consistent(world.books()).unwrap();
    let copy = fold(&world.carry_over());
    consistent(copy.books()).unwrap();
    assert_eq!(dump(copy.books()), dump(world.books()));
    world
}

fn only(books: &Books) -> &Memory {
    let all: Vec<&Memory> = books.memories().collect();
    assert_eq!(all.len(), 1, "{all:#?}");
    all[0]
}

fn refs(memory: &Memory) -> Vec<Ref> {
    memory.refs().map(|taken| taken.what).collect()
}

fn object(client: Handle, object: Handle) -> Ref {
    Ref::Object { client, object }
}

#[test]
fn memory_knows_its_maker_its_size_and_its_device_through_a_subdevice() {
    let mut cuda = cuda();
    let op = Op::Object { client: CLIENT, parent: DEVICE, object: 7, class: 0x2080, device: None };
    cuda.story.asks(cuda.id, &cuda.ctl, op);
    let op = Op::Memory { client: CLIENT, parent: 7, object: 8, class: 0x40, bytes: MIB };
    cuda.story.asks(cuda.id, &cuda.gpu, op);
    cuda.story.asks(cuda.id, &cuda.ctl, Op::Gpu { gpu_id: 0xb00, device: 0 });
    let world = checked(&cuda.story);
    let books = world.books();
    let client = books.client(CLIENT).unwrap();
    assert_eq!((client.process, client.file, client.origin), (cuda.id, Some(cuda.ctl.file), Origin::Made));
    for memory in books.memories() {
        assert_eq!((memory.device, memory.class), (Some(0), 0x40));
        assert_eq!((memory.maker.process, memory.maker.client), (Some(cuda.id), Some(CLIENT)));
        assert_eq!(memory.maker.file, Some(cuda.ctl.file));
        assert_eq!(books.keeper(&memory.first().unwrap().what), Some(cuda.ctl.file));
    }
    assert_eq!(books.charged(cuda.id, None), 513 * MIB);
    assert_eq!(books.charged(cuda.id, Some(0)), 513 * MIB);
    assert_eq!(books.charged(cuda.id, Some(1)), 0);
    assert_eq!(books.gpu_id(0), Some(0xb00));
    assert_eq!(books.gap_of_client(CLIENT), None);
    assert_eq!((world.gap_of_process(cuda.id), world.gap_of_device(0)), (None, None));
}

#[test]
fn freeing_a_parent_frees_what_is_below_it_and_nothing_else() {
    let mut cuda = cuda();
    cuda.story.asks(cuda.id, &cuda.ctl, Op::Memory { client: CLIENT, parent: 77, object: 78, class: 0x40, bytes: 1 });
    cuda.story.frees(cuda.id, &cuda.ctl, CLIENT, DEVICE);
    assert_eq!(refs(only(checked(&cuda.story).books())), [object(CLIENT, 78)]);
    // Its parent is of a kind that is not reported.
    cuda.story.frees(cuda.id, &cuda.ctl, CLIENT, 77);
    assert_eq!(checked(&cuda.story).books().memories().count(), 0);
}

#[test]
fn freeing_the_client_frees_all_and_freeing_what_is_not_there_nothing() {
    let mut cuda = cuda();
    cuda.story.frees(cuda.id, &cuda.ctl, CLIENT, 0x5c00_0000);
    cuda.story.frees(cuda.id, &cuda.ctl, OTHER, OTHER);
    let world = checked(&cuda.story);
    assert_eq!((world.books().clients().count(), world.books().memories().count()), (1, 1));
    cuda.story.frees(cuda.id, &cuda.ctl, CLIENT, CLIENT);
    let world = checked(&cuda.story);
    assert_eq!((world.books().clients().count(), world.books().memories().count()), (0, 0));
}

#[test]
fn a_child_with_the_inherited_descriptor_keeps_the_client() {
    let mut cuda = cuda();
    let child = cuda.story.forks(cuda.id, 575, "worker");
    cuda.story.dies(cuda.id, 9);
    let world = checked(&cuda.story);
    assert_eq!(world.books().charged(cuda.id, None), 512 * MIB);
    cuda.story.dies(child, 0);
    assert_eq!(checked(&cuda.story).books().clients().count(), 0);
}

#[test]
fn a_registered_device_file_keeps_the_client_when_nobody_has_the_control_file() {
    let mut cuda = cuda();
    cuda.story.registers(cuda.id, &cuda.gpu, &cuda.ctl);
    let kept = cuda.story.opens(cuda.id, GPU0);
    cuda.story.registers(cuda.id, &kept, &cuda.ctl);
    cuda.story.closes(&cuda.ctl);
    cuda.story.closes(&cuda.gpu);
    let world = checked(&cuda.story);
    assert!(world.file(cuda.ctl.file).is_none());
    assert_eq!(world.books().pinned_by(cuda.ctl.file).collect::<Vec<_>>(), [kept.file]);
    assert_eq!(world.books().pins(kept.file), Some(cuda.ctl.file));
    assert_eq!(world.books().of_file(cuda.ctl.file).count(), 1);
    cuda.story.closes(&kept);
    assert_eq!(checked(&cuda.story).books().clients().count(), 0);
}

#[test]
fn a_pin_that_a_scan_finds_counts_like_one_that_was_seen() {
    let mut cuda = cuda();
    let found = Hold { pins: Some(cuda.ctl.file), ..bare(cuda.id, 90, 0x9999, GPU0) };
    cuda.story.found(&found);
    cuda.story.closes(&cuda.ctl);
    assert_eq!(checked(&cuda.story).books().clients().count(), 1);
    cuda.story.closes(&found);
    assert_eq!(checked(&cuda.story).books().clients().count(), 0);
}

#[test]
fn an_open_of_the_address_releases_a_description_that_was_thought_to_be_pinned() {
    let mut cuda = cuda();
    cuda.story.registers(cuda.id, &cuda.gpu, &cuda.ctl);
    cuda.story.closes(&cuda.ctl);
    let again = Hold { opener: Some(cuda.id), ..cuda.ctl.clone() };
    cuda.story.found(&again);
    let world = checked(&cuda.story);
    assert_eq!(world.books().clients().count(), 0);
    assert_eq!(world.books().pins(cuda.gpu.file), None);
}

#[test]
fn memory_outlives_its_maker_by_a_duplicate_which_is_charged_from_then_on() {
    let mut cuda = cuda();
    let (importer, ctl) = cuda.importer();
    cuda.story.dup(importer, &ctl, (OTHER, 5), (CLIENT, OBJECT));
    let world = checked(&cuda.story);
    assert_eq!(refs(only(world.books())), [object(CLIENT, OBJECT), object(OTHER, 5)]);
    assert_eq!((world.books().charged(cuda.id, None), world.books().charged(importer, None)), (512 * MIB, 0));
    cuda.story.killed((ProcessId(12, 5), "bash"), cuda.id);
    let world = checked(&cuda.story);
    let memory = only(world.books());
    assert_eq!(refs(memory), [object(OTHER, 5)]);
    assert_eq!((memory.maker.process, memory.maker.file), (Some(cuda.id), Some(cuda.ctl.file)));
    assert_eq!(memory.device, Some(0));
    assert_eq!((world.books().charged(cuda.id, None), world.books().charged(importer, Some(0))), (0, 512 * MIB));
    cuda.story.frees(importer, &ctl, OTHER, 5);
    assert_eq!(checked(&cuda.story).books().memories().count(), 0);
}

#[test]
fn memory_can_be_carried_over_when_its_handle_was_given_out_again_meanwhile() {
    let mut cuda = cuda();
    let (importer, ctl) = cuda.importer();
    cuda.story.map(cuda.id, &cuda.uvm, (CLIENT, OBJECT), 0x1000);
    cuda.story.dup(importer, &ctl, (OTHER, 5), (CLIENT, OBJECT));
    cuda.story.frees(cuda.id, &cuda.ctl, CLIENT, OBJECT);
    cuda.story.memory(cuda.id, &cuda.ctl, CLIENT, OBJECT, 3);
    cuda.story.dup(importer, &ctl, (OTHER, 6), (OTHER, 5));
    cuda.story.frees(importer, &ctl, OTHER, 5);
    let world = checked(&cuda.story);
    let kept: Vec<_> = world.books().memories().map(refs).collect();
    assert_eq!(kept[0].len(), 2);
    assert_eq!(kept[1], [object(CLIENT, OBJECT)]);
}

#[test]
fn a_range_that_is_unmapped_takes_what_is_mapped_in_it_and_nothing_behind_it() {
    let mut cuda = cuda();
    for base in [2, 4, 6].map(|at| at * MIB) {
        cuda.story.map(cuda.id, &cuda.uvm, (CLIENT, OBJECT), base);
    }
    cuda.story.asks(cuda.id, &cuda.uvm, Op::Unmap { base: 2 * MIB, length: 4 * MIB });
    let world = checked(&cuda.story);
    let space = world.books().space(cuda.uvm.file).unwrap();
    assert_eq!(space.maps().map(|(base, _)| base).collect::<Vec<_>>(), [6 * MIB]);
}

#[test]
fn an_address_space_keeps_what_it_maps_until_it_is_unmapped_replaced_or_released() {
    let mut cuda = cuda();
    cuda.story.asks(cuda.id, &cuda.uvm, Op::Space { flags: 2 });
    cuda.story.asks(cuda.id, &cuda.uvm, Op::SpaceGpu { uuid: (1, 2) });
    cuda.story.memory(cuda.id, &cuda.ctl, CLIENT, 2, 1);
    cuda.story.map(cuda.id, &cuda.uvm, (CLIENT, OBJECT), 0x1000);
    cuda.story.map(cuda.id, &cuda.uvm, (CLIENT, 2), 0x2000);
    cuda.story.closes(&cuda.ctl);
    let world = checked(&cuda.story);
    let books = world.books();
    assert_eq!(books.memories().count(), 2);
    assert_eq!(books.kept_by(cuda.uvm.file).len(), 2);
    let first = books.memories().next().unwrap().first().unwrap().what;
    assert_eq!(first, Ref::Space { file: cuda.uvm.file, base: 0x1000, length: 2 * MIB });
    assert_eq!(books.keeper(&first), Some(cuda.uvm.file));
    let space = books.space(cuda.uvm.file).unwrap();
    assert!(space.made && space.flags == 2 && space.gpus == [(1, 2)] && space.maps().count() == 2);
    assert_eq!(books.gap_of_space(cuda.uvm.file), None);
    cuda.story.asks(cuda.id, &cuda.uvm, Op::Unmap { base: 0x1000, length: 0 });
    assert_eq!(checked(&cuda.story).books().memories().count(), 1);
    let (importer, ctl) = cuda.importer();
    cuda.story.memory(importer, &ctl, OTHER, 9, 4);
    cuda.story.map(cuda.id, &cuda.uvm, (OTHER, 9), 0x2000);
    assert_eq!(only(checked(&cuda.story).books()).bytes, Some(4 * MIB));
    cuda.story.closes(&ctl);
    assert_eq!(checked(&cuda.story).books().memories().count(), 1);
    cuda.story.closes(&cuda.uvm);
    assert_eq!(checked(&cuda.story).books().memories().count(), 0);
}

#[test]
fn the_second_uvm_description_keeps_the_address_space() {
    let mut cuda = cuda();
    let second = cuda.story.opens(cuda.id, UVM);
    cuda.story.asks(cuda.id, &second, Op::SpaceMm { space: cuda.uvm.file });
    cuda.story.asks(cuda.id, &cuda.uvm, Op::Space { flags: 0 });
    cuda.story.map(cuda.id, &cuda.uvm, (CLIENT, OBJECT), 0x1000);
    cuda.story.closes(&cuda.uvm);
    cuda.story.closes(&cuda.ctl);
    assert_eq!(checked(&cuda.story).books().memories().count(), 1);
    cuda.story.closes(&second);
    assert_eq!(checked(&cuda.story).books().memories().count(), 0);
}

#[test]
fn mapped_system_memory_is_not_taken_for_memory_of_the_gpu() {
    let mut cuda = cuda();
    cuda.story.asks(cuda.id, &cuda.uvm, Op::Space { flags: 0 });
    cuda.story.map(cuda.id, &cuda.uvm, (CLIENT, 0x5c), 0x1000);
    let world = checked(&cuda.story);
    assert_eq!(world.books().gap_of_space(cuda.uvm.file), None);
    let _ = cuda.late();
    cuda.story.map(cuda.id, &cuda.uvm, (OTHER, 0x5c), 0x2000);
    let at = cuda.story.now;
    let world = checked(&cuda.story);
    assert_eq!(world.books().gap_of_space(cuda.uvm.file), Some(Gap::UnknownMapping { at }));
    assert_eq!(world.books().memories().count(), 1);
}

#[test]
fn an_exported_handle_keeps_memory_and_gives_it_to_who_imports_it() {
    let mut cuda = cuda();
    let (importer, ctl) = cuda.importer();
    let handle = cuda.story.export(cuda.id, &cuda.ctl, (CLIENT, OBJECT));
    cuda.story.closes(&cuda.ctl);
    let world = checked(&cuda.story);
    let kept = Ref::Export { file: handle.file, kind: ExportKind::Fd };
    assert_eq!(refs(only(world.books())), [kept]);
    assert_eq!(world.books().keeper(&kept), Some(handle.file));
    assert_eq!(world.books().charged(cuda.id, None), 0);
    cuda.story.import(importer, &ctl, (OTHER, 5), &handle);
    cuda.story.closes(&handle);
    assert_eq!(refs(only(checked(&cuda.story).books())), [object(OTHER, 5)]);
}

#[test]
fn objects_of_one_handle_are_imported_in_order_by_each_client() {
    let mut cuda = cuda();
    let (importer, ctl) = cuda.importer();
    cuda.story.memory(cuda.id, &cuda.ctl, CLIENT, 2, 1);
    let handle = cuda.story.export(cuda.id, &cuda.ctl, (CLIENT, OBJECT));
    cuda.story.asks(cuda.id, &cuda.ctl, Op::Export { client: CLIENT, object: 2, to: handle.file, kind: ExportKind::Fd });
    cuda.story.import(importer, &ctl, (OTHER, 11), &handle);
    cuda.story.import(cuda.id, &cuda.ctl, (CLIENT, 21), &handle);
    cuda.story.import(importer, &ctl, (OTHER, 12), &handle);
    cuda.story.import(cuda.id, &cuda.ctl, (CLIENT, 22), &handle);
    let world = checked(&cuda.story);
    let bytes = |client: Handle, object: Handle| {
        let object = world.books().client(client).unwrap().objects[&object];
        world.books().memory(object.memory.unwrap()).unwrap().bytes.unwrap() / MIB
    };
    assert_eq!([bytes(OTHER, 11), bytes(OTHER, 12), bytes(CLIENT, 21), bytes(CLIENT, 22)], [512, 1, 512, 1]);
}

#[test]
fn a_dma_buf_keeps_memory_as_long_as_somebody_has_it() {
    let mut cuda = cuda();
    let made = cuda.story.opens(cuda.id, Dev::DMA_BUF);
    let op = Op::Export { client: CLIENT, object: OBJECT, to: made.file, kind: ExportKind::DmaBuf };
    cuda.story.asks(cuda.id, &cuda.gpu, op);
    let other = cuda.story.process(900, "other");
    cuda.story.found(&Hold { id: other, via: Some(Via::ScmRights), ..made.clone() });
    cuda.story.killed((ProcessId(12, 5), "bash"), cuda.id);
    cuda.story.scanned();
    let world = checked(&cuda.story);
    assert_eq!(refs(only(world.books())), [Ref::Export { file: made.file, kind: ExportKind::DmaBuf }]);
    cuda.story.push(What::Drop { id: other, tid: None, fd: made.fd, file: made.file });
    assert_eq!(checked(&cuda.story).books().memories().count(), 0);
}

#[test]
fn a_request_that_was_not_understood_leaves_a_gap_in_the_books_of_who_made_it() {
    let mut cuda = cuda();
    let (importer, _) = cuda.importer();
    assert_eq!(checked(&cuda.story).books().gap_of_client(CLIENT), None);
    cuda.story.asks(cuda.id, &cuda.ctl, Op::Missed { why: Missed::Changed });
    let world = checked(&cuda.story);
    let at = cuda.story.now;
    assert_eq!(world.books().gap_of_client(CLIENT), Some(Gap::Missed { at, why: Missed::Changed }));
    assert_eq!(world.gap_of_process(cuda.id), Some(Gap::Missed { at, why: Missed::Changed }));
    assert_eq!(world.gap_of_process(importer), None);
}

#[test]
fn what_is_imported_from_an_unknown_handle_is_memory_of_unknown_size_that_the_handle_keeps() {
    let mut cuda = cuda();
    let (importer, ctl) = cuda.importer();
    let exported = Hold { role: Some(Role::Exported), ..bare(cuda.id, 50, 0x77, CTL) };
    cuda.story.found(&exported);
    cuda.story.import(importer, &ctl, (OTHER, 5), &exported);
    cuda.story.import(cuda.id, &cuda.ctl, (CLIENT, 5), &exported);
    let world = checked(&cuda.story);
    let memory = world.books().memories().find(|memory| memory.bytes.is_none()).unwrap();
    let export = Ref::Export { file: 0x77, kind: ExportKind::Fd };
    assert_eq!(refs(memory), [export, object(OTHER, 5), object(CLIENT, 5)]);
    assert_eq!(memory.maker, Default::default());
    cuda.story.closes(&exported);
    cuda.story.frees(cuda.id, &cuda.ctl, CLIENT, CLIENT);
    assert_eq!(refs(only(checked(&cuda.story).books())), [object(OTHER, 5)]);
}

#[test]
fn a_duplicate_of_what_a_complete_client_does_not_have_is_no_memory() {
    let mut cuda = cuda();
    let (importer, ctl) = cuda.importer();
    cuda.story.dup(importer, &ctl, (OTHER, 5), (CLIENT, 0x5c));
    cuda.story.dup(importer, &ctl, (OTHER, 6), (CLIENT, DEVICE));
    let world = checked(&cuda.story);
    assert_eq!(world.books().memories().count(), 1);
    let objects = &world.books().client(OTHER).unwrap().objects;
    assert_eq!((objects[&5].memory, objects[&6].memory, objects[&6].class), (None, None, 0x80));
}

#[test]
fn a_duplicate_from_a_late_client_is_memory_that_the_client_has_too() {
    let mut cuda = cuda();
    let (late, ctl) = cuda.late();
    cuda.story.dup(cuda.id, &cuda.ctl, (CLIENT, 5), (OTHER, 9));
    cuda.story.dup(cuda.id, &cuda.ctl, (CLIENT, 6), (OTHER, 9));
    let world = checked(&cuda.story);
    let memory = world.books().memories().last().unwrap();
    assert_eq!(refs(memory), [object(OTHER, 9), object(CLIENT, 5), object(CLIENT, 6)]);
    assert_eq!((memory.bytes, memory.maker.process), (None, Some(late)));
    cuda.story.closes(&ctl);
    let world = checked(&cuda.story);
    assert_eq!(refs(world.books().memories().last().unwrap()), [object(CLIENT, 5), object(CLIENT, 6)]);
}

#[test]
fn a_duplicate_from_an_unknown_client_is_one_memory_however_often_it_is_made() {
    let mut cuda = cuda();
    cuda.story.dup(cuda.id, &cuda.ctl, (CLIENT, 5), (0xaa, 9));
    cuda.story.dup(cuda.id, &cuda.ctl, (CLIENT, 6), (0xaa, 9));
    let world = checked(&cuda.story);
    let memory = world.books().memories().last().unwrap();
    assert_eq!(refs(memory), [object(CLIENT, 5), object(CLIENT, 6)]);
    assert_eq!((memory.maker.client, memory.maker.process), (Some(0xaa), None));
    // The handle is given out again: what it names now is something else.
    let (id, ctl) = cuda.importer();
    cuda.story.client(id, &ctl, 0xaa);
    cuda.story.memory(id, &ctl, 0xaa, 9, 1);
    cuda.story.dup(cuda.id, &cuda.ctl, (CLIENT, 7), (0xaa, 9));
    let world = checked(&cuda.story);
    assert_eq!(world.books().memories().map(|m| m.refs().count()).collect::<Vec<_>>(), [1, 2, 2]);
}

#[test]
fn a_handle_that_is_given_out_again_was_freed_before() {
    let mut cuda = cuda();
    cuda.story.memory(cuda.id, &cuda.ctl, CLIENT, OBJECT, 3);
    assert_eq!(only(checked(&cuda.story).books()).bytes, Some(3 * MIB));
    let (importer, ctl) = cuda.importer();
    cuda.story.client(importer, &ctl, CLIENT);
    let world = checked(&cuda.story);
    assert_eq!(world.books().memories().count(), 0);
    assert_eq!(world.books().client(CLIENT).unwrap().process, importer);
    assert_eq!(world.books().of_file(cuda.ctl.file).count(), 0);
}

#[test]
fn a_request_that_overtook_the_making_of_its_client_does_not_make_it_late() {
    let mut cuda = cuda();
    let at = cuda.story.now;
    cuda.story.memory(cuda.id, &cuda.ctl, OTHER, 5, 1);
    cuda.story.client(cuda.id, &cuda.ctl, OTHER);
    cuda.story.events.last_mut().unwrap().at = at;
    let world = checked(&cuda.story);
    let client = world.books().client(OTHER).unwrap();
    assert_eq!((client.origin, client.at, client.objects.len()), (Origin::Made, at, 1));
}

#[test]
fn a_client_that_was_never_announced_is_known_from_its_first_request_and_partial() {
    let mut cuda = cuda();
    cuda.story.memory(cuda.id, &cuda.ctl, OTHER, 5, 1);
    let at = cuda.story.now;
    cuda.story.asks(cuda.id, &cuda.ctl, Op::Known { client: OTHER });
    let world = checked(&cuda.story);
    assert_eq!(world.books().gap_of_client(OTHER), Some(Gap::Named { at }));
    assert_eq!(world.gap_of_process(cuda.id), Some(Gap::Named { at }));
    assert_eq!(world.gap_of_device(5), Some(Gap::Named { at }));
    assert_eq!(world.books().of_file(cuda.ctl.file).count(), 2);
}

#[test]
fn the_owner_of_a_client_that_was_named_through_a_device_file_is_found_by_its_pin_or_later() {
    let mut cuda = cuda();
    let pinned = cuda.story.opens(cuda.id, GPU0);
    cuda.story.registers(cuda.id, &pinned, &cuda.ctl);
    cuda.story.memory(cuda.id, &pinned, OTHER, 5, 1);
    cuda.story.memory(cuda.id, &cuda.gpu, 0xaa, 5, 1);
    let world = checked(&cuda.story);
    assert_eq!(world.books().client(OTHER).unwrap().file, Some(cuda.ctl.file));
    let memory = world.books().memories().last().unwrap();
    assert_eq!((memory.maker.file, world.books().keeper(&object(0xaa, 5))), (None, None));
    cuda.story.asks(cuda.id, &cuda.ctl, Op::Share { client: 0xaa, object: 5, with: 1 });
    let world = checked(&cuda.story);
    assert_eq!(world.books().memories().last().unwrap().maker.file, Some(cuda.ctl.file));
    assert_eq!(world.books().of_file(cuda.ctl.file).count(), 3);
}

#[test]
fn a_client_whose_owner_is_unknown_goes_with_a_scan_after_its_process() {
    let mut cuda = cuda();
    cuda.story.memory(cuda.id, &cuda.gpu, OTHER, 5, 1);
    cuda.story.scanned();
    assert_eq!(checked(&cuda.story).books().clients().count(), 2);
    cuda.story.dies(cuda.id, 9);
    assert_eq!(checked(&cuda.story).books().clients().count(), 1);
    cuda.story.wait(1).scanned();
    assert_eq!(checked(&cuda.story).books().clients().count(), 0);
}

#[test]
fn a_request_through_another_description_is_not_believed() {
    let mut cuda = cuda();
    let other = cuda.story.opens(cuda.id, CTL);
    cuda.story.frees(cuda.id, &other, CLIENT, OBJECT);
    let at = cuda.story.now;
    let world = checked(&cuda.story);
    assert_eq!(world.books().memories().count(), 1);
    assert_eq!(world.books().inconsistent(), 1);
    assert_eq!(world.books().gap_of_client(CLIENT), Some(Gap::Inconsistent { at }));
    assert_eq!(world.gap_of_device(0), Some(Gap::Inconsistent { at }));
}

#[test]
fn losses_concern_the_clients_that_were_there() {
    let mut cuda = cuda();
    cuda.story.push(What::Lost { cause: "ring_full".into(), count: 3 });
    let at = cuda.story.now;
    cuda.story.wait(1);
    let (importer, _) = cuda.importer();
    let world = checked(&cuda.story);
    let lost = Some(Gap::Lost { at, cause: "ring_full" });
    assert_eq!(world.books().gap_of_client(CLIENT), lost);
    assert_eq!(world.gap_of_process(cuda.id), lost);
    assert_eq!(world.books().gap_of_client(OTHER), None);
    assert_eq!(world.gap_of_process(importer), None);
}

#[test]
fn a_control_file_that_was_open_before_may_own_clients_that_nothing_named() {
    let mut story = Story::warm();
    let id = story.process(574, "python3");
    let found = Hold { opener: Some(id), ..bare(id, 5, 0x55, CTL) };
    story.found(&found);
    let world = checked(&story);
    assert_eq!(world.gap_of_process(id), Some(Gap::OpenedBefore { file: 0x55 }));
    assert_eq!(world.gap_of_device(0), Some(Gap::OpenedBefore { file: 0x55 }));
}

#[test]
fn a_late_request_does_not_bring_a_released_description_back() {
    let mut cuda = cuda();
    let at = cuda.story.now;
    cuda.story.dies(cuda.id, 9);
    cuda.story.memory(cuda.id, &cuda.ctl, CLIENT, 9, 1);
    cuda.story.events.last_mut().unwrap().at = at;
    assert_eq!(checked(&cuda.story).books().clients().count(), 0);
}

#[test]
fn what_a_complete_scan_does_not_find_is_not_kept() {
    let mut story = Story::warm();
    let id = story.process(574, "python3");
    let unseen = bare(id, 5, 0x55, CTL);
    story.client(id, &unseen, CLIENT);
    story.memory(id, &unseen, CLIENT, OBJECT, 1);
    assert_eq!(checked(&story).books().memories().count(), 1);
    story.found(&unseen);
    story.wait(1).scanned();
    assert_eq!(checked(&story).books().memories().count(), 1);
    let found = story.events.iter().position(|event| matches!(event.what, What::Hold(_))).unwrap();
    story.events.remove(found);
    assert_eq!(checked(&story).books().memories().count(), 0);
}

#[test]
fn a_dead_maker_is_remembered_while_its_memory_lives() {
    let mut cuda = cuda();
    let (importer, ctl) = cuda.importer();
    cuda.story.dup(importer, &ctl, (OTHER, 5), (CLIENT, OBJECT));
    cuda.story.killed((ProcessId(12, 5), "bash"), cuda.id);
    for pid in 1_000..4_000 {
        let id = ProcessId(pid, cuda.story.now);
        cuda.story.push(What::Fork { parent: ProcessId(1, 1), child: id, comm: "sh".into(), cred: None });
        cuda.story.wait(1).push(What::Free { id });
    }
    let world = cuda.story.world();
    assert!(world.process(cuda.id).is_some());
    assert!(world.processes().count() < 1_500);
}

#[test]
fn a_second_file_of_a_recording_tells_the_books_anew() {
    let mut cuda = cuda();
    cuda.story.map(cuda.id, &cuda.uvm, (CLIENT, OBJECT), 0x1000);
    let _ = cuda.story.export(cuda.id, &cuda.ctl, (CLIENT, OBJECT));
    let world = cuda.story.world();
    let twice: Vec<Event> = cuda.story.events.into_iter().chain(world.carry_over()).collect();
    assert_eq!(dump(fold(&twice).books()), dump(world.books()));
}

#[test]
fn freeing_costs_what_is_freed_however_much_refers_to_one_memory() {
    let mut cuda = cuda();
    let count = 100_000;
    for handle in 1..count {
        cuda.story.dup(cuda.id, &cuda.ctl, (CLIENT, 0x1_0000 + handle), (CLIENT, OBJECT));
    }
    for handle in 1..count / 2 {
        cuda.story.frees(cuda.id, &cuda.ctl, CLIENT, 0x1_0000 + handle);
    }
    let world = cuda.story.world();
    assert_eq!(only(world.books()).refs().count(), (count / 2 + 1) as usize);
    cuda.story.frees(cuda.id, &cuda.ctl, CLIENT, CLIENT);
    let world = cuda.story.world();
    assert_eq!(world.books().memories().count(), 0);
}
