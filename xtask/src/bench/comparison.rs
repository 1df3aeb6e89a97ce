//! Comparisons of this project with peers, in alternating measurements.

use super::series::{Goal, GoalStatus, Spread, Unit};
use anyhow::{Context, Result};

/// Measures one side in one round.
pub(super) type Measure<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

/// Another implementation with the same workload.
pub(super) struct Peer<'a> {
    pub(super) name: &'static str,
    /// Goal for the ratio of ours to it; `None` if it is shown for information only.
    pub(super) goal: Option<Goal>,
    /// The measurement, or what to install first.
    pub(super) measure: Result<Measure<'a>, String>,
}

/// A measurement of this project and its peers.
pub(super) struct Comparison<'a> {
    pub(super) what: String,
    pub(super) unit: Unit,
    /// The measurement, or what to install first.
    pub(super) ours: Result<Measure<'a>, String>,
    /// Goal for our figure itself, if there is no peer.
    pub(super) goal: Option<Goal>,
    pub(super) peers: Vec<Peer<'a>>,
    /// Most rounds, because one takes long.
    pub(super) rounds_max: u32,
}

/// Result of a comparison with one peer, or of our figure alone.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) what: String,
    pub(super) unit: Unit,
    pub(super) ours: Option<Spread>,
    pub(super) peer: Option<&'static str>,
    pub(super) theirs: Option<Spread>,
    pub(super) ratio: Option<Spread>,
    pub(super) goal: Option<Goal>,
    /// Why there is no figure.
    pub(super) missing: Option<String>,
}

impl Entry {
    /// The value that the goal applies to: the ratio, or our own figure.
    fn judged(&self) -> Option<Spread> {
        if self.peer.is_some() { self.ratio } else { self.ours }
    }

    pub(super) fn status(&self) -> Option<GoalStatus> {
        Some(self.goal?.judge(self.judged()?, self.unit.more_is_better()))
    }
}

impl<'a> Comparison<'a> {
    /// A comparison with peers.
    pub(super) fn new(
        what: String,
        unit: Unit,
        ours: Result<Measure<'a>, String>,
        peers: Vec<Peer<'a>>,
    ) -> Self {
        Self { what, unit, ours, goal: None, peers, rounds_max: u32::MAX }
    }

    /// A measurement of this project alone.
    pub(super) fn alone(what: String, unit: Unit, ours: Measure<'a>, goal: Goal) -> Self {
        Self { goal: Some(goal), ..Self::new(what, unit, Ok(ours), Vec::new()) }
    }

    /// Measures all sides alternately, for `rounds` rounds: A B C, C B A, so that a machine that becomes slower or
    /// faster meanwhile favours none.
    pub(super) fn run(mut self, rounds: u32) -> Result<Vec<Entry>> {
        // Ours is the first.
        let mut figures: Vec<Vec<f64>> = vec![Vec::new(); 1 + self.peers.len()];
        let rounds = if self.ours.is_ok() { rounds.min(self.rounds_max) } else { 0 };
        for round in 1..=rounds {
            let mut line = format!("{}, round {round} of {rounds}:", self.what);
            let mut sides: Vec<usize> = (0..figures.len()).collect();
            if round % 2 == 0 {
                sides.reverse();
            }
            for side in sides {
                let Some(figure) = self.measure(side)? else { continue };
                let name = side.checked_sub(1).map_or("ours", |peer| self.peers[peer].name);
                line += &format!(" {name} {},", self.unit.show(figure));
                figures[side].push(figure);
            }
            println!("{}", line.trim_end_matches(','));
        }
        let (ours, theirs) = figures.split_first().expect("ours is there");
        Ok(self.entries(ours, theirs))
    }

    /// Measures one side once; `None` if a peer is missing.
    fn measure(&mut self, side: usize) -> Result<Option<f64>> {
        let Some(peer) = side.checked_sub(1) else {
            let Ok(ours) = &mut self.ours else { return Ok(None) };
            return ours().map(Some).with_context(|| format!("{}, ours", self.what));
        };
        let peer = &mut self.peers[peer];
        let Ok(measure) = &mut peer.measure else { return Ok(None) };
        // A peer that fails is measured once more, because most failures are transient.
        match measure().or_else(|_| measure()) {
            Ok(figure) => Ok(Some(figure)),
            // A peer that fails again is reported in its row, and the others continue.
            Err(error) => {
                eprintln!("{} did not run: {error:#}", peer.name);
                peer.measure = Err(format!("did not run: {}", last_line(&error)));
                Ok(None)
            }
        }
    }

