//! Events from trace files, whatever the bytes are.
//!
//! Always true: nothing panics and memory stays bounded; every event of every undamaged frame is returned, in order;
//! what was not understood, not well formed or lost is counted in [`Problems`], which says so in sentences.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::frames::{Frames, Step};
use super::{LINE_MAX, names};
use crate::event::{Event, Header, What};

/// Malformed lines that are described one by one; the rest is only counted.
const DESCRIBED_MAX: usize = 8;
/// Unknown kinds that are told apart.
const KINDS_MAX: usize = 32;

/// Why a file cannot be read as a trace at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Opening or reading failed.
    #[error("cannot read the trace {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is not an outlive trace: {why}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It ends before anything could be read.
    #[error("{} ends inside its first frame, so nothing of it can be read: its recorder was stopped in the first second, or the file was cut", path.display())]
    NothingWhole {
        /// The file.
        path: PathBuf,
    },
    /// It follows a schema that is not a mere addition to this one.
    #[error("{} follows {schema:?}, which this version does not read: use a newer outlive", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// The schema that its header names.
        schema: String,
    },
    /// Its clock and tokens mean something else than those of the files before it.
    #[error("{} was recorded after a reboot or on another host than the files before it: read it on its own", path.display())]
    OtherBoot {
        /// The file.
        path: PathBuf,
    },
}

/// A line that should be an event and is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The file.
    pub path: PathBuf,
    /// Its line, from 1, in the text that could be decompressed.
    pub line: u64,
    /// What is wrong.
    pub why: String,
}

/// What could not be used. The default is "nothing".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Events of kinds that this version does not know, by kind: a newer outlive wrote them.
    pub unknown: BTreeMap<String, u64>,
    /// Lines that are not events.
    pub malformed: u64,
    /// The first few of these.
    pub described: Vec<Malformed>,
    /// Frames that were damaged and passed over.
    pub damaged_frames: u64,
    /// Bytes of these.
    pub damaged_bytes: u64,
    /// Bytes at the end of files that are not a whole frame (or a whole line, in plain text).
    pub torn_bytes: u64,
    /// Files that do not begin with a header.
    pub headless: Vec<PathBuf>,
}

impl Problems {
    /// Everything was understood.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Problems::default()
    }

    /// Damaged frames, and lines that are no event of ours: what was passed over amid the rest.
    #[must_use]
    pub fn passed_over(&self) -> u64 {
        self.unknown.values().fold(self.malformed, |sum, count| sum.saturating_add(*count)).saturating_add(self.damaged_frames)
    }

    /// One sentence for each kind of problem. Texts from the file are quoted and escaped.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut said = Vec::new();
        if !self.unknown.is_empty() {
            let count: u64 = self.unknown.values().sum();
            let kinds: Vec<String> = self.unknown.keys().map(|k| format!("{k:?}")).collect();
            said.push(format!(
                "{count} event(s) of kinds that this version does not know were skipped ({}): a newer outlive wrote them",
                kinds.join(", ")
            ));
        }
        if self.malformed > 0 {
            let lines: Vec<String> = self
                .described
                .iter()
                .map(|m| format!("line {} of {}: {}", m.line, m.path.display(), m.why))
                .collect();
            said.push(format!(
                "{} line(s) are not events and were skipped ({})",
                self.malformed,
                lines.join("; ")
            ));
        }
        if self.damaged_frames > 0 {
            said.push(format!(
                "{} damaged frame(s), {} bytes, were skipped: what they recorded is missing",
                self.damaged_frames, self.damaged_bytes
            ));
        }
        if self.torn_bytes > 0 {
            said.push(format!(
                "the trace ends in the middle of a frame: the last {} bytes, at most about a second of events, are lost",
                self.torn_bytes
            ));
        }
        for path in &self.headless {
            said.push(format!(
                "{} does not begin with a header: its host and clocks are unknown",
                path.display()
            ));
        }
        said
    }
}

/// Reads one trace file, or the parts of one in order. An iterator that ends after its first error.
pub struct Reader {
    waiting: VecDeque<PathBuf>,
    path: PathBuf,
    frames: Frames,
    /// Decompressed text and how much of it is used.
    text: Vec<u8>,
    used: usize,
    line: Vec<u8>,
    /// The rest of the current line is being passed over: it is too long.
    skipping: bool,
    number: u64,
    /// An event of this file was returned.
    begun: bool,
    /// An event of any file was returned.
    begun_any: bool,
    /// The boot that the files are from, once a header has told.
    boot: String,
    done: bool,
    problems: Problems,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .field("line", &self.number)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens the trace `path`, or its numbered parts when only these exist ([`names::parts`]).
    ///
    /// # Errors
    /// When it cannot be opened or is visibly something else.
    pub fn open(path: &Path) -> Result<Reader, Error> {
        Reader::open_all(names::parts(path))
    }

