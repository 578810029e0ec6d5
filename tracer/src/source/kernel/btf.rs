//! Where kernel structure members lie: one pass over the running kernel's BTF (/sys/kernel/btf/vmlinux).
//!
//! Always true: the bytes are not trusted (every index is checked, every walk is bounded, nothing panics), a member
//! is only accepted with the size that the programs read, and what is missing is named.
//!
//! The format: Documentation/bpf/btf.rst. A header, a section of types that refer to each other by number (each of a
//! length that only its own header tells, so one pass notes where each begins), and a section of strings.

use std::ops::Range;
use std::path::Path;

use outlive_ebpf::offsets::{Offsets, Wanted};

use bytes::Bytes;

mod bytes;

/// The running kernel's own types.
pub const PATH: &str = "/sys/kernel/btf/vmlinux";
/// No kernel's BTF is near this size; more is not read.
const BYTES_MAX: usize = 64 << 20;
/// `BTF_MAGIC` (include/uapi/linux/btf.h).
const MAGIC: u16 = 0xeb9f;
/// Typedefs, qualifiers and nested structures followed for one member.
const DEPTH_MAX: u32 = 24;
/// Members looked at for one lookup: bounds what anonymous structures that contain each other can cost.
const VISITS_MAX: u32 = 100_000;

/// Why the kernel's types cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error("cannot read the kernel's type information {path}: {source} (it needs CONFIG_DEBUG_INFO_BTF=y)")]
    Read {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The bytes are not BTF of this byte order.
    #[error("the kernel's type information is not readable BTF: {0}")]
    Malformed(&'static str),
    /// A member that every program needs is absent or different.
    #[error(
        "this kernel's `{structure}.{member}` {problem}; outlive's programs read it and cannot run on this kernel. \
         Please report it with the output of `uname -r`"
    )]
    Member {
        /// Structure.
        structure: &'static str,
        /// Member as it is looked for.
        member: &'static str,
        /// What is wrong.
        problem: Problem,
    },
}

/// Why a member cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No such structure, or no such member in it.
    Absent,
    /// It has another size, in bytes.
    Size(u32),
    /// It is a bit field.
    Bitfield,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Absent => f.write_str("does not exist"),
            Problem::Size(bytes) => write!(f, "is {bytes} bytes long, which is not what was expected"),
            Problem::Bitfield => f.write_str("is a bit field"),
        }
    }
}

/// What the programs need to know about the running kernel.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Offsets, [`MISSING`](outlive_ebpf::offsets::MISSING) for optional members that this kernel lacks.
    pub offsets: Offsets,
    /// The same in the order of [`Offsets::WANTED`], which is the memory layout of [`Offsets`].
    pub words: Vec<u32>,
    /// Optional members that were not found, and why.
    pub missing: Vec<(&'static Wanted, Problem)>,
    /// BTF id of the function `bpf_iter_task`, that iterator's attach point.
    pub iter_task: Option<u32>,
    /// BTF id of `bpf_iter_task_file`.
    pub iter_task_file: Option<u32>,
}

const _: () = assert!(size_of::<Offsets>() == 4 * Offsets::WANTED.len());

/// Reads the running kernel's types and looks up everything in [`Offsets::WANTED`].
///
/// # Errors
/// No BTF, malformed BTF, or a required member that is absent or different.
pub fn running_kernel() -> Result<Resolved, BtfError> {
    let bytes = Bytes::of(Path::new(PATH), BYTES_MAX).map_err(|source| BtfError::Read { path: PATH.to_owned(), source })?;
    resolve(&bytes)
}

/// Looks up everything in [`Offsets::WANTED`].
///
/// # Errors
/// Malformed bytes, or a required member that is absent or different.
pub fn resolve(bytes: &[u8]) -> Result<Resolved, BtfError> {
    let mut structures: Vec<&'static str> = Offsets::WANTED.iter().map(|wanted| wanted.structure).collect();
    structures.sort_unstable();
    structures.dedup();
    let index = Index::build(bytes, &structures)?;
    let mut resolved = Resolved {
        offsets: Offsets::UNRESOLVED,
        words: vec![outlive_ebpf::offsets::MISSING; Offsets::WANTED.len()],
        missing: Vec::new(),
        iter_task: index.iter_task,
        iter_task_file: index.iter_task_file,
    };
    for name in structures {
        let chosen = index.best_definition(name);
        for (at, wanted) in Offsets::WANTED.iter().enumerate().filter(|(_, wanted)| wanted.structure == name) {
            match chosen.map_or(Err(Problem::Absent), |id| index.offset(id, wanted)) {
                Ok(offset) => {
                    resolved.offsets.set(at, offset);
                    if let Some(word) = resolved.words.get_mut(at) {
                        *word = offset;
                    }
                }
                Err(problem) if wanted.required => {
                    return Err(BtfError::Member { structure: wanted.structure, member: wanted.member, problem });
                }
                Err(problem) => resolved.missing.push((wanted, problem)),
            }
        }
    }
    Ok(resolved)
}

