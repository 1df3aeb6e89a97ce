//! What all queue pairs of a provider share: the protection domain.

use super::receive::ReceiveQueue;
use crate::config::IwarpConfig;
use crate::memory::StagTable;
use nvmf_rdma::{Completion, CompletionQueueId, QueuePairId};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) stags: StagTable,
    pub(crate) completion_queues: Vec<VecDeque<Completion>>,
    pub(crate) shared: Vec<SharedReceiveQueue>,
    /// Bytes that may still be spilled, by all queue pairs together.
    pub(crate) spill_left: usize,
    pub(crate) spill_bytes_max: usize,
    pub(crate) spill_messages_max: usize,
}

#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) queue: ReceiveQueue,
    /// Queue pairs with spilled messages, the one that waits longest in front.
    pub(crate) starved: VecDeque<QueuePairId>,
}

impl Domain {
    pub(crate) fn new(config: &IwarpConfig) -> Self {
        Self {
            stags: StagTable::new(config.keys_max),
            completion_queues: Vec::new(),
            shared: Vec::new(),
            spill_left: config.spill_total_max,
            spill_bytes_max: config.spill_bytes_max,
            spill_messages_max: config.spill_messages_max,
        }
    }

    pub(crate) fn complete(&mut self, queue: CompletionQueueId, completion: Completion) {
        // Queues are checked when a queue pair is made, and never removed.
        if let Some(queue) = self.completion_queues.get_mut(queue.0 as usize) {
            queue.push_back(completion);
        }
    }
}
