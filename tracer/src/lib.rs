//! `outlive` says exactly why GPU memory outlived its owner. This page is the map; read the modules in this order
//! and you have followed one event from hook to sentence.
//!
//! 1. [`source`]: where events come from. `source::kernel` loads the eBPF programs and drains the ring and the
//!    iterators; `source::procfs`, `source::nvml`, `source::kmsg` read what the kernel and NVML say; I/O lives only here.
//! 2. [`event`]: the one currency.
//! 3. [`trace`]: events to a file and back.
//! 4. [`world`]: the fold. `World::apply(&Event)` is the only way in.
//! 5. [`cause`]: one file per cause; each looks at a case and says whether it is the answer.
//! 6. [`explanation`]: the answer types; [`report`]: text, JSON, timelines.
//!
//! [`stack`] says what a kernel stack means; sources and causes ask it.
//!
//! `command` holds one file per subcommand and is the only place that prints.
//!
//! **Invariants.** `event`, `world`, `cause`, `explanation`, `snapshot` and `report` see no clock, file, syscall,
//! aya or NVML, and print in a fixed order: the same events give the same bytes, live or from a file.

pub mod cause;
pub mod cli;
pub mod command;
pub mod event;
pub mod explanation;
mod host;
pub mod live;
pub mod offline;
pub mod recorder;
pub mod report;
pub mod snapshot;
pub mod source;
pub mod stack;
#[cfg(test)]
mod story;
pub mod sys;
pub mod timeline;
pub mod trace;
pub mod world;
