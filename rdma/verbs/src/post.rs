//! Work that callers post: checked, named, collected until the doorbell.

use crate::completion::Name;
use crate::ffi::{self, INLINE_MAX, Region, Transport};
use crate::outstanding::Work;
use crate::provider::VerbsProvider;
use crate::queue_pair::{Phase, QueuePair};
use nvmf_rdma::{
    Access, Opcode, Payload, PostError, QueuePairId, QueuePairState, ReceiveRequest, RegisterError,
    RemoteKey, RemoteMemory, SendOperation, SendRequest, Sge, SharedReceiveQueueId, WcStatus, WorkRequestId,
};

/// A send, taken apart.
struct Parts<'a> {
    opcode: Opcode,
    operation: ffi::WorkOperation<'static>,
    inline: Option<&'a [u8]>,
    list: &'a [Sge],
    /// Where the data of an RDMA READ land.
    sink: Option<Sge>,
    invalidates: Option<RemoteKey>,
}

/// Where an RDMA READ lands.
struct ReadSink {
    /// None for a READ of nothing.
    element: Option<ffi::Sge>,
    len: u32,
    /// iWARP: what makes the element a name that this READ alone has.
    registration: Option<Region>,
}

impl VerbsProvider {
    /// Makes a key for one command: by a window, where the device has them.
    pub(crate) fn expose_window(
        &mut self,
        queue_pair: QueuePairId,
        range: Sge,
        access: Access,
    ) -> Result<RemoteMemory, RegisterError> {
        if self.is_lost() {
            return Err(RegisterError::DeviceRemoved);
        }
        let registered = self.regions.exposable(range, access)?;
        let address = registered.region.address() + range.offset as u64;
        let qp = self.queue_pairs.get_mut(queue_pair.0).ok_or(RegisterError::OutOfBounds)?;
        if !self.has_windows {
            // The region's own key, which the peer keeps: see the crate's documentation.
            let allowed = registered.access.allows(access);
            let key = RemoteKey(registered.region.remote_key());
            return allowed
                .then_some(RemoteMemory { key, address, len: range.len })
                .ok_or(RegisterError::Access);
        }
        let limit = qp.attributes.max_exposed as usize;
        let no_key = RegisterError::NoKey { limit };
        if qp.sends.hidden() >= limit || !matches!(qp.phase, Phase::Ready) || qp.is_broken() {
            return Err(no_key);
        }
        let Some(hw) = &mut qp.hw else { return Err(no_key) };
        let (key, window) = self.windows.expose(&self.device, range.local_key, queue_pair)?;
        let region = &registered.region;
        // A window of no bytes cannot be bound: one without a remote right reaches nothing either.
        let (bound, len, access) = match range.len {
            0 => (region.address(), 1, Access::LOCAL_READ),
            len => (address, len, access),
        };
        let operation = ffi::WorkOperation::Bind { window, key, region, address: bound, len, access };
        let id = Name::Send(queue_pair, qp.sends.push(Work::Bind, false)).encode();
        hw.push_send(&ffi::WorkRequest { id, operation, signaled: false }, &[], None);
        qp.unsignaled_run += 1;
        Self::mark_dirty(&mut self.dirty, qp);
        Ok(RemoteMemory { key: RemoteKey(key), address, len: range.len })
    }

    /// Collects a receive.
    pub(crate) fn collect_receive(
        &mut self,
        queue_pair: QueuePairId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let buffer = self.regions.sink(request.buffer);
        let qp = self.queue_pairs.get_mut(queue_pair.0).ok_or(PostError::NoSuchQueue)?;
        if matches!(qp.state(), QueuePairState::Error) || qp.is_broken() {
            return Err(PostError::NotReady);
        }
        let buffer = buffer.ok_or(PostError::Invalid)?;
        if qp.receives.is_full() {
            return Err(PostError::Full);
        }
        let hw = qp.hw.as_mut().ok_or(PostError::NotReady)?;
        let (id, opcode, len) = (request.id, Opcode::Receive, request.buffer.len);
        let sink = Some(request.buffer.local_key);
        let sequence =
            qp.receives.push(Work::Posted { id, opcode, signaled: true, len, invalidates: None, sink }, true);
        hw.push_receive(Name::Receive(queue_pair, sequence).encode(), buffer);
        Self::mark_dirty(&mut self.dirty, qp);
        // On iWARP a message that finds no receive ends the connection: the device must have the receive before the
        // peer can send.
        if self.transport == Transport::Iwarp && !qp.ring_receives() {
            self.failed.push((queue_pair, WcStatus::LocalProtection));
        }
        Ok(())
    }

