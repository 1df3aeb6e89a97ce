//! How fast: `rate` and `rate_iops`.

use crate::job::JobOptions;
use crate::result::Direction;
use core::time::Duration;

/// Says when the next operation may begin.
#[derive(Debug, Clone)]
pub struct Pace {
    bytes: [Option<u64>; 3],
    ios: [Option<u64>; 3],
    issued: [(u64, u64); 3],
    limited: bool,
}

impl Pace {
    /// The pace that the options ask for.
    #[must_use]
    pub fn new(options: &JobOptions) -> Self {
        let limited = options.rate.iter().chain(&options.rate_iops).any(Option::is_some);
        Self { bytes: options.rate, ios: options.rate_iops, issued: [(0, 0); 3], limited }
    }

    /// From when on, after the start, an operation of this direction may begin.
    #[must_use]
    pub fn due(&self, direction: Direction) -> Duration {
        if !self.limited {
            return Duration::ZERO;
        }
        let (ios, bytes) = self.issued[direction as usize];
        let due = |done: u64, rate: Option<u64>| rate.map_or(Duration::ZERO, |rate| span(done, rate));
        due(bytes, self.bytes[direction as usize]).max(due(ios, self.ios[direction as usize]))
    }

    /// One begins.
    pub fn issue(&mut self, direction: Direction, bytes: u32) {
        let issued = &mut self.issued[direction as usize];
        *issued = (issued.0 + 1, issued.1 + u64::from(bytes));
    }
}

/// How long `done` takes at `rate` a second.
fn span(done: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(done) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_both_limits_holds() {
        let mut options = JobOptions::default();
        options.rate[1] = Some(4096 * 100);
        options.rate_iops[1] = Some(1000);
        let mut pace = Pace::new(&options);
        for _ in 0..100 {
            pace.issue(Direction::Write, 4096);
        }
        assert_eq!(pace.due(Direction::Write), Duration::from_secs(1));
        assert_eq!(pace.due(Direction::Read), Duration::ZERO);
    }
}