/// Kinds of type (`BTF_KIND_*`, include/uapi/linux/btf.h).
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FWD: u32 = 7;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// `struct btf_type`: 12 bytes, then what its kind adds.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    info: u32,
    /// Size in bytes, or the type that is referred to.
    size_or_type: u32,
}

const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;

impl Type {
    fn kind(self) -> u32 {
        self.info >> 24 & 0x1f
    }
    fn count(self) -> usize {
        (self.info & 0xffff) as usize
    }
    /// `kind_flag`: the members' offsets carry a bit-field size in their upper 8 bits.
    fn packs_bitfields(self) -> bool {
        self.info >> 31 == 1
    }
    /// Bytes that follow; `None` for a kind that this code does not know, whose length cannot be known either.
    fn extra(self) -> Option<usize> {
        let count = self.count();
        Some(match self.kind() {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
            kind::ENUM | kind::FUNC_PROTO => 8 * count,
            kind::PTR | kind::FWD | kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT => 0,
            kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 0,
            _ => return None,
        })
    }
}

/// Where every type begins, and the definitions that are of interest.
struct Index<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type in `types`; entry 0 is type 1, since type 0 is void and has no bytes.
    starts: Vec<u32>,
    /// Definitions of the structures asked for. A name can have several: equal names in different files.
    definitions: Vec<(&'static str, u32)>,
    iter_task: Option<u32>,
    iter_task_file: Option<u32>,
}

impl<'a> Index<'a> {
    fn build(bytes: &'a [u8], structures: &[&'static str]) -> Result<Index<'a>, BtfError> {
        let (types, strings) = sections(bytes)?;
        let mut index = Index {
            types,
            strings,
            starts: Vec::with_capacity(types.len() / 20),
            definitions: Vec::new(),
            iter_task: None,
            iter_task_file: None,
        };
        let mut at = 0;
        while at < types.len() {
            let header = type_at(types, at).ok_or(BtfError::Malformed("a type is cut off"))?;
            let extra = header.extra().ok_or(BtfError::Malformed("it has a kind of type that is not known"))?;
            index.starts.push(u32::try_from(at).map_err(|_| BtfError::Malformed("it is too long"))?);
            index.note(header, structures);
            at += TYPE_BYTES + extra;
        }
        Ok(index)
    }

    /// Remembers the type just counted if somebody will ask for it.
    fn note(&mut self, header: Type, structures: &[&'static str]) {
        let id = u32::try_from(self.starts.len()).unwrap_or(u32::MAX);
        match header.kind() {
            kind::STRUCT => {
                if let Some(name) = structures.iter().find(|name| self.is_named(header.name, name)) {
                    self.definitions.push((name, id));
                }
            }
            kind::FUNC if self.is_named(header.name, "bpf_iter_task") => self.iter_task = Some(id),
            kind::FUNC if self.is_named(header.name, "bpf_iter_task_file") => self.iter_task_file = Some(id),
            _ => {}
        }
    }

    fn is_named(&self, name: u32, expected: &str) -> bool {
        let Some(rest) = self.strings.get(name as usize..) else { return false };
        rest.starts_with(expected.as_bytes()) && rest.get(expected.len()) == Some(&0)
    }

    fn get(&self, id: u32) -> Option<Type> {
        type_at(self.types, self.start(id)?)
    }

    fn start(&self, id: u32) -> Option<usize> {
        let index = usize::try_from(id).ok()?.checked_sub(1)?;
        self.starts.get(index).map(|start| *start as usize)
    }

    /// Bytes of what follows the header of type `id`.
    fn extra(&self, id: u32) -> Option<&'a [u8]> {
        let begin = self.start(id)? + TYPE_BYTES;
        self.types.get(begin..begin + self.get(id)?.extra()?)
    }

    /// Of several definitions of one name, the one that has the most of what is wanted; the first of equals.
    fn best_definition(&self, name: &str) -> Option<u32> {
        let wanted = || Offsets::WANTED.iter().filter(|wanted| wanted.structure == name);
        let candidates = self.definitions.iter().filter(|(candidate, _)| *candidate == name).map(|(_, id)| *id);
        let found = |id: u32| wanted().filter(|wanted| self.offset(id, wanted).is_ok()).count();
        candidates.map(|id| (found(id), id)).reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, id)| id)
    }

    /// Byte offset of one wanted member in structure `id`: of its alternatives the first that fits.
    fn offset(&self, id: u32, wanted: &Wanted) -> Result<u32, Problem> {
        let mut problem = Problem::Absent;
        for alternative in wanted.member.split('|') {
            let path: Vec<&str> = alternative.split('.').collect();
            match self.checked_offset(id, &path, wanted.size) {
                Ok(offset) => return Ok(offset),
                Err(Problem::Absent) => {}
                Err(other) => problem = other,
            }
        }
        Err(problem)
    }

    fn checked_offset(&self, id: u32, path: &[&str], size: u32) -> Result<u32, Problem> {
        let mut visits = VISITS_MAX;
        let member = self.member(id, path, 0, &mut visits).ok_or(Problem::Absent)?;
        if member.bits != 0 || member.bit_offset % 8 != 0 {
            return Err(Problem::Bitfield);
        }
        match self.size_of(member.kind) {
            _ if size == 0 => Ok(member.bit_offset / 8),
            Some(found) if found == size => Ok(member.bit_offset / 8),
            Some(found) => Err(Problem::Size(found)),
            None => Err(Problem::Absent),
        }
    }

    /// Finds `path` in structure or union `id`, descending into embedded members for the rest of the path and into
    /// anonymous ones for the same path.
    fn member(&self, id: u32, path: &[&str], depth: u32, visits: &mut u32) -> Option<Member> {
        let (name, rest) = path.split_first()?;
        let id = self.strip(id)?;
        let header = self.get(id)?;
        if depth > DEPTH_MAX || !matches!(header.kind(), kind::STRUCT | kind::UNION) {
            return None;
        }
        for raw in self.extra(id)?.chunks_exact(MEMBER_BYTES) {
            *visits = visits.checked_sub(1)?;
            let member = Member::read(raw, header.packs_bitfields())?;
            if member.name == 0 {
                if let Some(found) = self.member(member.kind, path, depth + 1, visits) {
                    return found.shifted(member.bit_offset);
                }
            } else if self.is_named(member.name, name) {
                if rest.is_empty() {
                    return Some(member);
                }
                return self.member(member.kind, rest, depth + 1, visits)?.shifted(member.bit_offset);
            }
        }
        None
    }

    /// Removes typedefs and qualifiers.
    fn strip(&self, mut id: u32) -> Option<u32> {
        for _ in 0..DEPTH_MAX {
            let header = self.get(id)?;
            match header.kind() {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = header.size_or_type;
                }
                _ => return Some(id),
            }
        }
        None
    }

    /// Size in bytes of type `id`.
    fn size_of(&self, id: u32) -> Option<u32> {
        let mut elements = 1_u32;
        let mut id = id;
        for _ in 0..DEPTH_MAX {
            id = self.strip(id)?;
            let header = self.get(id)?;
            match header.kind() {
                kind::PTR => return elements.checked_mul(8),
                kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FLOAT => {
                    return elements.checked_mul(header.size_or_type);
                }
                kind::ARRAY => {
                    let extra = self.extra(id)?;
                    elements = elements.checked_mul(word(extra, 8)?)?;
                    id = word(extra, 0)?;
                }
                _ => return None,
            }
        }
        None
    }
}

