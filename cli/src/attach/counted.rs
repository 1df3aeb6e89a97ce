//! What a disk's server has done: counted as operations go to the target and come back, for `nvmf top` and `nvmf info`.

use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Kinds of operations: reads, writes, the rest.
const KINDS: usize = 3;
/// Steps in which times are counted: eight to a doubling, from a microsecond to over four minutes.
const STEPS: usize = 8 * 28;
/// The tag of a flush that no request asked for.
const OWN_FLUSH: Tag = Tag(u64::MAX - 1);

/// Operations of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Kind {
    /// Those that ended.
    pub(crate) operations: u64,
    /// Bytes of those that succeeded.
    pub(crate) bytes: u64,
    /// How many failed.
    pub(crate) failed: u64,
    /// The time that all of them took together.
    pub(crate) total_us: u64,
    /// How many took so long: pairs of a step and a number, [`step_us`] says how long it is.
    pub(crate) times: Vec<(u16, u64)>,
}

/// What a disk's server has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Statistics {
    pub(crate) reads: Kind,
    pub(crate) writes: Kind,
    pub(crate) others: Kind,
    /// Operations under way.
    pub(crate) in_flight: u64,
    /// Clients of its socket.
    pub(crate) clients: u64,
    /// How often a path of its was connected again, on whichever of its connections.
    pub(crate) reconnects: u64,
    /// Threads that serve it, each over a connection of its own; 0 of an older version, which has one.
    pub(crate) threads: u64,
    /// Since when it counts, in milliseconds.
    pub(crate) uptime_ms: u64,
}

/// The same while it is counted, by each of the disk's threads for itself.
#[derive(Debug)]
pub(crate) struct Counters {
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
    clients: AtomicU64,
    /// Writes that ended, whatever became of them, on whichever thread: what of them is flushed is at least `flushed` of these. A
    /// flush by one thread is one of what all of them have written.
    written: AtomicU64,
    flushed: AtomicU64,
    start: Instant,
}

/// What one thread counts, and others read.
#[derive(Debug)]
struct ThreadCounters {
    kinds: [KindCounters; KINDS],
    in_flight: AtomicU64,
    reconnects: AtomicU64,
}

#[derive(Debug)]
struct KindCounters {
    operations: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    total_ns: AtomicU64,
    times: [AtomicU64; STEPS],
}

impl Default for KindCounters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            operations: zero(),
            bytes: zero(),
            failed: zero(),
            total_ns: zero(),
            times: core::array::from_fn(|_| zero()),
        }
    }
}

impl Default for Counters {
    fn default() -> Self {
        let [clients, written, flushed] = core::array::from_fn(|_| AtomicU64::new(0));
        Self { threads: Mutex::default(), clients, written, flushed, start: Instant::now() }
    }
}

impl Default for ThreadCounters {
    fn default() -> Self {
        let kinds = core::array::from_fn(|_| KindCounters::default());
        Self { kinds, in_flight: AtomicU64::new(0), reconnects: AtomicU64::new(0) }
    }
}

impl Counters {
    pub(crate) fn get(&self) -> Statistics {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sum = |of: fn(&ThreadCounters) -> &AtomicU64| threads.iter().map(|thread| read(of(thread))).sum();
        let [reads, writes, others] = core::array::from_fn(|kind| KindCounters::get(&threads, kind));
        let uptime_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (in_flight, reconnects) = (sum(|thread| &thread.in_flight), sum(|thread| &thread.reconnects));
        let (clients, threads) = (read(&self.clients), threads.len() as u64);
        Statistics { reads, writes, others, in_flight, clients, reconnects, threads, uptime_ms }
    }

    /// So many clients use its socket.
    pub(crate) fn set_clients(&self, clients: usize) {
        self.clients.store(clients as u64, Ordering::Relaxed);
    }
}

impl ThreadCounters {
    fn on_end(&self, operation: Begun, took: Duration, is_success: bool) {
        let kind = &self.kinds[usize::from(operation.kind)];
        add(&kind.operations, 1);
        if is_success {
            add(&kind.bytes, operation.bytes.into());
        } else {
            add(&kind.failed, 1);
        }
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&kind.total_ns, ns);
        add(&kind.times[step(ns / 1000)], 1);
    }
}

