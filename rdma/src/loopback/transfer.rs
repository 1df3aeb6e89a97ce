//! What a message does: from the doorbell to the peer's memory.

use super::memory::Slice;
use super::queue::{Operation, QueuePair, Receive, Source, Spilled, Work};
use super::state::{MemberId, Message, State};
use crate::{Access, DisconnectCause, QueuePairId, QueuePairState, RemoteKey, WcStatus};

/// Why a connection ends over a message: the status of the work request, and the rule that was broken.
pub(super) struct Fault {
    status: WcStatus,
    pub(super) rule: &'static str,
}

pub(super) const ACCESS: Fault =
    Fault { status: WcStatus::RemoteAccess, rule: "key, bounds or access of remote memory" };
const INVALIDATION: Fault =
    Fault { status: WcStatus::RemoteAccess, rule: "invalidation of a key that it was not given" };
const LENGTH: Fault =
    Fault { status: WcStatus::RemoteOperation, rule: "message longer than the receive buffer" };
const NO_RECEIVE: Fault =
    Fault { status: WcStatus::ReceiverNotReady, rule: "more messages than receives, for too long" };

impl State {
    /// Rings the doorbell of one provider: starts what was posted, one work request of each queue pair in turn, and
    /// hands what waited for a receive to those that were posted.
    pub(super) fn ring(&mut self, member: MemberId) {
        let Some(it) = self.members.get_mut(&member) else { return };
        let mut ringing = core::mem::take(&mut it.unrung);
        for id in &ringing {
            if let Some(qp) = self.queue_pairs.get_mut(id) {
                qp.rung = qp.posted.len();
            }
        }
        while !ringing.is_empty() {
            ringing.retain(|&id| self.start_one(id));
        }
        let ours = |id: &QueuePairId| self.queue_pairs.get(id).is_some_and(|qp| qp.owner == member);
        let waiting: Vec<_> = self.spilled.iter().copied().filter(ours).collect();
        waiting.into_iter().for_each(|id| self.unspill(id));
    }

    /// Sends the next work request of a queue pair on its way, if it has one that may go.
    fn start_one(&mut self, id: QueuePairId) -> bool {
        let is_read = |work: &Work| matches!(work.operation, Operation::Read { .. });
        let may_go = |qp: &QueuePair| {
            let held_back = qp.posted.front().is_some_and(is_read) && qp.reads >= qp.read_depth;
            qp.state == QueuePairState::Ready && qp.rung > 0 && !held_back
        };
        let takes = |qp: &QueuePair| {
            qp.peer.and_then(|peer| self.queue_pairs.get(&peer)).is_some_and(|it| !it.stopped)
        };
        if !self.queue_pairs.get(&id).is_some_and(|qp| may_go(qp) && takes(qp)) {
            return false;
        }
        let arrival = self.arrival();
        let Some(qp) = self.queue_pairs.get_mut(&id) else { return false };
        let Some(work) = qp.posted.pop_front() else { return false };
        qp.rung -= 1;
        qp.reads += u16::from(is_read(&work));
        qp.started.push_back(work);
        // In order on one connection, whatever the latency drawn.
        let arrival = arrival.max(qp.last_arrival);
        qp.last_arrival = arrival;
        self.schedule(arrival, Message::Work(id));
        true
    }

    /// Starts what may be sent, and a disconnect after the last where one was asked for.
    pub(super) fn start(&mut self, id: QueuePairId) {
        while self.start_one(id) {}
        let Some(qp) = self.queue_pairs.get_mut(&id) else { return };
        if qp.closing && !qp.disconnect_sent && qp.posted.is_empty() {
            qp.disconnect_sent = true;
            let last = qp.last_arrival;
            let at = self.arrival().max(last);
            self.schedule(at, Message::Disconnect(id));
        }
    }

    pub(super) fn on_work(&mut self, id: QueuePairId) {
        let one_stream = self.options.spill.is_none();
        let Some(qp) = self.queue_pairs.get_mut(&id) else { return };
        let reads = |work: &Work| matches!(work.operation, Operation::Read { .. });
        let behind = one_stream && !qp.spill.is_empty() && qp.started.front().is_some_and(reads);
        if behind || qp.delayed > 0 {
            qp.delayed += 1;
            return;
        }
        let Some(peer) = qp.peer else { return };
        let Some(work) = qp.started.pop_front() else { return };
        qp.reads -= u16::from(matches!(work.operation, Operation::Read { .. }));
        match self.carry_out(id, peer, &work.operation) {
            Ok(byte_len) => self.complete_send(id, &work, WcStatus::Success, byte_len),
            Err(fault) => {
                self.complete_send(id, &work, fault.status, 0);
                self.accuse(Some(id), peer, fault.rule);
            }
        }
        self.start(id);
    }

