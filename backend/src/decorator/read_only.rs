//! Write protection.

use super::OWN_MAX;
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use std::collections::VecDeque;

/// Refuses operations that would change a device.
pub struct ReadOnly<B> {
    inner: B,
    refused: VecDeque<Completion>,
}

impl<B: Backend> ReadOnly<B> {
    /// Write-protects all devices of `inner`.
    pub fn new(inner: B) -> Self {
        Self { inner, refused: VecDeque::with_capacity(OWN_MAX) }
    }

    /// The wrapped backend.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

impl<B: Backend> Backend for ReadOnly<B> {
    /// Passthrough.
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.inner.register(memory)
    }

    fn deregister(&mut self, region: RegionId) {
        self.inner.deregister(region);
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.inner.geometry(device).map(|geometry| Geometry { read_only: true, ..geometry })
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        // For a device that does not exist, the wrapped backend answers.
        if op.writes() && self.inner.geometry(device).is_some() {
            if self.refused.len() == OWN_MAX {
                return Err(Full);
            }
            self.refused.push_back(Completion { tag, result: Err(BlockError::ReadOnly) });
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
            && let Some(completion) = self.refused.pop_front()
        {
            completions.push(completion);
        }
        self.inner.poll(completions);
    }
}