impl KindCounters {
    /// Those of all threads together.
    fn get(threads: &[Arc<ThreadCounters>], kind: usize) -> Kind {
        let of_kind = || threads.iter().map(|thread| &thread.kinds[kind]);
        let sum = |of: fn(&Self) -> &AtomicU64| of_kind().map(|kind| read(of(kind))).sum::<u64>();
        let step = |step| of_kind().map(|kind| read(&kind.times[step])).sum::<u64>();
        let times = (0..STEPS).map(|at| (at as u16, step(at))).filter(|(_, count)| *count > 0);
        Kind {
            operations: sum(|kind| &kind.operations),
            bytes: sum(|kind| &kind.bytes),
            failed: sum(|kind| &kind.failed),
            total_us: sum(|kind| &kind.total_ns) / 1000,
            times: times.collect(),
        }
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// One thread adds.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(read(counter).wrapping_add(by), Ordering::Relaxed);
}

/// The step that a time belongs to.
fn step(us: u64) -> usize {
    if us < 8 {
        return us as usize;
    }
    let doubling = us.ilog2() as usize;
    ((doubling - 2) * 8 + (us >> (doubling - 3) & 7) as usize).min(STEPS - 1)
}

/// The shortest time of a step, in microseconds.
pub(crate) fn step_us(step: u16) -> u64 {
    match u64::from(step) {
        step @ 0..8 => step,
        step => (8 + step % 8) << (step / 8 - 1),
    }
}

/// An operation under way.
#[derive(Debug, Clone, Copy)]
struct Begun {
    /// Its server's, which may be any number.
    tag: Tag,
    at: Duration,
    bytes: u32,
    kind: u8,
    leaves: Leaves,
    /// It may change the disk.
    changes: bool,
}

/// What an operation that succeeded leaves of the disk's cache.
#[derive(Debug, Clone, Copy)]
enum Leaves {
    /// What there was.
    AsItWas,
    /// One write more.
    Written,
    /// None of the writes that had ended when it began: so many.
    Flushed(u64),
}

impl Begun {
    fn new(tag: Tag, at: Duration, op: &BlockOp, written: &AtomicU64) -> Self {
        let (kind, len) = match op {
            BlockOp::Read { into, .. } => (0, into.len),
            BlockOp::Write { from, .. } => (1, from.len),
            _ => (2, 0),
        };
        let leaves = match op {
            BlockOp::Flush => Leaves::Flushed(read(written)),
            BlockOp::Read { .. } | BlockOp::Compare { .. } | BlockOp::Verify { .. } => Leaves::AsItWas,
            BlockOp::Write { fua: true, .. } => Leaves::AsItWas,
            _ => Leaves::Written,
        };
        let changes = kind == 1 || matches!(leaves, Leaves::Written);
        Self { tag, at, bytes: u32::try_from(len).unwrap_or(u32::MAX), kind, leaves, changes }
    }
}

/// A backend whose operations are counted. It reads the clock at most twice a turn.
///
/// Each operation has a slot while it is under way, whose number is its tag for `inner`: whatever tags the servers have, none
/// is missed, and what is kept of them is as much as `inner` has had under way at once.
#[derive(Debug)]
pub(crate) struct Counted<B> {
    pub(crate) inner: B,
    counters: Arc<Counters>,
    own: Arc<ThreadCounters>,
    /// By slot; `None` where there is none.
    begun: Vec<Option<Begun>>,
    /// The slots without an operation. The one that was used last is used next.
    free: Vec<usize>,
    in_flight: u64,
    /// Those of them that may change the disk.
    changes_in_flight: u64,
    /// The device that is to be flushed as soon as there is room for that.
    to_flush: Option<DeviceId>,
    /// Flushes that no request asked for, under way: of two changes there may be two.
    own_flushes: u32,
    /// The time at which this turn's operations begin, once it was looked at.
    now: Option<Duration>,
}

impl<B> Counted<B> {
    pub(crate) fn new(inner: B, counters: Arc<Counters>) -> Self {
        let own = Arc::<ThreadCounters>::default();
        counters.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&own));
        Self {
            inner,
            counters,
            own,
            begun: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            changes_in_flight: 0,
            to_flush: None,
            own_flushes: 0,
            now: None,
        }
    }

    /// There may be writes of an earlier server that nobody flushed.
    pub(crate) fn with_writes_of_another(self) -> Self {
        self.counters.written.fetch_max(1, Ordering::Relaxed);
        self
    }

    /// A path was connected again so often.
    pub(crate) fn set_reconnects(&self, reconnects: u64) {
        self.own.reconnects.store(reconnects, Ordering::Relaxed);
    }

    /// Has a device flush what has been written so far, for nobody who asked for it: its failure is logged.
    pub(crate) fn flush_cache(&mut self, device: DeviceId)
    where
        B: Backend,
    {
        let is_full = self.submit(OWN_FLUSH, device, BlockOp::Flush).is_err();
        // It may be long until the next turn.
        self.now = None;
        self.own_flushes += u32::from(!is_full);
        self.to_flush = is_full.then_some(device);
        self.inner.flush();
    }

    /// Whether a change of the disk is under way, or something may have been written that the disk keeps in its cache if it has one.
    pub(crate) fn has_unfinished(&self, has_cache: bool) -> bool {
        self.changes_in_flight > 0 || has_cache && read(&self.counters.written) > read(&self.counters.flushed)
    }
}

