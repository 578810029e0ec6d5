//! More happens than can be read: Xids faster than the kernel log is, events faster than the ring is.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;

use outlive::event::{Event, What};
use outlive::explanation::Explanation;

use crate::rm::Cuda;
use crate::stage::Line;
use crate::sys::{Setting, ignore, send};
use crate::watched::{Watched, declares, leak, leaked, nothing};

const XID: &str = "/sys/module/nvidia/parameters/xid";

/// The driver reports so many Xids, each naming another process: PIDs from `first`.
fn storm(first: u32, count: u32) {
    let mut knob = fs::OpenOptions::new().write(true).open(XID).unwrap();
    for pid in first..first + count {
        knob.write_all(format!("31 {pid} python3 Ch 00000008, intr 00000000. MMU Fault").as_bytes()).unwrap();
    }
}

/// Who is named by the Xids that were recorded, and how many messages were overwritten before they were read.
fn xids(events: &[Event]) -> (BTreeSet<u32>, u64) {
    let named = events.iter().filter_map(|event| if let What::Xid { code: 31, pid, .. } = &event.what { *pid } else { None });
    (named.collect(), lost(events, "kernel_log_overwritten"))
}

fn lost(events: &[Event], why: &str) -> u64 {
    events.iter().map(|event| if let What::Lost { cause, count } = &event.what { if cause == why { *count } else { 0 } } else { 0 }).sum()
}

#[test]
fn xid_storms_are_counted_to_the_last() {
    let Some(mut watched) = Watched::begin("xid_storms") else { return };
    // A serial console would slow the storm down.
    let quiet = Setting::set("/proc/sys/kernel/printk", "1");
    // When the recorder has read nothing yet, it cannot read for a while; then it can.
    let mut produced = 0;
    let frozen = watched.recorder.freeze().unwrap();
    storm(10_000, 4_000);
    produced += 4_000;
    drop(frozen);
    watched.until_event("the first storm", |what| matches!(what, What::Xid { pid: Some(13_999), .. }));
    storm(14_000, 2_000);
    produced += 2_000;
    watched.until_event("the storm that was read", |what| matches!(what, What::Xid { pid: Some(15_999), .. }));
    let (seen, lost) = xids(&watched.events());
    assert_eq!(seen.len() as u64 + lost, produced, "{lost} overwritten");
    // While it cannot read: more than the log keeps.
    let frozen = watched.recorder.freeze().unwrap();
    storm(20_000, 4_000);
    produced += 4_000;
    drop(frozen);
    watched.until_event("the second storm", |what| matches!(what, What::Xid { pid: Some(23_999), .. }));
    // The storm is not taken for the end of somebody who has nothing to do with it.
    let (owner, child) = leak(&mut watched.stage);
    let facts = |said: &Explanation| -> Result<(), String> {
        leaked(owner.pid, child)(said)?;
        if declares(said, "(kernel_log_overwritten)") { Ok(()) } else { Err("nobody says that Xids were lost".to_owned()) }
    };
    watched.until_recorded("it leaks", &facts);
    drop(quiet);
    let (ended, ..) = watched.ends(&facts);
    let (seen, lost) = xids(&ended.events);
    assert!(lost > 0 && seen.contains(&23_999));
    assert_eq!(seen.len() as u64 + lost, produced, "{lost} overwritten");
}

/// A process that uses the GPU and ignores SIGTERM: each that is sent to it is one event.
fn target(line: &mut Line) -> std::io::Result<()> {
    ignore(libc::SIGTERM);
    Cuda::open()?.malloc(64)?;
    line.say(&[])
}

#[test]
fn the_ring_overflows_and_every_event_is_counted() {
    let Some(mut watched) = Watched::begin("the_ring_overflows") else { return };
    let target = watched.stage.start(target).pid;
    watched.until("it is known", &nothing);
    let signals = |events: &[Event]| events.iter().filter(|event| matches!(&event.what, What::Signal { to, sig: libc::SIGTERM, .. } if to.0 == target)).count() as u64;
    let (mut produced, mut before) = (0, 0);
    // What fits, and twice what does.
    for (count, overflows) in [(10_000_u64, false), (100_000, true)] {
        let frozen = watched.recorder.freeze().unwrap();
        for _ in 0..count {
            send(target, libc::SIGTERM);
        }
        produced += count;
        drop(frozen);
        watched.until_quiet();
        let events = watched.events();
        let (seen, lost) = (signals(&events), lost(&events, "ring_full"));
        assert_eq!(seen + lost, produced, "{seen} seen, {lost} lost");
        assert_eq!(lost > before, overflows, "{lost} lost, {before} before");
        before = lost;
    }
    watched.stage.kill(target);
    watched.until("nothing is left", &nothing);
    // What happens after a loss is told as ever, and that something was lost is said.
    let (owner, child) = leak(&mut watched.stage);
    let facts = |said: &Explanation| -> Result<(), String> {
        let held = crate::watched::Held { owner: owner.pid, causes: &[outlive::explanation::CauseId::InheritedDescriptor], holders: &[child], exact: false };
        held.told(said)?;
        if said.covers.complete || !declares(said, "events lost (ring_full)") { Err("nobody says that events were lost".to_owned()) } else { Ok(()) }
    };
    watched.until("it leaks", &facts);
    watched.until_recorded("it leaks", &facts);
    let (ended, ..) = watched.ends(&facts);
    assert_eq!(signals(&ended.events) + lost(&ended.events, "ring_full"), produced);
}
