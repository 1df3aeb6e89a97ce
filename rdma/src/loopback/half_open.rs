//! Connections whose loss one side notices later than the other.

use super::queue::{Operation, QueuePair, Source};
use super::state::{Message, State};
use super::transfer::{ACCESS, Fault, bytes_of, place};
use crate::{Access, DisconnectCause, QueuePairId, QueuePairState, WcStatus};
use core::time::Duration;

/// What was under way to the side that does not notice the loss.
#[derive(Debug)]
pub(super) enum Late {
    /// A SEND or a WRITE, with the bytes of that time.
    Message(Operation),
    /// The data of its oldest READ.
    ReadData(Vec<u8>),
}

impl State {
    /// Breaks the connection of `id`. Its peer is told `notice` later, and gets after `late` what was under way to it.
    pub(super) fn break_half_open(&mut self, id: QueuePairId, late: Duration, notice: Duration) -> bool {
        let open = |qp: &&QueuePair| qp.state == QueuePairState::Ready && !qp.closing;
        let peer = self.queue_pairs.get(&id).filter(open).and_then(|qp| qp.peer);
        let Some(peer) = peer.filter(|peer| self.queue_pairs.get(peer).as_ref().is_some_and(open)) else {
            return false;
        };
        let arrival = self.now.saturating_add(late);
        for message in self.under_way(id, peer) {
            self.schedule(arrival, Message::Late(peer, message));
        }
        self.schedule(arrival.max(self.now.saturating_add(notice)), Message::Notice(peer));
        self.end(id, DisconnectCause::Broken);
        for side in [id, peer] {
            if let Some(qp) = self.queue_pairs.get_mut(&side) {
                qp.peer = None;
            }
        }
        true
    }

    /// What `peer` would get next: answers to its READs, as far as no earlier work request of it has to be
    /// acknowledged first, then the SENDs and WRITEs of `id`.
    fn under_way(&self, id: QueuePairId, peer: QueuePairId) -> Vec<Late> {
        let started = |id| self.queue_pairs.get(&id).into_iter().flat_map(|qp| &qp.started);
        let data = started(peer).map_while(|work| match &work.operation {
            Operation::Read { into, remote } => {
                let from = self.remote(id, remote, into.len, Access::REMOTE_READ)?;
                Some(Late::ReadData(bytes_of(&Source::Gather(vec![from]))))
            }
            _ => None,
        });
        let copy = |source: &Source| Source::Inline(bytes_of(source));
        let messages = started(id).filter_map(|work| match &work.operation {
            Operation::Send { source, invalidate } => {
                Some(Late::Message(Operation::Send { source: copy(source), invalidate: *invalidate }))
            }
            Operation::Write { source, remote } => {
                Some(Late::Message(Operation::Write { source: copy(source), remote: *remote }))
            }
            Operation::Read { .. } | Operation::LocalInvalidate { .. } => None,
        });
        data.chain(messages).collect()
    }

