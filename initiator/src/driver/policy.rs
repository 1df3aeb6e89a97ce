//! Which path an operation goes to, of those that lead to its namespace.

use core::time::Duration;

/// Which path an operation goes to, of those that lead to its namespace equally well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PathPolicy {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest operations, waiting or in flight.
    #[default]
    QueueDepth,
    /// The one that is expected to answer first: its operations take so long, and it has so many.
    Latency,
}

/// What nvme-cli and the kernel call it.
impl core::fmt::Display for PathPolicy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::RoundRobin => "round-robin",
            Self::QueueDepth => "queue-depth",
            Self::Latency => "latency",
        })
    }
}

/// Paths of one driver.
pub const PATHS_MAX: usize = 64;

/// A set of paths, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PathSet(u64);

impl PathSet {
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn contains(self, path: usize) -> bool {
        self.0 >> path & 1 != 0
    }

    pub(super) fn insert(&mut self, path: usize) {
        self.0 |= 1 << path;
    }

    pub(super) fn remove(&mut self, path: usize) {
        self.0 &= !(1 << path);
    }

    /// The paths of both sets.
    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The paths that are in the other set as well.
    pub(super) fn only(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The paths that are not in the other set.
    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn has_other_than(self, path: usize) -> bool {
        self.0 & !(1 << path) != 0
    }

    /// The set without this path, unless nothing is left then.
    pub(super) fn rather_without(self, path: usize) -> Self {
        let rest = Self(self.0 & !(1 << path));
        if rest.is_empty() { self } else { rest }
    }

    /// The first path.
    pub(super) fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    fn is_single(self) -> bool {
        self.0 & self.0.wrapping_sub(1) == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let first = rest.first()?;
            rest.remove(first);
            Some(first)
        })
    }

    /// The first path behind this one, or else the first.
    fn after(self, path: usize) -> Option<usize> {
        let above = u64::MAX.checked_shl(path as u32 + 1).unwrap_or(0);
        Self(self.0 & above).first().or_else(|| self.first())
    }
}

/// Every so many operations go to the next path, so that a path that was slow is measured again.
const EXPLORE: u32 = 64;
/// A measurement counts for one part in so many.
const SMOOTHING: u64 = 8;

/// A path, to choose by.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// Operations, waiting or in flight.
    operations: u32,
    /// How long one takes, in nanoseconds; 0 before the first.
    latency: u64,
}

/// Chooses paths.
#[derive(Debug)]
pub(super) struct Chooser {
    policy: PathPolicy,
    loads: Vec<Load>,
    last: usize,
    chosen: u32,
}

impl Chooser {
    pub(super) fn new(policy: PathPolicy) -> Self {
        Self { policy, loads: Vec::new(), last: 0, chosen: 0 }
    }

    pub(super) fn add_path(&mut self) {
        self.loads.push(Load::default());
    }

    /// A path of this set; `None` when it is empty.
    pub(super) fn choose(&mut self, set: PathSet) -> Option<usize> {
        if set.is_single() {
            return set.first();
        }
        let load = |path: &usize| self.loads[*path].operations;
        let chosen = match self.policy {
            PathPolicy::RoundRobin => set.after(self.last),
            PathPolicy::QueueDepth => set.iter().min_by_key(load),
            PathPolicy::Latency => {
                self.chosen = self.chosen.wrapping_add(1);
                let expected = |path: &usize| self.loads[*path].latency.max(1) * u64::from(load(path) + 1);
                match self.chosen % EXPLORE {
                    0 => set.after(self.last),
                    _ => set.iter().min_by_key(expected),
                }
            }
        };
        self.last = chosen.unwrap_or(self.last);
        chosen
    }

    pub(super) fn on_begin(&mut self, path: usize) {
        self.loads[path].operations += 1;
    }

    pub(super) fn on_end(&mut self, path: usize) {
        self.loads[path].operations -= 1;
    }

    /// Whether [`Chooser::on_measured`] is of use.
    pub(super) fn measures(&self) -> bool {
        self.policy == PathPolicy::Latency && self.loads.len() > 1
    }

    /// An operation on this path took so long.
    pub(super) fn on_measured(&mut self, path: usize, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).clamp(1, u64::from(u32::MAX) << 8);
        let latency = &mut self.loads[path].latency;
        *latency = if *latency == 0 { took } else { *latency - *latency / SMOOTHING + took / SMOOTHING };
    }

    /// Operations on this path, waiting or in flight.
    pub(super) fn operations(&self, path: usize) -> u32 {
        self.loads[path].operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chooser(policy: PathPolicy) -> Chooser {
        let mut chooser = Chooser::new(policy);
        (0..PATHS_MAX).for_each(|_| chooser.add_path());
        chooser
    }

    #[test]
    fn every_policy_chooses_from_the_set_only() {
        for policy in [PathPolicy::RoundRobin, PathPolicy::QueueDepth, PathPolicy::Latency] {
            let mut chooser = chooser(policy);
            assert_eq!(chooser.choose(PathSet::default()), None);
            for bits in [1, 1 << 63, 0b1010, u64::MAX] {
                for _ in 0..200 {
                    let path = chooser.choose(PathSet(bits)).unwrap();
                    assert!(PathSet(bits).contains(path), "{policy:?}: {path} is not in {bits:b}");
                    chooser.on_begin(path);
                }
            }
        }
    }

    #[test]
    fn round_robin_takes_turns() {
        let mut chooser = chooser(PathPolicy::RoundRobin);
        let turns: Vec<_> = (0..5).map(|_| chooser.choose(PathSet(0b1011)).unwrap()).collect();
        assert_eq!(turns, [1, 3, 0, 1, 3]);
    }

    #[test]
    fn queue_depth_prefers_the_path_with_fewer_operations() {
        let mut chooser = chooser(PathPolicy::QueueDepth);
        chooser.on_begin(0);
        chooser.on_begin(0);
        chooser.on_begin(1);
        assert_eq!(chooser.choose(PathSet(0b11)), Some(1));
        chooser.on_end(0);
        chooser.on_end(0);
        assert_eq!(chooser.choose(PathSet(0b11)), Some(0));
    }

    #[test]
    fn latency_prefers_the_faster_path_and_measures_the_other_again() {
        let mut chooser = chooser(PathPolicy::Latency);
        chooser.on_measured(0, Duration::from_millis(5));
        chooser.on_measured(1, Duration::from_micros(100));
        let chosen: Vec<_> = (0..640).map(|_| chooser.choose(PathSet(0b11)).unwrap()).collect();
        let slow = chosen.iter().filter(|&&path| path == 0).count();
        assert!((1..64).contains(&slow), "{slow}");
    }
}
