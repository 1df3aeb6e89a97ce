//! Rate limits: `rate` and `rate_iops`.

use crate::job::JobOptions;
use crate::result::Direction;
use core::time::Duration;

/// Computes when the next operation may start.
#[derive(Debug, Clone)]
pub struct Pace {
    bytes: [Option<u64>; 3],
    ios: [Option<u64>; 3],
    issued: [(u64, u64); 3],
}

impl Pace {
    /// The limits in the options.
    #[must_use]
    pub fn new(options: &JobOptions) -> Self {
        Self { bytes: options.rate, ios: options.rate_iops, issued: [(0, 0); 3] }
    }

    /// When the next operation of this direction has to start, measured from the start of the job; `None` without a
    /// limit for the direction.
    #[must_use]
    pub fn due(&self, direction: Direction) -> Option<Duration> {
        let (ios, bytes) = self.issued[direction as usize];
        let due = |done: u64, rate: Option<u64>| rate.map(|rate| span(done, rate));
        due(bytes, self.bytes[direction as usize]).max(due(ios, self.ios[direction as usize]))
    }

    /// Counts so many operations of this length that start.
    pub fn issue(&mut self, direction: Direction, bytes: u32, operations: u64) {
        let issued = &mut self.issued[direction as usize];
        *issued = (issued.0 + operations, issued.1 + u64::from(bytes) * operations);
    }
}

/// The time that `done` takes at `rate` per second.
fn span(done: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(done) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stricter_rate_limit_applies() {
        let mut options = JobOptions::default();
        options.rate[1] = Some(4096 * 100);
        options.rate_iops[1] = Some(1000);
        let mut pace = Pace::new(&options);
        for _ in 0..100 {
            pace.issue(Direction::Write, 4096, 1);
        }
        assert_eq!(pace.due(Direction::Write), Some(Duration::from_secs(1)));
        assert_eq!(pace.due(Direction::Read), None);
    }
}
