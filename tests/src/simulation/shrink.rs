//! Makes a seed that fails shorter: lets nothing befall anybody after the moment that its failure needs, and leaves out what it
//! does without.

use super::{Transport, run_within};
use core::cell::Cell;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::time::Instant;

/// Shrinking ends after so long, with what it has by then: a run that hangs takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// Steps between a moment that is early enough to fail and one that is not.
const STEPS: u32 = 6;

/// What a seed may be without, and still be the same seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Faults of the network that are drawn at any moment.
    Network,
    /// Hanging disks, failed flushes, other disks.
    Disk,
    /// Loss of power.
    PowerCuts,
    /// Killed targets.
    Kills,
    /// Connections whose loss one side notices later.
    HalfOpen,
    /// Namespaces that are taken away.
    Operator,
    /// Commands for reservations, and state directories that fail.
    Reservations,
    /// Write protections.
    Protections,
    /// Losses of every route.
    Outages,
    /// Killed initiators.
    Takeovers,
    /// Compare and Write of contested blocks.
    Contest,
}

/// All of them, with the names that they have in an environment variable.
const PARTS: [(Part, &str); 11] = [
    (Part::Network, "network"),
    (Part::Disk, "disk"),
    (Part::PowerCuts, "power-cuts"),
    (Part::Kills, "kills"),
    (Part::HalfOpen, "half-open"),
    (Part::Operator, "operator"),
    (Part::Reservations, "reservations"),
    (Part::Protections, "protections"),
    (Part::Outages, "outages"),
    (Part::Takeovers, "takeovers"),
    (Part::Contest, "contest"),
];

/// In place of the milliseconds: nothing ends earlier.
const WHOLE: &str = "all";

/// How much of a seed happens. Written as `1500ms,network,disk`: nothing new after 1.5 s, and nothing of these at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// From this moment on nothing befalls anybody, and hosts begin nothing but their last reads.
    pub until: Duration,
    /// What is left out.
    pub without: Vec<Part>,
}

impl Limits {
    /// The whole seed.
    pub const NONE: Self = Self { until: Duration::MAX, without: Vec::new() };

    pub(super) fn has(&self, part: Part) -> bool {
        !self.without.contains(&part)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.until {
            Duration::MAX => f.write_str(WHOLE)?,
            until => write!(f, "{}ms", until.as_millis())?,
        }
        let left_out = PARTS.iter().filter(|(part, _)| !self.has(*part));
        left_out.map(|(_, name)| name).try_for_each(|name| write!(f, ",{name}"))
    }
}

impl FromStr for Limits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let first = words.next().unwrap_or_default();
        let milliseconds = || first.strip_suffix("ms")?.parse().ok().map(Duration::from_millis);
        let until = if first == WHOLE { Some(Duration::MAX) } else { milliseconds() };
        let until = until.ok_or_else(|| format!("{text} does not begin with milliseconds"))?;
        let part = |word: &str| PARTS.iter().find(|(_, name)| *name == word).map(|(part, _)| *part);
        let without = words.map(|word| part(word).ok_or_else(|| format!("{word} is no part of a seed")));
        Ok(Self { until, without: without.collect::<Result<_, _>>()? })
    }
}

/// The least that is found of a seed that fails, and still fails. (Not necessarily in the same way: what is wrong is wrong.)
#[must_use]
pub fn shrink(transport: Transport, seed: u64) -> Limits {
    SHRINKS.set(true);
    let limits =
        shrink_by(|limits| std::panic::catch_unwind(|| run_within(transport, seed, limits)).is_err());
    SHRINKS.set(false);
    limits
}

thread_local! {
    static SHRINKS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs seeds only to see whether they fail: then it says nothing of them.
#[must_use]
pub fn shrinks() -> bool {
    SHRINKS.get()
}

fn shrink_by(fails: impl Fn(&Limits) -> bool) -> Limits {
    let begun = Instant::now();
    let fails = |limits: &Limits| begun.elapsed() < PATIENCE && fails(limits);
    let mut best = Limits::NONE;
    shorten(&mut best, &fails);
    for (part, _) in PARTS {
        let mut without = best.clone();
        without.without.push(part);
        if fails(&without) {
            best = without;
        }
    }
    shorten(&mut best, &fails);
    best
}

/// Ends it as early as still fails.
fn shorten(best: &mut Limits, fails: &impl Fn(&Limits) -> bool) {
    let at = |until| Limits { until, without: best.without.clone() };
    // Most seeds take seconds, at most an hour.
    let (mut early, mut late) = (Duration::ZERO, best.until);
    let mut half = late.min(Duration::from_secs(1 << 12));
    while half > Duration::from_millis(1) {
        if !fails(&at(half)) {
            early = half;
            break;
        }
        late = half;
        half /= 2;
    }
    for _ in 0..STEPS {
        let middle = early + late.saturating_sub(early) / 2;
        if late == Duration::MAX || middle.as_millis() == early.as_millis() {
            break;
        }
        let middle = Duration::from_millis(middle.as_millis() as u64);
        if fails(&at(middle)) {
            late = middle;
        } else {
            early = middle;
        }
    }
    best.until = late;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_and_read() {
        let limits =
            Limits { until: Duration::from_millis(1500), without: vec![Part::Network, Part::HalfOpen] };
        assert_eq!(limits.to_string(), "1500ms,network,half-open");
        assert_eq!("1500ms,network,half-open".parse(), Ok(limits));
        let all = Limits { until: Duration::MAX, without: vec![Part::Disk] };
        assert_eq!((all.to_string(), "all,disk".parse()), ("all,disk".to_owned(), Ok(all)));
        assert!("network".parse::<Limits>().is_err());
        assert!("1ms,moon".parse::<Limits>().unwrap_err().contains("moon"));
    }

    #[test]
    fn what_a_failure_does_without_is_left_out() {
        let fails = |limits: &Limits| {
            limits.until > Duration::from_millis(2345)
                && limits.has(Part::PowerCuts)
                && limits.has(Part::Contest)
        };
        let found = shrink_by(fails);
        assert!(fails(&found));
        assert!(found.until < Duration::from_millis(2420), "{found}");
        assert_eq!(found.without.len(), PARTS.len() - 2);
    }

    #[test]
    fn failure_that_needs_all_of_its_seed_keeps_it() {
        assert_eq!(shrink_by(|limits| *limits == Limits::NONE), Limits::NONE);
    }
}
