//! Times to come.

use core::time::Duration;

/// A time to come, for a layer that is told the time in some of its calls only. Its clock starts at the next such call
/// ([`Deadline::start`]): who slept before may not count from when it last knew the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// This long after the clock starts.
    After(Duration),
    /// Then.
    At(Duration),
}

impl Deadline {
    /// Starts the clock, unless it runs already.
    pub fn start(&mut self, now: Duration) {
        if let Self::After(wait) = *self {
            *self = Self::At(now + wait);
        }
    }

    /// When; at once if the clock has yet to start.
    #[must_use]
    pub fn at(self) -> Duration {
        match self {
            Self::After(_) => Duration::ZERO,
            Self::At(time) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_starts_once() {
        let mut deadline = Deadline::After(Duration::from_secs(2));
        assert_eq!(deadline.at(), Duration::ZERO, "due at once, so that the clock is started");
        deadline.start(Duration::from_secs(10));
        deadline.start(Duration::from_secs(11));
        assert_eq!(deadline.at(), Duration::from_secs(12));
    }
}
