//! The memory of a worker: data buffers in three classes, receive slots. Sized once, registered once with the provider and
//! once with the backend, so that data go between wire and disk without a copy.

use crate::limits::{
    BUFFER_SHARE, IN_CAPSULE_ALIGN, LARGE_BUFFER_LEN, RESERVED_BUFFER_LEN, RESERVED_BUFFERS, SMALL_BUFFER_LEN,
};
use nvmf_block::{Backend, BlockError, RegionId};
use nvmf_memory::{BufferIndex, Memory, OutOfMemory, Pool};
use nvmf_rdma::{Access, LocalKey, Provider, RegisterError, ResourceError, Sge};
use nvmf_subsystem::limits::SQE_LEN;
use std::collections::VecDeque;
use thiserror::Error;

/// A worker could not be set up.
#[derive(Debug, Error)]
pub enum SetUpError {
    /// No memory for its buffers.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// The RDMA device does not take them.
    #[error("the RDMA provider does not take the buffers")]
    Register(#[from] RegisterError),
    /// The storage ring does not take them.
    #[error(
        "the storage ring does not take the buffers: {0}; see the memlock limit (LimitMEMLOCK= in the unit)"
    )]
    Pin(BlockError),
    /// No completion queue.
    #[error("no completion queue for the worker")]
    Resource(#[from] ResourceError),
    /// The provider cannot do what the transport needs.
    #[error("the RDMA provider sends only {0} bytes inline: NVMe/RDMA responses need 16")]
    Inline(u32),
}

/// A class of data buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// For Admin commands and Connects only, so that neither waits behind I/O.
    Reserved,
    /// For transfers that fit.
    Small,
    /// For the chunks of the rest.
    Large,
}

impl Class {
    /// All.
    pub const ALL: [Self; 3] = [Self::Reserved, Self::Small, Self::Large];
}

/// A data buffer that was taken from [`Buffers`] and goes back there.
#[derive(Debug)]
#[must_use = "a buffer that is not given back is lost"]
pub struct Buffer {
    class: Class,
    index: BufferIndex,
}

impl Buffer {
    /// Of which class it is.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }
}

/// Memory that both the provider and the backend know.
#[derive(Debug)]
struct Registered {
    pool: Pool,
    key: LocalKey,
    region: RegionId,
}

impl Registered {
    fn new<P: Provider, B: Backend>(
        provider: &mut P,
        backend: &mut B,
        count: usize,
        len: usize,
    ) -> Result<Self, SetUpError> {
        let pool = Pool::new(count, len)?;
        let mut access = Access::LOCAL_WRITE;
        if provider.capabilities().read_sink_needs_remote_write {
            access = access | Access::REMOTE_WRITE;
        }
        let key = provider.register(pool.memory(), access)?.local_key;
        let region = backend.register(pool.memory()).map_err(SetUpError::Pin)?;
        Ok(Self { pool, key, region })
    }

    fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { local_key: self.key, offset, len }
    }

    fn block(&self, offset: usize, len: u32) -> nvmf_block::Buffer {
        nvmf_block::Buffer { region: self.region, offset, len: len as usize }
    }
}

/// The data buffers of a worker, and the queues that stand in line for them.
#[derive(Debug)]
pub struct Buffers {
    classes: [Registered; 3],
    /// Queues with commands that wait, each once: they are served in turn.
    lines: [VecDeque<u32>; 3],
}

/// How many buffers of each class, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferPlan {
    /// (how many, bytes of each), in the order of [`Class::ALL`].
    pub classes: [(usize, usize); 3],
}

impl BufferPlan {
    /// Three quarters of `memory` for large buffers, one for small ones, and the reserve on top.
    #[must_use]
    pub fn new(memory: u64, transfer_max: u32) -> Self {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        let large = LARGE_BUFFER_LEN.min((transfer_max as usize).max(65536));
        let small = SMALL_BUFFER_LEN;
        let counts = ((memory / 4 / small).max(4), (memory / 4 * 3 / large).max(2));
        Self { classes: [(RESERVED_BUFFERS, RESERVED_BUFFER_LEN), (counts.0, small), (counts.1, large)] }
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.classes.iter().map(|&(count, len)| count as u64 * len as u64).sum()
    }
}

