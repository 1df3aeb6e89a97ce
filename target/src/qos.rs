//! Limits of namespaces and hosts: token buckets that all workers share, without a lock.
//!
//! A bucket is one number: the time up to which what was taken is paid for at the configured rate. It may lie ahead of
//! now by the burst; then commands wait. So one of any size begins as soon as those before it are paid for, and pays
//! for itself afterwards.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use nvmf_backend::DEVICES_MAX;
use nvmf_block::DeviceId;
use nvmf_subsystem::{Association, Nqn};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Parts of a nanosecond that time is counted in here: enough for rates of millions, and for 36 years.
const TICKS: u128 = 16;

/// What one namespace, or one host of a subsystem, may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Commands a second.
    pub iops: Option<u64>,
    /// Bytes of data a second, in either direction.
    pub bytes_per_second: Option<u64>,
    /// What was left unused for so long may be taken at once.
    pub burst: Duration,
}

/// A limit, and what has been used of it.
#[derive(Debug)]
pub struct Limit {
    rates: Rates,
    commands: Option<Bucket>,
    bytes: Option<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Units a second.
    rate: u64,
    burst: u64,
    /// In ticks of the workers' clock.
    paid_until: AtomicU64,
}

impl Bucket {
    fn new(rate: u64, burst: Duration) -> Self {
        Self { rate: rate.max(1), burst: ticks(burst), paid_until: AtomicU64::new(0) }
    }

    /// From when on something may be taken.
    fn opens_at(&self) -> u64 {
        self.paid_until.load(Ordering::Relaxed).saturating_sub(self.burst)
    }

    fn take(&self, now: u64, units: u64) {
        let cost = u128::from(units) * u128::from(ticks(Duration::from_secs(1))) / u128::from(self.rate);
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let later = |until: u64| Some(until.max(now).saturating_add(cost));
        let _ = self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }
}

fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() * TICKS).unwrap_or(u64::MAX)
}

impl Limit {
    /// A limit of which nothing is used.
    #[must_use]
    pub fn new(rates: Rates) -> Self {
        let bucket = |rate| Bucket::new(rate, rates.burst);
        Self { rates, commands: rates.iops.map(bucket), bytes: rates.bytes_per_second.map(bucket) }
    }

    /// What it allows.
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.rates
    }

    /// When the next command may begin.
    #[must_use]
    pub fn opens_at(&self) -> Duration {
        let opens = self.commands.iter().chain(&self.bytes).map(Bucket::opens_at).max().unwrap_or(0);
        // Rounded up: at that time it is open.
        Duration::from_nanos((u128::from(opens).div_ceil(TICKS)).try_into().unwrap_or(u64::MAX))
    }

    /// Takes a command with so many bytes of data, if it may begin now. Workers that ask at the same moment may take one
    /// each; it is paid for all the same.
    pub fn take(&self, now: Duration, bytes: u32) -> bool {
        if now < self.opens_at() {
            return false;
        }
        let now = ticks(now);
        self.commands.iter().for_each(|commands| commands.take(now, 1));
        self.bytes.iter().for_each(|bucket| bucket.take(now, bytes.into()));
        true
    }
}

/// All limits: immutable, replaced as a whole. Limits that stay are shared with the table before.
#[derive(Debug, Default)]
pub struct LimitTable {
    limits: Vec<Arc<Limit>>,
    /// By the slot of the device.
    devices: Vec<Option<(DeviceId, u16)>>,
    /// By subsystem and host.
    hosts: BTreeMap<(Nqn, Nqn), u16>,
}

impl LimitTable {
    /// A table without limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the limit of a namespace, by its device.
    pub fn limit_device(&mut self, device: DeviceId, limit: Arc<Limit>) {
        let number = self.add(limit);
        self.devices.resize(DEVICES_MAX as usize, None);
        self.devices[(device.0 % DEVICES_MAX) as usize] = Some((device, number));
    }

    /// Adds the limit of a host at a subsystem: of all its controllers there together.
    pub fn limit_host(&mut self, subsystem: Nqn, host: Nqn, limit: Arc<Limit>) {
        let number = self.add(limit);
        self.hosts.insert((subsystem, host), number);
    }

    fn add(&mut self, limit: Arc<Limit>) -> u16 {
        self.limits.push(limit);
        u16::try_from(self.limits.len() - 1).expect("few thousand limits")
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// How many there are: they are numbered from 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// The limit of this number.
    #[must_use]
    pub fn limit(&self, number: u16) -> &Limit {
        &self.limits[usize::from(number)]
    }

    /// The number of a device's limit.
    #[must_use]
    pub fn of_device(&self, device: DeviceId) -> Option<u16> {
        let (limited, number) = (*self.devices.get((device.0 % DEVICES_MAX) as usize)?)?;
        (limited == device).then_some(number)
    }

    /// The number of the limit of an association's host.
    #[must_use]
    pub fn of_host(&self, association: &Association) -> Option<u16> {
        self.hosts.get(&(*association.subsystem_nqn(), *association.host_nqn())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rates(iops: Option<u64>, bytes_per_second: Option<u64>) -> Rates {
        Rates { iops, bytes_per_second, burst: SECOND / 10 }
    }

    /// Takes what it may of commands of so many bytes, for so long from `from` on; says how many.
    fn taken(limit: &Limit, from: Duration, time: Duration, bytes: u32) -> u64 {
        let (mut now, mut count) = (from, 0);
        while now < from + time {
            if limit.take(now, bytes) {
                count += 1;
            } else {
                now = limit.opens_at();
            }
        }
        count
    }

    #[test]
    fn rate_and_burst_are_kept() {
        for iops in [1, 7, 1000, 300_000, 3_000_000] {
            let limit = Limit::new(rates(Some(iops), None));
            let first = taken(&limit, 5 * SECOND, SECOND, 4096);
            let burst = iops + iops / 10 + 1;
            assert!(first.abs_diff(burst) <= 1 + burst / 1000, "{iops}: {first}");
            let second = taken(&limit, 6 * SECOND, SECOND, 4096);
            assert!(second.abs_diff(iops) <= 1 + iops / 1000, "{iops}: {second}");
        }
    }

    #[test]
    fn the_stricter_of_commands_and_bytes_counts() {
        let limit = Limit::new(rates(Some(1000), Some(1 << 20)));
        let _ = taken(&limit, SECOND, SECOND, 65536);
        assert_eq!(taken(&limit, 2 * SECOND, SECOND, 65536), 16);
        let limit = Limit::new(rates(Some(10), Some(1 << 30)));
        let _ = taken(&limit, SECOND, SECOND, 65536);
        assert_eq!(taken(&limit, 2 * SECOND, SECOND, 65536), 10);
    }

    #[test]
    fn command_larger_than_the_burst_begins_and_is_paid_for() {
        let limit = Limit::new(rates(None, Some(1 << 20)));
        assert!(limit.take(SECOND, 1 << 20));
        assert!(limit.opens_at() > SECOND + SECOND * 8 / 10);
        assert!(!limit.take(SECOND + SECOND / 2, 1));
        assert!(limit.take(2 * SECOND, 1));
    }

    #[test]
    fn workers_that_take_at_once_keep_the_rate_together() {
        let limit = Arc::new(Limit::new(rates(Some(1_000_000), None)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let limit = Arc::clone(&limit);
                std::thread::spawn(move || {
                    let takes = (0..200_000).filter(|_| limit.take(SECOND, 1));
                    takes.count()
                })
            })
            .collect();
        let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!((100_000..=100_008).contains(&taken), "{taken}");
    }
}