    fn entries(&self, ours: &[f64], theirs: &[Vec<f64>]) -> Vec<Entry> {
        let alone = Entry {
            what: self.what.clone(),
            unit: self.unit,
            ours: Spread::of(ours.iter().copied()),
            peer: None,
            theirs: None,
            ratio: None,
            goal: self.goal,
            missing: None,
        };
        if self.peers.is_empty() {
            return vec![alone];
        }
        let against = self.peers.iter().zip(theirs).map(|(peer, theirs)| Entry {
            peer: Some(peer.name),
            theirs: Spread::of(theirs.iter().copied()),
            ratio: Spread::of_ratios(ours, theirs),
            goal: peer.goal,
            missing: self.ours.as_ref().err().or(peer.measure.as_ref().err()).cloned(),
            ..alone.clone()
        });
        against.collect()
    }
}

/// The last line of an error, which usually contains the cause.
fn last_line(error: &anyhow::Error) -> String {
    let text = error.root_cause().to_string();
    text.trim_end().lines().next_back().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn peer<'a>(name: &'static str, measure: Result<Measure<'a>, String>) -> Peer<'a> {
        Peer { name, goal: Some(Goal { least: 1.2, aim: 2.0 }), measure }
    }

    #[test]
    fn sides_are_measured_alternately() {
        let order = RefCell::new(String::new());
        let side = |name: char, figure: f64| -> Measure<'_> {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(name);
                Ok(figure)
            })
        };
        let peers = vec![peer("b", Ok(side('b', 50.0))), peer("c", Err("not here: install c".into()))];
        let comparison = Comparison::new("reads".into(), Unit::Iops, Ok(side('a', 100.0)), peers);
        let entries = comparison.run(4).unwrap();
        assert_eq!(*order.borrow(), "abbaabba");
        assert_eq!(entries[0].ratio.unwrap().median, 2.0);
        assert_eq!(entries[0].status(), Some(GoalStatus::Aim));
        assert_eq!(entries[1].missing.as_deref(), Some("not here: install c"));
        assert_eq!(entries[1].status(), None);
    }

    #[test]
    fn failing_peer_is_reported_failing_own_side_is_error() {
        let fails = || -> Measure<'static> { Box::new(|| anyhow::bail!("what was called\nit broke\n")) };
        let good = || -> Measure<'static> { Box::new(|| Ok(1.0)) };
        let comparison =
            |ours, theirs| Comparison::new("reads".into(), Unit::Iops, Ok(ours), vec![peer("b", Ok(theirs))]);
        let entries = comparison(good(), fails()).run(2).unwrap();
        assert_eq!(entries[0].missing.as_deref(), Some("did not run: it broke"));
        assert!(comparison(fails(), good()).run(2).is_err());
    }

    #[test]
    fn own_side_that_is_not_installed_measures_nothing() {
        let not_measured: Measure<'_> = Box::new(|| unreachable!("the peer is not measured alone"));
        let peers = vec![peer("b", Ok(not_measured))];
        let comparison =
            Comparison::new("reads".into(), Unit::Iops, Err("not here: install b".into()), peers);
        let entries = comparison.run(2).unwrap();
        assert_eq!((entries[0].ours, entries[0].theirs), (None, None));
        assert_eq!(entries[0].missing.as_deref(), Some("not here: install b"));
    }

    #[test]
    fn rounds_that_take_long_are_limited() {
        let goal = Goal { least: 1.0, aim: 2.0 };
        let mut count = 0;
        let ours: Measure<'_> = Box::new(|| {
            count += 1;
            Ok(f64::from(count))
        });
        let alone = Comparison::alone("idle".into(), Unit::Iops, ours, goal);
        let entries = Comparison { rounds_max: 3, ..alone }.run(5).unwrap();
        assert_eq!(entries[0].ours.unwrap().most, 3.0);
    }
}
