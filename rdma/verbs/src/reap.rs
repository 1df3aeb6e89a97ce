//! What the device completed, and what follows from it.

use crate::completion::{BATCH, Name, status};
use crate::ffi::{AsyncNotice, Wc};
use crate::loss::Lost;
use crate::outstanding::{Done, Work};
use crate::provider::VerbsProvider;
use crate::queue_pair::{End, Phase, QueuePair};
use nvmf_rdma::{
    Completion, CompletionQueueId, DisconnectCause, Opcode, Provider, QueuePairId, QueuePairState, RemoteKey,
    WcStatus,
};

impl VerbsProvider {
    /// Takes what the device has completed of a queue pair's queues.
    pub(crate) fn reap(&mut self, name: QueuePairId) {
        let Some(qp) = self.queue_pairs.get(name.0) else { return };
        let (send, receive) = (qp.attributes.send_cq, qp.attributes.receive_cq);
        self.take_all(send);
        if receive != send {
            self.take_all(receive);
        }
    }

    pub(crate) fn take_all(&mut self, queue: CompletionQueueId) {
        while self.take(queue) == BATCH {}
    }

    /// Takes a batch from the device into the queue's store; how many.
    pub(crate) fn take(&mut self, queue: CompletionQueueId) -> usize {
        if self.lost == Lost::Reported {
            return 0;
        }
        let Some(it) = self.completion_queues.get_mut(queue.0 as usize) else { return 0 };
        let mut batch = core::mem::take(&mut self.batch);
        let count = it.poll(&mut batch);
        for wc in &batch[..count] {
            self.on_completion(queue, wc);
        }
        self.batch = batch;
        count
    }

    fn on_completion(&mut self, queue: CompletionQueueId, wc: &Wc) {
        let status = status(wc);
        let (name, sequence, is_send) = match Name::decode(wc.wr_id) {
            Name::Send(name, sequence) => (name, sequence, true),
            Name::Receive(name, sequence) => (name, sequence, false),
            Name::Shared(shared, slot) => return self.on_shared(queue, wc, shared, slot, status),
        };
        // The queue pair was destroyed meanwhile.
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        let outstanding = if is_send { &mut qp.sends } else { &mut qp.receives };
        let invalidated = invalidated(wc, self.invalidate_flag).filter(|_| status.is_success() && !is_send);
        outstanding.complete(sequence, Done { status, byte_len: wc.byte_len, invalidated });
        self.retire_done(queue, name, is_send);
        if !status.is_success() && self.may_fail(name) {
            self.failed.push((name, status));
        }
    }

    fn may_fail(&self, name: QueuePairId) -> bool {
        let phase = self.queue_pairs.get(name.0).map(|qp| &qp.phase);
        matches!(phase, Some(Phase::Ready | Phase::Closing | Phase::Disconnecting))
    }

    /// Completes to the caller, in order, what is done on a queue of a queue pair.
    pub(crate) fn retire_done(&mut self, queue: CompletionQueueId, name: QueuePairId, is_send: bool) {
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        let Some(ready) = self.completion_queues.get_mut(queue.0 as usize).map(|it| &mut it.ready) else {
            return;
        };
        let outstanding = if is_send { &mut qp.sends } else { &mut qp.receives };
        while let Some((work, done)) = outstanding.retire() {
            if matches!(work, Work::Posted { opcode: Opcode::Read, .. }) {
                // Its key, which the peer has, ends before the caller uses the memory.
                qp.read_sinks.pop_front();
            }
            // One that was flushed leaves its window bound: that one goes with the queue pair.
            if let Work::Posted { invalidates: Some(key), .. } = work
                && done.status.is_success()
            {
                self.windows.invalidated(key, name);
            }
            if let Some(key) = done.invalidated {
                self.windows.invalidated(key, name);
            }
            ready.extend(finished(name, work, done.status, done.byte_len, done.invalidated));
        }
    }

