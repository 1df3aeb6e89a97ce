//! Operations that fail.

use crate::rng::Rng;
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use std::collections::VecDeque;

/// Which operations fail, in chances of a million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultOptions {
    /// Reads, compares and verifies that fail with [`BlockError::Medium`].
    pub read_error_ppm: u32,
    /// Writes, zeroes and deallocations that fail with [`BlockError::Medium`], untried.
    pub write_error_ppm: u32,
    /// Flushes that fail with [`BlockError::Medium`], untried.
    pub flush_error_ppm: u32,
    /// Submissions that are told [`Full`].
    pub full_ppm: u32,
}

/// Fails operations by chance, from a seed. An operation that it fails never reaches the backend behind it.
pub struct Fault<B> {
    inner: B,
    options: FaultOptions,
    rng: Rng,
    failed: VecDeque<Completion>,
}

impl<B: Backend> Fault<B> {
    /// Fails operations of `inner`.
    pub fn new(inner: B, options: FaultOptions, seed: u64) -> Self {
        Self { inner, options, rng: Rng::new(seed), failed: VecDeque::new() }
    }

    /// The backend behind it.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

impl<B: Backend> Backend for Fault<B> {
    /// Passthrough.
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.inner.register(memory)
    }

    /// Passthrough.
    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.inner.geometry(device)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        if self.rng.happens(self.options.full_ppm) {
            return Err(Full);
        }
        let chance = match op {
            BlockOp::Flush => self.options.flush_error_ppm,
            _ if op.writes() => self.options.write_error_ppm,
            _ => self.options.read_error_ppm,
        };
        if self.rng.happens(chance) {
            self.failed.push_back(Completion { tag, result: Err(BlockError::Medium) });
            return Ok(());
        }
        self.inner.submit(tag, device, op)
    }

    /// Passthrough.
    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        while completions.len() < completions.capacity()
            && let Some(completion) = self.failed.pop_front()
        {
            completions.push(completion);
        }
        self.inner.poll(completions);
    }
}
