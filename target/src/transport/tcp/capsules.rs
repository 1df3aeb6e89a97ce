//! The memory that in-capsule data land in: slots that all queues of a worker share. A command without such data needs
//! none, so that a silent host costs nothing.

use crate::exec::buffers::Registered;
use crate::exec::resources::SetUpError;
use crate::exec::shares::{Shares, is_within_queue_share};
use nvmf_block::Backend;
use nvmf_memory::{BufferIndex, Memory};
use nvmf_subsystem::limits::SQE_LEN;
use std::net::IpAddr;

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
    /// Of the I/O slots.
    shares: Shares,
}

impl Slots {
    fn new<B: Backend>(backend: &mut B, count: usize, len: usize, queues: usize) -> Result<Self, SetUpError> {
        let registered = Registered::new(backend, count, len, |_| Ok(()))?;
        let owners = (0..count).map(|_| None).collect();
        Ok(Self { registered, owners, held: vec![0; queues].into() })
    }

    fn free(&self) -> u32 {
        u32::try_from(self.registered.pool.available()).unwrap_or(u32::MAX)
    }

    fn out(&self) -> usize {
        self.owners.len() - self.registered.pool.available()
    }

    fn take(&mut self, queue: u32) -> Option<BufferIndex> {
        let index = self.registered.pool.take()?;
        self.held[queue as usize] += 1;
        *self.owner(index) = Some((queue, index));
        Some(index)
    }

    fn owner(&mut self, index: BufferIndex) -> &mut Option<(u32, BufferIndex)> {
        let pool = &self.registered.pool;
        &mut self.owners[pool.offset(index) / pool.buffer_len()]
    }

    /// Whose it was.
    fn put(&mut self, index: BufferIndex) -> Option<u32> {
        let (queue, index) = self.owner(index).take()?;
        self.held[queue as usize] -= 1;
        self.registered.pool.put(index);
        Some(queue)
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
        Ok(Self { kinds: [admin, Slots::new(backend, io.0, io.1, queues)?], shares: Shares::new(queues) })
    }

    /// A queue came, from this machine.
    pub(super) fn add(&mut self, queue: u32, address: IpAddr) {
        self.shares.add(queue, address);
    }

    /// Whether the queue may have a slot now.
    pub(super) fn may_take(&self, kind: Kind, queue: u32) -> bool {
        let slots = &self.kinds[kind as usize];
        let (held, free) = (slots.held[queue as usize], slots.free());
        match kind {
            // There is one for each connection.
            Kind::Admin => is_within_queue_share(held, free),
            Kind::Io => self.shares.may_take(queue, held, free),
        }
    }

    /// A slot for in-capsule data of the queue; `None` while others have them, or the queue or its machine their share.
    pub(super) fn take(&mut self, kind: Kind, queue: u32) -> Option<Slot> {
        if !self.may_take(kind, queue) {
            return None;
        }
        let index = self.kinds[kind as usize].take(queue)?;
        if kind == Kind::Io {
            self.shares.take(queue);
        }
        Some(Slot { kind, index })
    }

    pub(super) fn put(&mut self, slot: Slot) {
        let queue = self.kinds[slot.kind as usize].put(slot.index);
        if let Some(queue) = queue.filter(|_| slot.kind == Kind::Io) {
            self.shares.put(queue, 1);
        }
    }

    /// The queue is over: takes back what it has.
    pub(super) fn forget(&mut self, queue: u32) {
        for kind in [Kind::Admin, Kind::Io] {
            if self.kinds[kind as usize].held[queue as usize] == 0 {
                continue;
            }
            for at in 0..self.kinds[kind as usize].owners.len() {
                let owner = self.kinds[kind as usize].owners[at];
                if let Some((_, index)) = owner.filter(|&(owner, _)| owner == queue) {
                    self.put(Slot { kind, index });
                }
            }
        }
        self.shares.remove(queue);
    }

    /// Slots that are taken.
    pub(super) fn out(&self) -> usize {
        self.kinds.iter().map(Slots::out).sum()
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
