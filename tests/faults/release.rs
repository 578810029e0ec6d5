//! The driver does not finish a release: never, or not for long; and somebody freezes what is being released.

use std::thread;
use std::time::{Duration, Instant};

use outlive::event::What;
use outlive::explanation::{CauseId, Explanation};

use crate::stage::{Books, books, kill, set, stack, state, until};
use crate::sys::Group;
use crate::watched::{Watched, dying, nothing, owner};

/// Scans that must agree.
const SCANS: usize = 4;

fn stuck(owner: u32) -> impl Fn(&Explanation) -> Result<(), String> {
    dying(owner, CauseId::ExitBlockedInDriver)
}

#[test]
fn stuck_for_ever_in_release() {
    let Some(mut watched) = Watched::begin("stuck_for_ever_in_release") else { return };
    let owner = watched.stage.start(owner(2_048)).pid;
    set("release_sleep", 1);
    kill(owner);
    until("it sleeps in the driver", || state(owner) == 'D' && stack(owner).contains("nvidia_close"));
    // Whoever waits for it is told that it was in vain.
    let check = watched.host.outlive("check").args(["--wait", "3s"]).output().unwrap();
    assert_eq!(check.status.code(), Some(3), "{check:?}");
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(said.contains(&format!("PID {owner}")), "{said}");
    watched.until("it is stuck", &stuck(owner));
    watched.until_recorded("it is stuck", &stuck(owner));
    // It stays so, however often it is looked at: nobody is called dead, and the memory is not given up.
    let scans = |watched: &Watched| watched.events().iter().filter(|event| matches!(event.what, What::Scan { .. })).count();
    let before = scans(&watched);
    let deadline = Instant::now() + Duration::from_secs(60);
    while scans(&watched) < before + SCANS {
        assert!(Instant::now() < deadline, "a stuck process is not looked at again");
        thread::sleep(Duration::from_millis(500));
    }
    watched.until("it is stuck for ever", &stuck(owner));
    // The recorder can be stopped while somebody is stuck.
    let (ended, mut stage, _host) = watched.ends(&stuck(owner));
    let timeline = ended.timelines.iter().find(|timeline| timeline.pid == owner).unwrap();
    assert!(timeline.waiting_for.is_some(), "it has not ended: {timeline:#?}");
    set("release_sleep", 0);
    stage.kill(owner);
    assert_eq!(books(), Books::default());
}

#[test]
fn a_release_that_outlasts_patience_is_work_and_not_stuck() {
    let Some(mut watched) = Watched::begin("a_release_that_outlasts_patience") else { return };
    let owner = watched.stage.start(owner(2_048)).pid;
    // Eight steps of two seconds: longer than any patience in all, and never without progress for long.
    set("release_ms", 16_000);
    kill(owner);
    let works = dying(owner, CauseId::TeardownRunning);
    watched.until("it works", &works);
    let mut looks = 0;
    // Not its last step: then it may have ended when the answer is here.
    while books().used > 512 {
        let said = watched.until("it is looked at", &|_| Ok(()));
        if books().used > 0 {
            works(&said).unwrap_or_else(|wrong| panic!("look {looks}: {wrong}\n{}", crate::watched::told(&said)));
            looks += 1;
        }
    }
    assert!(looks > 1, "it was over too soon");
    until("it is over", || books() == Books::default());
    watched.stage.kill(owner);
    watched.until("nothing is left", &nothing);
    watched.until_recorded("nothing is left", &nothing);
    let (ended, ..) = watched.ends(&nothing);
    let timeline = ended.timelines.iter().find(|timeline| timeline.pid == owner).unwrap();
    assert_eq!(timeline.waiting_for, None, "{timeline:#?}");
}

#[test]
fn a_release_without_progress_is_called_stuck_until_it_goes_on() {
    let Some(mut watched) = Watched::begin("a_release_without_progress") else { return };
    let owner = watched.stage.start(owner(2_048)).pid;
    // Each step takes longer than any patience: nobody can tell this from being stuck, so it must say what it saw and take it back.
    set("release_ms", 120_000);
    kill(owner);
    watched.until("it is in the driver", &stuck(owner));
    set("release_ms", 0);
    watched.stage.kill(owner);
    watched.until("nothing is left", &nothing);
    watched.until_recorded("nothing is left", &nothing);
    watched.ends(&nothing);
}

#[test]
fn frozen_while_it_is_released() {
    let Some(mut watched) = Watched::begin("frozen_while_it_is_released") else { return };
    let group = Group::make("outlive-frozen");
    // A process that exits takes no signals and is not frozen: the driver has it.
    for (knob, value, cause) in [("release_ms", 20_000, CauseId::TeardownRunning), ("release_sleep", 1, CauseId::ExitBlockedInDriver)] {
        let owner = watched.stage.start(owner(2_048)).pid;
        group.add(owner);
        set(knob, value);
        kill(owner);
        until("the driver has it", || state(owner) == 'D' && stack(owner).contains("nvidia"));
        group.write("cgroup.freeze", "1");
        let in_the_driver = dying(owner, cause);
        watched.until("the driver has it", &in_the_driver);
        watched.until_recorded("the driver has it", &in_the_driver);
        set(knob, 0);
        // It ends although its group is frozen.
        watched.stage.kill(owner);
        watched.until("nothing is left", &nothing);
        group.write("cgroup.freeze", "0");
    }
    watched.until_recorded("nothing is left", &nothing);
    watched.ends(&nothing);
}