impl Buffers {
    /// Allocates and registers.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new<P: Provider, B: Backend>(
        provider: &mut P,
        backend: &mut B,
        plan: &BufferPlan,
        queues: usize,
    ) -> Result<Self, SetUpError> {
        let mut make = |(count, len)| Registered::new(provider, backend, count, len);
        let [reserved, small, large] = plan.classes;
        let classes = [make(reserved)?, make(small)?, make(large)?];
        Ok(Self { classes, lines: std::array::from_fn(|_| VecDeque::with_capacity(queues)) })
    }

    fn of(&self, class: Class) -> &Registered {
        &self.classes[class as usize]
    }

    /// Bytes in a buffer of the class.
    #[must_use]
    pub fn len(&self, class: Class) -> u32 {
        u32::try_from(self.of(class).pool.buffer_len()).expect("buffers are small")
    }

    /// Buffers that can be taken now.
    #[must_use]
    pub fn available(&self, class: Class) -> usize {
        self.of(class).pool.available()
    }

    /// Buffers that are out, of all classes.
    #[must_use]
    pub fn out(&self) -> usize {
        self.classes.iter().map(|class| class.pool.capacity() - class.pool.available()).sum()
    }

    /// How many one queue may hold.
    #[must_use]
    pub fn share(&self, class: Class) -> usize {
        (self.of(class).pool.capacity() / BUFFER_SHARE).max(1)
    }

    /// The queues in line for this class.
    pub fn line(&mut self, class: Class) -> &mut VecDeque<u32> {
        &mut self.lines[class as usize]
    }

    /// A buffer.
    pub fn take(&mut self, class: Class) -> Option<Buffer> {
        let index = self.classes[class as usize].pool.take()?;
        Some(Buffer { class, index })
    }

    /// Gives a buffer back.
    #[expect(clippy::needless_pass_by_value, reason = "whoever gives a buffer back has it no more")]
    pub fn put(&mut self, buffer: Buffer) {
        let Buffer { class, index } = buffer;
        self.classes[class as usize].pool.put(index);
    }

    fn offset(&self, buffer: &Buffer) -> usize {
        self.of(buffer.class).pool.offset(buffer.index)
    }

    /// Its first `len` bytes, for the provider.
    #[must_use]
    pub fn sge(&self, buffer: &Buffer, len: u32) -> Sge {
        self.of(buffer.class).sge(self.offset(buffer), len)
    }

    /// Its first `len` bytes, for the backend.
    #[must_use]
    pub fn block(&self, buffer: &Buffer, len: u32) -> nvmf_block::Buffer {
        self.of(buffer.class).block(self.offset(buffer), len)
    }

    /// Its memory and where it begins there.
    #[must_use]
    pub fn memory(&self, buffer: &Buffer) -> (&Memory, usize) {
        (self.of(buffer.class).pool.memory(), self.offset(buffer))
    }
}

/// Receive slots: where capsules land.
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
    registered: Registered,
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
        let registered = Registered::new(provider, backend, count, Self::slot_len(data_len))?;
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
        self.registered.sge(self.entry_offset(slot), len)
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
    fn the_plan_stays_within_what_was_granted() {
        let plan = BufferPlan::new(64 << 20, 1 << 20);
        assert_eq!(plan.classes, [(64, 4096), (1024, 16 << 10), (384, 128 << 10)]);
        assert_eq!(plan.bytes(), (64 << 20) + 64 * 4096);
        assert_eq!(BufferPlan::new(0, 4096).classes, [(64, 4096), (4, 16384), (2, 65536)]);
    }

    #[test]
    fn slots_without_data_take_no_more_than_an_entry() {
        assert_eq!(ReceiveSlots::slot_len(0), 64);
        assert_eq!(ReceiveSlots::slot_len(512), 1024);
        assert_eq!(ReceiveSlots::slot_len(4096), 4608);
        assert_eq!(ReceiveSlots::slot_len(16384), 16896);
    }
}
