//! Shared receive queues.

use crate::completion::Name;
use crate::ffi::{self, Device, SharedReceiveQueue};
use nvmf_rdma::{LocalKey, PostError, WorkRequestId};
use std::io;
use std::sync::Arc;

/// A shared receive queue and what is posted to it.
pub(crate) struct SharedQueue {
    pub(crate) hw: SharedReceiveQueue,
    index: u16,
    /// By slot: the caller's name, and the region that it lands in.
    slots: Vec<Option<(WorkRequestId, LocalKey)>>,
    free: Vec<u32>,
    is_dirty: bool,
}

impl SharedQueue {
    pub(crate) fn new(device: &Arc<Device>, index: u16, capacity: u32) -> io::Result<Self> {
        let hw = SharedReceiveQueue::new(device, capacity)?;
        let slots = vec![None; capacity as usize];
        Ok(Self { hw, index, slots, free: (0..capacity).rev().collect(), is_dirty: false })
    }

    pub(crate) fn post(
        &mut self,
        id: WorkRequestId,
        buffer: ffi::Sge,
        region: LocalKey,
    ) -> Result<(), PostError> {
        let slot = self.free.pop().ok_or(PostError::Full)?;
        self.slots[slot as usize] = Some((id, region));
        self.hw.push(Name::Shared(self.index, slot).encode(), buffer);
        self.is_dirty = true;
        Ok(())
    }

    /// Rings the doorbell. What the device refuses stays posted and never completes, as with a queue that broke.
    pub(crate) fn ring(&mut self) {
        if core::mem::take(&mut self.is_dirty) {
            let _ = self.hw.ring();
        }
    }

    /// How many can be posted.
    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Takes a receive that completed.
    pub(crate) fn take(&mut self, slot: u32) -> Option<WorkRequestId> {
        let (id, _) = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(id)
    }

    /// Whether a receive is posted that lands in the region.
    pub(crate) fn names(&self, region: LocalKey) -> bool {
        self.slots.iter().flatten().any(|&(_, other)| other == region)
    }
}
