//! How connections end: posted work is sent, the device flushes, then the end is reported.

use crate::ffi::Transport;
use crate::outstanding::Work;
use crate::provider::VerbsProvider;
use crate::queue_pair::{End, Phase, QueuePair};
use crate::reap::finished;
use core::time::Duration;
use nvmf_rdma::{
    CmEvent, ConnectFailure, ConnectParameters, DisconnectCause, Opcode, PrivateData, QueuePairId, WcStatus,
};
use std::io;

/// How long the device may take to flush before it is cut off.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);
/// How long posted work may still be sent after `disconnect`.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);
/// How long the reason may be waited for when work was flushed.
const REASON_TIME_MAX: Duration = Duration::from_millis(200);

/// For a queue pair that is ended before anything was agreed on.
const NOTHING: ConnectParameters = ConnectParameters {
    private_data: PrivateData::EMPTY,
    responder_resources: 0,
    initiator_depth: 0,
    timeout: Duration::ZERO,
};

impl VerbsProvider {
    /// Closes a connection: what was posted is still sent.
    pub(crate) fn start_closing(&mut self, name: QueuePairId) {
        self.ring(name);
        let (now, failed) = (self.now, io::ErrorKind::ConnectionAborted);
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        match qp.phase {
            Phase::Idle => {
                qp.phase = Phase::Connecting(NOTHING);
                self.end(name, End::Disconnected(DisconnectCause::Local));
            }
            Phase::Resolving(_) | Phase::Connecting(_) => {
                self.end(name, End::Failed(ConnectFailure::Unreachable(failed.into())));
            }
            Phase::Ready => {
                qp.phase = Phase::Closing;
                qp.deadline = Some(now + CLOSE_TIME_MAX);
                self.attend(name);
            }
            Phase::Closing | Phase::Disconnecting | Phase::Draining(_) | Phase::Over => {}
        }
    }

    /// Ends a connection: the device flushes, and the end is reported when it has.
    pub(crate) fn end(&mut self, name: QueuePairId, end: End) {
        self.ring(name);
        let now = self.now;
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        if matches!(qp.phase, Phase::Draining(_) | Phase::Over) {
            return;
        }
        if let Some(id) = &qp.id {
            let _ = id.disconnect();
        }
        if let Some(hw) = &qp.hw {
            hw.fail();
        }
        qp.phase = Phase::Draining(end);
        qp.deadline = Some(now + DRAIN_TIME_MAX);
        self.attend(name);
        // Where nothing is outstanding, no completion would report it.
        self.reap(name);
        self.finish(name, false);
    }

    /// Ends the connections whose work failed.
    pub(crate) fn end_failed(&mut self) {
        if self.failed.is_empty() {
            return;
        }
        // The connection manager's event has the reason why work was flushed.
        self.poll_events();
        while let Some((name, status)) = self.failed.pop() {
            let now = self.now;
            let Some(qp) = self.queue_pairs.get_mut(name.0) else { continue };
            match qp.phase {
                Phase::Ready if status == WcStatus::Flushed => {
                    qp.deadline = qp.deadline.or(Some(now + REASON_TIME_MAX));
                    self.attend(name);
                }
                Phase::Ready => self.end(name, End::Disconnected(DisconnectCause::Broken)),
                Phase::Closing | Phase::Disconnecting => {
                    self.end(name, End::Disconnected(DisconnectCause::Local))
                }
                _ => {}
            }
        }
    }

    /// The device is gone from under a queue pair.
    pub(crate) fn lose_device(&mut self, name: QueuePairId) {
        let Some(qp) = self.queue_pairs.get(name.0) else { return };
        match qp.phase {
            // It has no connection that could end: `connect` and `accept` fail.
            Phase::Idle => {}
            Phase::Resolving(_) | Phase::Connecting(_) => {
                let gone = io::Error::from_raw_os_error(libc::ENODEV);
                self.end(name, End::Failed(ConnectFailure::Unreachable(gone)));
            }
            _ => self.end(name, End::Disconnected(DisconnectCause::DeviceRemoved)),
        }
    }

    pub(crate) fn attend(&mut self, name: QueuePairId) {
        if !self.attended.contains(&name) {
            self.attended.push(name);
        }
    }