    /// Collects a receive for a shared queue.
    pub(crate) fn collect_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let buffer = self.regions.sink(request.buffer).ok_or(PostError::Invalid)?;
        let queue = self.shared_queues.get_mut(queue.0 as usize).ok_or(PostError::NoSuchQueue)?;
        queue.post(request.id, buffer, request.buffer.local_key)?;
        if self.transport == Transport::Iwarp {
            queue.ring();
        }
        Ok(())
    }

    /// Collects a send.
    pub(crate) fn collect_send(
        &mut self,
        name: QueuePairId,
        request: SendRequest<'_>,
    ) -> Result<(), PostError> {
        let SendRequest { id, operation, signaled } = request;
        let qp = self.queue_pairs.get(name.0).ok_or(PostError::NoSuchQueue)?;
        if !matches!(qp.phase, Phase::Ready) || qp.is_broken() {
            return Err(PostError::NotReady);
        }
        if qp.sends.is_full() {
            return Err(PostError::Full);
        }
        if let SendOperation::LocalInvalidate { key } = operation
            && self.has_windows
            && !self.windows.is_exposed(key, name)
        {
            // The peer ended it first: the two race by nature.
            return self.complete_in_turn(name, id, signaled);
        }
        let Parts { opcode, operation, inline, list, sink, invalidates } = self.parts(qp, operation)?;
        let sink = sink.map(|into| self.sink_of_read(name, into)).transpose()?;
        let gathered = list.iter().filter(|sge| sge.len > 0).filter_map(|&sge| self.regions.source(sge));
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return Err(PostError::NoSuchQueue) };
        let Some(hw) = &mut qp.hw else { return Err(PostError::NotReady) };
        let inline = inline.unwrap_or_default();
        let mut len = inline.len() as u32 + list.iter().map(|sge| sge.len).sum::<u32>();
        let mut element = None;
        if let Some(ReadSink { element: name, len: bytes, registration }) = sink {
            (element, len) = (name, bytes);
            qp.read_sinks.push_back(registration);
        }
        // The device tells of the last SEND that a doorbell posts, and by that of those before it. Unsignalled, no more
        // than half of the queue in a row: the other half's places come back meanwhile. Soft-iWARP passes the pages of
        // an unsignalled request to TCP by reference, and no later completion covers them: there all are signalled.
        let is_silent = !signaled || opcode == Opcode::Send;
        let may_be_unsignaled = is_silent && self.transport == Transport::InfiniBand;
        let unsignaled = may_be_unsignaled && qp.unsignaled_run + 1 < qp.attributes.max_send.div_ceil(2);
        qp.unsignaled_run = if unsignaled { qp.unsignaled_run + 1 } else { 0 };
        let sequence =
            qp.sends.push(Work::Posted { id, opcode, signaled, len, invalidates, sink: None }, !unsignaled);
        let id = Name::Send(name, sequence).encode();
        let elements = element.into_iter().chain(gathered);
        hw.push_send(&ffi::WorkRequest { id, operation, signaled: !unsignaled }, inline, elements);
        Self::mark_dirty(&mut self.dirty, qp);
        Ok(())
    }

    /// The device's name for where an RDMA READ lands.
    ///
    /// # Errors
    /// The device does not register it: the connection ends.
    fn sink_of_read(&mut self, name: QueuePairId, into: Sge) -> Result<ReadSink, PostError> {
        let len = into.len;
        if self.transport == Transport::InfiniBand || len == 0 {
            let element = self.regions.sink(into).filter(|_| len > 0);
            return Ok(ReadSink { element, len, registration: None });
        }
        let Some(region) = self.regions.register_sink(&self.device, into) else {
            self.failed.push((name, WcStatus::LocalProtection));
            if let Some(qp) = self.queue_pairs.get_mut(name.0) {
                qp.is_broken = true;
            }
            return Err(PostError::NotReady);
        };
        Ok(ReadSink { element: region.part(0, len), len, registration: Some(region) })
    }

    /// Completes a request that leaves the device nothing to do, after those before it.
    fn complete_in_turn(
        &mut self,
        name: QueuePairId,
        id: WorkRequestId,
        signaled: bool,
    ) -> Result<(), PostError> {
        let qp = self.queue_pairs.get_mut(name.0).ok_or(PostError::NoSuchQueue)?;
        let opcode = Opcode::LocalInvalidate;
        qp.sends.push_void(Work::Posted { id, opcode, signaled, len: 0, invalidates: None, sink: None });
        let queue = qp.attributes.send_cq;
        self.retire_done(queue, name, true);
        Ok(())
    }

    /// Takes an operation apart, and checks what can be checked of it.
    fn parts<'a>(&self, qp: &QueuePair, operation: SendOperation<'a>) -> Result<Parts<'a>, PostError> {
        let parts = |opcode, operation| Parts {
            opcode,
            operation,
            inline: None,
            list: &[],
            sink: None,
            invalidates: None,
        };
        Ok(match operation {
            SendOperation::Send { payload, invalidate, solicited } => {
                let (inline, list) = self.payload(payload)?;
                let invalidate = invalidate.map(|key| key.0);
                let operation = ffi::WorkOperation::Send { invalidate, solicited };
                Parts { inline, list, ..parts(Opcode::Send, operation) }
            }
            SendOperation::Write { payload, remote } => {
                let (inline, list) = self.payload(payload)?;
                let operation = ffi::WorkOperation::Write { address: remote.address, key: remote.key.0 };
                Parts { inline, list, ..parts(Opcode::Write, operation) }
            }
            SendOperation::Read { into, remote } => {
                self.regions.sink(into).filter(|_| qp.read_depth > 0).ok_or(PostError::Invalid)?;
                let operation = ffi::WorkOperation::Read { address: remote.address, key: remote.key.0 };
                Parts { sink: Some(into), ..parts(Opcode::Read, operation) }
            }
            SendOperation::LocalInvalidate { key } => {
                if !self.windows.is_exposed(key, qp.name) {
                    return Err(PostError::Invalid);
                }
                let operation = ffi::WorkOperation::LocalInvalidate { key: key.0 };
                Parts { invalidates: Some(key), ..parts(Opcode::LocalInvalidate, operation) }
            }
        })
    }

    /// The inline bytes of a payload, or its elements.
    fn payload<'a>(&self, payload: Payload<'a>) -> Result<(Option<&'a [u8]>, &'a [Sge]), PostError> {
        match payload {
            Payload::Inline(bytes) if bytes.len() > INLINE_MAX => Err(PostError::Invalid),
            Payload::Inline(bytes) => Ok((Some(bytes), &[])),
            Payload::Gather(list) => {
                let ok = list.len() <= self.max_sge() as usize
                    && list.iter().all(|&sge| self.regions.source(sge).is_some())
                    && list.iter().try_fold(0u32, |len, sge| len.checked_add(sge.len)).is_some();
                ok.then_some((None, list)).ok_or(PostError::Invalid)
            }
            Payload::Borrowed { from, offset, spare } => {
                // A device sends from what is registered with it.
                self.regions.copy(from, offset, *spare).ok_or(PostError::Invalid)?;
                Ok((None, core::slice::from_ref(spare)))
            }
        }
    }

    /// Rings one queue pair's doorbells.
    pub(crate) fn ring(&mut self, name: QueuePairId) {
        if let Some(qp) = self.queue_pairs.get_mut(name.0)
            && qp.is_dirty
            && !qp.ring()
        {
            self.failed.push((name, WcStatus::LocalProtection));
        }
    }

    /// Rings everybody's.
    pub(crate) fn ring_all(&mut self) {
        while let Some(name) = self.dirty.pop() {
            self.ring(name);
        }
        for queue in &mut self.shared_queues {
            queue.ring();
        }
    }

    fn mark_dirty(dirty: &mut Vec<QueuePairId>, qp: &mut QueuePair) {
        if !qp.is_dirty {
            qp.is_dirty = true;
            dirty.push(qp.name);
        }
    }
}
