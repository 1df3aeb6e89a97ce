//! Figures of several rounds: units, spreads, ratios and goals.

/// Unit of a figure, which also determines whether more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nanoseconds of a round trip: less is better.
    RoundTrip,
    /// Milliseconds in which nothing was done: less is better.
    Pause,
    /// Operations per second.
    Iops,
    /// Bytes per second.
    Bandwidth,
    /// Processor time as a share of a core: less is better.
    Core,
    /// Bytes of memory: less is better.
    Memory,
}

impl Unit {
    /// Formats a figure.
    pub(super) fn show(self, figure: f64) -> String {
        match self {
            Self::RoundTrip => format!("{:.1} µs", figure / 1e3),
            Self::Pause => format!("{figure:.0} ms"),
            Self::Iops if figure >= 1e4 => format!("{:.0} k/s", figure / 1e3),
            Self::Iops => format!("{figure:.0} /s"),
            Self::Bandwidth => format!("{:.2} GB/s", figure / 1e9),
            Self::Core => format!("{:.2} % of a core", figure * 100.0),
            Self::Memory => format!("{:.2} MiB", figure / f64::from(1 << 20)),
        }
    }

    /// Whether greater figures are better.
    pub(super) fn more_is_better(self) -> bool {
        matches!(self, Self::Iops | Self::Bandwidth)
    }
}

/// With fewer rounds there is no verdict.
pub(super) const ROUNDS_MIN: usize = 3;

/// Minimum, median and maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    /// Of how many figures.
    pub(super) count: usize,
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) most: f64,
}

impl Spread {
    /// The spread of figures; `None` if there are none.
    pub(super) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<_> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let (&least, &most) = (figures.first()?, figures.last()?);
        let half = figures.len() / 2;
        let median = if figures.len() % 2 == 1 {
            figures[half]
        } else {
            f64::midpoint(figures[half - 1], figures[half])
        };
        Some(Self { count: figures.len(), least, median, most })
    }

    /// The spread of the ratios of ours to theirs, by round, because other load in a round affects both sides.
    pub(super) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        Self::of(ours.iter().zip(theirs).filter(|(_, theirs)| **theirs != 0.0).map(|(a, b)| a / b))
    }
}

/// The goal for a figure, or for a ratio to a peer: a minimum (`least`) and a target (`aim`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Goal {
    pub(super) least: f64,
    pub(super) aim: f64,
}

/// How the figures of all rounds compare with their goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoalStatus {
    /// There were fewer than [`ROUNDS_MIN`] rounds.
    TooFew,
    /// No round reaches the minimum.
    Short,
    /// Some rounds reach the minimum, others do not.
    Unclear,
    /// Every round reaches the minimum.
    Met,
    /// Every round reaches the aim.
    Aim,
}

impl Goal {
    pub(super) fn judge(self, figures: Spread, more_is_better: bool) -> GoalStatus {
        let reaches =
            |figure: f64, bound: f64| if more_is_better { figure >= bound } else { figure <= bound };
        let both = |bound: f64| [figures.least, figures.most].map(|figure| reaches(figure, bound));
        if figures.count < ROUNDS_MIN {
            return GoalStatus::TooFew;
        }
        match (both(self.aim), both(self.least)) {
            ([true, true], _) => GoalStatus::Aim,
            (_, [true, true]) => GoalStatus::Met,
            (_, [false, false]) => GoalStatus::Short,
            _ => GoalStatus::Unclear,
        }
    }
}

impl GoalStatus {
    pub(super) fn show(self) -> &'static str {
        match self {
            Self::TooFew => "too few rounds",
            Self::Short => "**short**",
            Self::Unclear => "unclear",
            Self::Met => "met",
            Self::Aim => "aim",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_median_of_odd_and_even_counts() {
        let odd = Spread::of([5.0, 1.0, 3.0]).unwrap();
        assert_eq!((odd.least, odd.median, odd.most), (1.0, 3.0, 5.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_computed_by_round() {
        // The machine was half as fast in the second round; the ratio is unaffected.
        let spread = Spread::of_ratios(&[200.0, 100.0, 220.0], &[100.0, 50.0, 100.0]).unwrap();
        assert_eq!((spread.least, spread.median, spread.most), (2.0, 2.0, 2.2));
        assert_eq!(Spread::of_ratios(&[1.0], &[0.0]), None, "a peer with a figure of 0 has no ratio");
    }

    #[test]
    fn goal_direction_depends_on_unit() {
        let always = |figure| Spread { count: 5, least: figure, median: figure, most: figure };
        let latency = Goal { least: 1.5, aim: 1.15 };
        assert_eq!(latency.judge(always(1.1), false), GoalStatus::Aim);
        assert_eq!(latency.judge(always(1.3), false), GoalStatus::Met);
        assert_eq!(latency.judge(always(1.6), false), GoalStatus::Short);
        let rate = Goal { least: 1.2, aim: 2.0 };
        assert_eq!(rate.judge(always(2.0), true), GoalStatus::Aim);
        assert_eq!(rate.judge(always(1.1), true), GoalStatus::Short);
    }

    #[test]
    fn spread_around_the_minimum_is_unclear() {
        let goal = Goal { least: 0.8, aim: 0.95 };
        let judged = |least, most| goal.judge(Spread { count: 3, least, median: 0.92, most }, true);
        assert_eq!(judged(0.64, 1.37), GoalStatus::Unclear);
        assert_eq!(judged(0.64, 0.79), GoalStatus::Short);
        assert_eq!(judged(0.8, 1.37), GoalStatus::Met, "the aim is not reached by every round");
        assert_eq!(judged(0.95, 1.37), GoalStatus::Aim);
        let two = Spread { count: 2, least: 1.0, median: 1.0, most: 1.0 };
        assert_eq!(goal.judge(two, true), GoalStatus::TooFew);
    }

    #[test]
    fn figures_are_formatted_with_units() {
        assert_eq!(Unit::RoundTrip.show(8_149.0), "8.1 µs");
        assert_eq!(Unit::Iops.show(523_000.0), "523 k/s");
        assert_eq!(Unit::Bandwidth.show(3.7e9), "3.70 GB/s");
        assert_eq!(Unit::Core.show(0.0015), "0.15 % of a core");
        assert_eq!(Unit::Memory.show(1_572_864.0), "1.50 MiB");
    }
}
