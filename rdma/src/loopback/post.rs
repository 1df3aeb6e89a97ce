//! Posting: what is checked on the spot, and looked up once and for all.

use super::queue::{MAX_INLINE, MAX_SGE, Operation, Receive, Slots, Source, Work};
use super::state::{MemberId, State};
use crate::{
    Access, Payload, PostError, QueuePairId, QueuePairState, ReceiveRequest, SendOperation, SendRequest,
    SharedReceiveQueueId,
};

impl State {
    pub(super) fn post_receive(
        &mut self,
        owner: MemberId,
        id: QueuePairId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let buffer = self.local(owner, request.buffer, Access::LOCAL_WRITE);
        let qp = self.queue_pairs.get_mut(&id).filter(|qp| qp.owner == owner);
        let qp = qp.ok_or(PostError::NoSuchQueue)?;
        if qp.attributes.shared_receive_queue.is_some() {
            return Err(PostError::NoSuchQueue);
        }
        if qp.state == QueuePairState::Error {
            return Err(PostError::NotReady);
        }
        if qp.receives_taken >= qp.attributes.max_receive {
            return Err(PostError::Full);
        }
        let buffer = buffer.ok_or(PostError::Invalid)?;
        qp.receives_taken += 1;
        qp.receives.push_back(Receive { id: request.id, buffer, slots: Slots::Receive });
        Ok(())
    }

    pub(super) fn post_shared_receive(
        &mut self,
        owner: MemberId,
        id: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let buffer = self.local(owner, request.buffer, Access::LOCAL_WRITE);
        let queue = self.shared_queues.get_mut(&id).filter(|queue| queue.owner == owner);
        let queue = queue.ok_or(PostError::NoSuchQueue)?;
        if queue.taken >= queue.capacity {
            return Err(PostError::Full);
        }
        let buffer = buffer.ok_or(PostError::Invalid)?;
        queue.taken += 1;
        queue.receives.push_back(Receive { id: request.id, buffer, slots: Slots::Shared(id) });
        Ok(())
    }

    pub(super) fn post_send(
        &mut self,
        owner: MemberId,
        id: QueuePairId,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        let qp = self.queue_pairs.get(&id).filter(|qp| qp.owner == owner);
        let qp = qp.ok_or(PostError::NoSuchQueue)?;
        if qp.state != QueuePairState::Ready || qp.closing {
            return Err(PostError::NotReady);
        }
        if qp.sends_taken >= qp.attributes.max_send {
            return Err(PostError::Full);
        }
        let without_credit = qp.read_depth == 0 && matches!(request.operation, SendOperation::Read { .. });
        let operation = self.operation(owner, &request.operation).filter(|_| !without_credit);
        let operation = operation.ok_or(PostError::Invalid)?;
        let qp = self.queue_pairs.get_mut(&id).ok_or(PostError::NoSuchQueue)?;
        qp.sends_taken += 1;
        qp.posted.push_back(Work { id: request.id, operation, signaled: request.signaled });
        if let Some(member) = self.members.get_mut(&owner)
            && !member.unrung.contains(&id)
        {
            member.unrung.push(id);
        }
        Ok(())
    }

    /// Looks up what a work request names, once and for all: a later deregistration does not touch it.
    fn operation(&self, owner: MemberId, operation: &SendOperation<'_>) -> Option<Operation> {
        Some(match *operation {
            SendOperation::Send { payload, invalidate, solicited: _ } => {
                Operation::Send { source: self.source(owner, payload)?, invalidate }
            }
            SendOperation::Write { payload, remote } => {
                Operation::Write { source: self.source(owner, payload)?, remote }
            }
            SendOperation::Read { into, remote } => {
                Operation::Read { into: self.local(owner, into, Access::LOCAL_WRITE)?, remote }
            }
            SendOperation::LocalInvalidate { key } => Operation::LocalInvalidate { key },
        })
    }

    fn source(&self, owner: MemberId, payload: Payload<'_>) -> Option<Source> {
        match payload {
            Payload::Inline(bytes) => (bytes.len() <= MAX_INLINE).then(|| Source::Inline(bytes.to_vec())),
            Payload::Gather(elements) if elements.len() > MAX_SGE => None,
            Payload::Gather(elements) => {
                // A message's length is 32 bits in every RDMA.
                elements.iter().try_fold(0u32, |sum, sge| sum.checked_add(sge.len))?;
                let slices = elements.iter().map(|&sge| self.local(owner, sge, Access::LOCAL_READ));
                slices.collect::<Option<_>>().map(Source::Gather)
            }
            Payload::Borrowed { from, offset, spare } => {
                let slice = self.local(owner, *spare, Access::LOCAL_WRITE)?;
                let len = spare.len as usize;
                from.contains(offset, len).then(|| from.copy_to(offset, &slice.memory, slice.offset, len))?;
                Some(Source::Gather(vec![slice]))
            }
        }
    }
}
