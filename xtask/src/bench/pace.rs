//! How near to each other the machine's two cores are.
//!
//! The two processors of a virtual machine may be moved by its host, for seconds or for minutes: to cores that share a
//! cache, or to cores that do not. Each then runs as fast as before, but what one has written takes the other six times as
//! long to read, and whatever two processes exchange over loopback comes at half the rate. What is measured before and
//! after is not the same machine.

use super::site::Cores;
use anyhow::{Context, Result};
use core::sync::atomic::{AtomicU64, Ordering};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// Round trips of one look: less than a millisecond.
const ROUND_TRIPS: u64 = 2000;
/// Looks of which the best counts: something may run beside the others.
const TRIES: usize = 4;
/// After each look.
const PAUSE: Duration = Duration::from_millis(20);
/// Looks for the best pace, before anything is measured: some seconds.
const LOOKS: u32 = 200;
/// What is slower than this share of the best is a slow machine.
const SHARE_MIN: f64 = 0.5;
/// Looks for which one measurement waits for a machine that is not: half a minute.
const WAIT_LOOKS: u32 = 1200;
/// Looks for which all of them wait together: four minutes. A machine that is slow for most of the time is measured as it is.
const WAIT_LOOKS_OF_ALL: u32 = 9600;
/// How often a measurement is made again because the machine changed meanwhile.
const AGAIN_MAX: u32 = 2;

/// The best pace that was seen, and what it was like at the measurements.
pub(super) struct Pace<'a> {
    /// Gives the pace now.
    look: Box<dyn FnMut() -> f64 + 'a>,
    best: f64,
    /// Looks for which measurements may still wait.
    patience: u32,
    /// Whether the machine was slow when the round's first side was measured.
    round: Option<bool>,
    /// Measurements that count; those of them that a slow machine made; and those whose round has both, or that saw it change.
    measured: u32,
    slow: u32,
    mixed: u32,
}

impl<'a> Pace<'a> {
    /// Looks at the machine for some seconds.
    pub(super) fn of(cores: Cores) -> Result<Self> {
        round_trips(cores)?;
        let look = move || {
            let pace = (0..TRIES).filter_map(|_| round_trips(cores).ok()).fold(0.0, f64::max);
            std::thread::sleep(PAUSE);
            pace
        };
        let mut this = Self::by(Box::new(look));
        for _ in 0..LOOKS {
            this.is_slow();
        }
        Ok(this)
    }

    /// By what tells the pace.
    pub(super) fn by(look: Box<dyn FnMut() -> f64 + 'a>) -> Self {
        Self { look, best: 0.0, patience: WAIT_LOOKS_OF_ALL, round: None, measured: 0, slow: 0, mixed: 0 }
    }

    /// The next round begins, whose sides are to meet the same machine.
    pub(super) fn begin_round(&mut self) {
        self.round = None;
    }

    /// Measures while the machine is as fast as at its best or, where that was waited for in vain, as it was for the round's
    /// first side; measures again if it did not stay so. Gives what was measured, and whether the machine was slow.
    pub(super) fn measure<T>(&mut self, mut run: impl FnMut() -> Option<T>) -> Option<(T, bool)> {
        let wanted = self.round.unwrap_or(false);
        let mut again = AGAIN_MAX;
        loop {
            let before = self.wait_until_slow_is(wanted);
            let figure = run()?;
            let is_mixed = self.is_slow() != before || self.round.is_some_and(|round| round != before);
            if is_mixed && again > 0 {
                again -= 1;
                continue;
            }
            self.round.get_or_insert(before);
            self.measured += 1;
            self.slow += u32::from(before);
            self.mixed += u32::from(is_mixed);
            return Some((figure, before));
        }
    }

    /// Gives whether the machine is slow, if possible as it is wanted.
    fn wait_until_slow_is(&mut self, wanted: bool) -> bool {
        let looks = WAIT_LOOKS.min(self.patience);
        let waited = (0..looks).find(|_| self.is_slow() == wanted);
        self.patience -= waited.unwrap_or(looks);
        if waited.is_some() { wanted } else { self.is_slow() }
    }

