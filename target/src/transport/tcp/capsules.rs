//! The memory that in-capsule data land in: slots that all queues of a worker share. A command without such data needs
//! none, so that a silent host costs nothing.

use crate::exec::buffers::Registered;
use crate::exec::resources::SetUpError;
use nvmf_block::Backend;
use nvmf_memory::{BufferIndex, Memory};
use nvmf_subsystem::limits::SQE_LEN;

/// Slots that one queue may hold: while they are fewer than this part (1/n) of those that are free, and one in any case.
const QUEUE_SHARE: u32 = 4;

/// A capsule that arrived.
#[derive(Debug)]
pub struct Capsule {
    pub(super) sqe: [u8; SQE_LEN],
    pub(super) slot: Option<Slot>,
}

/// A slot that is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    kind: Kind,
    index: BufferIndex,
}

/// Admin commands and Connects have slots of their own: I/O does not delay them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Admin,
    Io,
}

/// The slots of one kind, and who has them.
#[derive(Debug)]
struct Slots {
    registered: Registered<()>,
    /// The queue that has each slot, and the slot's name.
    owners: Box<[Option<(u32, BufferIndex)>]>,
    /// Slots that each queue has.
    held: Box<[u32]>,
}

/// The slots of a worker.
#[derive(Debug)]
pub(super) struct Capsules {
    kinds: [Slots; 2],
}

impl Slots {
    fn new<B: Backend>(backend: &mut B, count: usize, len: usize, queues: usize) -> Result<Self, SetUpError> {
        let registered = Registered::new(backend, count, len, |_| Ok(()))?;
        let owners = (0..count).map(|_| None).collect();
        Ok(Self { registered, owners, held: vec![0; queues].into() })
    }

    fn take(&mut self, queue: u32) -> Option<BufferIndex> {
        let free = u32::try_from(self.registered.pool.available()).unwrap_or(u32::MAX);
        let held = &mut self.held[queue as usize];
        if free == 0 || *held * QUEUE_SHARE >= free + QUEUE_SHARE - 1 {
            return None;
        }
        let index = self.registered.pool.take()?;
        *held += 1;
        *self.owner(index) = Some((queue, index));
        Some(index)
    }

    fn owner(&mut self, index: BufferIndex) -> &mut Option<(u32, BufferIndex)> {
        let pool = &self.registered.pool;
        &mut self.owners[pool.offset(index) / pool.buffer_len()]
    }

    fn put(&mut self, index: BufferIndex) {
        let Some((queue, index)) = self.owner(index).take() else { return };
        self.held[queue as usize] -= 1;
        self.registered.pool.put(index);
    }
}

impl Capsules {
    /// `(count, bytes)` of both kinds, for so many queues.
    pub(super) fn new<B: Backend>(
        backend: &mut B,
        admin: (usize, usize),
        io: (usize, usize),
        queues: usize,
    ) -> Result<Self, SetUpError> {
        let admin = Slots::new(backend, admin.0, admin.1, queues)?;
        Ok(Self { kinds: [admin, Slots::new(backend, io.0, io.1, queues)?] })
    }

    /// A slot for in-capsule data of the queue; `None` while others have them, or the queue its share.
    pub(super) fn take(&mut self, kind: Kind, queue: u32) -> Option<Slot> {
        let index = self.kinds[kind as usize].take(queue)?;
        Some(Slot { kind, index })
    }

    pub(super) fn put(&mut self, slot: Slot) {
        self.kinds[slot.kind as usize].put(slot.index);
    }

    /// The queue is over: takes back what it has.
    pub(super) fn forget(&mut self, queue: u32) {
        for slots in &mut self.kinds {
            if slots.held[queue as usize] == 0 {
                continue;
            }
            for at in 0..slots.owners.len() {
                if let Some((_, index)) = slots.owners[at].filter(|&(owner, _)| owner == queue) {
                    slots.put(index);
                }
            }
        }
    }

    /// The memory of a slot, and where it begins.
    pub(super) fn memory(&self, slot: Slot) -> (&Memory, usize) {
        let pool = &self.kinds[slot.kind as usize].registered.pool;
        (pool.memory(), pool.offset(slot.index))
    }

    /// The same for the backend, from `offset` on.
    pub(super) fn block(&self, slot: Slot, offset: u32, len: u32) -> nvmf_block::Buffer {
        let registered = &self.kinds[slot.kind as usize].registered;
        registered.block(registered.pool.offset(slot.index) + offset as usize, len)
    }
}
