//! How large a worker is, and how queues spread over workers.

use crate::message::WorkerId;
use crate::transport::rdma::buffers::{BufferPlan, ReceiveSlots};
use crate::transport::rdma::queue::Queue;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// What a worker is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Queues that it takes.
    pub connections: u32,
    /// Entries of an I/O queue, at the most.
    pub queue_entries: u16,
    /// I/O queues of one controller, at the most.
    pub io_queues: u16,
    /// Bytes of data that a capsule of an I/O queue may carry.
    pub in_capsule_data: u32,
    /// Receive slots of Admin queues, in all.
    pub admin_receives: usize,
    /// Receive slots of I/O queues, in all.
    pub io_receives: usize,
    /// Data buffers.
    pub buffers: BufferPlan,
}

impl Settings {
    /// From the configuration: as much memory for receives as for data, unless the connections cannot use it.
    #[must_use]
    pub fn new(target: &nvmf_config::Target) -> Self {
        let slot = ReceiveSlots::slot_len(target.in_capsule_data).max(64);
        let connections = target.connections as usize;
        let wanted = connections * Queue::receives_for(target.queue_depth);
        let affordable = usize::try_from(target.buffer_memory).unwrap_or(usize::MAX) / slot;
        let least = Queue::receives_for(target.queue_depth) * 2;
        Self {
            connections: target.connections,
            queue_entries: target.queue_depth,
            io_queues: target.io_queues,
            in_capsule_data: target.in_capsule_data,
            admin_receives: connections * Queue::receives_for(crate::limits::ADMIN_ENTRIES_USUAL),
            io_receives: wanted.min(affordable).max(least),
            buffers: BufferPlan::new(target.buffer_memory, target.transfer_max),
        }
    }

    /// Bytes of pinned memory.
    #[must_use]
    pub fn pinned(&self) -> u64 {
        self.buffers.bytes()
            + (self.admin_receives * ReceiveSlots::slot_len(0)) as u64
            + (self.io_receives * ReceiveSlots::slot_len(self.in_capsule_data)) as u64
    }

    /// I/O queues of full depth that find receives.
    #[must_use]
    pub fn full_queues(&self) -> usize {
        self.io_receives / Queue::receives_for(self.queue_entries)
    }
}

/// Queues on each worker of a group (the workers of one provider, which hand requests to each other): where the next one goes.
#[derive(Debug)]
pub struct Load {
    first: usize,
    queues: Box<[AtomicU32]>,
}

impl Load {
    /// So many workers from `first` on, without queues.
    #[must_use]
    pub fn new(first: WorkerId, workers: usize) -> Arc<Self> {
        Arc::new(Self { first: first.0, queues: (0..workers).map(|_| AtomicU32::new(0)).collect() })
    }

    /// Queues on all workers.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.queues.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// The worker with the fewest.
    #[must_use]
    pub fn least(&self) -> WorkerId {
        let least = (0..self.queues.len()).min_by_key(|&at| self.queues[at].load(Ordering::Relaxed));
        WorkerId(self.first + least.unwrap_or(0))
    }

    /// The worker after this one, in a circle.
    #[must_use]
    pub fn after(&self, worker: WorkerId) -> WorkerId {
        WorkerId(self.first + (worker.0 + 1).saturating_sub(self.first) % self.queues.len())
    }

    /// A queue came to a worker.
    pub fn add(&self, worker: WorkerId) {
        self.queues[worker.0 - self.first].fetch_add(1, Ordering::Relaxed);
    }

    /// A queue of a worker is gone.
    pub fn remove(&self, worker: WorkerId) {
        self.queues[worker.0 - self.first].fetch_sub(1, Ordering::Relaxed);
    }
}
