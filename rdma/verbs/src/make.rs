//! Queue pairs made and destroyed.

use crate::completion::{Claim, Side};
use crate::ffi::{self, CmId, CompletionQueue, INLINE_MAX, QueueSizes, Transport};
use crate::provider::VerbsProvider;
use crate::queue_pair::QueuePair;
use crate::shared::SharedQueue;
use nvmf_rdma::{CmEvent, CompletionQueueId, QueuePairAttributes, QueuePairId, ResourceError};
use std::io;
use std::sync::Arc;

impl VerbsProvider {
    /// Makes a queue pair, if there is room for what it completes.
    pub(crate) fn add_queue_pair(
        &mut self,
        attributes: &QueuePairAttributes,
    ) -> Result<QueuePairId, ResourceError> {
        if self.is_lost() {
            return Err(ResourceError::DeviceRemoved);
        }
        let attributes = *attributes;
        let exposed = if self.has_windows { attributes.max_exposed } else { 0 };
        let sends = attributes.max_send.max(1).saturating_add(exposed);
        let limit = self.limits.max_queue_depth;
        for (what, asked) in
            [("send queue entries", sends), ("receive queue entries", attributes.max_receive)]
        {
            if asked > limit {
                return Err(ResourceError::Limit { what, asked, limit });
            }
        }
        let shared = attributes.shared_receive_queue.map(|name| self.shared_queues.get(name.0 as usize));
        let shared = shared.map(|found| found.ok_or(ResourceError::NoSuchQueue)).transpose()?;
        let receives = if shared.is_some() { 0 } else { attributes.max_receive.max(1) };
        // Receives of a shared queue complete with whichever queue pair their message came to.
        let completing = shared.map_or(receives, SharedQueue::capacity);
        let (send_cq, send_claim) = self.claim(attributes.send_cq, Side::Sends, sends)?;
        let (receive_cq, receive_claim) = match self.claim(attributes.receive_cq, Side::Receives, completing)
        {
            Ok(claimed) => claimed,
            Err(error) => {
                self.release(send_claim);
                return Err(error);
            }
        };
        let claims = [send_claim, receive_claim];
        let sizes = QueueSizes { sends, receives, gather: self.max_sge(), inline: INLINE_MAX as u32 };
        let made = self.make_queue_pair(&attributes, [&send_cq, &receive_cq], sizes, claims);
        if made.is_err() {
            claims.into_iter().for_each(|claim| self.release(claim));
        }
        made
    }

    /// A queue pair whose completions have their places.
    fn make_queue_pair(
        &mut self,
        attributes: &QueuePairAttributes,
        queues: [&Arc<CompletionQueue>; 2],
        sizes: QueueSizes,
        claims: [Claim; 2],
    ) -> Result<QueuePairId, ResourceError> {
        let shared = attributes.shared_receive_queue.and_then(|name| self.shared_queues.get(name.0 as usize));
        let shared = shared.map(|it| &it.hw);
        let hw = ffi::QueuePair::new(&self.device, queues[0], queues[1], shared, sizes).map_err(os)?;
        if self.transport == Transport::InfiniBand {
            hw.initialise(self.path).map_err(os)?;
        }
        let (number, windows) = (hw.number(), self.has_windows);
        let make = |name| QueuePair::new(QueuePairId(name), *attributes, hw, windows, claims);
        let name = self.queue_pairs.insert(make);
        let name = QueuePairId(name.ok_or_else(|| os(io::ErrorKind::OutOfMemory.into()))?);
        self.numbers.insert(number, name);
        Ok(name)
    }

    /// Ends a queue pair at once.
    pub(crate) fn remove_queue_pair(&mut self, queue_pair: QueuePairId) {
        let Some(mut qp) = self.queue_pairs.remove(queue_pair.0) else { return };
        // Before the queue pair, which a bound window keeps from being destroyed.
        self.windows.forget_queue_pair(queue_pair);
        if let Some(hw) = qp.hw.take() {
            if let Some(id) = &qp.id {
                let _ = id.disconnect();
            }
            self.destroy_on_device(hw);
        }
        self.forget_id(qp.id.as_ref().map(CmId::key));
        self.events.retain(|event| !is_about(event, queue_pair));
        let claims = qp.claims;
        drop(qp);
        // What the device completed of it takes places until it is read, which the next queue pair may count on.
        claims.into_iter().for_each(|claim| self.take_all(claim.queue()));
        claims.into_iter().for_each(|claim| self.release(claim));
        for queue in &mut self.completion_queues {
            queue.ready.retain(|completion| completion.queue_pair != queue_pair);
        }
    }

    /// Destroys a queue pair. A device that fails to may go on reading and writing the buffers, which the caller gives
    /// to others as soon as the queue pair is gone: then nothing of the device may be used any more.
    pub(crate) fn destroy_on_device(&mut self, hw: ffi::QueuePair) {
        self.numbers.remove(&hw.number());
        if hw.destroy().is_err() {
            self.lose();
        }
    }

    /// Entries of a completion queue.
    fn claim(
        &mut self,
        name: CompletionQueueId,
        side: Side,
        entries: u32,
    ) -> Result<(Arc<CompletionQueue>, Claim), ResourceError> {
        let (channel, limit) = (&self.completion_channel, self.limits.max_completions);
        if entries > limit {
            return Err(ResourceError::Limit { what: "completion queue entries", asked: entries, limit });
        }
        let queue = self.completion_queues.get_mut(name.0 as usize).ok_or(ResourceError::NoSuchQueue)?;
        let make = |len| CompletionQueue::new(channel, len, self.config.completion_vector);
        queue.claim(name, side, entries, make, &self.limits).map_err(os)
    }

    fn release(&mut self, claim: Claim) {
        if let Some(queue) = self.completion_queues.get_mut(claim.queue().0 as usize) {
            queue.release(claim);
        }
    }
}

fn is_about(event: &CmEvent, name: QueuePairId) -> bool {
    match event {
        CmEvent::Established { queue_pair, .. }
        | CmEvent::ConnectFailed { queue_pair, .. }
        | CmEvent::Disconnected { queue_pair, .. } => *queue_pair == name,
        CmEvent::ConnectRequest { .. } | CmEvent::DeviceRemoved => false,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn os(error: io::Error) -> ResourceError {
    ResourceError::Os(error.raw_os_error().unwrap_or(libc::EIO))
}