    /// Advances the queue pairs that are being set up or ended: deadlines, closing, draining.
    pub(crate) fn look_after(&mut self) {
        let mut at = 0;
        while let Some(&name) = self.attended.get(at) {
            if self.look_after_one(name) {
                at += 1;
            } else {
                self.attended.swap_remove(at);
            }
        }
    }

    /// Whether it still needs looking after.
    fn look_after_one(&mut self, name: QueuePairId) -> bool {
        let now = self.now;
        let Some(qp) = self.queue_pairs.get(name.0) else { return false };
        // A device that is gone flushes nothing.
        let late = self.is_lost() || qp.deadline.is_some_and(|deadline| now >= deadline);
        match qp.phase {
            Phase::Resolving(_) | Phase::Connecting(_) if late => {
                self.end(name, End::Failed(ConnectFailure::TimedOut));
            }
            Phase::Resolving(_) | Phase::Connecting(_) => {}
            Phase::Closing => {
                self.reap(name);
                self.say_farewell(name, late);
            }
            Phase::Disconnecting if late => self.end(name, End::Disconnected(DisconnectCause::Local)),
            Phase::Disconnecting => {}
            Phase::Draining(_) => {
                self.reap(name);
                self.finish(name, late);
            }
            Phase::Ready if late => self.end(name, End::Disconnected(DisconnectCause::Broken)),
            Phase::Ready => return qp.deadline.is_some(),
            Phase::Idle | Phase::Over => return false,
        }
        true
    }

    /// Goes on once everything was sent, or at the deadline.
    fn say_farewell(&mut self, name: QueuePairId, late: bool) {
        let (now, transport) = (self.now, self.transport);
        let Some(qp) = self.queue_pairs.get_mut(name.0).filter(|qp| qp.sends.is_empty() || late) else {
            return;
        };
        // iWARP: the stream is closed behind the last byte; an error state now would reset it.
        if transport == Transport::Iwarp && qp.id.as_ref().is_some_and(|id| id.disconnect().is_ok()) {
            qp.phase = Phase::Disconnecting;
            qp.deadline = Some(now + CLOSE_TIME_MAX);
        } else {
            self.end(name, End::Disconnected(DisconnectCause::Local));
        }
    }

    /// Reports the end once everything was flushed; destroys the queue pair first when that takes too long.
    fn finish(&mut self, name: QueuePairId, late: bool) {
        let Some(drained) = self.queue_pairs.get(name.0).map(QueuePair::is_drained) else { return };
        if !drained && !late {
            return;
        }
        if !drained {
            self.cut_off(name);
        }
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        if let Phase::Draining(end) = core::mem::replace(&mut qp.phase, Phase::Over) {
            qp.deadline = None;
            self.flush_untaken(name);
            self.events.push_back(match end {
                End::Failed(failure) => CmEvent::ConnectFailed { queue_pair: name, failure },
                End::Disconnected(cause) => CmEvent::Disconnected { queue_pair: name, cause },
            });
        }
    }

    /// Completes, as flushed, what the device never took or never gave back.
    pub(crate) fn flush_untaken(&mut self, name: QueuePairId) {
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        let queues = [(&mut qp.sends, qp.attributes.send_cq), (&mut qp.receives, qp.attributes.receive_cq)];
        for (outstanding, queue) in queues {
            let Some(it) = self.completion_queues.get_mut(queue.0 as usize) else { continue };
            while let Some(work) = outstanding.pop() {
                if matches!(work, Work::Posted { opcode: Opcode::Read, .. }) {
                    qp.read_sinks.pop_front();
                }
                it.ready.extend(finished(name, work, WcStatus::Flushed, 0, None));
            }
        }
    }

    /// Destroys a queue pair that the device does not flush.
    pub(crate) fn cut_off(&mut self, name: QueuePairId) {
        self.windows.forget_queue_pair(name);
        if let Some(hw) = self.queue_pairs.get_mut(name.0).and_then(|qp| qp.hw.take()) {
            self.destroy_on_device(hw);
        }
    }

    /// When something is due of a queue pair or a request. Asked at every turn: it looks at those only that are being
    /// set up or torn down.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let queue_pairs = self.attended.iter().filter_map(|name| self.queue_pairs.get(name.0)?.deadline);
        queue_pairs.chain(self.requests_due).min()
    }
}
