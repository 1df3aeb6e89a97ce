//! Comparison of two job files A and B that run alternately, A B B A: what the machine does over time, and
//! being the first, touches both.
//!
//! Each round gives one ratio B/A, of two runs in nearly the same state of the machine. The report contains the median,
//! the minimum, the maximum and the quartiles of these ratios. It has no bootstrap interval, which would add no
//! information to as few as five rounds.
//!
//! B differs from A if the ratios of all rounds, rounded to two decimals, are on the same side of 1. If there is no
//! difference, N rounds agree by chance with probability 1 / 2^(N-1).

mod metric;

pub use metric::Metric;

use super::failure::failures;
use crate::result::RunResult;
use core::fmt::{self, Display, Formatter};
use metric::Figures;
use serde_json::{Value, json};

/// Minimum number of rounds for a verdict: fewer agree by chance too often.
pub const ROUNDS_MIN: usize = 3;

/// The comparison of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The metric.
    pub metric: Metric,
    /// The median over A's runs.
    pub a: f64,
    /// The median over B's runs.
    pub b: f64,
    /// B/A of each round, in the rounds' order.
    pub ratios: Vec<f64>,
    /// The median of the ratios.
    pub ratio: f64,
    /// The lowest and the highest ratio.
    pub range: (f64, f64),
    /// The first and third quartile of the ratios.
    pub quartiles: (f64, f64),
}

/// The result for a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There are fewer than [`ROUNDS_MIN`] rounds.
    TooFewRounds,
    /// The rounds do not agree, or the ratio of one is 1 in two decimals.
    NoDifference,
    /// B is better in every round.
    Better,
    /// B is worse in every round.
    Worse,
}

impl Comparison {
    fn of(metric: Metric, pairs: &[(f64, f64)]) -> Option<Self> {
        // Without operations, or with too little processor time for the system's clock, there is no ratio.
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

    /// The result for the metric.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        // The two decimals that are printed decide, so that a verdict never contradicts the printed ratios.
        let [low, high] = [self.range.0, self.range.1].map(|ratio| (100.0 * ratio).round() / 100.0);
        match () {
            () if self.ratios.len() < ROUNDS_MIN => Verdict::TooFewRounds,
            () if low <= 1.0 && high >= 1.0 => Verdict::NoDifference,
            () if (low > 1.0) == self.metric.more_is_better() => Verdict::Better,
            () => Verdict::Worse,
        }
    }

    /// The result as a sentence.
    #[must_use]
    pub fn sentence(&self, a: &str, b: &str) -> String {
        let (name, rounds) = (self.metric.name(), self.ratios.len());
        let (low, high) = self.range;
        let spread = format!("{low:.2}–{high:.2} over {rounds} rounds");
        match self.verdict() {
            Verdict::TooFewRounds => {
                format!(
                    "{name}: {:.2} ×, but too few rounds for a verdict: run at least {ROUNDS_MIN}",
                    self.ratio
                )
            }
            Verdict::NoDifference => format!("{name}: no difference that these rounds can show ({spread})"),
            Verdict::Better | Verdict::Worse => {
                let verb = if self.metric.more_is_better() { "does" } else { "has" };
                format!("{b} {verb} {:.2} × {a}'s {name} ({spread})", self.ratio)
            }
        }
    }
}

/// A comparison of all metrics; implements `Display`.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Name of A.
    pub a: String,
    /// Name of B.
    pub b: String,
    /// Number of rounds.
    pub rounds: usize,
    /// One comparison for each metric with a ratio; the CPU time may have none.
    pub comparisons: Vec<Comparison>,
    /// Failures of the runs; the ratios then cover only the operations that succeeded.
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
    /// The report as JSON: by metric, the ratios of all rounds and their statistics.
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
        writeln!(f, "A = {}\nB = {}\n{rounds} in the order A B B A; medians\n", self.a, self.b)?;
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
                "\n(A difference is reported only if all rounds agree; by chance alone they do so \
                 once in {odds}.)"
            )?;
        }
        Ok(())
    }
}

/// A quantile of sorted values, of which there is at least one, with linear interpolation.
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
    fn agreeing_rounds_give_verdict() {
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
    fn disagreeing_rounds_give_no_difference() {
        let c = ratios(Metric::Iops, &[1.12, 0.99, 1.15]);
        assert_eq!(c.verdict(), Verdict::NoDifference);
        assert_eq!(
            c.sentence("A", "B"),
            "IOPS: no difference that these rounds can show (0.99–1.15 over 3 rounds)"
        );
        assert_eq!(ratios(Metric::Iops, &[1.004, 1.05, 1.1]).verdict(), Verdict::NoDifference);
    }

    #[test]
    fn two_rounds_are_too_few() {
        assert_eq!(ratios(Metric::Iops, &[1.5, 1.6]).verdict(), Verdict::TooFewRounds);
    }

    #[test]
    fn zero_figures_have_no_ratio() {
        assert_eq!(Comparison::of(Metric::CpuPerOperation, &[(0.0, 1.0)]), None);
        assert_eq!(Comparison::of(Metric::Iops, &[]), None);
    }

    #[test]
    fn quantiles_are_interpolated() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
        assert_eq!(quantile(&[7.0], 0.75), 7.0);
    }
}
