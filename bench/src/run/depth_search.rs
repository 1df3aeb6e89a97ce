//! `latency_target`: the search for the greatest queue depth at which enough operations meet a latency.

use super::nanoseconds;
use crate::job::LatencyTarget;

/// Doubles the depth while the target is met, then bisects between the last depth that met it and the first that
/// did not.
#[derive(Debug, Clone)]
pub(super) struct DepthSearch {
    target: u64,
    window: u64,
    /// Operations in a million that may exceed the target.
    slow_ppm_max: u64,
    depth: u32,
    depth_max: u32,
    held: u32,
    failed: Option<u32>,
    window_start: u64,
    ios: u64,
    slow: u64,
    over: bool,
}

impl DepthSearch {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage from 0 to 100")]
    pub(super) fn new(target: LatencyTarget, depth_max: u32) -> Self {
        Self {
            target: nanoseconds(target.target),
            window: nanoseconds(target.window),
            slow_ppm_max: ((100.0 - target.percentile) * 10_000.0).round() as u64,
            depth: 1,
            depth_max,
            held: 0,
            failed: None,
            window_start: 0,
            ios: 0,
            slow: 0,
            over: false,
        }
    }

    pub(super) fn start(&mut self, now: u64) {
        self.window_start = now;
    }

    /// The depth to use now.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// The greatest depth so far that met the target; 0 if none did.
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    /// Whether the search is over.
    pub(super) fn over(&self) -> bool {
        self.over
    }

    /// Records the latency of an operation.
    pub(super) fn on_latency(&mut self, nanoseconds: u64) {
        self.ios += 1;
        self.slow += u64::from(nanoseconds > self.target);
    }

    /// Evaluates the current depth at the end of its window.
    pub(super) fn tick(&mut self, now: u64) {
        if self.over || self.ios == 0 || now.saturating_sub(self.window_start) < self.window {
            return;
        }
        let holds = u128::from(self.slow) * 1_000_000 <= u128::from(self.ios) * u128::from(self.slow_ppm_max);
        if holds {
            self.held = self.depth;
        } else {
            self.failed = Some(self.depth);
        }
        let next = match self.failed {
            None => self.depth.saturating_mul(2).min(self.depth_max),
            Some(failed) => self.held + (failed - self.held) / 2,
        };
        self.over = next == self.held;
        self.depth = next.max(1);
        (self.window_start, self.ios, self.slow) = (now, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn search(depth_max: u32, latency_of: impl Fn(u32) -> u64) -> u32 {
        let target = LatencyTarget {
            target: Duration::from_nanos(100),
            window: Duration::from_nanos(10),
            percentile: 99.0,
        };
        let mut search = DepthSearch::new(target, depth_max);
        let mut now = 0;
        while !search.over() {
            for _ in 0..10 {
                search.on_latency(latency_of(search.depth()));
            }
            now += 10;
            search.tick(now);
            assert!(now < 1000, "the search ends");
        }
        search.held()
    }

    #[test]
    fn depth_search_finds_greatest_depth() {
        assert_eq!(search(128, |depth| u64::from(depth) * 3), 33);
        assert_eq!(search(16, |_| 1), 16);
        assert_eq!(search(16, |_| 1000), 0);
        assert_eq!(search(100, u64::from), 100);
    }
}
