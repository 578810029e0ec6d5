//! The driver's modules are unloaded and loaded again while a recorder watches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use outlive::event::{Event, What};
use outlive::explanation::Explanation;

use crate::stage::{BOOKS, Stage, until};
use crate::watched::{Watched, leak, leaked, nothing};

/// Where the guest has the modules. A variant has the functions of an older driver ("535"), or lacks one that is hooked ("renamed").
fn module(variant: &str, name: &str) -> PathBuf {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    Path::new("/driver").join(release.trim()).join(variant).join(format!("{name}.ko"))
}

fn unload() {
    for name in ["nvidia-uvm", "nvidia"] {
        let out = Command::new("rmmod").arg(name).output().unwrap();
        assert!(out.status.success(), "the recorder keeps {name} from being unloaded: {}", String::from_utf8_lossy(&out.stderr));
    }
    assert!(!Path::new(BOOKS).exists());
}

fn load(variant: &str) {
    for name in ["nvidia", "nvidia-uvm"] {
        let out = Command::new("insmod").arg(module(variant, name)).output().unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    until("its files are there", || ["nvidiactl", "nvidia0", "nvidia-uvm"].iter().all(|node| Path::new("/dev").join(node).exists()));
}

/// How often the driver's functions were hooked since the start.
fn attachments(events: &[Event]) -> usize {
    let hooked = |what: &What| matches!(what, What::Hooks { list } if list.iter().any(|hook| hook.attached && hook.name.contains("nvidia_open")));
    events.iter().filter(|event| hooked(&event.what)).count()
}

/// What was attached when the driver was last loaded.
fn hooked_last(events: &[Event]) -> Vec<&str> {
    let last = events.iter().rev().find_map(|event| if let What::Hooks { list } = &event.what { Some(list) } else { None });
    last.into_iter().flatten().filter(|hook| hook.attached).map(|hook| hook.name.as_str()).collect()
}

#[test]
fn unloaded_and_loaded_again() {
    let Some(mut watched) = Watched::begin("unloaded_and_loaded_again") else { return };
    // At leisure, so that it is seen to be gone, and between two looks at what is loaded.
    for leisurely in [true, false] {
        let (owner, child) = leak(&mut watched.stage);
        watched.until("it leaks", &leaked(owner.pid, child));
        watched.stage.kill(child);
        watched.until("nothing is left", &nothing);
        let (hooks, before) = (watched.events().len(), attachments(&watched.events()));
        unload();
        if leisurely {
            until("its end is recorded", || {
                let events = watched.events();
                events[hooks..].iter().any(|event| matches!(event.what, What::Devices { .. } | What::Hooks { .. }))
            });
            std::thread::sleep(std::time::Duration::from_secs(2));
        }
        load("");
        until("its functions are hooked again", || attachments(&watched.events()) > before);
    }
    let (owner, child) = leak(&mut watched.stage);
    watched.until("it leaks", &leaked(owner.pid, child));
    watched.until_recorded("it leaks", &leaked(owner.pid, child));
    let (ended, ..) = watched.ends(&leaked(owner.pid, child));
    let of_driver = |event: &Event| matches!(&event.what, What::Release { .. });
    let again = ended.events.iter().rposition(|event| matches!(&event.what, What::Hooks { .. })).unwrap();
    assert!(ended.timelines.iter().any(|timeline| timeline.pid == owner.pid));
    assert!(ended.events[..again].iter().any(of_driver), "releases are seen with driver hooks only");
    // The kernel's own functions stayed hooked.
    let reaped = |event: &Event| matches!(&event.what, What::Reap { child, .. } if *child == owner.pid);
    assert!(ended.events[again..].iter().any(reaped), "reaps are not seen any more");
}

/// The driver that the other tests need is loaded again, however this one ends.
struct Other;

impl Other {
    fn load(variant: &str) -> Other {
        unload();
        load(variant);
        Other
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // A test that fails leaves its processes to the stage, which is dropped before.
        unload();
        load("");
    }
}

#[test]
fn the_functions_of_535() {
    let Some(stage) = Stage::take("the_functions_of_535") else { return };
    let older = Other::load("535");
    drop(stage);
    {
        let Some(mut watched) = Watched::begin("the_functions_of_535") else { return };
        let (owner, child) = leak(&mut watched.stage);
        watched.until("it leaks", &leaked(owner.pid, child));
        watched.until_recorded("it leaks", &leaked(owner.pid, child));
        let (ended, stage, _host) = watched.ends(&leaked(owner.pid, child));
        let hooks: Vec<&str> = ended.events.iter().filter_map(|event| if let What::Header(header) = &event.what { Some(header) } else { None })
            .flat_map(|header| header.hooks.iter().filter(|hook| hook.attached).map(|hook| hook.name.as_str())).collect();
        for function in ["nvidia_open", "nvidia_close", "nvidia_frontend_unlocked_ioctl"] {
            assert!(hooks.iter().any(|hook| hook.contains(function)), "{function} is not hooked: {hooks:?}");
        }
        // The books were kept by what was asked of it.
        assert_eq!(ended.explanation.holdings.iter().find(|h| h.outlives()).and_then(|h| h.bytes), Some(2_048 << 20));
        assert!(ended.events.iter().any(|event| matches!(event.what, What::Rm(_))), "no request was seen");
        drop(stage);
    }
    drop(older);
}

/// Other builds of the driver are loaded while a recorder watches: what has a function to hook is hooked there, and the rest, function by function,
/// where system calls end.
#[test]
fn other_builds_are_loaded_later() {
    // Dropped last: nobody uses the driver any more.
    let mut other: Option<Other> = None;
    let Some(mut watched) = Watched::begin_with("other_builds_are_loaded_later", "auto") else { return };
    for (variant, requests) in [("535", "nvidia_frontend_unlocked_ioctl"), ("renamed", "sys_exit_ioctl")] {
        let before = attachments(&watched.events());
        drop(other.take());
        until("the ordinary one is hooked", || attachments(&watched.events()) > before || before == 0);
        let before = attachments(&watched.events());
        other = Some(Other::load(variant));
        until("its functions are hooked", || attachments(&watched.events()) > before);
        let events = watched.events();
        let loaded = events.len();
        let hooked = hooked_last(&events);
        for function in ["nvidia_open", "nvidia_close", requests] {
            assert!(hooked.iter().any(|name| name.contains(function)), "{variant}: {function} is not hooked: {hooked:?}");
        }
        let (owner, child) = leak(&mut watched.stage);
        let facts = |said: &Explanation| -> Result<(), String> {
            leaked(owner.pid, child)(said)?;
            let held = said.holdings.iter().find(|h| h.outlives()).ok_or("it is gone")?;
            // The books were kept by what was asked of it.
            match held.books.as_ref().map(|books| books.bytes) {
                Some(2_147_483_648) => Ok(()),
                bytes => Err(format!("{variant}: by the books it is {bytes:?}")),
            }
        };
        watched.until("it leaks", &facts);
        watched.until_recorded("it leaks", &facts);
        watched.stage.kill(child);
        watched.until("nothing is left", &nothing);
        // These are seen with driver hooks only.
        until("its releases are seen", || watched.events().iter().skip(loaded).any(|event| matches!(event.what, What::Release { .. })));
    }
    let (_ended, stage, _host) = watched.ends(&nothing);
    drop((stage, other));
}
