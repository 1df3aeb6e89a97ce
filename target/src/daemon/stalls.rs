//! Whether the workers turn.

use core::cell::Cell;
use core::time::Duration;

/// A worker that has not turned for so long hangs.
const HANGS: Duration = Duration::from_secs(10);

/// What was seen of them when they were looked at last.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    looked_at: Cell<Duration>,
    is_told: Cell<bool>,
}

/// What a look shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) all_turn: bool,
    /// Since when one does not, if nobody was told yet.
    pub(super) news: Option<Duration>,
}

impl Stalls {
    /// By when the worker turned that did so longest ago.
    pub(super) fn look(&self, now: Duration, oldest_turn: Duration) -> Look {
        let stalled = now.saturating_sub(oldest_turn);
        // Who looks only now was held up itself, as where the machine was suspended: the workers may be about to turn.
        let stood_still = now.saturating_sub(self.looked_at.replace(now)) > HANGS;
        let hangs = stalled > HANGS;
        let is_news = hangs && !stood_still && !self.is_told.get();
        self.is_told.set(hangs && (is_news || self.is_told.get()));
        Look { all_turn: !hangs, news: is_news.then_some(stalled) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn worker_that_hangs_is_told_of_once() {
        let stalls = Stalls::default();
        let news: Vec<u32> =
            (0..60).filter(|&at| stalls.look(at * SECOND, at.min(20) * SECOND).news.is_some()).collect();
        assert_eq!(news, [31]);
        assert!(stalls.look(61 * SECOND, 61 * SECOND).all_turn);
    }

    #[test]
    fn machine_that_was_suspended_has_no_worker_that_hangs() {
        let stalls = Stalls::default();
        assert!(stalls.look(SECOND, SECOND).all_turn);
        let woken = 3600 * SECOND;
        assert_eq!(stalls.look(woken, SECOND), Look { all_turn: false, news: None });
        // One that does not come back either is told of at the next look.
        assert!(stalls.look(woken + SECOND, SECOND).news.is_some());
        assert_eq!(stalls.look(woken + 2 * SECOND, woken), Look { all_turn: true, news: None });
    }
}
