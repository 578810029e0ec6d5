//! The wall clock is set forwards and backwards while a recorder watches.

use outlive::event::{Event, What};
use outlive::timeline::StepId;

use crate::stage::{Books, books, kill, set, until};
use crate::sys::Clock;
use crate::watched::{Watched, nothing, owner};

const HOUR: i64 = 3_600;
/// Less than any step of the clock here, and more than anything takes.
const MOMENT_NS: u64 = 600_000_000_000;

/// Where the clock was against boottime, s, from the header on.
fn clocks(events: &[Event]) -> Vec<i64> {
    let at = |event: &Event| match &event.what {
        What::Header(header) => Some((header.real_ns, event.at)),
        What::Clock { real_ns } => Some((*real_ns, event.at)),
        _ => None,
    };
    events.iter().filter_map(at).map(|(real, at)| (real as i64 - at as i64) / 1_000_000_000).collect()
}

#[test]
fn the_clock_steps_while_somebody_dies() {
    let Some(mut watched) = Watched::begin("the_clock_steps") else { return };
    let clock = Clock::now();
    let owner = watched.stage.start(owner(2_048)).pid;
    watched.until("it is known", &nothing);
    // Each step has time to be recorded before the next.
    set("release_ms", 40_000);
    kill(owner);
    until("it is under way", || books().used < 2_048);
    for (seconds, steps) in [(HOUR, 1), (-2 * HOUR, 2)] {
        clock.off_by(seconds);
        until("the step is recorded", || clocks(&watched.events()).len() > steps);
    }
    // A look at the running host survives a clock that is behind the recording's.
    watched.until("it is asked", &|said| match said.holdings.iter().filter(|held| held.outlives()).count() {
        1 => Ok(()),
        count => Err(format!("{count} holdings outlive their owners")),
    });
    set("release_ms", 0);
    watched.stage.kill(owner);
    until("it is over", || books() == Books::default());
    watched.until("nothing is left", &nothing);
    watched.until_recorded("nothing is left", &nothing);
    let (ended, ..) = watched.ends(&nothing);
    drop(clock);
    // The trace says that the clock stepped, and by how much.
    let clocks = clocks(&ended.events);
    let steps: Vec<i64> = clocks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(matches!(steps[..], [forwards, backwards] if (forwards - HOUR).abs() < 60 && (backwards + 3 * HOUR).abs() < 60), "{steps:?}");
    // What took how long does not depend on it.
    let timeline = ended.timelines.iter().find(|timeline| timeline.pid == owner).unwrap();
    assert_eq!(timeline.waiting_for, None, "{timeline:#?}");
    assert!(timeline.total_ns.unwrap() < MOMENT_NS, "{timeline:#?}");
    assert!(timeline.steps.iter().filter_map(|step| step.after_ns).all(|ns| ns < MOMENT_NS), "{timeline:#?}");
    // The clock of the moment is told: it went backwards between the signal and the end.
    let at = |id| timeline.steps.iter().find(|step| step.step == id).and_then(|step| step.at.clone()).unwrap();
    assert!(at(StepId::Reaped) < at(StepId::SignalSent), "{timeline:#?}");
}
