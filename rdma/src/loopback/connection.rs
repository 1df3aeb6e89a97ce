//! Listeners, requests, set-up and tear-down.

use super::queue::{MAX_READ_DEPTH, QueuePair};
use super::state::{MemberId, Message, State};
use crate::{
    CmEvent, ConnectError, ConnectFailure, ConnectParameters, DisconnectCause, ListenError, ListenerId,
    PrivateData, QueuePairId, QueuePairState, RequestId,
};
use core::time::Duration;
use std::io;
use std::net::SocketAddr;

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) owner: MemberId,
    address: SocketAddr,
    backlog: usize,
}

/// A connection request, from `connect` to its answer's arrival.
#[derive(Debug)]
pub(super) struct Request {
    /// Which provider may answer: none before the request arrived, while it is detached, and after the answer.
    pub(super) owner: Option<MemberId>,
    listener: Option<ListenerId>,
    initiator: QueuePairId,
    offer: ConnectParameters,
    peer: SocketAddr,
    local: SocketAddr,
    acceptor: Option<(QueuePairId, ConnectParameters)>,
}

/// Where ports for those who name none begin.
const EPHEMERAL: u16 = 49_152;

fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

fn unreachable(kind: io::ErrorKind) -> ConnectFailure {
    ConnectFailure::Unreachable(kind.into())
}

impl State {
    pub(super) fn listen(
        &mut self,
        owner: MemberId,
        mut address: SocketAddr,
        backlog: u32,
    ) -> Result<(ListenerId, SocketAddr), ListenError> {
        let taken = |address| self.listeners.values().any(|listener| clash(listener.address, address));
        if address.port() == 0 {
            let free = (EPHEMERAL..=u16::MAX).find(|&port| {
                address.set_port(port);
                !taken(address)
            });
            address.set_port(free.unwrap_or(u16::MAX));
        }
        if taken(address) {
            return Err(ListenError { address, source: io::ErrorKind::AddrInUse.into() });
        }
        let id = ListenerId(self.fresh());
        self.listeners.insert(id, Listener { owner, address, backlog: backlog.max(1) as usize });
        Ok((id, address))
    }

    pub(super) fn unlisten(&mut self, owner: MemberId, id: ListenerId) {
        if self.listeners.get(&id).is_none_or(|listener| listener.owner != owner) {
            return;
        }
        self.listeners.remove(&id);
        if let Some(member) = self.members.get_mut(&owner) {
            let ours = |event: &CmEvent| matches!(event, CmEvent::ConnectRequest { listener, .. } if *listener == id);
            member.events.retain(|event| !ours(event));
        }
        let unanswered = |r: &Request| r.listener == Some(id) && r.owner == Some(owner);
        let dropped: Vec<_> =
            self.requests.iter().filter(|(_, r)| unanswered(r)).map(|(&id, _)| id).collect();
        dropped.into_iter().for_each(|request| self.drop_request(request));
    }

    pub(super) fn connect(
        &mut self,
        owner: MemberId,
        initiator: QueuePairId,
        local: SocketAddr,
        source: Option<SocketAddr>,
        offer: ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.idle(owner, initiator)?;
        let request = RequestId(self.fresh());
        let port = EPHEMERAL + u16::try_from(request.0 % u32::from(u16::MAX - EPHEMERAL)).unwrap_or(0);
        let mut peer = source.unwrap_or_else(|| SocketAddr::new(local.ip(), 0));
        if peer.port() == 0 {
            peer.set_port(port);
        }
        let it = Request { owner: None, listener: None, initiator, offer, peer, local, acceptor: None };
        self.requests.insert(request, it);
        self.begin(initiator, request, offer.timeout);
        let arrival = self.arrival();
        self.schedule(arrival, Message::Hello(request));
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        owner: MemberId,
        request: RequestId,
        acceptor: QueuePairId,
        offer: ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.idle(owner, acceptor)?;
        let it = self.requests.get_mut(&request).filter(|it| it.owner == Some(owner));
        let it = it.ok_or(ConnectError::RequestGone)?;
        it.owner = None;
        it.acceptor = Some((acceptor, offer));
        self.begin(acceptor, request, offer.timeout);
        let arrival = self.arrival();
        self.schedule(arrival, Message::Welcome(request));
        Ok(())
    }

