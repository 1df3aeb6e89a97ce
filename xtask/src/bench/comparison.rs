//! Comparisons of this project with peers, in alternating measurements.

use super::machine::Busy;
use super::pace::Pace;
use super::series::{Goal, GoalStatus, Spread, Unit};
use super::site::Cores;
use anyhow::Result;

/// Measures one side in one round.
pub(super) type Measure<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

/// What came of that.
#[derive(Clone)]
struct Measured {
    figure: f64,
    /// How many of both cores were busy meanwhile.
    busy: Option<f64>,
    /// Whether the cores were far apart ([`Pace`]).
    is_slow: bool,
}

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
    /// Measurements that did not run at first.
    pub(super) repeated: u32,
    /// Whether the first side is this project's: of a peer beside itself it is not, and what fails there is no failure of ours.
    pub(super) is_ours: bool,
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
    /// How many of both cores were busy while ours was measured, and while the peer was, with everything that started
    /// and stopped then.
    pub(super) busy: (Option<Spread>, Option<Spread>),
    /// How many of these measurements were made while the cores were far apart, and of how many.
    pub(super) apart: (usize, usize),
    /// How many measurements of the comparison did not run at first, and were made again.
    pub(super) repeated: u32,
    /// Why there is no figure.
    pub(super) missing: Option<String>,
    /// Whether our own side did not run.
    pub(super) failed: bool,
}

impl Entry {
    /// What could not even be prepared.
    pub(super) fn of_failure(what: String, error: &anyhow::Error) -> Self {
        Self {
            what,
            unit: Unit::Iops,
            ours: None,
            peer: None,
            theirs: None,
            ratio: None,
            goal: None,
            busy: (None, None),
            apart: (0, 0),
            repeated: 0,
            missing: Some(did_not_run(error)),
            failed: true,
        }
    }

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
        Self { what, unit, ours, goal: None, peers, rounds_max: u32::MAX, repeated: 0, is_ours: true }
    }

    /// A measurement of this project alone.
    pub(super) fn alone(what: String, unit: Unit, ours: Measure<'a>, goal: Goal) -> Self {
        Self { goal: Some(goal), ..Self::new(what, unit, Ok(ours), Vec::new()) }
    }

    /// Measures all sides alternately, for `rounds` rounds ([`order`]), so that a machine that becomes slower or faster meanwhile
    /// favours none. Ends when our own side does not run.
    pub(super) fn run(mut self, rounds: u32, cores: Cores, pace: &mut Pace<'_>) -> Vec<Entry> {
        // Ours is the first.
        let mut figures: Vec<Vec<Measured>> = vec![Vec::new(); 1 + self.peers.len()];
        let is_here = self.ours.is_ok();
        let rounds = if is_here { rounds.min(self.rounds_max) } else { 0 };
        for round in 1..=rounds {
            let mut line = format!("{}, round {round} of {rounds}:", self.what);
            pace.begin_round();
            for side in order(figures.len(), round) {
                let measured = pace.measure(|| {
                    let before = Busy::now(cores);
                    let figure = self.measure(side)?;
                    Some((figure, before.and_then(|before| Some(Busy::now(cores)?.since(before)))))
                });
                let Some(((figure, busy), is_slow)) = measured else { continue };
                let name = side.checked_sub(1).map_or("ours", |peer| self.peers[peer].name);
                line += &format!(" {name} {},", self.unit.show(figure));
                figures[side].push(Measured { figure, busy, is_slow });
            }
            println!("{}", line.trim_end_matches(','));
            if self.ours.is_err() {
                break;
            }
        }
        let (ours, theirs) = figures.split_first().expect("ours is there");
        self.entries(is_here, ours, theirs)
    }

    /// Measures one side once; `None` if it is missing, or does not run.
    fn measure(&mut self, side: usize) -> Option<f64> {
        let (name, measure) = match side.checked_sub(1) {
            None => ("ours", &mut self.ours),
            Some(peer) => (self.peers[peer].name, &mut self.peers[peer].measure),
        };
        let run = measure.as_mut().ok()?;
        // Who fails is measured once more, because most failures are transient. The table says how often.
        let measured = run().or_else(|error| {
            eprintln!("{}, {name}: did not run, and is measured again: {error:#}", self.what);
            self.repeated += 1;
            run()
        });
        match measured {
            Ok(figure) => Some(figure),
            // Who fails again is reported in its row, and the others continue.
            Err(error) => {
                eprintln!("{}, {name}: did not run: {error:#}", self.what);
                *measure = Err(did_not_run(&error));
                None
            }
        }
    }

    fn entries(&self, is_here: bool, ours: &[Measured], theirs: &[Vec<Measured>]) -> Vec<Entry> {
        let busy = |all: &[Measured]| Spread::of(all.iter().filter_map(|it| it.busy));
        let figures = |all: &[Measured]| all.iter().map(|it| it.figure).collect::<Vec<_>>();
        let slow = |all: &[Measured]| all.iter().filter(|it| it.is_slow).count();
        let (ours_busy, ours_slow) = (busy(ours), slow(ours));
        let ours = figures(ours);
        let alone = Entry {
            what: self.what.clone(),
            unit: self.unit,
            ours: Spread::of(ours.iter().copied()),
            peer: None,
            theirs: None,
            ratio: None,
            goal: self.goal,
            busy: (ours_busy, None),
            apart: (ours_slow, ours.len()),
            repeated: self.repeated,
            missing: self.ours.as_ref().err().cloned(),
            failed: is_here && self.is_ours && self.ours.is_err(),
        };
        if self.peers.is_empty() {
            return vec![alone];
        }
        let against = self.peers.iter().zip(theirs).map(|(peer, theirs)| Entry {
            peer: Some(peer.name),
            theirs: Spread::of(figures(theirs)),
            ratio: Spread::of_ratios(&ours, &figures(theirs)),
            busy: (ours_busy, busy(theirs)),
            apart: (ours_slow + slow(theirs), ours.len() + theirs.len()),
            goal: peer.goal,
            missing: self.ours.as_ref().err().or(peer.measure.as_ref().err()).cloned(),
            ..alone.clone()
        });
        against.collect()
    }
}