    /// One sentence for the table.
    pub(super) fn said(&self) -> String {
        let Self { measured, slow, mixed, .. } = self;
        let nanoseconds = 1e9 / self.best;
        format!(
            "A cache line went from core to core and back in {nanoseconds:.0} ns at best; the host had moved the cores so far \
             apart that it took twice as long in {slow} of {measured} measurements, and before, during or after {mixed} it moved \
             them, so that the other side of the round met another machine"
        )
    }

    fn is_slow(&mut self) -> bool {
        let now = (self.look)();
        self.best = self.best.max(now);
        now < self.best * SHARE_MIN
    }
}

/// That this machine has these cores, and this process may use them.
pub(super) fn check(cores: Cores) -> Result<()> {
    let bound = |core| std::thread::spawn(move || bind(core)).join().expect("it does not panic");
    bound(cores.target).and_then(|()| bound(cores.initiator))
}

/// Round trips of a cache line between the cores, in a second.
fn round_trips(cores: Cores) -> Result<f64> {
    let line = AtomicU64::new(0);
    let (asked, answered) = (|trip| 2 * trip + 1, |trip| 2 * trip + 2);
    let wait_for = |value| {
        while line.load(Ordering::Acquire) != value {
            core::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let bound = bind(cores.target);
            for trip in 0..ROUND_TRIPS {
                wait_for(asked(trip));
                line.store(answered(trip), Ordering::Release);
            }
            bound
        });
        let asking = scope.spawn(|| {
            let bound = bind(cores.initiator);
            let trip = |trip| {
                line.store(asked(trip), Ordering::Release);
                wait_for(answered(trip));
            };
            // The other side may still be starting.
            trip(0);
            let begun = Instant::now();
            (1..ROUND_TRIPS).for_each(trip);
            bound.map(|()| (ROUND_TRIPS - 1) as f64 / begun.elapsed().as_secs_f64())
        });
        answering.join().expect("it does not panic")?;
        asking.join().expect("it does not panic")
    })
}

fn bind(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).with_context(|| {
        format!("this process cannot be bound to core {core}: --cores names two that it may use")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_waits_for_the_pace_and_is_made_again_where_it_was_lost() {
        // Fast; slow, slow, fast, measured, slow; fast, measured, fast.
        let mut paces = [10.0, 3.0, 4.0, 9.0, 3.0, 9.0, 9.5].into_iter();
        let mut pace = Pace::by(Box::new(|| paces.next().unwrap()));
        assert!(!pace.is_slow());
        let mut figures = [1, 2].into_iter();
        assert_eq!(pace.measure(|| figures.next()), Some((2, false)));
        assert_eq!((pace.measured, pace.slow, pace.mixed), (1, 0, 0));
        assert!(pace.said().contains("in 0 of 1 measurements"), "{}", pace.said());
    }

    #[test]
    fn machine_that_stays_slow_is_measured_and_counted_and_waited_for_no_longer_than_all_may() {
        let mut looks = 0;
        let mut pace = Pace::by(Box::new(|| {
            looks += 1;
            if looks == 1 { 10.0 } else { 3.0 }
        }));
        assert!(!pace.is_slow());
        for _ in 0..1000 {
            pace.begin_round();
            assert_eq!(pace.measure(|| Some(())), Some(((), true)));
        }
        assert_eq!((pace.measured, pace.slow, pace.mixed), (1000, 1000, 0));
        assert_eq!(pace.measure(|| None::<()>), None, "nothing came of it");
        assert_eq!((pace.measured, pace.patience), (1000, 0));
        drop(pace);
        assert!(looks < WAIT_LOOKS_OF_ALL + 3000, "{looks}");
    }

    #[test]
    fn sides_of_a_round_are_measured_on_the_same_machine() {
        // Fast once, then slow for longer than one measurement waits; the second side finds it fast, and waits.
        let mut looks = 0;
        let mut pace = Pace::by(Box::new(|| {
            looks += 1;
            let is_fast = looks == 1 || (1204..1210).contains(&looks);
            if is_fast { 10.0 } else { 3.0 }
        }));
        assert!(!pace.is_slow());
        pace.begin_round();
        let mut measured = 0;
        for _ in 0..2 {
            let _ = pace.measure(|| {
                measured += 1;
                Some(())
            });
        }
        assert_eq!((measured, pace.slow, pace.mixed), (2, 2, 0));
    }
}