    pub(super) fn reject(&mut self, owner: MemberId, request: RequestId, private_data: PrivateData) {
        let it = self.requests.get_mut(&request).filter(|it| it.owner == Some(owner));
        if let Some(it) = it {
            it.owner = None;
            let arrival = self.arrival();
            self.schedule(arrival, Message::Rejection(request, Box::new(private_data)));
        }
    }

    pub(super) fn detach(&mut self, owner: MemberId, request: RequestId) -> Option<RequestId> {
        let it = self.requests.get_mut(&request).filter(|it| it.owner == Some(owner))?;
        (it.owner, it.listener) = (None, None);
        Some(request)
    }

    pub(super) fn adopt(&mut self, owner: MemberId, request: RequestId) {
        if let Some(it) = self.requests.get_mut(&request) {
            it.owner = Some(owner);
        }
    }

    fn idle(&self, owner: MemberId, id: QueuePairId) -> Result<(), ConnectError> {
        let idle = |qp: &&QueuePair| qp.owner == owner && qp.state == QueuePairState::Idle;
        self.queue_pairs.get(&id).filter(idle).map(|_| ()).ok_or(ConnectError::NotIdle)
    }

    fn begin(&mut self, id: QueuePairId, request: RequestId, timeout: Duration) {
        let deadline = self.schedule(self.now.saturating_add(timeout), Message::Deadline(id));
        if let Some(qp) = self.queue_pairs.get_mut(&id) {
            qp.state = QueuePairState::Connecting;
            qp.request = Some(request);
            qp.deadline = Some(deadline);
        }
    }

    pub(super) fn on_hello(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        let found = self.listeners.iter().find(|(_, listener)| clash(listener.address, request.local));
        let Some((&listener, &Listener { owner, backlog, .. })) = found else {
            return self.fail_request(id, unreachable(io::ErrorKind::ConnectionRefused));
        };
        let waiting =
            self.requests.values().filter(|it| it.listener == Some(listener) && it.owner.is_some()).count();
        if waiting >= backlog {
            return self.fail_request(id, unreachable(io::ErrorKind::ConnectionRefused));
        }
        let Some(request) = self.requests.get_mut(&id) else { return };
        (request.owner, request.listener) = (Some(owner), Some(listener));
        let event = CmEvent::ConnectRequest {
            listener,
            request: id,
            peer: request.peer,
            local: request.local,
            private_data: request.offer.private_data,
            peer_responder_resources: request.offer.responder_resources.min(MAX_READ_DEPTH),
            peer_initiator_depth: request.offer.initiator_depth.min(MAX_READ_DEPTH),
        };
        self.notify(owner, event);
    }

    pub(super) fn on_welcome(&mut self, id: RequestId) {
        let Some(request) = self.requests.remove(&id) else { return };
        let Some((acceptor, answer)) = request.acceptor else { return };
        self.establish(request.initiator, acceptor, &request.offer, &answer, answer.private_data);
        self.establish(acceptor, request.initiator, &answer, &request.offer, PrivateData::EMPTY);
    }

    fn establish(
        &mut self,
        id: QueuePairId,
        peer: QueuePairId,
        ours: &ConnectParameters,
        theirs: &ConnectParameters,
        private_data: PrivateData,
    ) {
        self.settle(id);
        let Some(qp) = self.queue_pairs.get_mut(&id) else { return };
        qp.state = QueuePairState::Ready;
        qp.peer = Some(peer);
        qp.read_depth = ours.initiator_depth.min(theirs.responder_resources).min(MAX_READ_DEPTH);
        let event = CmEvent::Established {
            queue_pair: id,
            private_data,
            responder_resources: ours.responder_resources.min(MAX_READ_DEPTH),
            initiator_depth: qp.read_depth,
        };
        let owner = qp.owner;
        self.notify(owner, event);
    }