    fn on_shared(&mut self, queue: CompletionQueueId, wc: &Wc, shared: u16, slot: u32, status: WcStatus) {
        let Some(id) = self.shared_queues.get_mut(usize::from(shared)).and_then(|it| it.take(slot)) else {
            return;
        };
        let Some(&name) = self.numbers.get(&wc.qp_num) else { return };
        let invalidated = invalidated(wc, self.invalidate_flag).filter(|_| status.is_success());
        if let Some(key) = invalidated {
            self.windows.invalidated(key, name);
        }
        if let Some(it) = self.completion_queues.get_mut(queue.0 as usize) {
            let (queue_pair, opcode, byte_len) = (name, Opcode::Receive, wc.byte_len);
            it.ready.push_back(Completion { id, queue_pair, opcode, status, byte_len, invalidated });
        }
        if !status.is_success() {
            self.failed.push((name, status));
        }
    }

    pub(crate) fn on_device_notice(&mut self, notice: AsyncNotice) {
        match notice {
            AsyncNotice::Fatal => self.lose(),
            AsyncNotice::Established(number) => {
                let name = self.numbers.get(&number);
                let qp = name.and_then(|name| self.queue_pairs.get(name.0));
                if let Some(QueuePair { phase: Phase::Connecting(_), id: Some(id), .. }) = qp {
                    // Fails where the message came meanwhile, which does as well.
                    let _ = id.notify_established();
                }
            }
            AsyncNotice::QueuePair(number) => {
                if let Some(&name) = self.numbers.get(&number)
                    && matches!(self.state(name), QueuePairState::Ready)
                {
                    self.end(
                        name,
                        End::Disconnected(DisconnectCause::PeerViolation(
                            "the device reported an access or request error",
                        )),
                    );
                }
            }
            AsyncNotice::Other => {}
        }
    }
}

/// The kernel's own `IB_WC_WITH_INVALIDATE`, which rxe hands to userspace as it is.
pub(crate) const WITH_INVALIDATE_RXE: u32 = 1 << 2;

/// The key that the peer's SEND invalidated, if `flag` says that it did.
fn invalidated(wc: &Wc, flag: u32) -> Option<RemoteKey> {
    (wc.wc_flags & flag != 0).then_some(RemoteKey(wc.invalidated_rkey))
}

/// The caller's completion of a request: none for an unsignalled success, none for our own.
pub(crate) fn finished(
    queue_pair: QueuePairId,
    work: Work,
    status: WcStatus,
    byte_len: u32,
    invalidated: Option<RemoteKey>,
) -> Option<Completion> {
    let Work::Posted { id, opcode, signaled, len, .. } = work else { return None };
    let byte_len = if opcode == Opcode::Receive { byte_len } else { len };
    (signaled || !status.is_success()).then_some(Completion {
        id,
        queue_pair,
        opcode,
        status,
        byte_len,
        invalidated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::constants::WC_WITH_INV;
    use nvmf_rdma::WorkRequestId;

    #[test]
    fn failures_and_signaled_requests_complete_visibly() {
        let qp = QueuePairId(1);
        let work = |opcode, signaled| {
            let id = WorkRequestId(9);
            Work::Posted { id, opcode, signaled, len: 7, invalidates: None, sink: None }
        };
        let completing =
            |work, status| finished(qp, work, status, 3, None).map(|it| (it.status, it.byte_len));
        for (opcode, signaled, status, expected) in [
            (Opcode::Send, true, WcStatus::Success, Some(7)),
            (Opcode::Send, false, WcStatus::Success, None),
            (Opcode::Send, false, WcStatus::Flushed, Some(7)),
            (Opcode::Receive, true, WcStatus::Success, Some(3)),
        ] {
            assert_eq!(completing(work(opcode, signaled), status), expected.map(|len| (status, len)));
        }
        assert_eq!(completing(Work::Bind, WcStatus::Flushed), None);
    }

    #[test]
    fn completion_names_the_invalidated_key() {
        let wc = Wc { invalidated_rkey: 0x1234, wc_flags: WC_WITH_INV, ..Wc::default() };
        assert_eq!(invalidated(&wc, WC_WITH_INV), Some(RemoteKey(0x1234)));
        assert_eq!(invalidated(&wc, WITH_INVALIDATE_RXE), None);
    }
}
