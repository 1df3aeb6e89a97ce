//! Shared receive queues.

use crate::completion::Name;
use crate::ffi::{self, Device, SharedReceiveQueue};
use nvmf_rdma::{PostError, WorkRequestId};
use std::io;
use std::rc::Rc;

/// A shared receive queue and what is posted to it.
pub(crate) struct SharedQueue {
    pub(crate) hw: SharedReceiveQueue,
    index: u16,
    /// By slot: the caller's name, and the how manieth receive it is.
    slots: Vec<Option<(WorkRequestId, u64)>>,
    free: Vec<u32>,
    posted: u64,
    is_dirty: bool,
}

impl SharedQueue {
    pub(crate) fn new(device: &Rc<Device>, index: u16, capacity: u32) -> io::Result<Self> {
        let hw = SharedReceiveQueue::new(device, capacity)?;
        let slots = vec![None; capacity as usize];
        Ok(Self { hw, index, slots, free: (0..capacity).rev().collect(), posted: 0, is_dirty: false })
    }

    pub(crate) fn post(&mut self, id: WorkRequestId, buffer: ffi::Sge) -> Result<(), PostError> {
        let slot = self.free.pop().ok_or(PostError::Full)?;
        self.posted += 1;
        self.slots[slot as usize] = Some((id, self.posted));
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

    /// How many were ever posted.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Whether one of the first `count` is still posted.
    pub(crate) fn has_before(&self, count: u64) -> bool {
        self.slots.iter().flatten().any(|&(_, number)| number <= count)
    }
}
