//! The scenarios' harness: plays a part, looks at it with `outlive` in every way that a user can, and compares what outlive says
//! with what is true.
//!
//! [`scenario`] is the data: what a part proves and what must be said of it, cold (nothing ran before) and warm (a recorder was
//! running). [`play`] runs the part (`scenario`, see tests/programs), [`look`] runs `outlive`, [`judge`] compares, [`remedy`] does
//! what outlive proposes, [`rivals`] asks the usual tools; [`events`] compares recordings, [`host`] knows where everything is, [`outcome`] is what came of it.
//!
//! Always true: the truth comes from the part's own report, checked against /proc, never from outlive; every wait has
//! a deadline; whatever a test leaves behind is killed; a test that cannot run here says so.

pub mod events;
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
use std::time::{Duration, Instant, SystemTime};

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
    let start = || -> io::Result<Vec<Watch>> {
        let watches: Vec<Watch> = ways(place).iter().map(|way| Watch::begin(&host, way)).collect::<io::Result<_>>()?;
        watches.iter().try_for_each(|watch| watch.recorder.await_attached())?;
        Ok(watches)
    };
    let mut watches = if scenario.late { None } else { Some(start()?) };
    let freeze = |watches: &Vec<Watch>| watches.iter().map(|watch| watch.recorder.freeze()).collect::<io::Result<Vec<_>>>();
    let frozen = if scenario.overrun { watches.as_ref().map(freeze).transpose()? } else { None };
    let play = Play::start(&host, &scenario.name)?;
    drop(frozen);
    if let Some(why) = &play.report.skipped {
        outcome.skipped = Some(why.clone());
        return Ok(outcome);
    }
    let watches = match watches.take() {
        Some(watches) => watches,
        None => start()?,
    };
    outcome.cast(&play);
    outcome.wrong.extend(play.contradictions()?);
    let compare = |look: &Look, warmth| judge::compare(scenario, &play, place, look, warmth);
    let acted = Instant::now();

    let cold = look::live(&host, None)?;
    outcome.looks.insert("cold".to_owned(), Told::new(&cold, compare(&cold, Warmth::Cold)));
    let mut note = |name: &str, watch: &Watch, look: &Look, wrong| outcome.looks.insert(format!("{name}{}", watch.suffix), Told::new(look, wrong));
    if place == Place::Gpu && !scenario.brief {
        std::thread::sleep(FLUSHED.saturating_sub(acted.elapsed()));
    } else if !scenario.brief && !scenario.quiet {
        for watch in &watches {
            let (told, wrong) = until_right(place, || look::offline(&host, watch.recorder.trace()), &compare)?;
            note("recording", watch, &told, wrong);
        }
    }
    let mut newest = None;
    for watch in &watches {
        let warm = || look::live(&host, Some(watch.recorder.trace()));
        let (warm, wrong) = if scenario.brief {
            let warm = warm()?;
            let wrong = compare(&warm, Warmth::Warm);
            (warm, wrong)
        } else {
            until_right(place, warm, &compare)?
        };
        note("warm", watch, &warm, wrong);
        newest.get_or_insert(warm);
    }
    if scenario.brief {
        std::thread::sleep(FLUSHED.saturating_sub(acted.elapsed()));
        for watch in &watches {
            let offline = look::offline(&host, watch.recorder.trace())?;
            note("offline", watch, &offline, compare(&offline, Warmth::Warm));
        }
    }
    if also.rivals && !scenario.brief {
        outcome.rivals = rivals::ask(&host, scenario, &play, &outcome)?;
    }
    let mut traces = Vec::new();
    let end = SystemTime::now();
    watches.iter().try_for_each(|watch| watch.recorder.ask_to_stop())?;
    for watch in watches {
        let stopped = watch.recorder.await_stopped()?;
        if !scenario.brief {
            let last = look::offline(&host, &stopped)?;
            outcome.looks.insert(format!("offline{}", watch.suffix), Told::new(&last, compare(&last, Warmth::Warm)));
        }
        traces.push(stopped);
    }
    if traces.len() > 1 {
        // Of one moment: what goes on has gone further when the second is asked.
        let looks = traces.iter().map(|trace| look::offline_at(&host, trace, Some(end))).collect::<io::Result<Vec<_>>>()?;
        outcome.wrong.extend(judge::disagreement(&looks));
    }
    // What is lost, or was before them, may be another's loss.
    if let ([driver, syscall], false) = (&traces[..], scenario.overrun || scenario.late) {
        outcome.wrong.extend(events::difference(driver, syscall)?);
    }
    if let (true, Some(warm)) = (scenario.remedied, newest) {
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

/// Hooks to record with, and what is added to a look's name. Where there is a choice both ways watch the same play.
const fn ways(place: Place) -> &'static [(&'static str, &'static str)] {
    match place {
        Place::Driver => &[("driver", ""), ("syscall", " (syscall hooks)")],
        Place::StandIn | Place::Gpu => &[("auto", "")],
    }
}

/// A recorder that watches a play.
struct Watch {
    recorder: Recorder,
    /// Of its looks' names.
    suffix: &'static str,
}

impl Watch {
    fn begin(host: &Host, (hooks, suffix): &(&'static str, &'static str)) -> io::Result<Watch> {
        Ok(Watch { recorder: Recorder::begin(host, hooks)?, suffix })
    }
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
