//! Events to a file: JSON lines in independent zstd frames.
//!
//! Always true: a file is made new with mode 0600 (no link is followed, nothing is overwritten); it ends at a whole
//! frame after every call, also a failed one; an event that could not be written is counted and reported in the
//! trace itself as [`What::Lost`] with cause "write_failed" as soon as writing works again.
//!
//! The caller flushes about once a second. An Xid is made durable at once, since it may precede a crash.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use super::{FRAME_TEXT, LINE_MAX, names};
use crate::event::{Event, What};

/// Measured on an exit storm (the test `an_exit_storm_costs_at_most_20_bytes_an_event`): in frames as small as these
/// level 1 makes 16.3 bytes an event, level 3 16.7, and level 6 16.0 at twice the time.
const LEVEL: i32 = 1;

/// How to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Number the files and begin a new one when this many bytes are on disk (`--rotate-size`).
    pub rotate_size: Option<u64>,
    /// Keep this many files of this run and delete older ones (`--keep`); `None` keeps all. Only with `rotate_size`.
    pub keep: Option<usize>,
}

/// Why a trace could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something of that name is there already.
    #[error("{} exists already, and a trace never overwrites anything: name another file, or move it away", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be made.
    #[error("cannot create the trace {}: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Bytes could not be written; events are kept up to one frame, then counted as lost, until a flush succeeds.
    #[error("cannot write to the trace {}: {source}; what happens until it can be written again is lost{}", path.display(), hint(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file could not be made durable.
    #[error("cannot sync the trace {} to disk: {source}", path.display())]
    Sync {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The opening events do not begin with a header.
    #[error("a trace must begin with a header event")]
    NoHeader,
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (free some space, or record with --rotate-size and --keep)"
        }
        _ => "",
    }
}

/// Writes one trace, or a numbered series of them.
#[derive(Debug)]
pub struct Writer {
    base: PathBuf,
    options: Options,
    number: u64,
    /// Files of this run that still exist, oldest first, the current one last.
    files: VecDeque<PathBuf>,
    sink: Sink,
    text: Vec<u8>,
    /// The last attempt to write failed: nothing more is tried before the next flush.
    failing: bool,
    lost: u64,
    last_at: u64,
    /// Bytes on disk after the opening of the current file.
    opened: u64,
}

impl Writer {
    /// Creates the file and writes `opening`: a header, then what is known already.
    ///
    /// # Errors
    /// When the file exists, cannot be made or written, or `opening` does not begin with a header.
    pub fn create(path: &Path, options: Options, opening: &[Event]) -> Result<Writer, Error> {
        let number = if options.rotate_size.is_some() {
            names::next_number(path)
        } else {
            0
        };
        let name = name(path, options, number);
        let mut writer = Writer {
            base: path.to_path_buf(),
            options,
            number,
            files: VecDeque::from([name.clone()]),
            sink: Sink::create(&name)?,
            text: Vec::with_capacity(FRAME_TEXT + 4096),
            failing: false,
            lost: 0,
            last_at: 0,
            opened: 0,
        };
        if let Err(error) = writer.open_with(opening) {
            let _ = std::fs::remove_file(writer.path()); // We made it a moment ago, and it is useless.
            return Err(error);
        }
        Ok(writer)
    }

