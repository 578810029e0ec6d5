//! The scenarios' harness: plays a part, looks at it with `outlive` in every way that a user can, and compares what outlive says
//! with what is true.
//!
//! [`scenario`] is the data: what a part proves and what must be said of it, cold (nothing ran before) and warm (a recorder was
//! running). [`play`] runs the part (`scenario`, see tests/programs), [`look`] runs `outlive`, [`judge`] compares, [`remedy`] does
//! what outlive proposes, [`rivals`] asks the usual tools; [`host`] knows where everything is, [`outcome`] is what came of it.
//!
//! Always true: the truth comes from the part's own report, checked against /proc, never from outlive; every wait has
//! a deadline; whatever a test leaves behind is killed; a test that cannot run here says so.

pub mod host;
pub mod judge;
pub mod look;
pub mod outcome;
pub mod play;
pub mod remedy;
pub mod rivals;
pub mod scenario;
pub mod table;

use std::io;
use std::time::{Duration, Instant};

use host::Host;
use judge::{Difference, Warmth};
use look::{Look, Recorder};
use outcome::{Outcome, Told};
use play::Play;
use scenario::{Place, Scenario};

/// How long a recording may take to tell what has happened: it samples and flushes every second, but calls an exit
/// stuck only after ten.
const RECORDING_LAG: Duration = Duration::from_secs(20);
/// The recorder flushes every second.
const FLUSHED: Duration = Duration::from_millis(1_300);
const POLL: Duration = Duration::from_millis(100);
/// Whoever is sure of something after this has had all events of the play.
const SETTLED: Duration = Duration::from_secs(3);
/// On a loaded machine, a driver may take this long to give everything back.
const FREED: Duration = Duration::from_secs(30);

/// What to do beside looking.
#[derive(Clone, Copy, Default)]
pub struct Also {
    /// Ask the usual tools.
    pub rivals: bool,
}

/// Plays a scenario and says what came of it.
///
/// # Errors
/// When the harness itself fails.
pub fn check(scenario: &Scenario, place: Place, also: Also) -> io::Result<Outcome> {
    let host = Host::take(place)?;
    let began = Instant::now();
    let mut outcome = Outcome::new(scenario, place);
    let mut recorder = if scenario.late { None } else { Some(Recorder::start(&host)?) };
    let frozen = if scenario.overrun { recorder.as_ref().map(Recorder::freeze).transpose()? } else { None };
    let play = Play::start(&host, &scenario.name)?;
    drop(frozen);
    if let Some(why) = &play.report.skipped {
        outcome.skipped = Some(why.clone());
        return Ok(outcome);
    }
    let recorder = match recorder.take() {
        Some(recorder) => recorder,
        None => Recorder::start(&host)?,
    };
    outcome.cast(&play);
    outcome.wrong.extend(play.contradictions()?);
    let compare = |look: &Look, warmth| judge::compare(scenario, &play, place, look, warmth);
    let acted = Instant::now();

    let cold = look::live(&host, None)?;
    outcome.looks.insert("cold".to_owned(), Told::new(&cold, compare(&cold, Warmth::Cold)));
    let warm = if scenario.brief {
        let warm = look::live(&host, Some(recorder.trace()))?;
        outcome.looks.insert("warm".to_owned(), Told::new(&warm, compare(&warm, Warmth::Warm)));
        std::thread::sleep(FLUSHED.saturating_sub(acted.elapsed()));
        let offline = look::offline(&host, recorder.trace())?;
        outcome.looks.insert("offline".to_owned(), Told::new(&offline, compare(&offline, Warmth::Warm)));
        warm
    } else {
        if place == Place::Gpu {
            std::thread::sleep(FLUSHED.saturating_sub(acted.elapsed()));
        } else if !scenario.quiet {
            let (told, wrong) = until_right(place, || look::offline(&host, recorder.trace()), &compare)?;
            outcome.looks.insert("recording".to_owned(), Told::new(&told, wrong));
        }
        let (warm, wrong) = until_right(place, || look::live(&host, Some(recorder.trace())), &compare)?;
        outcome.looks.insert("warm".to_owned(), Told::new(&warm, wrong));
        if also.rivals {
            outcome.rivals = rivals::ask(&host, scenario, &play, &outcome)?;
        }
        let stopped = recorder.stop()?;
        let last = look::offline(&host, &stopped)?;
        outcome.looks.insert("offline".to_owned(), Told::new(&last, compare(&last, Warmth::Warm)));
        warm
    };
    if scenario.remedied {
        // With history where it knows better.
        let causes = |look: &Look| look.explanation.holdings.iter().map(|holding| holding.cause).collect::<Vec<_>>();
        let mut tried = remedy::apply(scenario, &play, place, if causes(&cold) == causes(&warm) { &cold } else { &warm })?;
        if tried.wrong.is_empty() {
            tried.wrong.extend(host.until_free(FREED)?);
        }
        outcome.remedy = Some(tried);
    }
    // The stage clears up before the next scenario begins.
    drop(play);
    outcome.wrong.extend(host.until_free(FREED)?.map(|left| format!("after the play: {left}")));
    outcome.seconds = began.elapsed().as_secs_f64();
    Ok(outcome)
}

/// Looks again until the truth is told or the deadline is over: a recording lags, and nothing is called stuck at once.
fn until_right(place: Place, look: impl Fn() -> io::Result<Look>, compare: &dyn Fn(&Look, Warmth) -> Vec<Difference>) -> io::Result<(Look, Vec<Difference>)> {
    // Under software emulation everything takes longer.
    let lag = if place == Place::Driver { RECORDING_LAG * 2 } else { RECORDING_LAG };
    let (began, deadline) = (Instant::now(), Instant::now() + lag);
    loop {
        let settled = began.elapsed() > SETTLED;
        let look = look()?;
        let wrong = compare(&look, Warmth::Warm);
        // Not right yet is right; being sure of what is wrong never is.
        if wrong.is_empty() || Instant::now() > deadline || (settled && judge::misleads(&look, &wrong)) {
            return Ok((look, wrong));
        }
        std::thread::sleep(POLL);
    }
}
