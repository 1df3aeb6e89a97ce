//! Two job files run in turn, A B A B: how B relates to A.
//!
//! Each round gives one ratio B/A, of two runs that had the machine in nearly the same state. What is reported is the median of these ratios and how far
//! they spread: the lowest and the highest, and the quartiles. (Not a bootstrap: of five rounds it would tell nothing that the
//! rounds themselves do not.)
//!
//! B differs from A when all rounds say so, in the same direction and in two decimals. Where there is no difference, N rounds agree by chance once in 2^(N-1).

mod metric;

pub use metric::Metric;

use super::failure::failures;
use crate::result::RunResult;
use core::fmt::{self, Display, Formatter};
use metric::Figures;
use serde_json::{Value, json};

/// Fewer rounds than these agree by chance too often to be told from a difference.
pub const ROUNDS_MIN: usize = 3;

/// How B relates to A in one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Of what.
    pub metric: Metric,
    /// The median over A's runs.
    pub a: f64,
    /// The median over B's runs.
    pub b: f64,
    /// B/A of each round, in the rounds' order.
    pub ratios: Vec<f64>,
    /// The median of the ratios.
    pub ratio: f64,
    /// The lowest and the highest of them.
    pub range: (f64, f64),
    /// Their first and third quartile.
    pub quartiles: (f64, f64),
}

/// What the rounds say of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There are less than [`ROUNDS_MIN`].
    TooFewRounds,
    /// They do not agree on a direction, or one has nothing to tell in two decimals.
    NoDifference,
    /// Every one has B better.
    Better,
    /// Every one has B worse.
    Worse,
}

impl Comparison {
    fn of(metric: Metric, pairs: &[(f64, f64)]) -> Option<Self> {
        // No operations, or no processor time that the system's clock could see: no ratio.
        if pairs.is_empty() || pairs.iter().any(|&(a, b)| a <= 0.0 || b <= 0.0) {
            return None;
        }
        let sorted = |mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            values
        };
        let ratios: Vec<f64> = pairs.iter().map(|(a, b)| b / a).collect();
        let in_order = sorted(ratios.clone());
        Some(Self {
            metric,
            a: quantile(&sorted(pairs.iter().map(|pair| pair.0).collect()), 0.5),
            b: quantile(&sorted(pairs.iter().map(|pair| pair.1).collect()), 0.5),
            ratios,
            ratio: quantile(&in_order, 0.5),
            range: (in_order[0], in_order[in_order.len() - 1]),
            quartiles: (quantile(&in_order, 0.25), quantile(&in_order, 0.75)),
        })
    }

    /// What the rounds say.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        // To the two decimals that are shown: a difference that cannot be seen is not claimed.
        let [low, high] = [self.range.0, self.range.1].map(|ratio| (100.0 * ratio).round() / 100.0);
        match () {
            () if self.ratios.len() < ROUNDS_MIN => Verdict::TooFewRounds,
            () if low <= 1.0 && high >= 1.0 => Verdict::NoDifference,
            () if (low > 1.0) == self.metric.more_is_better() => Verdict::Better,
            () => Verdict::Worse,
        }
    }

    /// The same in a sentence.
    #[must_use]
    pub fn sentence(&self, a: &str, b: &str) -> String {
        let (name, rounds) = (self.metric.name(), self.ratios.len());
        let (low, high) = self.range;
        let spread = format!("{low:.2}–{high:.2} over {rounds} rounds");
        match self.verdict() {
            Verdict::TooFewRounds => {
                format!("{name}: {:.2} ×, but too few rounds to tell: run at least {ROUNDS_MIN}", self.ratio)
            }
            Verdict::NoDifference => format!("{name}: no difference that these rounds can show ({spread})"),
            Verdict::Better | Verdict::Worse => {
                let verb = if self.metric.more_is_better() { "does" } else { "has" };
                format!("{b} {verb} {:.2} × {a}'s {name} ({spread})", self.ratio)
            }
        }
    }
}

/// A comparison in all metrics; print it with `{}`.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What A is called.
    pub a: String,
    /// What B is called.
    pub b: String,
    /// How many rounds there were.
    pub rounds: usize,
    /// One a metric that has a ratio: all but the CPU's where there was too little to measure.
    pub comparisons: Vec<Comparison>,
    /// What went wrong in a run: then the ratios compare what was done in spite of it.
    pub failures: Vec<String>,
}

/// Compares rounds of A and B, in the order in which they were run.
#[must_use]
pub fn compare(a: &str, b: &str, rounds: &[(RunResult, RunResult)]) -> Report {
    let figures: Vec<_> = rounds.iter().map(|(a, b)| (Figures::of(a), Figures::of(b))).collect();
    let comparison = |metric| {
        let pairs: Vec<_> = figures.iter().map(|(a, b)| (a.get(metric), b.get(metric))).collect();
        Comparison::of(metric, &pairs)
    };
    let mut failed = Vec::new();
    for (round, (run_a, run_b)) in rounds.iter().enumerate() {
        for (label, run) in [(a, run_a), (b, run_b)] {
            for job in &run.jobs {
                let texts = failures(job).into_iter();
                failed
                    .extend(texts.map(|f| format!("{label}, round {}, {}: {}", round + 1, job.name, f.what)));
            }
        }
    }
    let comparisons = Metric::ALL.into_iter().filter_map(comparison).collect();
    Report { a: a.to_string(), b: b.to_string(), rounds: rounds.len(), comparisons, failures: failed }
}