    /// Opens several files, to be read in this order as one trace.
    ///
    /// # Errors
    /// When the first cannot be opened or is visibly something else, or there is none.
    pub fn open_all(paths: impl IntoIterator<Item = PathBuf>) -> Result<Reader, Error> {
        let mut waiting: VecDeque<PathBuf> = paths.into_iter().collect();
        let Some(path) = waiting.pop_front() else {
            return Err(Error::NotATrace {
                path: PathBuf::new(),
                why: "no file was named".to_owned(),
            });
        };
        let frames = open(&path)?;
        Ok(Reader::over(path, frames, waiting))
    }

    /// Reads a trace that is compiled in.
    ///
    /// # Errors
    /// When its first frame cannot be decompressed.
    pub fn from_bytes(bytes: &'static [u8]) -> Result<Reader, Error> {
        let path = PathBuf::from("(built in)");
        let frames = Frames::open(std::io::Cursor::new(bytes))
            .map_err(|source| Error::Io { path: path.clone(), source })?;
        Ok(Reader::over(path, frames, VecDeque::new()))
    }

    fn over(path: PathBuf, frames: Frames, waiting: VecDeque<PathBuf>) -> Reader {
        Reader {
            waiting,
            path,
            frames,
            text: Vec::new(),
            used: 0,
            line: Vec::new(),
            skipping: false,
            number: 0,
            begun: false,
            begun_any: false,
            boot: String::new(),
            done: false,
            problems: Problems::default(),
        }
    }

    /// What could not be used so far.
    #[must_use]
    pub const fn problems(&self) -> &Problems {
        &self.problems
    }

    /// The file that is being read.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn advance(&mut self) -> Result<Option<Event>, Error> {
        loop {
            while self.next_line() {
                if let Some(event) = self.parse()? {
                    return Ok(Some(event));
                }
            }
            if !self.next_text()? && !self.next_file()? {
                return Ok(None);
            }
        }
    }

    /// Completes `line` from `text`; false when the text is used up.
    fn next_line(&mut self) -> bool {
        loop {
            let mut rest = &self.text[self.used..];
            // Reading from memory cannot fail.
            let Ok(taken @ 1..) = rest.read_until(b'\n', &mut self.line) else {
                return false;
            };
            self.used += taken;
            let whole = self.line.last() == Some(&b'\n');
            if self.line.len() > LINE_MAX {
                self.line.clear();
                if !self.skipping {
                    self.malformed(self.number + 1, "it is longer than 1 MiB".to_owned());
                }
                self.skipping = true;
            }
            if !whole {
                return false;
            }
            self.number += 1;
            if std::mem::take(&mut self.skipping) {
                self.line.clear();
                continue;
            }
            return true;
        }
    }

    /// Parses and clears `line`.
    fn parse(&mut self) -> Result<Option<Event>, Error> {
        let parsed = serde_json::from_slice::<Event>(&self.line);
        let outcome = match parsed {
            Ok(event) => self.accept(event).map(Some),
            Err(error) => self.reject(&error).map(|()| None),
        };
        self.line.clear();
        outcome
    }

    fn accept(&mut self, event: Event) -> Result<Event, Error> {
        if !std::mem::replace(&mut self.begun, true) && !matches!(event.what, What::Header(_)) {
            self.problems.headless.push(self.path.clone());
        }
        self.begun_any = true;
        if let What::Header(header) = &event.what {
            self.check(header)?;
        }
        Ok(event)
    }

    fn check(&mut self, header: &Header) -> Result<(), Error> {
        let path = || self.path.clone();
        if !readable(&header.schema) {
            return Err(Error::Schema {
                path: path(),
                schema: bounded(&header.schema),
            });
        }
        if self.boot.is_empty() {
            self.boot.clone_from(&header.boot_id);
        } else if self.boot != header.boot_id {
            return Err(Error::OtherBoot { path: path() });
        }
        Ok(())
    }

    /// Tells an event of an unknown kind from a line that is no event.
    fn reject(&mut self, error: &serde_json::Error) -> Result<(), Error> {
        if self.line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        if let Some(kind) = unknown_kind(&self.line, error) {
            let kind = if self.problems.unknown.len() < KINDS_MAX {
                kind
            } else {
                "others".to_owned()
            };
            *self.problems.unknown.entry(kind).or_default() += 1;
            return Ok(());
        }
        if !self.begun && self.number == 1 && self.problems.damaged_frames == 0 {
            let why = format!(
                "its first line is not an event ({})",
                bounded(&error.to_string())
            );
            return Err(Error::NotATrace {
                path: self.path.clone(),
                why,
            });
        }
        self.malformed(self.number, bounded(&error.to_string()));
        Ok(())
    }

    fn malformed(&mut self, line: u64, why: String) {
        self.problems.malformed += 1;
        if self.problems.described.len() < DESCRIBED_MAX {
            self.problems.described.push(Malformed {
                path: self.path.clone(),
                line,
                why,
            });
        }
    }

    /// Fetches more text; false at the end of the file.
    fn next_text(&mut self) -> Result<bool, Error> {
        self.used = 0;
        let step = self
            .frames
            .next(&mut self.text)
            .map_err(|source| Error::Io {
                path: self.path.clone(),
                source,
            })?;
        match step {
            Step::Text => Ok(true),
            Step::Damaged(bytes) => {
                self.problems.damaged_frames += 1;
                self.problems.damaged_bytes += bytes;
                self.forget_line();
                Ok(true)
            }
            Step::Torn(bytes) => {
                self.problems.torn_bytes += bytes;
                self.forget_line();
                if self.begun_any {
                    Ok(false)
                } else {
                    Err(Error::NothingWhole {
                        path: self.path.clone(),
                    })
                }
            }
            Step::End => self.last_line(),
        }
    }

    /// A last line without its newline: whole in a compressed file, perhaps torn in a plain one.
    fn last_line(&mut self) -> Result<bool, Error> {
        if self.frames.compressed() || serde_json::from_slice::<IgnoredAny>(&self.line).is_ok() {
            self.text.append(&mut self.line);
        } else {
            self.problems.torn_bytes += self.line.len() as u64;
        }
        self.forget_line();
        if self.text.is_empty() {
            if self.begun_any {
                return Ok(false);
            }
            return Err(Error::NotATrace {
                path: self.path.clone(),
                why: "there is no event in it".to_owned(),
            });
        }
        self.text.push(b'\n');
        Ok(true)
    }

    fn forget_line(&mut self) {
        self.line.clear();
        self.skipping = false;
    }

    fn next_file(&mut self) -> Result<bool, Error> {
        let Some(path) = self.waiting.pop_front() else {
            return Ok(false);
        };
        self.frames = open(&path)?;
        self.path = path;
        self.number = 0;
        self.begun = false;
        Ok(true)
    }
}

