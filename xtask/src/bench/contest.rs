//! Ours against others, in turn.

use super::series::{Goal, Spread, Standing, Unit};
use anyhow::{Context, Result};

/// What one side comes to in one round.
pub(super) type Measure<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

/// Somebody who does the same work.
pub(super) struct Peer<'a> {
    pub(super) name: &'static str,
    /// What our ratio to it must reach; `None` for one that only stands beside.
    pub(super) goal: Option<Goal>,
    /// How to measure it, or what to install first.
    pub(super) measure: Result<Measure<'a>, String>,
}

/// One thing to measure, of ours and of its peers.
pub(super) struct Contest<'a> {
    pub(super) what: &'static str,
    pub(super) unit: Unit,
    pub(super) ours: Measure<'a>,
    /// What our figure itself must reach, where no peer is its measure.
    pub(super) goal: Option<Goal>,
    pub(super) peers: Vec<Peer<'a>>,
}

/// What came of a contest, of ours against one peer, or of ours alone.
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
    /// What the goal is held against: the ratio, or our own figure.
    fn judged(&self) -> Option<f64> {
        let spread = if self.peer.is_some() { self.ratio } else { self.ours };
        spread.map(|spread| spread.median)
    }

    pub(super) fn standing(&self) -> Option<Standing> {
        Some(self.goal?.judge(self.judged()?, self.unit.more_is_better()))
    }
}

impl Contest<'_> {
    /// Measures all sides in turn, so many rounds: A B C, A B C.
    pub(super) fn run(mut self, rounds: u32) -> Result<Vec<Entry>> {
        let mut ours = Vec::new();
        let mut theirs: Vec<Vec<f64>> = self.peers.iter().map(|_| Vec::new()).collect();
        for round in 1..=rounds {
            let mut line = format!("{}, round {round} of {rounds}:", self.what);
            let figure = (self.ours)().with_context(|| format!("{}, ours", self.what))?;
            line += &format!(" ours {}", self.unit.show(figure));
            ours.push(figure);
            for (peer, figures) in self.peers.iter_mut().zip(&mut theirs) {
                let Ok(measure) = &mut peer.measure else { continue };
                // What disturbs a peer once seldom does so twice.
                match measure().or_else(|_| measure()) {
                    Ok(figure) => {
                        line += &format!(", {} {}", peer.name, self.unit.show(figure));
                        figures.push(figure);
                    }
                    // A peer that does not run here is not our failure: the row says so, and the others go on.
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
            what: self.what.to_owned(),
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
            missing: peer.measure.as_ref().err().cloned(),
            ..alone.clone()
        });
        against.collect()
    }
}

/// What a program said at its end is mostly what was wrong.
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
    fn rounds_are_taken_in_turn() {
        let order = RefCell::new(String::new());
        let side = |name: char, figure: f64| -> Measure<'_> {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(name);
                Ok(figure)
            })
        };
        let peers = vec![peer("b", Ok(side('b', 50.0))), peer("c", Err("not here: install c".into()))];
        let contest = Contest { what: "reads", unit: Unit::Iops, ours: side('a', 100.0), goal: None, peers };
        let entries = contest.run(2).unwrap();
        assert_eq!(*order.borrow(), "abab");
        assert_eq!(entries[0].ratio.unwrap().median, 2.0);
        assert_eq!(entries[0].standing(), Some(Standing::Aim));
        assert_eq!(entries[1].missing.as_deref(), Some("not here: install c"));
        assert_eq!(entries[1].standing(), None);
    }

    #[test]
    fn a_peer_that_fails_is_a_line_of_the_table_and_ours_that_fails_an_error() {
        let fails = || -> Measure<'static> { Box::new(|| anyhow::bail!("what was called\nit broke\n")) };
        let good = || -> Measure<'static> { Box::new(|| Ok(1.0)) };
        let contest = |ours, theirs| Contest {
            what: "reads",
            unit: Unit::Iops,
            ours,
            goal: None,
            peers: vec![peer("b", Ok(theirs))],
        };
        let entries = contest(good(), fails()).run(2).unwrap();
        assert_eq!(entries[0].missing.as_deref(), Some("did not run: it broke"));
        assert!(contest(fails(), good()).run(2).is_err());
    }
}