    /// The file that is written now.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.sink.path
    }

    /// Events that could not be written and that the trace does not report yet.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// The last attempt to write failed, and no later one has succeeded.
    #[must_use]
    pub const fn is_failing(&self) -> bool {
        self.failing
    }

    /// Bytes on disk in the current file.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.sink.len
    }

    /// Adds an event; writes when a frame is full, and makes an Xid durable at once.
    ///
    /// # Errors
    /// When the file cannot be written. The writer stays usable; while writing keeps failing, only
    /// [`flush`](Self::flush) tries again and says so.
    pub fn write(&mut self, event: &Event) -> Result<(), Error> {
        self.last_at = self.last_at.max(event.at);
        if self.failing && self.text.len() >= FRAME_TEXT {
            self.lost += 1;
            return Ok(());
        }
        self.append(event);
        if matches!(event.what, What::Xid { .. }) && !self.failing {
            return self.sync();
        }
        if self.text.len() >= FRAME_TEXT && !self.failing {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Closes the frame: everything so far is in the file.
    ///
    /// # Errors
    /// When the file cannot be written; what was not written is kept and tried again next time.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.lost > 0 {
            let cause = "write_failed".to_owned();
            let report = Event {
                at: self.last_at,
                what: What::Lost {
                    cause,
                    count: self.lost,
                },
            };
            self.close_frame()?; // First the frame that failed, so that the report is known to have room.
            self.lost = 0;
            self.append(&report);
        }
        self.close_frame()
    }

    /// Flushes and makes everything so far durable.
    ///
    /// # Errors
    /// When the file cannot be written or synced.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.sink.sync()
    }

    /// The current file has reached the size at which the caller should [`rotate`](Self::rotate). Its opening counts for at
    /// most half of that: on a host with much to carry over, files that are full when they begin would push out all history.
    #[must_use]
    pub fn wants_rotation(&self) -> bool {
        self.options
            .rotate_size
            .is_some_and(|size| self.sink.len >= size.max(self.opened.saturating_mul(2)))
    }

    /// Ends the current file and begins the next one with `opening`; deletes files of this run beyond `keep`.
    ///
    /// # Errors
    /// When the old file cannot be completed or the new one not be made: the old one is then kept in use.
    pub fn rotate(&mut self, opening: &[Event]) -> Result<(), Error> {
        self.sync()?;
        let number = self
            .number
            .max(names::next_number(&self.base).saturating_sub(1))
            .saturating_add(1);
        let path = names::numbered(&self.base, number);
        let old = std::mem::replace(&mut self.sink, Sink::create(&path)?);
        if let Err(error) = self.open_with(opening) {
            self.abandon(old);
            return Err(error);
        }
        self.number = number;
        self.files.push_back(path);
        self.delete_oldest();
        Ok(())
    }

    /// Writes what is left and makes it durable.
    ///
    /// # Errors
    /// When the file cannot be written or synced.
    pub fn finish(mut self) -> Result<(), Error> {
        self.sync()
    }

    /// The new file could not be begun: removes it and goes back to `old`, which is complete.
    fn abandon(&mut self, old: Sink) {
        let new = std::mem::replace(&mut self.sink, old);
        let _ = std::fs::remove_file(new.path);
        self.text.clear();
        self.failing = false;
        self.lost = 0;
    }

    fn open_with(&mut self, opening: &[Event]) -> Result<(), Error> {
        if !matches!(
            opening.first(),
            Some(Event {
                what: What::Header(_),
                ..
            })
        ) {
            return Err(Error::NoHeader);
        }
        for event in opening {
            self.write(event)?;
        }
        self.sync()?;
        self.opened = self.sink.len;
        Ok(())
    }

    fn append(&mut self, event: &Event) {
        let start = self.text.len();
        // Writing plain data to memory does not fail; if it ever did, the event is counted, not half written.
        let encoded = serde_json::to_writer(&mut self.text, event).is_ok();
        if encoded && self.text.len() - start < LINE_MAX {
            self.text.push(b'\n');
        } else {
            self.text.truncate(start);
            self.lost += 1;
        }
    }

    fn close_frame(&mut self) -> Result<(), Error> {
        if self.text.is_empty() {
            return Ok(());
        }
        match self.sink.write_frame(&self.text) {
            Ok(()) => {
                self.text.clear();
                self.failing = false;
                Ok(())
            }
            Err(source) => {
                self.failing = true;
                Err(Error::Write {
                    path: self.sink.path.clone(),
                    source,
                })
            }
        }
    }

    fn delete_oldest(&mut self) {
        let Some(keep) = self.options.keep else {
            return;
        };
        while self.files.len() > keep.max(1) {
            if let Some(oldest) = self.files.pop_front() {
                // It may have been moved or deleted by its reader: either way it is no longer ours to count.
                let _ = std::fs::remove_file(oldest);
            }
        }
    }
}

fn name(path: &Path, options: Options, number: u64) -> PathBuf {
    if options.rotate_size.is_some() {
        names::numbered(path, number)
    } else {
        path.to_path_buf()
    }
}

/// A file that grows by whole frames.
struct Sink {
    path: PathBuf,
    file: File,
    /// End of the last whole frame.
    len: u64,
    /// Bytes of a failed write may lie behind `len`.
    dirty: bool,
    compressor: Compressor<'static>,
    frame: Vec<u8>,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink")
            .field("path", &self.path)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Sink {
    fn create(path: &Path) -> Result<Sink, Error> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists {
                path: path.to_path_buf(),
            },
            _ => Error::Create {
                path: path.to_path_buf(),
                source,
            },
        };
        let compressor = compressor().map_err(failed)?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true) // O_CREAT | O_EXCL
            .custom_flags(libc::O_NOFOLLOW)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        Ok(Sink {
            path: path.to_path_buf(),
            file,
            len: 0,
            dirty: false,
            compressor,
            frame: Vec::new(),
        })
    }

    fn write_frame(&mut self, text: &[u8]) -> io::Result<()> {
        self.frame.clear();
        self.frame
            .reserve(zstd::zstd_safe::compress_bound(text.len()));
        self.compressor.compress_to_buffer(text, &mut self.frame)?;
        if let Err(error) = self.file.write_all_at(&self.frame, self.len) {
            // A part of the frame may be there: cut it off, so that the file ends at a whole frame.
            self.dirty = self.file.set_len(self.len).is_err();
            return Err(error);
        }
        self.len += self.frame.len() as u64;
        if self.dirty {
            self.dirty = self.file.set_len(self.len).is_err();
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(|source| Error::Sync {
            path: self.path.clone(),
            source,
        })
    }
}

fn compressor() -> io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(LEVEL)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    Ok(compressor)
}

#[cfg(test)]
impl Writer {
    /// Swaps the file under the writer and returns the old one: how tests fill the disk.
    pub(super) fn swap_file(&mut self, file: File) -> File {
        std::mem::replace(&mut self.sink.file, file)
    }
}