/// `struct btf_member`, and where it lies in what contains it.
#[derive(Clone, Copy)]
struct Member {
    name: u32,
    kind: u32,
    bit_offset: u32,
    /// Width of a bit field; 0 for others.
    bits: u32,
}

impl Member {
    fn read(raw: &[u8], packs_bitfields: bool) -> Option<Member> {
        let offset = word(raw, 8)?;
        let (bits, bit_offset) = if packs_bitfields { (offset >> 24, offset & 0xff_ffff) } else { (0, offset) };
        Some(Member { name: word(raw, 0)?, kind: word(raw, 4)?, bit_offset, bits })
    }

    fn shifted(self, by: u32) -> Option<Member> {
        Some(Member { bit_offset: self.bit_offset.checked_add(by)?, ..self })
    }
}

/// The types and the strings, by the header's word for it.
fn sections(bytes: &[u8]) -> Result<(&[u8], &[u8]), BtfError> {
    let short = BtfError::Malformed("its header is cut off");
    let magic = bytes.get(..2).and_then(|two| two.try_into().ok()).map(u16::from_le_bytes);
    match magic {
        Some(MAGIC) => {}
        Some(_) => return Err(BtfError::Malformed("it does not begin with 0xeb9f, little-endian")),
        None => return Err(short),
    }
    if bytes.get(2) != Some(&1) {
        return Err(BtfError::Malformed("it is not version 1"));
    }
    let field = |at| word(bytes, at).map(|value| value as usize);
    let range = |offset: usize, length: usize| -> Option<Range<usize>> {
        let begin = field(4)?.checked_add(field(offset)?)?;
        Some(begin..begin.checked_add(field(length)?)?)
    };
    let types = range(8, 12).and_then(|range| bytes.get(range));
    let strings = range(16, 20).and_then(|range| bytes.get(range));
    types.zip(strings).ok_or(BtfError::Malformed("its sections are cut off"))
}

fn type_at(types: &[u8], at: usize) -> Option<Type> {
    let raw = types.get(at..)?.get(..TYPE_BYTES)?;
    Some(Type { name: word(raw, 0)?, info: word(raw, 4)?, size_or_type: word(raw, 8)? })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.get(..4)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests;
