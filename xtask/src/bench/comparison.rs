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
    fn judged(&self) -> Option<f64> {
        let spread = if self.peer.is_some() { self.ratio } else { self.ours };
        spread.map(|spread| spread.median)
    }

    pub(super) fn status(&self) -> Option<GoalStatus> {
        Some(self.goal?.judge(self.judged()?, self.unit.more_is_better()))
    }
}

impl Comparison<'_> {
    /// Measures all sides alternately, for `rounds` rounds: A B C, A B C.
    pub(super) fn run(mut self, rounds: u32) -> Result<Vec<Entry>> {
        let mut ours = Vec::new();
        let mut theirs: Vec<Vec<f64>> = self.peers.iter().map(|_| Vec::new()).collect();
        for round in 1..=rounds {
            let mut line = format!("{}, round {round} of {rounds}:", self.what);
            let Ok(ours_once) = &mut self.ours else { break };
            let figure = ours_once().with_context(|| format!("{}, ours", self.what))?;
            line += &format!(" ours {}", self.unit.show(figure));
            ours.push(figure);
            for (peer, figures) in self.peers.iter_mut().zip(&mut theirs) {
                let Ok(measure) = &mut peer.measure else { continue };
                // A peer that fails is measured once more, because most failures are transient.
                match measure().or_else(|_| measure()) {
                    Ok(figure) => {
                        line += &format!(", {} {}", peer.name, self.unit.show(figure));
                        figures.push(figure);
                    }
                    // A peer that fails again is reported in its row, and the others continue.
                    Err(error) => {
                        eprintln!("{} did not run: {error:#}", peer.name);
                        peer.measure = Err(format!("did not run: {}", last_line(&error)));
                    }
                }
            }
            println!("{line}");
        }
        Ok(self.entries(&ours, &theirs))
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
        let comparison = Comparison {
            what: "reads".into(),
            unit: Unit::Iops,
            ours: Ok(side('a', 100.0)),
            goal: None,
            peers,
        };
        let entries = comparison.run(2).unwrap();
        assert_eq!(*order.borrow(), "abab");
        assert_eq!(entries[0].ratio.unwrap().median, 2.0);
        assert_eq!(entries[0].status(), Some(GoalStatus::Aim));
        assert_eq!(entries[1].missing.as_deref(), Some("not here: install c"));
        assert_eq!(entries[1].status(), None);
    }

    #[test]
    fn failing_peer_is_reported_failing_own_side_is_error() {
        let fails = || -> Measure<'static> { Box::new(|| anyhow::bail!("what was called\nit broke\n")) };
        let good = || -> Measure<'static> { Box::new(|| Ok(1.0)) };
        let comparison = |ours, theirs| Comparison {
            what: "reads".into(),
            unit: Unit::Iops,
            ours: Ok(ours),
            goal: None,
            peers: vec![peer("b", Ok(theirs))],
        };
        let entries = comparison(good(), fails()).run(2).unwrap();
        assert_eq!(entries[0].missing.as_deref(), Some("did not run: it broke"));
        assert!(comparison(fails(), good()).run(2).is_err());
    }

    #[test]
    fn own_side_that_is_not_installed_measures_nothing() {
        let not_measured: Measure<'_> = Box::new(|| unreachable!("the peer is not measured alone"));
        let comparison = Comparison {
            what: "reads".into(),
            unit: Unit::Iops,
            ours: Err("not here: install b".into()),
            goal: None,
            peers: vec![peer("b", Ok(not_measured))],
        };
        let entries = comparison.run(2).unwrap();
        assert_eq!((entries[0].ours, entries[0].theirs), (None, None));
        assert_eq!(entries[0].missing.as_deref(), Some("not here: install b"));
    }
}
