//! Injected failures.

use super::OWN_MAX;
use crate::rng::Rng;
use nvmf_block::{
    Backend, BlockError, BlockOp, BlockRange, Completion, DeviceId, Full, Geometry, RegionId, Tag,
};
use nvmf_memory::Memory;
use std::collections::VecDeque;

/// How often operations fail, in parts per million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultOptions {
    /// Reads, compares and verifies that fail with [`BlockError::Medium`].
    pub read_error_ppm: u32,
    /// Writes, zeroes and deallocations that fail with [`BlockError::Medium`], without being tried.
    pub write_error_ppm: u32,
    /// Flushes that fail with [`BlockError::Medium`], without being tried.
    pub flush_error_ppm: u32,
    /// Submissions that return [`Full`].
    pub full_ppm: u32,
}

/// Fails operations at random, from a seed, and every operation on chosen blocks. The wrapped backend never sees an
/// operation that fails here.
pub struct Fault<B> {
    inner: B,
    options: FaultOptions,
    rng: Rng,
    bad: Vec<(DeviceId, BlockRange, BlockError)>,
    failed: VecDeque<Completion>,
}

impl<B: Backend> Fault<B> {
    /// Fails operations of `inner`.
    pub fn new(inner: B, options: FaultOptions, seed: u64) -> Self {
        let failed = VecDeque::with_capacity(OWN_MAX);
        Self { inner, options, rng: Rng::new(seed), bad: Vec::new(), failed }
    }

    /// From now on, operations on any of these blocks fail with `error`.
    pub fn fail(&mut self, device: DeviceId, range: BlockRange, error: BlockError) {
        self.bad.push((device, range, error));
    }

    /// Clears the chosen blocks. Random failures continue.
    pub fn heal(&mut self) {
        self.bad.clear();
    }

    fn fate(&mut self, device: DeviceId, op: &BlockOp) -> Option<BlockError> {
        let touched = |bad: &BlockRange| op.range().is_some_and(|range| range.overlaps(*bad));
        let bad = self.bad.iter().find(|(on, bad, _)| *on == device && touched(bad));
        let chance = match op {
            BlockOp::Flush => self.options.flush_error_ppm,
            _ if op.writes() => self.options.write_error_ppm,
            _ => self.options.read_error_ppm,
        };
        let by_chance = self.rng.happens(chance).then_some(BlockError::Medium);
        bad.map(|(_, _, error)| *error).or(by_chance)
    }

    /// The wrapped backend.
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
    fn deregister(&mut self, region: RegionId) {
        self.inner.deregister(region);
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.inner.geometry(device)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        if self.failed.len() == OWN_MAX || self.rng.happens(self.options.full_ppm) {
            return Err(Full);
        }
        if let Some(error) = self.fate(device, &op) {
            self.failed.push_back(Completion { tag, result: Err(error) });
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
