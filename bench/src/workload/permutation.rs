//! A random order of all blocks without a bitmap: a Feistel network over the next larger power of four, with cycle
//! walking for values outside the device.

use super::random::mix;

/// A random order of the numbers below `len`.
#[derive(Debug, Clone)]
pub struct Permutation {
    len: u64,
    /// Bits in each half of a number.
    half: u32,
    keys: [u64; 4],
}

impl Permutation {
    /// The order determined by this key.
    #[must_use]
    pub fn new(len: u64, key: u64) -> Self {
        let bits = 64 - len.saturating_sub(1).leading_zeros();
        let half = bits.div_ceil(2).max(1);
        let keys = core::array::from_fn(|round| mix(key ^ mix(round as u64 + 1)));
        Self { len, half, keys }
    }

    /// The number at this position.
    ///
    /// # Panics
    /// When `place` is not below `len`.
    #[must_use]
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.len, "place {place} of {}", self.len);
        let mut number = place;
        loop {
            number = self.scramble(number);
            if number < self.len {
                return number;
            }
        }
    }

    fn scramble(&self, number: u64) -> u64 {
        let mask = u64::MAX >> (64 - self.half);
        let (mut left, mut right) = (number >> self.half, number & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn permutation_visits_every_number_once(len in 1_u64..5000, key: u64) {
            let permutation = Permutation::new(len, key);
            let mut seen = vec![false; len as usize];
            for place in 0..len {
                let number = permutation.at(place) as usize;
                prop_assert!(!core::mem::replace(&mut seen[number], true), "{number} twice");
            }
        }

        #[test]
        fn permutation_of_large_device_stays_in_range(len in 1_u64.., key: u64) {
            let permutation = Permutation::new(len, key);
            for place in [0, len / 2, len - 1] {
                prop_assert!(permutation.at(place) < len);
            }
        }
    }
}
