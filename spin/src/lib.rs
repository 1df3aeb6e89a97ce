//! How long a thread spins before it sleeps: a worker of the target, and whoever drives a connection of the initiator.
//!
//! To spin is worth it when work comes meanwhile. Two things make it a loss, and a [`Spin`] learns both:
//!
//! - **Nothing comes.** A thousand idle connections, whose keep-alives wake the thread now and then, would cost a spin
//!   each. A thread that has spun in vain a few times sleeps at once, until work comes soon again a few times in a row (once it does
//!   so by chance, where many send now and then), and tries a short spin now and then: of a sleep it is not known how soon work
//!   came, as waking takes time of its own.
//! - **Another thread wants the processor.** The scheduler gives a thread that sleeps most of the time its processor as
//!   soon as it wakes; one that spins has used up its share, and waits for the end of the other's. So a thread that was
//!   taken off its processor while it spun sleeps at once for a while. So does one that gave its processor to others again
//!   and again without that bringing work: spinning costs them two switches at each look, and a wake-up costs less.
//!
//! It reads no clock: times are since whatever start the caller has, and go forward.
#![forbid(unsafe_code)]

use core::time::Duration;
use nix::sys::resource::{UsageWho, getrusage};

/// Spins in vain in a row, after which there are no more but for a trial.
const FAILURES_MAX: u32 = 4;
/// Waits in a row that were short, after which it spins again.
const SHORT_MIN: u32 = 3;
/// From then on one wait in so many is a trial: a sleep shows as well whether work came soon, but not where waking takes
/// long.
const TRIAL_EVERY: u32 = 64;
/// A trial is a spin of this part of the longest.
const TRIAL_PART: u32 = 4;
/// A look at what there is to do takes microseconds. Between two looks that are so far apart, another thread ran.
const DISPLACED: Duration = Duration::from_micros(500);
/// How long there are no spins then, in times of what the other thread took: a trial costs as much again, a tenth.
const REST: u32 = 10;

/// For so long a thread spins without a break. After that others get its processor between two looks, if they want it:
/// what it waits for may be theirs to do.
const UNBROKEN: Duration = Duration::from_micros(50);

/// How often others take the processor in one wait before the thread sleeps. What it waits for may be theirs to do, and then
/// it is done after one of these; the switches of one more cost as much as a sleep.
const TAKEN_MAX: u32 = 1;

/// What a thread has learned of its waits.
#[derive(Debug, Clone, Default)]
pub struct Spin {
    /// Waits in a row that were longer than a spin.
    failures: u32,
    /// Waits in a row that were none, of a thread that sleeps at once.
    short: u32,
    /// Since when there is nothing to do.
    idle_since: Option<Duration>,
    /// The longest spin of this wait.
    max: Duration,
    /// The last look, if the thread has not slept since.
    looked_at: Option<Duration>,
    contended_until: Duration,
    /// How often others took the processor in this wait, when it was given to them.
    taken: u32,
    /// Whether they took it when it was last given to them. If so, the next wait gives it at once.
    wanted: bool,
    /// Switches to other threads until now, as the kernel has counted; known from the first look of a wait that gives way.
    switches: Option<i64>,
}