    pub(super) fn on_late(&mut self, to: QueuePairId, late: Late) {
        let ready = |qp: &&mut QueuePair| qp.state == QueuePairState::Ready;
        let Some(qp) = self.queue_pairs.get_mut(&to).filter(ready) else { return };
        let outcome = match late {
            Late::ReadData(bytes) => {
                let Some(work) = qp.started.pop_front() else { return };
                qp.reads -= 1;
                let Operation::Read { into, .. } = &work.operation else { return };
                place(&Source::Inline(bytes), into);
                let len = u32::try_from(into.len).unwrap_or(u32::MAX);
                self.complete_send(to, &work, WcStatus::Success, len);
                Ok(())
            }
            Late::Message(Operation::Send { source, invalidate }) => self.on_message(to, &source, invalidate),
            Late::Message(Operation::Write { source, remote }) if source.len() > 0 => self
                .remote(to, &remote, source.len(), Access::REMOTE_WRITE)
                .map(|at| place(&source, &at))
                .ok_or(ACCESS),
            Late::Message(_) => Ok(()),
        };
        if let Err(Fault { rule, .. }) = outcome {
            self.end(to, DisconnectCause::PeerViolation(rule));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FabricOptions;
    use super::super::tests::{Linked, polled, send};
    use super::*;
    use crate::{CmEvent, Provider, ReceiveRequest, SendOperation, SendRequest, Sge, WorkRequestId};

    const LATE: Duration = Duration::from_millis(5);
    const NOTICE: Duration = Duration::from_millis(9);

    /// A connection over which a message takes a millisecond, and the time.
    fn linked() -> (Linked, Duration) {
        let trip = Duration::from_millis(1);
        let options = FabricOptions { latency: trip..=trip, descriptor: false, ..Default::default() };
        let linked = Linked::new(options);
        let now = linked.fabric.lock().now;
        (linked, now)
    }

    fn end_of(event: Option<CmEvent>) -> Option<DisconnectCause> {
        match event? {
            CmEvent::Disconnected { cause, .. } => Some(cause),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn half_open_side_gets_late_what_was_under_way() {
        let (Linked { fabric, sides: [mut left, mut right], cq, qp }, now) = linked();
        let memory = nvmf_memory::Memory::alloc(128).unwrap();
        let local_key = right.register(&memory, Access::LOCAL_WRITE).unwrap().local_key;
        let source = nvmf_memory::Memory::alloc(64).unwrap();
        source.fill(0, 64, 7);
        let source_key = left.register(&source, Access::LOCAL_READ).unwrap().local_key;
        let range = Sge { local_key: source_key, offset: 0, len: 64 };
        let remote = left.expose(qp[0], range, Access::REMOTE_READ).unwrap();
        let sink = Sge { local_key, offset: 64, len: 64 };
        let read = SendOperation::Read { into: sink, remote };
        right
            .post_send(qp[1], SendRequest { id: WorkRequestId(8), operation: read, signaled: true })
            .unwrap();
        let buffer = Sge { local_key, offset: 0, len: 64 };
        right.post_receive(qp[1], ReceiveRequest { id: WorkRequestId(5), buffer }).unwrap();
        send(&mut left, qp[0], 1).unwrap();
        send(&mut right, qp[1], 9).unwrap();
        left.flush();
        right.flush();

        assert!(fabric.break_half_open(qp[0], LATE, NOTICE));
        assert!(!fabric.break_half_open(qp[0], LATE, NOTICE));
        assert_eq!(end_of(left.poll_cm(now)), Some(DisconnectCause::Broken));
        assert_eq!(polled(&mut left, cq[0]), [(1, WcStatus::Flushed)]);
        left.destroy_queue_pair(qp[0]);
        // Its memory serves something else by then.
        source.fill(0, 64, 9);

        assert!(right.poll_cm(now + LATE - Duration::from_millis(1)).is_none());
        assert_eq!(polled(&mut right, cq[1]), []);
        assert!(right.poll_cm(now + LATE).is_none());
        assert_eq!(polled(&mut right, cq[1]), [(8, WcStatus::Success), (5, WcStatus::Success)]);
        let mut bytes = [0; 64];
        memory.read(64, &mut bytes);
        assert_eq!(bytes, [7; 64]);
        assert_eq!(end_of(right.poll_cm(now + NOTICE)), Some(DisconnectCause::Broken));
        assert_eq!(polled(&mut right, cq[1]), [(9, WcStatus::Flushed)]);
    }

    #[test]
    fn destroyed_half_open_queue_pair_gets_nothing() {
        let (Linked { fabric, sides: [mut left, mut right], cq, qp }, now) = linked();
        send(&mut left, qp[0], 1).unwrap();
        left.flush();
        assert!(fabric.break_half_open(qp[0], LATE, NOTICE));
        right.destroy_queue_pair(qp[1]);
        assert!(right.poll_cm(now + NOTICE).is_none());
        assert_eq!(polled(&mut right, cq[1]), []);
    }

    #[test]
    fn half_open_queue_pair_that_disconnects_ends_at_once() {
        let (Linked { fabric, sides: [_left, mut right], cq, qp }, now) = linked();
        assert!(fabric.break_half_open(qp[0], LATE, NOTICE));
        send(&mut right, qp[1], 9).unwrap();
        right.disconnect(qp[1]);
        assert_eq!(end_of(right.poll_cm(now)), Some(DisconnectCause::Local));
        assert_eq!(polled(&mut right, cq[1]), [(9, WcStatus::Flushed)]);
        assert!(right.poll_cm(now + NOTICE).is_none());
    }
}
