//! Completions that come late.

use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::time::Duration;

/// Holds every completion back for a fixed time, by the clock that [`Delay::advance`] moves.
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
        Self { inner, delay, now: Duration::ZERO, held: VecDeque::new(), fresh: Vec::with_capacity(64) }
    }

    /// Moves the clock; it only ever grows.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }
}

impl<B: Backend> Backend for Delay<B> {
    /// Passthrough.
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.inner.register(memory)
    }

    /// Passthrough.
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
        self.inner.poll(&mut self.fresh);
        let due = self.now + self.delay;
        self.held.extend(self.fresh.drain(..).map(|completion| (due, completion)));
        while completions.len() < completions.capacity()
            && self.held.front().is_some_and(|(due, _)| *due <= self.now)
            && let Some((_, completion)) = self.held.pop_front()
        {
            completions.push(completion);
        }
    }
}
