//! Zipf's law: the probability of rank k is proportional to k^-theta.
//!
//! Samples by rejection-inversion (Hörmann and Derflinger, 1996): exact, and in constant time for any number of ranks.

use super::random::Random;

/// A Zipf distribution over a number of ranks.
#[derive(Debug, Clone)]
pub struct Zipf {
    ranks: f64,
    theta: f64,
    first: f64,
    last: f64,
    sure: f64,
}

impl Zipf {
    /// A distribution over `ranks` ranks.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rank past 2^53 may be off by a few")]
    pub fn new(ranks: u64, theta: f64) -> Self {
        let mut zipf = Self { ranks: ranks.max(1) as f64, theta, first: 0.0, last: 0.0, sure: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.ranks + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// Draws a rank, counted from 0.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped to the ranks")]
    pub fn next(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.last + random.unit() * (self.first - self.last);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.ranks);
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// The density's integral from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.theta) * log;
        // Near theta = 1 the quotient is 0/0, so its Taylor series is used.
        log * if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 }
    }

    fn inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.theta)).max(-1.0);
        (area * if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 }).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_frequencies_follow_zipf() {
        for theta in [0.5, 1.0, 1.2, 2.0] {
            let (zipf, mut random) = (Zipf::new(100, theta), Random::new(7, 0));
            let mut counts = [0_u32; 100];
            for _ in 0..200_000 {
                counts[zipf.next(&mut random) as usize] += 1;
            }
            let sum: f64 = (1..=100).map(|k| f64::from(k).powf(-theta)).sum();
            for rank in [1_u8, 2, 10, 50] {
                let wanted = 200_000.0 * f64::from(rank).powf(-theta) / sum;
                let got = f64::from(counts[usize::from(rank) - 1]);
                assert!(
                    (got - wanted).abs() < 6.0 * wanted.sqrt() + 1.0,
                    "theta {theta} rank {rank}: {got}, not {wanted}"
                );
            }
        }
    }
}
