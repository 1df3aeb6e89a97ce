//! Completing, and polling the completions.

use super::queue::{Entry, Receive, Slots, Work};
use super::state::{MemberId, State};
use crate::{Completion, CompletionQueueId, Opcode, QueuePairId, RemoteKey, WcStatus};

impl State {
    pub(super) fn complete_send(&mut self, id: QueuePairId, work: &Work, status: WcStatus, byte_len: u32) {
        let Some(qp) = self.queue_pairs.get_mut(&id) else { return };
        if status.is_success() && !work.signaled {
            qp.silent += 1;
            return;
        }
        let slots = Slots::Send(1 + core::mem::take(&mut qp.silent));
        let opcode = work.operation.opcode();
        let completion =
            Completion { id: work.id, queue_pair: id, opcode, status, byte_len, invalidated: None };
        let queue = qp.attributes.send_cq;
        self.complete(queue, Entry { completion, slots });
    }

    pub(super) fn complete_receive(
        &mut self,
        queue_pair: QueuePairId,
        receive: &Receive,
        status: WcStatus,
        byte_len: u32,
        invalidated: Option<RemoteKey>,
    ) {
        let Some(qp) = self.queue_pairs.get(&queue_pair) else { return };
        let opcode = Opcode::Receive;
        let completion = Completion { id: receive.id, queue_pair, opcode, status, byte_len, invalidated };
        self.complete(qp.attributes.receive_cq, Entry { completion, slots: receive.slots });
    }

    fn complete(&mut self, id: CompletionQueueId, entry: Entry) {
        let Some(queue) = self.completion_queues.get_mut(&id) else { return };
        // The caller chose the sizes: a completion dropped without notice would hide its mistake.
        assert!(queue.entries.len() < queue.capacity, "{id:?} overrun: it was made for {}", queue.capacity);
        let (owner, completed) = (queue.owner, entry.completion.opcode);
        queue.entries.push_back(entry);
        if let Some(member) = self.members.get_mut(&owner) {
            member.on_completion(completed);
        }
    }

    pub(super) fn poll_cq(
        &mut self,
        owner: MemberId,
        id: CompletionQueueId,
        completions: &mut Vec<Completion>,
    ) {
        while completions.len() < completions.capacity() {
            let queue = self.completion_queues.get_mut(&id).filter(|queue| queue.owner == owner);
            let Some(entry) = queue.and_then(|queue| queue.entries.pop_front()) else { break };
            self.give_back(entry.completion.queue_pair, entry.slots);
            completions.push(entry.completion);
        }
    }

    pub(super) fn give_back(&mut self, id: QueuePairId, slots: Slots) {
        match (slots, self.queue_pairs.get_mut(&id)) {
            (Slots::Send(count), Some(qp)) => qp.sends_taken -= count,
            (Slots::Receive, Some(qp)) => qp.receives_taken -= 1,
            (Slots::Shared(shared), _) => {
                if let Some(queue) = self.shared_queues.get_mut(&shared) {
                    queue.taken -= 1;
                }
            }
            (_, None) => {}
        }
    }
}