impl Spin {
    /// Begins hopeful.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            failures: 0,
            short: 0,
            idle_since: None,
            max: Duration::ZERO,
            looked_at: None,
            contended_until: Duration::ZERO,
            taken: 0,
            wanted: false,
            switches: None,
        }
    }

    /// There was nothing to do at `now`: whether to look again at once, spinning for at most `max` in all; if not, the
    /// caller sleeps.
    pub fn goes_on(&mut self, now: Duration, max: Duration) -> bool {
        self.look(now);
        self.max = max;
        let waited = now.saturating_sub(*self.idle_since.get_or_insert(now));
        if self.taken > TAKEN_MAX {
            self.contended_until = self.contended_until.max(now + waited * REST);
        }
        let spin = match self.failures {
            0..FAILURES_MAX => max,
            _ if self.is_trial() => max / TRIAL_PART,
            _ => Duration::ZERO,
        };
        let spins = waited < spin && now >= self.contended_until;
        self.looked_at = spins.then_some(now);
        spins
    }

    /// Between two looks, after [`Spin::goes_on`] at `now`: gives others the processor, if they want it and the spin is long
    /// already.
    pub fn pause(&mut self, now: Duration) {
        if self.gives_way(now) { self.give_way() } else { core::hint::spin_loop() }
    }

    /// The same in any case, where others mostly want the processor.
    pub fn give_way(&mut self) {
        let before = self.switches.unwrap_or_else(switches);
        std::thread::yield_now();
        let after = switches();
        self.on_gave_way(after != before);
        self.switches = Some(after);
    }

    fn gives_way(&self, now: Duration) -> bool {
        self.wanted || self.idle_since.is_some_and(|since| now.saturating_sub(since) >= UNBROKEN)
    }

    /// The processor was there for others: whether one took it.
    fn on_gave_way(&mut self, taken: bool) {
        self.taken += u32::from(taken);
        self.wanted = taken;
    }

    /// Whether there was nothing to do when it was asked last: for callers to whom the time costs something.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.idle_since.is_some()
    }

    /// There was something to do at `now`.
    pub fn on_work(&mut self, now: Duration) {
        self.look(now);
        self.looked_at = None;
        self.begin();
        if let Some(since) = self.idle_since.take() {
            self.learn(now.saturating_sub(since));
        }
    }

    fn learn(&mut self, waited: Duration) {
        if waited > self.max {
            (self.failures, self.short) = (self.failures.wrapping_add(1), 0);
            return;
        }
        self.short += 1;
        let was_seen = self.failures < FAILURES_MAX || self.is_trial() && waited <= self.max / TRIAL_PART;
        if was_seen || self.short >= SHORT_MIN {
            (self.failures, self.short) = (0, 0);
        }
    }

    /// Of a thread that sleeps at once: whether this wait is a trial.
    const fn is_trial(&self) -> bool {
        self.failures.is_multiple_of(TRIAL_EVERY)
    }

    /// The thread gives its processor to others until it looks again: that they took it says nothing.
    pub const fn on_yield(&mut self) {
        self.looked_at = None;
    }

    /// The wait is over without work: others do what there is to do.
    pub fn on_leave(&mut self) {
        (self.looked_at, self.idle_since) = (None, None);
        self.begin();
    }

    /// The next wait is another one.
    fn begin(&mut self) {
        (self.taken, self.switches) = (0, None);
    }

    fn look(&mut self, now: Duration) {
        let gap = self.looked_at.map_or(Duration::ZERO, |looked_at| now.saturating_sub(looked_at));
        if gap >= DISPLACED {
            self.contended_until = now + gap * REST;
        }
    }
}

