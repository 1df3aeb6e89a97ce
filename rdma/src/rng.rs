//! A small seeded generator, so that a run can be repeated from one number.

/// SplitMix64 (Steele, Lea, Flood 2014): one addition and three mixes, every seed as good as another.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `[low, high]`; the bias of the remainder does not matter to a simulation.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        match (high.saturating_sub(low)).checked_add(1) {
            Some(span) => low + self.next() % span,
            None => self.next(),
        }
    }

    /// True that many times in a million. Zero draws nothing, so that a fault that is off changes no other.
    pub(crate) fn hits(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.next() % 1_000_000 < u64::from(per_million)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_tells_the_same_story_and_bounds_hold() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| rng.between(3, 9)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(1).iter().all(|n| (3..=9).contains(n)));
        assert!(!Rng::new(1).hits(0) && Rng::new(1).hits(1_000_000));
    }
}
