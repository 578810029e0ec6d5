//! From trace files to a world: what `explain --trace`, `timeline` and `demo` start from.
//!
//! Always true: needs no root, no GPU and no kernel feature; what was wrong with the file is said once, as a warning,
//! and is also a limit in the world, so that no answer looks more certain than its file.

use crate::event::{BootNs, Event, What};
use crate::trace::reader::Reader;
use crate::world::World;
use anyhow::{Context as _, Result, bail};
use std::path::Path;

/// Which moment of a trace is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Its end.
    End,
    /// This many ns after its first event.
    After(u64),
    /// This wall-clock time, ns since 1970.
    Wall(u64),
}

impl Moment {
    /// "+2.5" (seconds from the start of the trace) or RFC 3339.
    ///
    /// # Errors
    /// A sentence that says what a moment looks like.
    pub fn parse(text: &str) -> Result<Moment> {
        if let Some(seconds) = text.strip_prefix('+') {
            let seconds: f64 = seconds.parse().ok().filter(|s: &f64| s.is_finite() && *s >= 0.0).with_context(|| wrong(text))?;
            return Ok(Moment::After((seconds * 1e9) as u64));
        }
        let time = humantime::parse_rfc3339_weak(text).ok().with_context(|| wrong(text))?;
        let since = time.duration_since(std::time::UNIX_EPOCH).ok().with_context(|| wrong(text))?;
        Ok(Moment::Wall(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
    }
}

fn wrong(text: &str) -> String {
    format!("\"{text}\" is not a moment; write +SECONDS from the start of the trace, or a time like 2026-12-01T12:03:55Z")
}

/// Decides whether an event is still before the asked moment.
struct Until {
    moment: Moment,
    first: Option<BootNs>,
    last: BootNs,
    /// Wall clock minus boottime, ns.
    wall_offset: i128,
}

impl Until {
    fn new(moment: Moment) -> Until {
        Until { moment, first: None, last: 0, wall_offset: 0 }
    }

    fn includes(&mut self, event: &Event) -> bool {
        let real = match &event.what {
            What::Header(header) => Some(header.real_ns),
            What::Clock { real_ns } => Some(*real_ns),
            _ => None,
        };
        if let Some(real) = real {
            self.wall_offset = i128::from(real) - i128::from(event.at);
        }
        self.first.get_or_insert(event.at);
        self.last = self.last.max(event.at);
        self.is_before(event.at)
    }

    fn is_before(&self, at: BootNs) -> bool {
        match self.moment {
            Moment::End => true,
            Moment::After(ns) => at.saturating_sub(self.first.unwrap_or(at)) <= ns,
            Moment::Wall(ns) => i128::from(at) + self.wall_offset <= i128::from(ns),
        }
    }

    /// A trace knows nothing of the time before it, and after its end only how things stood then.
    fn ensure_covered(&self) -> Result<()> {
        let Some(first) = self.first.filter(|_| self.moment != Moment::End) else { return Ok(()) };
        if !self.is_before(first) {
            bail!("the trace begins at {}, after the moment that was asked for", self.wall(first));
        }
        let ended = match self.moment {
            Moment::End => false,
            Moment::After(ns) => self.last.saturating_sub(first) < ns,
            Moment::Wall(ns) => i128::from(self.last) + self.wall_offset < i128::from(ns),
        };
        if ended {
            tracing::warn!("the trace ends at {}, before the moment that was asked for: this is how things stood then", self.wall(self.last));
        }
        Ok(())
    }

    fn wall(&self, at: BootNs) -> String {
        let ns = u64::try_from(i128::from(at) + self.wall_offset).unwrap_or(0);
        humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + std::time::Duration::from_nanos(ns)).to_string()
    }
}

/// Cause of losses: parts of a trace that could not be read.
pub const UNREADABLE: &str = "unreadable";

/// Folds trace files, in the order given.
///
/// # Errors
/// When a file cannot be opened or is not a trace.
pub fn world(paths: &[&std::path::PathBuf], moment: Moment) -> Result<World> {
    let mut world = World::default();
    let mut until = Until::new(moment);
    for path in paths {
        let mut reader = Reader::open(path)?;
        fold(&mut reader, &mut world, &mut until, path)?;
    }
    until.ensure_covered()?;
    Ok(world)
}

/// Folds a trace that is in memory.
///
/// # Errors
/// When it is not a trace.
pub fn world_from_bytes(bytes: &'static [u8], moment: Moment) -> Result<World> {
    let mut world = World::default();
    let mut reader = Reader::from_bytes(bytes)?;
    fold(&mut reader, &mut world, &mut Until::new(moment), Path::new("the built-in recording"))?;
    Ok(world)
}

fn fold(reader: &mut Reader, world: &mut World, until: &mut Until, path: &Path) -> Result<()> {
    let mut last = 0;
    let mut any = false;
    while let Some(event) = reader.next().transpose()? {
        any = true;
        if until.includes(&event) {
            last = last.max(event.at);
            world.apply(&event);
        } else if !matches!(event.what, What::Header(_)) && until.moment != Moment::End && event.at > last + 60_000_000_000 {
            break;
        }
    }
    if !any {
        bail!("{} has no events: it was cut before its first frame was complete, or nothing was recorded", path.display());
    }
    if reader.problems().passed_over() > 0 {
        world.apply(&Event { at: last, what: What::Lost { cause: UNREADABLE.to_owned(), count: reader.problems().passed_over() } });
    }
    for sentence in reader.problems().sentences() {
        tracing::warn!("{}: {sentence}", path.display());
        world.apply(&Event { at: last, what: What::Limit { missing: sentence, voids: "what happened in the part that could not be read".to_owned() } });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_people_write_them() {
        assert_eq!(Moment::parse("+2.5").unwrap(), Moment::After(2_500_000_000));
        assert_eq!(Moment::parse("1970-01-01T00:00:01Z").unwrap(), Moment::Wall(1_000_000_000));
        for wrong in ["", "+", "+-1", "+inf", "yesterday"] {
            assert!(Moment::parse(wrong).is_err(), "{wrong}");
        }
    }
}