/// How often this thread was taken off its processor though it could have run on, a yield that others made use of included.
fn switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(500);
    const LOOK: Duration = Duration::from_micros(1);
    const WAKING: Duration = Duration::from_micros(60);

    /// A thread that looks every microsecond, and whose spins last `MAX`.
    struct Waiter {
        spin: Spin,
        now: Duration,
    }

    impl Waiter {
        fn new() -> Self {
            Self { spin: Spin::new(), now: Duration::from_secs(1) }
        }

        /// Waits for work that comes after `gap`, and later for whoever must wake first. How long it was spun for.
        fn wait(&mut self, gap: Duration) -> Duration {
            let due = self.now + gap;
            let mut spun = Duration::ZERO;
            while self.now < due {
                if self.spin.goes_on(self.now, MAX) {
                    spun += LOOK;
                    self.now += LOOK;
                } else {
                    self.now = due + WAKING;
                }
            }
            self.spin.on_work(self.now);
            spun
        }

        fn spins(&mut self, gap: Duration, waits: u32) -> usize {
            (0..waits).filter(|_| !self.wait(gap).is_zero()).count()
        }
    }

    #[test]
    fn waits_that_are_long_end_spinning_but_for_a_trial_now_and_then() {
        let mut waiter = Waiter::new();
        assert_eq!(waiter.spins(Duration::from_millis(5), TRIAL_EVERY), FAILURES_MAX as usize);
        assert_eq!(waiter.wait(Duration::from_millis(5)), MAX / TRIAL_PART);
        assert_eq!(waiter.spins(Duration::from_millis(5), 99 * TRIAL_EVERY), 99);
    }

    #[test]
    fn waits_that_are_short_again_are_spun_for_again() {
        let mut waiter = Waiter::new();
        waiter.spins(Duration::from_millis(5), 100);
        assert_eq!(
            waiter.spins(Duration::from_micros(10), 100),
            97,
            "the first waits show that they are short"
        );
    }

    /// Five hundred hosts with a keep-alive each now and then.
    #[test]
    fn wait_that_is_short_by_chance_brings_no_spins_back() {
        let mut waiter = Waiter::new();
        waiter.spins(Duration::from_millis(5), 10);
        let spun: Duration = (0..1000)
            .map(|wait| {
                waiter.wait(if wait % 10 < 2 { Duration::from_micros(50) } else { Duration::from_millis(6) })
            })
            .sum();
        assert!(spun <= 1000 / TRIAL_EVERY * 2 * MAX / TRIAL_PART, "{spun:?} in five seconds");
    }

    #[test]
    fn where_waking_takes_longer_than_a_spin_a_trial_shows_that_waits_are_short() {
        let mut waiter = Waiter::new();
        waiter.spins(Duration::from_millis(5), 10);
        for _ in 0..TRIAL_EVERY {
            let due = waiter.now + Duration::from_micros(10);
            while waiter.now < due {
                waiter.now =
                    if waiter.spin.goes_on(waiter.now, MAX) { waiter.now + LOOK } else { due + 2 * MAX };
            }
            waiter.spin.on_work(waiter.now);
        }
        assert_eq!(waiter.spins(Duration::from_micros(10), 100), 100);
    }

    #[test]
    fn long_spin_gives_way_to_others() {
        let mut waiter = Waiter::new();
        assert!(!waiter.spin.gives_way(waiter.now));
        let looks = (0..100).map(|look| {
            let now = waiter.now + look * LOOK;
            (waiter.spin.goes_on(now, MAX), waiter.spin.gives_way(now))
        });
        let looks: Vec<_> = looks.collect();
        assert!(looks.iter().all(|&(goes_on, _)| goes_on));
        assert_eq!(looks.iter().position(|&(_, gives_way)| gives_way), Some(50));
    }

    #[test]
    fn thread_that_yields_while_it_spins_goes_on_spinning() {
        let mut waiter = Waiter::new();
        for _ in 0..10 {
            assert!(waiter.spin.goes_on(waiter.now, MAX));
            waiter.spin.on_yield();
            waiter.now += Duration::from_millis(3);
            waiter.spin.on_work(waiter.now);
            waiter.spins(Duration::from_micros(10), 1);
        }
    }

    #[test]
    fn thread_displaced_while_it_spins_sleeps_at_once_for_a_while() {
        for has_work in [false, true] {
            let mut waiter = Waiter::new();
            assert!(waiter.spin.goes_on(waiter.now, MAX));
            waiter.now += Duration::from_millis(3);
            match has_work {
                true => waiter.spin.on_work(waiter.now),
                false => assert!(!waiter.spin.goes_on(waiter.now, MAX)),
            }
            waiter.spin.on_work(waiter.now);
            assert_eq!(waiter.spins(Duration::from_micros(10), 10), 0);
            waiter.now += Duration::from_millis(30);
            waiter.spins(Duration::from_micros(10), TRIAL_EVERY);
            assert_eq!(waiter.spins(Duration::from_micros(10), 10), 10);
        }
    }

    #[test]
    fn thread_whose_processor_others_take_without_bringing_work_sleeps_at_once_for_a_while() {
        const SLICE: Duration = Duration::from_micros(10);
        let mut waiter = Waiter::new();
        for round in 0..3 {
            let mut looks = 0;
            while waiter.spin.goes_on(waiter.now, MAX) {
                waiter.spin.on_gave_way(true);
                waiter.now += SLICE;
                looks += 1;
            }
            assert_eq!(looks, TAKEN_MAX + 1, "round {round}");
            waiter.spin.on_work(waiter.now);
            assert!(waiter.wait(SLICE).is_zero(), "round {round}");
            assert!(waiter.spin.gives_way(waiter.now), "round {round}");
            waiter.now += SLICE * (TAKEN_MAX + 1) * REST;
        }
        // What it waits for is theirs to do.
        for _ in 0..100 {
            for _ in 0..TAKEN_MAX {
                assert!(waiter.spin.goes_on(waiter.now, MAX));
                waiter.spin.on_gave_way(true);
                waiter.now += SLICE;
            }
            waiter.spin.on_work(waiter.now);
        }
    }

    #[test]
    fn sleep_is_not_taken_for_another_thread() {
        let mut waiter = Waiter::new();
        assert!(!waiter.spin.goes_on(waiter.now, Duration::ZERO));
        waiter.now += Duration::from_millis(3);
        waiter.spin.on_work(waiter.now);
        assert!(waiter.spin.goes_on(waiter.now, MAX));
    }
}
