//! BTF made by hand, cut short and spoilt, and that of the running kernel.

use super::*;

/// Writes BTF for the tests.
struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Builder {
    fn new() -> Builder {
        Builder { types: Vec::new(), strings: vec![0], count: 0 }
    }
    fn name(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        at
    }
    fn add(&mut self, name: &str, info: u32, size: u32, extra: &[u32]) -> u32 {
        let name = self.name(name);
        for value in [name, info, size].iter().chain(extra) {
            self.types.extend_from_slice(&value.to_le_bytes());
        }
        self.count += 1;
        self.count
    }
    fn int(&mut self, size: u32) -> u32 {
        self.add("int", kind::INT << 24, size, &[size * 8])
    }
    fn structure(&mut self, name: &str, flagged: bool, members: &[(&str, u32, u32)]) -> u32 {
        let members: Vec<u32> = members.iter().flat_map(|(name, kind, offset)| [self.name(name), *kind, *offset]).collect();
        let info = kind::STRUCT << 24 | (members.len() / 3) as u32 | u32::from(flagged) << 31;
        self.add(name, info, 64, &members)
    }
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let types = self.types.len() as u32;
        for value in [24, 0, types, types, self.strings.len() as u32] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.extend_from_slice(&self.types);
        bytes.extend_from_slice(&self.strings);
        bytes
    }
}

fn wanted(member: &'static str, size: u32) -> Wanted {
    Wanted { field: "f", structure: "s", member, size, required: true }
}

fn offset_in(builder: &Builder, member: &'static str, size: u32) -> Result<u32, Problem> {
    let bytes = builder.bytes();
    let index = Index::build(&bytes, &["s"]).unwrap();
    let (_, id) = index.definitions[0];
    index.offset(id, &wanted(member, size))
}

#[test]
fn members_of_embedded_and_anonymous_structures_are_found() {
    let mut b = Builder::new();
    let int = b.int(4);
    let inner = b.structure("inner", false, &[("x", int, 0), ("y", int, 32)]);
    let typedef = b.add("inner_t", kind::TYPEDEF << 24, inner, &[]);
    let anonymous = b.structure("", false, &[("a", int, 0), ("in", typedef, 64)]);
    b.structure("s", false, &[("first", int, 0), ("", anonymous, 64), ("emb", inner, 256)]);
    assert_eq!(offset_in(&b, "first", 4), Ok(0));
    assert_eq!(offset_in(&b, "a", 4), Ok(8));
    assert_eq!(offset_in(&b, "in.y", 4), Ok(8 + 8 + 4));
    assert_eq!(offset_in(&b, "emb.y", 4), Ok(32 + 4));
    assert_eq!(offset_in(&b, "emb", 0), Ok(32));
    assert_eq!(offset_in(&b, "emb.z", 4), Err(Problem::Absent));
}

#[test]
fn alternatives_are_tried_in_order_and_sizes_are_checked() {
    let mut b = Builder::new();
    let int = b.int(4);
    let pointer = b.add("", kind::PTR << 24, int, &[]);
    let array = b.add("", kind::ARRAY << 24, 0, &[int, int, 4]);
    let constant = b.add("", kind::CONST << 24, pointer, &[]);
    b.structure("s", false, &[("p", constant, 64), ("new", int, 128), ("name", array, 160)]);
    assert_eq!(offset_in(&b, "old|new", 4), Ok(16));
    assert_eq!(offset_in(&b, "p", 8), Ok(8));
    assert_eq!(offset_in(&b, "p", 4), Err(Problem::Size(8)));
    assert_eq!(offset_in(&b, "name", 16), Ok(20));
}

#[test]
fn bit_fields_are_refused() {
    let mut b = Builder::new();
    let int = b.int(4);
    b.structure("s", true, &[("whole", int, 32), ("bit", int, 1 << 24 | 64)]);
    assert_eq!(offset_in(&b, "whole", 4), Ok(4));
    assert_eq!(offset_in(&b, "bit", 4), Err(Problem::Bitfield));
}

#[test]
fn a_structure_that_contains_itself_ends_in_absence() {
    let mut b = Builder::new();
    // Type 1 is a structure whose two anonymous members are itself: 2^depth visits without a bound.
    b.structure("s", false, &[("", 1, 0), ("", 1, 0)]);
    assert_eq!(offset_in(&b, "nothing", 4), Err(Problem::Absent));
}

#[test]
fn a_missing_required_member_is_named() {
    let bytes = Builder::new().bytes();
    let error = resolve(&bytes).unwrap_err().to_string();
    assert!(error.contains('`') && error.contains("does not exist"), "{error}");
}

#[test]
fn bytes_that_are_not_btf_are_refused() {
    for bytes in [&b""[..], b"\x9f", b"\x7fELF\0\0\0\0", b"\xeb\x9f\x01\0\0\0", &[0x9f, 0xeb, 2, 0, 0, 0]] {
        assert!(matches!(resolve(bytes), Err(BtfError::Malformed(_))), "{bytes:?}");
    }
}

#[test]
fn every_member_is_found_in_the_running_kernel() {
    if !Path::new(PATH).exists() {
        println!("skipped: this kernel has no {PATH}");
        return;
    }
    let resolved = running_kernel().unwrap();
    assert!(resolved.missing.is_empty(), "{:?}", resolved.missing);
    assert!(resolved.iter_task.is_some() && resolved.iter_task_file.is_some());
    // Two facts that do not come from BTF: comm is 16 bytes after something, and a group leader is a pointer.
    assert_eq!(resolved.offsets.task_group_leader % 8, 0);
    assert_eq!(resolved.offsets.pid_numbers % 8, 0);
    assert!(resolved.words.iter().all(|word| *word < 64 << 10));
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048), valid_header in any::<bool>()) {
            if valid_header && bytes.len() > 24 {
                let rest = bytes.len() as u32 - 24;
                let header: Vec<u8> = [0x0001_eb9f, 24, 0, rest / 2, rest / 2, rest - rest / 2].iter().flat_map(|v: &u32| v.to_le_bytes()).collect();
                bytes[..24].copy_from_slice(&header);
            }
            let _ = resolve(&bytes);
        }

        #[test]
        fn damaged_btf_does_not_panic(cut in 0_usize..700, at in 0_usize..700, value in any::<u8>()) {
            let mut b = Builder::new();
            let int = b.int(4);
            let array = b.add("", kind::ARRAY << 24, 0, &[int, int, 4]);
            for name in ["task_struct", "file", "pid", "sock"] {
                b.structure(name, true, &[("pid", int, 0), ("", 3, 0), ("tgid", array, 32), ("__sk_common", 3, 8)]);
            }
            let mut bytes = b.bytes();
            if let Some(byte) = bytes.get_mut(at) { *byte = value; }
            bytes.truncate(cut.max(1));
            let _ = resolve(&bytes);
        }
    }
}
