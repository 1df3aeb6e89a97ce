//! Receive slots: the memory that capsules land in.

use super::registered;
use crate::exec::buffers::Registered;
use crate::exec::resources::SetUpError;
use crate::limits::IN_CAPSULE_ALIGN;
use nvmf_block::Backend;
use nvmf_memory::{BufferIndex, Memory};
use nvmf_rdma::{LocalKey, Provider, Sge};
use nvmf_subsystem::limits::SQE_LEN;

/// The receive slots of one kind of queue.
///
/// The submission queue entry ends where an aligned block begins, so that data in the capsule can be written to disk
/// from where they landed:
///
/// ```text
/// |<- unused ->|<- 64 bytes: entry ->|<- in-capsule data ->|
///                                    ^ aligned
/// ```
#[derive(Debug)]
pub struct ReceiveSlots {
    registered: Registered<LocalKey>,
    entry: usize,
    data_len: u32,
}

impl ReceiveSlots {
    /// Bytes that a slot takes.
    #[must_use]
    pub fn slot_len(data_len: u32) -> usize {
        match data_len as usize {
            0 => SQE_LEN,
            len => IN_CAPSULE_ALIGN + len.next_multiple_of(IN_CAPSULE_ALIGN),
        }
    }

    /// `count` slots for capsules with up to `data_len` bytes of data.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new<P: Provider, B: Backend>(
        provider: &mut P,
        backend: &mut B,
        count: usize,
        data_len: u32,
    ) -> Result<Self, SetUpError> {
        let registered = registered(provider, backend, count, Self::slot_len(data_len))?;
        let entry = if data_len == 0 { 0 } else { IN_CAPSULE_ALIGN - SQE_LEN };
        Ok(Self { registered, entry, data_len })
    }

    /// Slots that can be taken now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.registered.pool.available()
    }

    /// Slots in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.registered.pool.capacity()
    }

    /// A slot.
    pub fn take(&mut self) -> Option<BufferIndex> {
        self.registered.pool.take()
    }

    /// Gives a slot back.
    pub fn put(&mut self, slot: BufferIndex) {
        self.registered.pool.put(slot);
    }

    fn entry_offset(&self, slot: BufferIndex) -> usize {
        self.registered.pool.offset(slot) + self.entry
    }

    /// The whole slot, to be posted.
    #[must_use]
    pub fn sge(&self, slot: BufferIndex) -> Sge {
        let len = u32::try_from(SQE_LEN).expect("64") + self.data_len;
        Sge { local_key: self.registered.key, offset: self.entry_offset(slot), len }
    }

    /// The submission queue entry that landed there.
    #[must_use]
    pub fn read_entry(&self, slot: BufferIndex) -> [u8; SQE_LEN] {
        let mut sqe = [0; SQE_LEN];
        self.registered.pool.memory().read(self.entry_offset(slot), &mut sqe);
        sqe
    }

    /// In-capsule data, for the backend.
    #[must_use]
    pub fn block(&self, slot: BufferIndex, offset: u32, len: u32) -> nvmf_block::Buffer {
        self.registered.block(self.data_offset(slot, offset), len)
    }

    /// The memory, and where in-capsule data of a slot lie in it.
    #[must_use]
    pub fn data(&self, slot: BufferIndex, offset: u32) -> (&Memory, usize) {
        (self.registered.pool.memory(), self.data_offset(slot, offset))
    }

    fn data_offset(&self, slot: BufferIndex, offset: u32) -> usize {
        self.entry_offset(slot) + SQE_LEN + offset as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_without_data_take_no_more_than_an_entry() {
        assert_eq!(ReceiveSlots::slot_len(0), 64);
        assert_eq!(ReceiveSlots::slot_len(512), 1024);
        assert_eq!(ReceiveSlots::slot_len(4096), 4608);
        assert_eq!(ReceiveSlots::slot_len(16384), 16896);
    }
}