    /// The set-up of a queue pair is over, for better or worse.
    fn settle(&mut self, id: QueuePairId) {
        let Some(qp) = self.queue_pairs.get_mut(&id) else { return };
        qp.request = None;
        if let Some(deadline) = qp.deadline.take() {
            self.unschedule(deadline);
        }
    }

    /// Ends a request; the asker learns why, and one who had accepted learns that it came to nothing.
    pub(super) fn fail_request(&mut self, id: RequestId, failure: ConnectFailure) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.fail_connect(request.initiator, failure);
        if let Some((acceptor, _)) = request.acceptor {
            self.fail_connect(acceptor, unreachable(io::ErrorKind::ConnectionReset));
        }
    }

    pub(super) fn drop_request(&mut self, id: RequestId) {
        self.fail_request(id, unreachable(io::ErrorKind::ConnectionReset));
    }

    fn fail_connect(&mut self, id: QueuePairId, failure: ConnectFailure) {
        self.settle(id);
        let Some(qp) = self.queue_pairs.get(&id) else { return };
        let owner = qp.owner;
        if qp.state == QueuePairState::Connecting {
            self.flush_queue_pair(id);
            self.notify(owner, CmEvent::ConnectFailed { queue_pair: id, failure });
        }
    }

    pub(super) fn on_deadline(&mut self, id: QueuePairId) {
        let request = self.queue_pairs.get(&id).and_then(|qp| qp.request);
        self.fail_connect(id, ConnectFailure::TimedOut);
        if let Some(request) = request {
            self.drop_request(request);
        }
    }

    pub(super) fn disconnect(&mut self, owner: MemberId, id: QueuePairId) {
        let Some(qp) = self.queue_pairs.get_mut(&id).filter(|qp| qp.owner == owner) else { return };
        match qp.state {
            QueuePairState::Idle => self.flush_queue_pair(id),
            QueuePairState::Connecting => {
                let request = qp.request;
                self.fail_connect(id, unreachable(io::ErrorKind::ConnectionAborted));
                if let Some(request) = request {
                    self.drop_request(request);
                }
            }
            // A half-open connection: nobody takes what was posted.
            QueuePairState::Ready if qp.peer.is_none() => self.end(id, DisconnectCause::Local),
            QueuePairState::Ready => {
                qp.closing = true;
                qp.rung = qp.posted.len();
                self.start(id);
            }
            QueuePairState::Error => {}
        }
    }

    /// Everything that `id` sent before has arrived by now.
    pub(super) fn on_peer_disconnect(&mut self, id: QueuePairId) {
        let Some(peer) = self.queue_pairs.get(&id).and_then(|qp| qp.peer) else { return };
        self.end(id, DisconnectCause::Local);
        self.end(peer, DisconnectCause::Peer);
    }

    /// Ends an established connection, on one side.
    pub(super) fn end(&mut self, id: QueuePairId, cause: DisconnectCause) {
        let Some(qp) = self.queue_pairs.get(&id) else { return };
        let owner = qp.owner;
        if qp.state == QueuePairState::Ready {
            self.flush_queue_pair(id);
            self.notify(owner, CmEvent::Disconnected { queue_pair: id, cause });
        }
    }

    pub(super) fn destroy_queue_pair(&mut self, owner: MemberId, id: QueuePairId) {
        let Some(qp) = self.queue_pairs.get(&id).filter(|qp| qp.owner == owner) else { return };
        let (peer, request) = (qp.peer, qp.request);
        self.settle(id);
        self.remove_queue_pair(id);
        if let Some(peer) = peer {
            self.end(peer, DisconnectCause::Reset);
        }
        if let Some(request) = request {
            self.drop_request(request);
        }
    }
}