/// In which order so many sides are measured in a round, from 1 on. Each is first, second and so on equally often in six rounds of
/// two or three sides: A B C, C B A; B C A, A C B; C A B, B A C.
fn order(sides: usize, round: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sides).collect();
    order.rotate_left((round as usize - 1) / 2 % sides);
    if round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// With the last line of an error, which usually contains the cause.
pub(super) fn did_not_run(error: &anyhow::Error) -> String {
    let text = error.root_cause().to_string();
    format!("did not run: {}", text.trim_end().lines().next_back().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const CORES: Cores = Cores { target: 0, initiator: 1 };

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
        let entries = comparison.run(4, CORES, &mut Pace::by(Box::new(|| 1.0)));
        assert_eq!(*order.borrow(), "abbabaab");
        assert_eq!((entries[0].ratio.unwrap().median, entries[0].apart), (2.0, (0, 8)));
        assert_eq!(entries[0].status(), Some(GoalStatus::Aim));
        assert_eq!(entries[1].missing.as_deref(), Some("not here: install c"));
        assert_eq!(entries[1].status(), None);
    }

    #[test]
    fn each_side_has_each_place_equally_often() {
        for sides in 1..=3 {
            for side in 0..sides {
                let place = |round| order(sides, round).iter().position(|it| *it == side).unwrap();
                let places: Vec<_> = (1..=6).map(place).collect();
                for at in 0..sides {
                    let count = places.iter().filter(|place| **place == at).count();
                    assert_eq!(count, 6 / sides, "side {side} of {sides} at {at}: {places:?}");
                }
            }
        }
    }

    #[test]
    fn measurement_that_did_not_run_at_first_is_counted() {
        let mut tries = 0;
        let ours: Measure<'_> = Box::new(|| {
            tries += 1;
            if tries == 1 { anyhow::bail!("it broke") } else { Ok(1.0) }
        });
        let comparison = Comparison::new("reads".into(), Unit::Iops, Ok(ours), Vec::new());
        let entries = comparison.run(2, CORES, &mut Pace::by(Box::new(|| 1.0)));
        assert_eq!((entries[0].repeated, entries[0].failed, entries[0].missing.as_deref()), (1, false, None));
    }

    #[test]
    fn side_that_fails_is_reported_in_its_row() {
        let fails = || -> Measure<'static> { Box::new(|| anyhow::bail!("what was called\nit broke\n")) };
        let good = || -> Measure<'static> { Box::new(|| Ok(1.0)) };
        let comparison =
            |ours, theirs| Comparison::new("reads".into(), Unit::Iops, Ok(ours), vec![peer("b", Ok(theirs))]);
        let entries = comparison(good(), fails()).run(2, CORES, &mut Pace::by(Box::new(|| 1.0)));
        assert_eq!(
            (entries[0].missing.as_deref(), entries[0].failed),
            (Some("did not run: it broke"), false)
        );
        let entries = comparison(fails(), good()).run(2, CORES, &mut Pace::by(Box::new(|| 1.0)));
        assert_eq!((entries[0].missing.as_deref(), entries[0].failed), (Some("did not run: it broke"), true));
        let of_a_peer = Comparison { is_ours: false, ..comparison(fails(), good()) };
        let entries = of_a_peer.run(2, CORES, &mut Pace::by(Box::new(|| 1.0)));
        assert_eq!(
            (entries[0].missing.as_deref(), entries[0].failed),
            (Some("did not run: it broke"), false)
        );
    }

    #[test]
    fn own_side_that_is_not_installed_measures_nothing() {
        let not_measured: Measure<'_> = Box::new(|| unreachable!("the peer is not measured alone"));
        let peers = vec![peer("b", Ok(not_measured))];
        let comparison =
            Comparison::new("reads".into(), Unit::Iops, Err("not here: install b".into()), peers);
        let entries = comparison.run(2, CORES, &mut Pace::by(Box::new(|| 1.0)));
        assert_eq!((entries[0].ours, entries[0].theirs, entries[0].failed), (None, None, false));
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
        let entries = Comparison { rounds_max: 3, ..alone }.run(5, CORES, &mut Pace::by(Box::new(|| 1.0)));
        assert_eq!(entries[0].ours.unwrap().most, 3.0);
    }
}
