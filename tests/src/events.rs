//! Whether two recordings of one play, made with different hooks, have the same events.
//!
//! Always true: only what depends on the hooks is compared (opens, copies, descriptors sent and received, requests, reaps), each by who, which
//! file and how, not by when; what a scan found is not.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use outlive::event::{Event, What};
use outlive::trace::reader::Reader;

/// Differences told.
const TOLD: usize = 4;

/// How often each event is there, as a line of text.
type Counts = BTreeMap<String, i64>;

/// What `driver`, made with driver hooks, and `syscall` do not have in common; nothing when they agree. Driver hooks see reaps that no system call
/// makes (a PID namespace that ends collects its own), so more of these are none.
///
/// # Errors
/// When one cannot be read.
pub fn difference(driver: &Path, syscall: &Path) -> io::Result<Option<String>> {
    let mut counts = counts(driver)?;
    for (event, count) in self::counts(syscall)? {
        *counts.entry(event).or_default() -= count;
    }
    let differ = |(event, count): &(&String, &i64)| **count < 0 || **count > 0 && !event.starts_with("reap ");
    let told: Vec<String> = counts.iter().filter(differ).map(|(event, count)| format!("{count:+} {event}")).collect();
    Ok((!told.is_empty()).then(|| {
        let more = told.len().saturating_sub(TOLD);
        format!("driver hooks saw other events than syscall hooks: {}{}", told[..told.len() - more].join("; "), if more > 0 { format!("; {more} more") } else { String::new() })
    }))
}

fn counts(trace: &Path) -> io::Result<Counts> {
    let mut counts = Counts::new();
    for event in Reader::open(trace).map_err(io::Error::other)? {
        if let Some(line) = line(&event.map_err(io::Error::other)?) {
            *counts.entry(line).or_default() += 1;
        }
    }
    Ok(counts)
}

fn line(event: &Event) -> Option<String> {
    match &event.what {
        // Of what a scan found nobody knows since when.
        What::Hold(hold) if hold.since.is_some() => {
            let (via, bits) = (hold.via, (hold.cloexec, hold.opened_cloexec));
            Some(format!("hold {:?} fd {} file {:x} {via:?} {bits:?}", hold.id, hold.fd, hold.file))
        }
        What::Sent { id, file, dev, socket } => Some(format!("sent {id:?} file {file:x} {dev:?} {socket:?}")),
        What::Rm(rm) => Some(format!("request {:?} file {:x} {:?}", rm.id, rm.file, rm.op)),
        What::Reap { by, child, .. } => Some(format!("reap {by:?} {child}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive::event::{Hold, ProcessId, Via};

    #[test]
    fn what_scans_found_and_times_do_not_count_and_the_rest_does() {
        let hold = |at, via, since| Event { at, what: What::Hold(Box::new(Hold { id: ProcessId(5, 1), fd: 3, file: 7, via, since, ..Hold::default() })) };
        assert_eq!(line(&hold(1, None, None)), None);
        assert_eq!(line(&hold(1, Some(Via::Opened), Some(1))), line(&hold(9, Some(Via::Opened), Some(9))));
        assert_ne!(line(&hold(1, Some(Via::Opened), Some(1))), line(&hold(1, Some(Via::ScmRights), Some(1))));
    }
}