#[cfg(test)]
impl Reader {
    /// Memory held for text.
    pub(super) fn held_bytes(&self) -> usize {
        self.text.capacity() + self.line.capacity()
    }
}

impl Iterator for Reader {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.advance().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

fn open(path: &Path) -> Result<Frames, Error> {
    let failed = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    // O_NONBLOCK: a FIFO or a terminal must not make us wait; it is refused below.
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)?;
    let not = |why: &str| Error::NotATrace {
        path: path.to_path_buf(),
        why: why.to_owned(),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(not("it is not a regular file"));
    }
    let frames = Frames::open(file).map_err(failed)?;
    let head = frames.head();
    if head.is_empty() {
        return Err(not("it is empty"));
    }
    if !frames.compressed() && !head.trim_ascii_start().starts_with(b"{") {
        return Err(not("it is neither zstd-compressed nor JSON Lines"));
    }
    Ok(frames)
}

/// Later versions of schema 1 only add.
fn readable(schema: &str) -> bool {
    schema == super::SCHEMA
        || schema
            .strip_prefix(super::SCHEMA)
            .is_some_and(|rest| rest.starts_with('.'))
}

/// The kind of a well-formed event which this version does not know, or in which it does not know a name (an
/// enumeration that grew). Only what serde calls an unknown variant counts: anything else is malformed.
fn unknown_kind(line: &[u8], error: &serde_json::Error) -> Option<String> {
    #[derive(Deserialize)]
    struct Shape {
        #[serde(rename = "t")]
        _at: u64,
        #[serde(rename = "e")]
        what: BTreeMap<String, IgnoredAny>,
    }
    if !error.is_data() || !error.to_string().starts_with("unknown variant") {
        return None;
    }
    let shape: Shape = serde_json::from_slice(line).ok()?;
    let mut kinds = shape.what.into_keys();
    match (kinds.next(), kinds.next()) {
        (Some(kind), None) => Some(bounded(&kind)),
        _ => None,
    }
}

/// Text from the file, short and without control characters.
fn bounded(text: &str) -> String {
    text.chars()
        .take(160)
        .flat_map(char::escape_debug)
        .collect()
}