impl<B: Backend> Backend for Counted<B> {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.inner.register(memory)
    }

    fn deregister(&mut self, region: RegionId) {
        self.inner.deregister(region);
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.inner.geometry(device)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        let now = *self.now.get_or_insert_with(|| self.counters.start.elapsed());
        let begun = Begun::new(tag, now, &op, &self.counters.written);
        let slot = self.free.last().copied().unwrap_or(self.begun.len());
        self.inner.submit(Tag(slot as u64), device, op)?;
        match self.free.pop() {
            Some(slot) => self.begun[slot] = Some(begun),
            None => self.begun.push(Some(begun)),
        }
        self.in_flight += 1;
        self.changes_in_flight += u64::from(begun.changes);
        self.own.in_flight.store(self.in_flight, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.inner.poll(completions);
        self.now = None;
        if completions.len() == before {
            return;
        }
        let now = self.counters.start.elapsed();
        for completion in &mut completions[before..] {
            let slot = completion.tag.0 as usize;
            let begun = self.begun.get_mut(slot).and_then(Option::take);
            debug_assert!(begun.is_some(), "an operation has ended that was not under way: {completion:?}");
            let Some(begun) = begun else { continue };
            self.free.push(slot);
            completion.tag = begun.tag;
            self.own.on_end(begun, now.saturating_sub(begun.at), completion.result.is_ok());
            self.in_flight = self.in_flight.saturating_sub(1);
            self.changes_in_flight = self.changes_in_flight.saturating_sub(begun.changes.into());
            match begun.leaves {
                Leaves::AsItWas => {}
                Leaves::Written => {
                    self.counters.written.fetch_add(1, Ordering::Relaxed);
                }
                Leaves::Flushed(written) if completion.result.is_ok() => {
                    self.counters.flushed.fetch_max(written, Ordering::Relaxed);
                }
                Leaves::Flushed(_) => {}
            }
        }
        self.own.in_flight.store(self.in_flight, Ordering::Relaxed);
        // The servers know of none of these.
        while self.own_flushes > 0
            && let Some(own) = completions[before..].iter().position(|it| it.tag == OWN_FLUSH)
        {
            self.own_flushes -= 1;
            if let Err(error) = completions.swap_remove(before + own).result {
                tracing::error!(
                    "what was written before the disk's write cache changed may be lost: a flush failed: {error}"
                );
            }
        }
        if let Some(device) = self.to_flush.take() {
            self.flush_cache(device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_block::{BlockRange, Buffer};

    #[test]
    fn steps_are_in_order_and_a_time_is_in_its_own() {
        for us in [0, 1, 7, 8, 9, 15, 16, 17, 100, 999, 1000, 4096, 1_000_000] {
            let at = step(us) as u16;
            assert!(step_us(at) <= us && us < step_us(at + 1), "{us}: {at}");
        }
        assert!((0..STEPS as u16 - 1).all(|at| step_us(at) < step_us(at + 1)));
        assert_eq!(step(u64::MAX), STEPS - 1);
    }

    /// A device whose operations all end at the next turn.
    #[derive(Default)]
    struct AtOnce(Vec<Tag>);

    impl Backend for AtOnce {
        fn register(&mut self, _: &Memory) -> Result<RegionId, BlockError> {
            Err(BlockError::Unsupported)
        }

        fn deregister(&mut self, _: RegionId) {}

        fn geometry(&self, _: DeviceId) -> Option<Geometry> {
            None
        }

        fn submit(&mut self, tag: Tag, _: DeviceId, _: BlockOp) -> Result<(), Full> {
            self.0.push(tag);
            Ok(())
        }

        fn flush(&mut self) {}

        fn poll(&mut self, completions: &mut Vec<Completion>) {
            completions.extend(self.0.drain(..).map(|tag| Completion { tag, result: Ok(()) }));
        }
    }

    #[test]
    fn flushes_that_no_request_asked_for_are_told_to_nobody() {
        let mut counted = Counted::new(AtOnce::default(), Arc::default());
        let device = DeviceId(1);
        counted.flush_cache(device);
        counted.submit(Tag(7), device, BlockOp::Flush).unwrap();
        counted.flush_cache(device);
        let mut completions = Vec::new();
        counted.poll(&mut completions);
        assert_eq!(completions.iter().map(|it| it.tag).collect::<Vec<_>>(), [Tag(7)]);
    }

    /// Tags as servers have them: of a ublk device, of many NBD clients, and of a guest's second queue.
    const TAGS: [Tag; 3] = [Tag(1), Tag(1 << 20), Tag(1 << 32 | 16 << 16 | 0xffff)];

    #[test]
    fn operations_are_counted_whatever_their_tags() {
        let counters = Arc::<Counters>::default();
        let mut counted = Counted::new(AtOnce::default(), Arc::clone(&counters));
        let from = Buffer { region: RegionId(0), offset: 0, len: 512 };
        let write = BlockOp::Write { range: BlockRange::new(0, 1), from, fua: false };
        // Operations of one request have the same.
        let tags = [TAGS[0], TAGS[1], TAGS[2], TAGS[1]];
        let mut completions = Vec::new();
        for round in 1..=2 {
            tags.iter().for_each(|tag| counted.submit(*tag, DeviceId(1), write).unwrap());
            assert_eq!(counters.get().in_flight, 4);
            counted.poll(&mut completions);
            assert_eq!(completions.drain(..).map(|it| it.tag).collect::<Vec<_>>(), tags);
            let now = counters.get();
            assert_eq!(
                (now.in_flight, now.writes.operations, now.writes.bytes),
                (0, 4 * round, 2048 * round)
            );
        }
        assert_eq!(counted.begun.len(), 4, "slots are used again");
        for tag in TAGS {
            counted.submit(tag, DeviceId(1), write).unwrap();
            counted.poll(&mut completions);
            assert!(counted.has_unfinished(true), "{tag:?} wrote");
            counted.submit(tag, DeviceId(1), BlockOp::Flush).unwrap();
            counted.poll(&mut completions);
            assert!(!counted.has_unfinished(true), "{tag:?} flushed");
        }
    }

    #[test]
    fn only_changes_that_are_under_way_may_be_lost() {
        let (range, into) = (BlockRange::new(0, 1), Buffer { region: RegionId(0), offset: 0, len: 512 });
        let write = |fua| BlockOp::Write { range, from: into, fua };
        let zeroes = BlockOp::WriteZeroes { range, deallocate: false, fua: false };
        let read = BlockOp::Read { range, into };
        for (op, may_lose) in [
            (read, false),
            (BlockOp::Flush, false),
            (write(false), true),
            (write(true), true),
            (zeroes, true),
        ] {
            for tag in TAGS {
                let mut counted = Counted::new(AtOnce::default(), Arc::default());
                counted.submit(tag, DeviceId(1), op).unwrap();
                assert_eq!(counted.has_unfinished(false), may_lose, "{op:?} is under way");
                counted.poll(&mut Vec::new());
                assert!(!counted.has_unfinished(false), "{op:?} has ended");
            }
        }
    }

    #[test]
    fn statistics_of_another_version_are_read_as_far_as_they_are_understood() {
        let read: Statistics =
            serde_json::from_str(r#"{"reads":{"operations":3,"new":1},"newer":2}"#).unwrap();
        assert_eq!((read.reads.operations, read.writes.operations), (3, 0));
    }
}