    fn carry_out(&mut self, id: QueuePairId, peer: QueuePairId, operation: &Operation) -> Result<u32, Fault> {
        match operation {
            Operation::Send { source, invalidate } => {
                self.on_message(peer, source, *invalidate)?;
                Ok(0)
            }
            // No byte is reached, so no key is looked at, as in iWARP and InfiniBand.
            Operation::Write { source, .. } if source.len() == 0 => Ok(0),
            Operation::Read { into, .. } if into.len == 0 => Ok(0),
            Operation::Write { source, remote } => {
                let to = self.remote(peer, remote, source.len(), Access::REMOTE_WRITE).ok_or(ACCESS)?;
                place(source, &to);
                Ok(0)
            }
            Operation::Read { into, remote } => {
                let from = self.remote(peer, remote, into.len, Access::REMOTE_READ).ok_or(ACCESS)?;
                from.memory.copy_to(from.offset, &into.memory, into.offset, into.len);
                Ok(u32_len(into.len))
            }
            Operation::LocalInvalidate { key } => {
                let fault = Fault { status: WcStatus::LocalProtection, ..INVALIDATION };
                self.invalidate(id, *key).then_some(0).ok_or(fault)
            }
        }
    }

    /// A SEND arrives at `to`.
    pub(super) fn on_message(
        &mut self,
        to: QueuePairId,
        source: &Source,
        invalidate: Option<RemoteKey>,
    ) -> Result<(), Fault> {
        let waiting = self.spilled.contains(&to);
        if let Some(receive) = (!waiting).then(|| self.take_receive(to)).flatten() {
            return self.land(to, &receive, source, invalidate);
        }
        let bound = self.options.spill;
        let Some(qp) = self.queue_pairs.get_mut(&to) else { return Err(NO_RECEIVE) };
        if bound.is_some_and(|bound| qp.spill.len() >= bound) {
            return Err(NO_RECEIVE);
        }
        qp.spill.push_back(Spilled { bytes: bytes_of(source), invalidate });
        self.spilled.insert(to);
        Ok(())
    }

    /// Hands waiting messages to the receives that are there by now.
    fn unspill(&mut self, to: QueuePairId) {
        while self.queue_pairs.get(&to).is_some_and(|qp| !qp.spill.is_empty()) {
            let Some(receive) = self.take_receive(to) else { return };
            let Some(qp) = self.queue_pairs.get_mut(&to) else { return };
            let from = qp.peer;
            let Some(message) = qp.spill.pop_front() else { return };
            let source = Source::Inline(message.bytes);
            if let Err(fault) = self.land(to, &receive, &source, message.invalidate) {
                return self.accuse(from, to, fault.rule);
            }
        }
        self.spilled.remove(&to);
        let qp = self.queue_pairs.get_mut(&to);
        let delayed = qp.map_or(0, |qp| core::mem::take(&mut qp.delayed));
        (0..delayed).for_each(|_| self.on_work(to));
    }

    /// A SEND meets its receive.
    fn land(
        &mut self,
        to: QueuePairId,
        receive: &Receive,
        source: &Source,
        invalidate: Option<RemoteKey>,
    ) -> Result<(), Fault> {
        if source.len() > receive.buffer.len {
            self.complete_receive(to, receive, WcStatus::LocalLength, 0, None);
            return Err(LENGTH);
        }
        if invalidate.is_some_and(|key| !self.invalidate(to, key)) {
            self.complete_receive(to, receive, WcStatus::Flushed, 0, None);
            return Err(INVALIDATION);
        }
        place(source, &receive.buffer);
        self.complete_receive(to, receive, WcStatus::Success, u32_len(source.len()), invalidate);
        Ok(())
    }

    /// Ends a connection over what `offender` did to `victim`.
    fn accuse(&mut self, offender: Option<QueuePairId>, victim: QueuePairId, rule: &'static str) {
        if let Some(offender) = offender {
            self.end(offender, DisconnectCause::PeerTerminated(rule));
        }
        self.end(victim, DisconnectCause::PeerViolation(rule));
    }
}

/// Lengths of messages were bounded to 32 bits when they were posted.
fn u32_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

pub(super) fn place(source: &Source, to: &Slice) {
    match source {
        Source::Inline(bytes) => to.memory.write(to.offset, bytes),
        Source::Gather(slices) => {
            let mut at = to.offset;
            for slice in slices {
                slice.memory.copy_to(slice.offset, &to.memory, at, slice.len);
                at += slice.len;
            }
        }
    }
}

pub(super) fn bytes_of(source: &Source) -> Vec<u8> {
    match source {
        Source::Inline(bytes) => bytes.clone(),
        Source::Gather(slices) => {
            let mut bytes = vec![0; source.len()];
            let mut at = 0;
            for slice in slices {
                slice.memory.read(slice.offset, &mut bytes[at..at + slice.len]);
                at += slice.len;
            }
            bytes
        }
    }
}
