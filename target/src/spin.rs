//! How long a worker spins before it sleeps.
//!
//! To spin is worth it when work comes meanwhile. Where it does not, every spin is wasted: a thousand idle
//! connections, whose keep-alives wake the worker now and then, would cost a spin each. So a worker that has spun in
//! vain a few times sleeps at once, and only tries again now and then: after a sleep it is not known how soon work
//! came, as waking takes time of its own.

use core::time::Duration;

/// Spins in vain in a row, after which there are no more but for a trial.
const FAILURES_MAX: u32 = 4;
/// From then on one wait in so many is a trial.
const TRIAL_EVERY: u32 = 16;

/// What a worker has learned of its waits.
#[derive(Debug, Clone)]
pub struct SpinPolicy {
    max: Duration,
    /// Waits in a row that were longer than a spin.
    failures: u32,
}

impl SpinPolicy {
    /// To spin no longer than `max`. Begins hopeful.
    #[must_use]
    pub fn new(max: Duration) -> Self {
        Self { max, failures: 0 }
    }

    /// How long to spin in this wait.
    #[must_use]
    pub fn spin(&self) -> Duration {
        let tries = self.failures < FAILURES_MAX || self.failures.is_multiple_of(TRIAL_EVERY);
        if tries { self.max } else { Duration::ZERO }
    }

    /// Work came, after such a wait.
    pub fn on_work(&mut self, waited: Duration) {
        self.failures = if waited <= self.max { 0 } else { self.failures.wrapping_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);
    const WAKING: Duration = Duration::from_micros(60);

    /// Waits for work that comes after `gap`, and later for whoever must wake first. Whether it was spun for.
    fn wait(spin_policy: &mut SpinPolicy, gap: Duration) -> bool {
        let spin = spin_policy.spin();
        spin_policy.on_work(if gap <= spin { gap } else { gap + WAKING });
        !spin.is_zero()
    }

    fn spins(spin_policy: &mut SpinPolicy, gap: Duration, waits: u32) -> usize {
        (0..waits).filter(|_| wait(spin_policy, gap)).count()
    }

    #[test]
    fn who_waits_long_soon_sleeps_at_once_but_for_a_trial_now_and_then() {
        let mut spin_policy = SpinPolicy::new(MAX);
        assert_eq!(spins(&mut spin_policy, Duration::from_millis(5), 16), 4);
        assert_eq!(spins(&mut spin_policy, Duration::from_millis(5), 1600), 100);
    }

    #[test]
    fn who_is_busy_again_spins_again() {
        let mut spin_policy = SpinPolicy::new(MAX);
        spins(&mut spin_policy, Duration::from_millis(5), 100);
        spins(&mut spin_policy, Duration::from_micros(10), 16);
        assert_eq!(spins(&mut spin_policy, Duration::from_micros(10), 100), 100);
    }
}
