//! Delayed completions.

use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::time::Duration;

/// Completions that are delayed at once. Others wait in the wrapped backend.
const HELD_MAX: usize = 1024;
/// Completions that are polled at once.
const BATCH: usize = 64;

/// Delays every completion by a fixed time, on the clock that [`Delay::advance`] moves.
pub struct Delay<B> {
    inner: B,
    delay: Duration,
    now: Duration,
    held: VecDeque<(Duration, Completion)>,
    fresh: Vec<Completion>,
}

impl<B: Backend> Delay<B> {
    /// Delays what `inner` completes.
    pub fn new(inner: B, delay: Duration) -> Self {
        let held = VecDeque::with_capacity(HELD_MAX + BATCH);
        Self { inner, delay, now: Duration::ZERO, held, fresh: Vec::with_capacity(BATCH) }
    }

    /// Advances the clock to `now`; it never goes back.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// When the next delayed completion is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.held.front().map(|(due, _)| *due)
    }

    /// The wrapped backend.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

impl<B: Backend> Backend for Delay<B> {
    /// Passthrough.
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.inner.register(memory)
    }

    /// Passthrough.
    fn deregister(&mut self, region: RegionId) {
        self.inner.deregister(region);
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.inner.geometry(device)
    }

    /// Passthrough.
    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        self.inner.submit(tag, device, op)
    }

    /// Passthrough.
    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let due = self.now + self.delay;
        while self.held.len() < HELD_MAX {
            self.inner.poll(&mut self.fresh);
            if self.fresh.is_empty() {
                break;
            }
            self.held.extend(self.fresh.drain(..).map(|completion| (due, completion)));
        }
        while completions.len() < completions.capacity()
            && self.held.front().is_some_and(|(due, _)| *due <= self.now)
            && let Some((_, completion)) = self.held.pop_front()
        {
            completions.push(completion);
        }
    }
}