impl Report {
    /// The report as JSON: ratios by metric, with every round's.
    #[must_use]
    pub fn json(&self) -> Value {
        let metric = |c: &Comparison| {
            let value = json!({
                "a": c.a,
                "b": c.b,
                "ratio": c.ratio,
                "min": c.range.0,
                "max": c.range.1,
                "q1": c.quartiles.0,
                "q3": c.quartiles.1,
                "ratios": c.ratios,
                "verdict": match c.verdict() {
                    Verdict::TooFewRounds => "too few rounds",
                    Verdict::NoDifference => "no difference",
                    Verdict::Better => "better",
                    Verdict::Worse => "worse",
                },
                "sentence": c.sentence(&self.a, &self.b),
            });
            (c.metric.key().to_string(), value)
        };
        json!({
            "nvmf-bench version": env!("CARGO_PKG_VERSION"),
            "a": self.a,
            "b": self.b,
            "rounds": self.rounds,
            "metrics": Value::Object(self.comparisons.iter().map(metric).collect()),
            "failures": self.failures,
        })
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "ERROR: {failure}")?;
        }
        let rounds = if self.rounds == 1 { "1 round" } else { &format!("{} rounds", self.rounds) };
        writeln!(f, "A = {}\nB = {}\n{rounds} of A, then B; medians\n", self.a, self.b)?;
        writeln!(f, "{:<18}{:>12}{:>12}{:>9}{:>13}{:>13}", "", "A", "B", "B/A", "min–max", "quartiles")?;
        for c in &self.comparisons {
            let range = format!("{:.2}–{:.2}", c.range.0, c.range.1);
            let quartiles = format!("{:.2}–{:.2}", c.quartiles.0, c.quartiles.1);
            let (a, b) = (c.metric.text(c.a), c.metric.text(c.b));
            writeln!(f, "{:<18}{a:>12}{b:>12}{:>9.2}{range:>13}{quartiles:>13}", c.metric.name(), c.ratio)?;
        }
        writeln!(f)?;
        for c in &self.comparisons {
            writeln!(f, "{}.", c.sentence("A", "B"))?;
        }
        if self.rounds >= ROUNDS_MIN {
            let odds = 2_f64.powi(self.rounds as i32 - 1);
            writeln!(
                f,
                "\n(A difference is one that all rounds agree on; by chance alone they would once in {odds}.)"
            )?;
        }
        Ok(())
    }
}

/// Of sorted values that are not empty; between two of them, in proportion.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(metric: Metric, ratios: &[f64]) -> Comparison {
        let pairs: Vec<_> = ratios.iter().map(|ratio| (100.0, 100.0 * ratio)).collect();
        Comparison::of(metric, &pairs).unwrap()
    }

    #[test]
    fn rounds_that_agree_are_a_difference() {
        let c = ratios(Metric::Iops, &[1.12, 1.08, 1.15, 1.11, 1.13]);
        assert_eq!(c.verdict(), Verdict::Better);
        assert_eq!(c.sentence("A", "B"), "B does 1.12 × A's IOPS (1.08–1.15 over 5 rounds)");
        assert_eq!(ratios(Metric::P99, &[1.12, 1.08, 1.15]).verdict(), Verdict::Worse);
        assert_eq!(ratios(Metric::P99, &[0.8, 0.9, 0.7]).verdict(), Verdict::Better);
        assert_eq!(
            ratios(Metric::P99, &[0.8, 0.9, 0.7]).sentence("A", "B"),
            "B has 0.80 × A's p99 latency (0.70–0.90 over 3 rounds)"
        );
    }

    #[test]
    fn rounds_that_do_not_agree_are_none() {
        let c = ratios(Metric::Iops, &[1.12, 0.99, 1.15]);
        assert_eq!(c.verdict(), Verdict::NoDifference);
        assert_eq!(
            c.sentence("A", "B"),
            "IOPS: no difference that these rounds can show (0.99–1.15 over 3 rounds)"
        );
        assert_eq!(ratios(Metric::Iops, &[1.004, 1.05, 1.1]).verdict(), Verdict::NoDifference);
    }

    #[test]
    fn two_rounds_tell_nothing() {
        assert_eq!(ratios(Metric::Iops, &[1.5, 1.6]).verdict(), Verdict::TooFewRounds);
    }

    #[test]
    fn nothing_measured_has_no_ratio() {
        assert_eq!(Comparison::of(Metric::CpuPerOperation, &[(0.0, 1.0)]), None);
        assert_eq!(Comparison::of(Metric::Iops, &[]), None);
    }

    #[test]
    fn quantiles_lie_between_values_in_proportion() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
        assert_eq!(quantile(&[7.0], 0.75), 7.0);
    }
}
