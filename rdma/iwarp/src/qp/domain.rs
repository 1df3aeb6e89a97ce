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
}

#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) queue: ReceiveQueue,
    /// Queue pairs whose streams stand at a SEND without a receive, the one that waits longest in front.
    pub(crate) starved: VecDeque<QueuePairId>,
}

impl Domain {
    pub(crate) fn new(config: &IwarpConfig) -> Self {
        Self { stags: StagTable::new(config.keys_max), completion_queues: Vec::new(), shared: Vec::new() }
    }

    pub(crate) fn complete(&mut self, queue: CompletionQueueId, completion: Completion) {
        // Queues are checked when a queue pair is made, and never removed.
        if let Some(queue) = self.completion_queues.get_mut(queue.0 as usize) {
            queue.push_back(completion);
        }
    }
}
