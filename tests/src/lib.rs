//! The scenarios' harness: plays a part without a GPU, looks at it with `outlive` in every way that a user can, and
//! compares what outlive says with what is true.
//!
//! [`expect`] is the data: a [`Scenario`](expect::Scenario) names a part and what must be said of it, cold (nothing
//! ran before) and warm (a recorder was running). [`play`] runs the part (`scenario`, see tests/programs), [`look`]
//! runs `outlive`, [`judge`] compares, [`remedy`] does what outlive proposes; [`host`] knows where everything is.
//!
//! Always true: the truth comes from the part's own report, checked against /proc, never from outlive; every wait has
//! a deadline; whatever a test leaves behind is killed; a test that cannot run here says so on standard error.

pub mod expect;
pub mod host;
pub mod judge;
pub mod look;
pub mod play;
pub mod remedy;

use std::io;
use std::time::{Duration, Instant};

use expect::Scenario;
use host::Host;
use judge::Warmth;
use look::Recorder;
use play::Play;

/// How long a recording may take to tell what has happened: it samples and flushes every second, but calls an exit
/// stuck only after ten.
const RECORDING_LAG: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

/// Plays a scenario and lists everything that outlive got wrong. `Ok(None)`: it cannot be played here.
///
/// # Errors
/// When the harness itself fails.
pub fn check(scenario: &Scenario) -> io::Result<Option<Vec<String>>> {
    let Some(host) = Host::take(scenario.part)? else { return Ok(None) };
    let recorder = Recorder::start(&host)?;
    let play = Play::start(&host, scenario.part)?;
    if let Some(why) = &play.report.skipped {
        host::say(&format!("SKIPPED {}: {why}", scenario.part))?;
        return Ok(None);
    }
    let mut wrong = play.contradictions()?;
    let mut note = |look: &str, found: Vec<String>| wrong.extend(found.into_iter().map(|line| format!("{look}: {line}")));

    let cold = look::live(&host, None)?;
    note("cold, live", judge::compare(scenario, &play, &cold, Warmth::Cold));
    if !scenario.quiet {
        note("warm, trace of a running recorder", while_recording(scenario, &host, &play, &recorder)?);
    }
    let warm = look::live(&host, Some(recorder.trace()))?;
    note("warm, live with history", judge::compare(scenario, &play, &warm, Warmth::Warm));
    let stopped = recorder.stop()?;
    let last = look::offline(&host, &stopped)?;
    note("warm, trace of a stopped recorder", judge::compare(scenario, &play, &last, Warmth::Warm));
    if scenario.remedies_end_holders {
        note("remedies", remedy::apply(&play, &cold)?);
    }
    Ok(Some(wrong))
}

/// Copies the growing trace and reads it as another user, until it tells the truth or the deadline is over.
fn while_recording(scenario: &Scenario, host: &Host, play: &Play, recorder: &Recorder) -> io::Result<Vec<String>> {
    let deadline = Instant::now() + RECORDING_LAG;
    loop {
        let look = look::offline(host, recorder.trace())?;
        let wrong = judge::compare(scenario, play, &look, Warmth::Warm);
        if wrong.is_empty() || Instant::now() > deadline {
            return Ok(wrong);
        }
        std::thread::sleep(POLL);
    }
}

/// Each scenario as a test of its own, named as a claim.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident => $scenario:expr;)+) => {
        $(#[test]
        fn $name() {
            let wrong = $crate::check(&$scenario).expect("the harness works");
            if let Some(wrong) = wrong {
                assert!(wrong.is_empty(), "outlive is wrong about it:\n  {}", wrong.join("\n  "));
            }
        })+
    };
}
