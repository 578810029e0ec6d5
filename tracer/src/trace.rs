//! Trace files: events to a file and back.
//!
//! A trace is JSON Lines, one [`Event`](crate::event::Event) a line, in independent zstd frames of at most 64 KiB of
//! text, so `zstdcat FILE | jq` reads it. What always holds:
//!
//! * every file begins with a header and a snapshot, so it is useful without the files before it;
//! * a frame ends where a line ends and carries a checksum: damage costs the frames that it touches and no others;
//! * [`reader`] returns the events of every undamaged frame, in bounded memory, whatever the bytes are, and counts
//!   what it could not use;
//! * [`writer`] never follows a link, never overwrites a file, and counts what it could not write.
//!
//! Recordings that rotate are numbered: `out.jsonl.zst` becomes `out.000001.jsonl.zst`, `out.000002.jsonl.zst`, ...;
//! the highest number is the newest ([`names`]).

mod frames;
pub mod names;
pub mod reader;
pub mod writer;

#[cfg(test)]
mod tests;

/// Schema of the traces that this version writes: [`Header::schema`](crate::event::Header::schema).
pub const SCHEMA: &str = "outlive.trace/1";

/// Longest line, bytes: longer ones are neither written nor kept in memory when read.
pub const LINE_MAX: usize = 1 << 20;

/// A frame is closed when it holds this much text, bytes.
const FRAME_TEXT: usize = 64 << 10;
