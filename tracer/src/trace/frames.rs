//! The bytes of a trace file, decompressed frame by frame, whatever happens to be in the file.
//!
//! Always true: memory is bounded (a frame up to [`HOLD_MAX`] is delivered whole and only when its checksum is right,
//! a larger one in pieces; a frame that wants a window above 8 MiB is refused); after damage, reading goes on at the
//! next frame; a file that does not begin as zstd is passed through as plain text.

use std::io::{self, Read, Seek, SeekFrom};

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::DParameter;

const INPUT: usize = 256 << 10;
/// Frames of up to this much text are checked before any of it is used.
const HOLD_MAX: usize = 2 << 20;
/// log2 of the largest window that is accepted: what `zstd -19` makes.
const WINDOW_LOG_MAX: u32 = 23;
/// After this many damaged frames the rest of the file is given up, which bounds the work on a hostile file.
const DAMAGED_MAX: u64 = 1000;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What [`Frames::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Text was delivered.
    Text,
    /// A damaged frame of this many bytes was passed over.
    Damaged(u64),
    /// The file ends inside a frame; this many bytes were of no use.
    Torn(u64),
    /// The end.
    End,
}

/// A file, or bytes that are compiled in.
pub(super) trait Source: Read + Seek + Send {}

impl<T: Read + Seek + Send> Source for T {}

/// Reads one file.
pub(super) struct Frames {
    file: Box<dyn Source>,
    /// Bytes of the file; those at `pos..end` are not used yet.
    input: Box<[u8]>,
    pos: usize,
    end: usize,
    /// Offset in the file of `end`.
    read: u64,
    /// `None`: plain text.
    decoder: Option<Decoder<'static>>,
    /// Offset in the file of the frame that is being decoded.
    frame: u64,
    damaged: u64,
    ended: bool,
}

impl Frames {
    pub(super) fn open(file: impl Source + 'static) -> io::Result<Frames> {
        let mut frames = Frames {
            file: Box::new(file),
            input: vec![0; INPUT].into_boxed_slice(),
            pos: 0,
            end: 0,
            read: 0,
            decoder: None,
            frame: 0,
            damaged: 0,
            ended: false,
        };
        frames.fill()?;
        if is_zstd(frames.unused()) {
            let mut decoder = Decoder::new()?;
            decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))?;
            frames.decoder = Some(decoder);
        }
        Ok(frames)
    }

    /// The first bytes of the file.
    pub(super) fn head(&self) -> &[u8] {
        &self.input[..self.end.min(64)]
    }

    /// The file is compressed, so that only whole frames count.
    pub(super) const fn compressed(&self) -> bool {
        self.decoder.is_some()
    }

    /// Replaces `out` by the next piece of text.
    pub(super) fn next(&mut self, out: &mut Vec<u8>) -> io::Result<Step> {
        out.clear();
        if self.ended {
            return Ok(Step::End);
        }
        if self.decoder.is_some() {
            self.decode(out)
        } else {
            self.pass(out)
        }
    }

    fn pass(&mut self, out: &mut Vec<u8>) -> io::Result<Step> {
        if self.pos == self.end && self.fill()? == 0 {
            self.ended = true;
            return Ok(Step::End);
        }
        out.extend_from_slice(self.unused());
        self.pos = self.end;
        Ok(Step::Text)
    }

    fn decode(&mut self, out: &mut Vec<u8>) -> io::Result<Step> {
        loop {
            if self.pos == self.end && self.fill()? == 0 {
                if self.read > self.frame {
                    // Torn, or a damaged length made this frame swallow those behind it.
                    out.clear();
                    return self.resync();
                }
                self.ended = true;
                return Ok(Step::End);
            }
            if out.len() == out.capacity() {
                if out.len() >= HOLD_MAX {
                    return Ok(Step::Text); // A giant frame: its text is used before its end is seen.
                }
                out.reserve(INPUT.max(out.len()));
            }
            match self.run(out) {
                Some(0) => {
                    self.frame = self.offset();
                    if !out.is_empty() {
                        return Ok(Step::Text);
                    }
                }
                Some(_) => {}
                None => {
                    out.clear();
                    return self.resync();
                }
            }
        }
    }

    /// One step of the decoder: 0 at the end of a frame, `None` when the frame is damaged.
    fn run(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let decoder = self.decoder.as_mut()?;
        let mut input = InBuffer::around(&self.input[self.pos..self.end]);
        let filled = out.len();
        let mut output = OutBuffer::around_pos(out, filled);
        let hint = decoder.run(&mut input, &mut output).ok()?;
        let (consumed, produced) = (input.pos(), output.pos() - filled);
        self.pos += consumed;
        // A decoder that has input and room and does nothing would loop for ever.
        if hint != 0 && consumed == 0 && produced == 0 {
            None
        } else {
            Some(hint)
        }
    }

    /// Goes to the next place after the start of the damaged frame where a frame begins.
    fn resync(&mut self) -> io::Result<Step> {
        if let Some(decoder) = self.decoder.as_mut() {
            decoder.reinit()?;
        }
        self.damaged += 1;
        let start = self.frame;
        self.go_to(start + 1)?;
        loop {
            if let Some(at) = self.unused().windows(MAGIC.len()).position(|w| w == MAGIC) {
                self.pos += at;
                self.frame = self.offset();
                if self.damaged > DAMAGED_MAX {
                    break;
                }
                return Ok(Step::Damaged(self.frame - start));
            }
            // The magic may straddle two reads.
            let keep = (self.end - self.pos).min(MAGIC.len() - 1);
            if self.fill_after(keep)? == 0 {
                break;
            }
        }
        self.ended = true;
        let end = self.file.seek(SeekFrom::End(0))?;
        Ok(Step::Torn(end.saturating_sub(start)))
    }

    fn go_to(&mut self, offset: u64) -> io::Result<()> {
        let base = self.read - self.end as u64;
        if offset >= base && offset <= self.read {
            self.pos = usize::try_from(offset - base).unwrap_or(0);
            return Ok(());
        }
        self.read = self.file.seek(SeekFrom::Start(offset))?;
        (self.pos, self.end) = (0, 0);
        Ok(())
    }

    const fn offset(&self) -> u64 {
        self.read - (self.end - self.pos) as u64
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.fill_after(0)
    }

    /// Reads more, keeping the last `keep` bytes in front; returns how many bytes were read.
    fn fill_after(&mut self, keep: usize) -> io::Result<usize> {
        self.input.copy_within(self.end - keep..self.end, 0);
        (self.pos, self.end) = (0, keep);
        loop {
            match self.file.read(&mut self.input[keep..]) {
                Ok(got) => {
                    self.end += got;
                    self.read += got as u64;
                    return Ok(got);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn unused(&self) -> &[u8] {
        &self.input[self.pos..self.end]
    }
}

/// A zstd frame, or a skippable one (RFC 8878, 3.1).
fn is_zstd(head: &[u8]) -> bool {
    head.starts_with(&MAGIC)
        || (head.len() >= 4 && head[0] & 0xf0 == 0x50 && head[1..4] == [0x2a, 0x4d, 0x18])
}
