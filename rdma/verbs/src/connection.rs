//! Set-up and tear-down: what the connection manager tells, and what follows from it.

use crate::ffi::{CmId, CmNotice, ConnectionParameters, IdKey, NoticeKind, Transport};
use crate::provider::VerbsProvider;
use crate::queue_pair::{End, Phase, QueuePair};
use core::time::Duration;
use nvmf_rdma::{
    CmEvent, ConnectError, ConnectFailure, ConnectParameters, DisconnectCause, ListenError, ListenerId,
    PrivateData, QueuePairId, RequestId,
};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// How long the device may take to flush before it is cut off.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);
/// How long posted work may still be sent after `disconnect`.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a connection request may stay unanswered.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Requests that wait for an answer.
const REQUESTS_MAX: usize = 1024;
/// InfiniBand: nobody listens under that service id.
const REJECTED_INVALID_SERVICE_ID: i32 = 8;

/// Whose an id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Listener(ListenerId),
    Request(RequestId),
    QueuePair(QueuePairId),
}

/// A peer's connection request.
pub(crate) struct Request {
    id: CmId,
    /// Of this provider; `None` for one that was adopted.
    listener: Option<ListenerId>,
    since: Duration,
    peer_initiator_depth: u8,
    peer_responder_resources: u8,
}

/// A connection request between two threads.
pub struct DetachedRequest(Request);

impl VerbsProvider {
    fn private_data_max(&self, infiniband: usize) -> usize {
        match self.transport {
            Transport::InfiniBand => infiniband,
            Transport::Iwarp => PrivateData::MAX - 1,
        }
    }

    fn check_private_data(
        &self,
        data: &PrivateData,
        infiniband: usize,
        address: SocketAddr,
    ) -> Result<(), ConnectError> {
        let (len, max) = (data.as_bytes().len(), self.private_data_max(infiniband));
        if len <= max {
            return Ok(());
        }
        let text = format!("{len} bytes of private data, the transport takes {max}");
        Err(ConnectError::Os { address, source: io::Error::new(io::ErrorKind::InvalidInput, text) })
    }

    pub(crate) fn start_listening(
        &mut self,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<(ListenerId, SocketAddr), ListenError> {
        let failed = |source| ListenError { address, source };
        let id = CmId::new(&self.channel).map_err(failed)?;
        id.bind(address).map_err(failed)?;
        if let Some(device) = id.device_name().filter(|device| *device != self.device_name) {
            let text =
                format!("{} belongs to RDMA device {device}, not to {}", address.ip(), self.device_name);
            return Err(failed(io::Error::new(io::ErrorKind::AddrNotAvailable, text)));
        }
        id.listen(backlog).map_err(failed)?;
        let local =
            id.local_address().ok_or(io::ErrorKind::InvalidData).map_err(|kind| failed(kind.into()))?;
        let key = id.key();
        let no_room = || failed(io::ErrorKind::OutOfMemory.into());
        let listener = ListenerId(self.listeners.insert(|_| id).ok_or_else(no_room)?);
        self.roles.insert(key, Role::Listener(listener));
        Ok((listener, local))
    }

    pub(crate) fn stop_listening(&mut self, listener: ListenerId) {
        let Some(id) = self.listeners.remove(listener.0) else { return };
        self.roles.remove(&id.key());
        let unanswered: Vec<_> = self
            .requests
            .keys()
            .filter(|&key| self.requests.get(key).is_some_and(|it| it.listener == Some(listener)))
            .collect();
        for request in unanswered {
            self.drop_request(RequestId(request));
        }
        let is_of_it = |event: &CmEvent| matches!(event, CmEvent::ConnectRequest { listener: of, .. } if *of == listener);
        self.events.retain(|event| !is_of_it(event));
    }

    fn drop_request(&mut self, request: RequestId) {
        if let Some(request) = self.requests.remove(request.0) {
            self.roles.remove(&request.id.key());
            let _ = request.id.reject(&PrivateData::EMPTY);
        }
    }

    pub(crate) fn reject_request(&mut self, request: RequestId, private_data: &PrivateData) {
        let Some(request) = self.requests.remove(request.0) else { return };
        self.roles.remove(&request.id.key());
        // What does not fit is left out: the peer is rejected all the same.
        let fits = private_data.as_bytes().len() <= self.private_data_max(148);
        let _ = request.id.reject(if fits { private_data } else { &PrivateData::EMPTY });
    }

    pub(crate) fn detach_request(&mut self, request: RequestId) -> Option<DetachedRequest> {
        let request = self.requests.remove(request.0)?;
        self.roles.remove(&request.id.key());
        Some(DetachedRequest(request))
    }

    pub(crate) fn adopt_request(&mut self, now: Duration, detached: DetachedRequest) -> RequestId {
        let DetachedRequest(mut request) = detached;
        (request.listener, request.since) = (None, now);
        // One that cannot move is gone: `accept` says so.
        if request.id.migrate(&self.channel).is_err() {
            return RequestId(u32::MAX);
        }
        let key = request.id.key();
        let Some(name) = self.keep_request(request) else { return RequestId(u32::MAX) };
        self.roles.insert(key, Role::Request(RequestId(name)));
        RequestId(name)
    }

    pub(crate) fn start_connecting(
        &mut self,
        now: Duration,
        name: QueuePairId,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.check_private_data(&parameters.private_data, 56, address)?;
        let (channel, tos) = (Arc::clone(&self.channel), self.config.traffic_class);
        let qp = self
            .queue_pairs
            .get_mut(name.0)
            .filter(|qp| matches!(qp.phase, Phase::Idle))
            .ok_or(ConnectError::NotIdle)?;
        let os = |source| ConnectError::Os { address, source };
        let id = CmId::new(&channel).map_err(os)?;
        if let Some(tos) = tos {
            id.set_type_of_service(tos).map_err(os)?;
        }
        id.resolve_address(source, address, parameters.timeout).map_err(os)?;
        self.roles.insert(id.key(), Role::QueuePair(name));
        qp.id = Some(id);
        qp.phase = Phase::Resolving(*parameters);
        qp.deadline = Some(now + parameters.timeout);
        self.attend(name);
        Ok(())
    }

    pub(crate) fn accept_request(
        &mut self,
        now: Duration,
        request: RequestId,
        name: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        let peer = self.requests.get(request.0).ok_or(ConnectError::RequestGone)?.id.peer_address();
        let address = peer.unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
        self.check_private_data(&parameters.private_data, 196, address)?;
        if !self.queue_pairs.get(name.0).is_some_and(|qp| matches!(qp.phase, Phase::Idle)) {
            return Err(ConnectError::NotIdle);
        }
        self.ring(name);
        let Some(Request { id, peer_initiator_depth, peer_responder_resources, .. }) =
            self.requests.remove(request.0)
        else {
            return Err(ConnectError::RequestGone);
        };
        self.roles.remove(&id.key());
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return Err(ConnectError::NotIdle) };
        let mut parameters = *parameters;
        parameters.responder_resources = parameters.responder_resources.min(peer_initiator_depth.into());
        parameters.initiator_depth = parameters.initiator_depth.min(peer_responder_resources.into());
        let offer = offer(&self.config, qp, &parameters);
        let prepared = match (&qp.hw, self.transport) {
            (Some(hw), Transport::InfiniBand) => hw.connect(&id, self.path),
            _ => Ok(()),
        };
        let accepted = prepared.and_then(|()| id.accept(&offer));
        let key = id.key();
        qp.id = Some(id);
        match accepted {
            Ok(()) => {
                self.roles.insert(key, Role::QueuePair(name));
                qp.phase = Phase::Connecting(parameters);
                qp.deadline = Some(now + parameters.timeout);
                self.attend(name);
                Ok(())
            }
            Err(source) => {
                // The queue pair may have left its idle state on the way: it ends by event, as the contract allows.
                self.roles.insert(key, Role::QueuePair(name));
                qp.phase = Phase::Connecting(parameters);
                self.end(name, End::Failed(ConnectFailure::Unreachable(source)));
                Ok(())
            }
        }
    }

    /// Ends a connection in good order.
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
            Phase::Closing | Phase::Farewell | Phase::Draining(_) | Phase::Over => {}
        }
    }

    /// The connection is over: has the device flush. What is told is told when it has.
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
    }

    /// Hears everything that the connection manager and the device have to say.
    pub(crate) fn hear(&mut self) {
        while let Some(notice) = self.device.async_notice() {
            self.on_device_notice(notice);
        }
        while let Some(notice) = self.channel.notice() {
            self.on_notice(notice);
        }
    }

    fn on_notice(&mut self, notice: CmNotice) {
        if notice.kind == NoticeKind::ConnectRequest {
            return self.on_request(notice);
        }
        match self.roles.get(&notice.id).copied() {
            Some(Role::QueuePair(name)) => self.on_connection(name, &notice),
            // Whatever it is, the peer does not wait for an answer any more.
            Some(Role::Request(request)) => {
                self.roles.remove(&notice.id);
                self.requests.remove(request.0);
            }
            Some(Role::Listener(_)) | None => {}
        }
    }

    fn on_request(&mut self, notice: CmNotice) {
        let (Some(id), Some(listener)) = (notice.request, notice.listener) else { return };
        let Some(Role::Listener(listener)) = self.roles.get(&listener).copied() else { return };
        let here = id.device_name().is_some_and(|device| device == self.device_name);
        let (Some(local), Some(peer)) = (id.local_address(), id.peer_address()) else { return };
        if !here || self.requests.len() >= REQUESTS_MAX {
            let _ = id.reject(&PrivateData::EMPTY);
            return;
        }
        let key = id.key();
        let request = Request {
            id,
            listener: Some(listener),
            since: self.now,
            peer_initiator_depth: notice.peer_initiator_depth,
            peer_responder_resources: notice.peer_responder_resources,
        };
        let Some(name) = self.keep_request(request) else { return };
        self.roles.insert(key, Role::Request(RequestId(name)));
        self.events.push_back(CmEvent::ConnectRequest {
            listener,
            request: RequestId(name),
            peer,
            local,
            private_data: notice.private_data,
            peer_responder_resources: notice.peer_responder_resources.into(),
            peer_initiator_depth: notice.peer_initiator_depth.into(),
        });
    }

    fn on_connection(&mut self, name: QueuePairId, notice: &CmNotice) {
        match notice.kind {
            NoticeKind::AddressResolved => self.on_address(name),
            NoticeKind::RouteResolved => self.on_route(name),
            NoticeKind::ConnectResponse => self.on_response(name, notice),
            NoticeKind::Established => self.on_established(name, notice),
            NoticeKind::Unreachable => self.end(name, End::Failed(unreachable(notice.status))),
            NoticeKind::Rejected if notice.status == REJECTED_INVALID_SERVICE_ID => {
                self.end(name, End::Failed(unreachable(-libc::ECONNREFUSED)));
            }
            NoticeKind::Rejected => {
                let private_data = notice.private_data;
                self.end(name, End::Failed(ConnectFailure::Rejected { private_data }));
            }
            NoticeKind::Disconnected => self.on_disconnected(name),
            NoticeKind::DeviceRemoved => self.lose_device(name),
            NoticeKind::ConnectRequest | NoticeKind::Other => {}
        }
    }

    fn on_address(&mut self, name: QueuePairId) {
        let Some(qp) = self.queue_pairs.get(name.0) else { return };
        let (Phase::Resolving(parameters), Some(id)) = (&qp.phase, &qp.id) else { return };
        let device = id.device_name().unwrap_or_default();
        let failure = if device == self.device_name {
            id.resolve_route(parameters.timeout).err()
        } else {
            let text =
                format!("the way there leads over RDMA device {device}, not over {}", self.device_name);
            Some(io::Error::new(io::ErrorKind::NetworkUnreachable, text))
        };
        if let Some(failure) = failure {
            self.end(name, End::Failed(ConnectFailure::Unreachable(failure)));
        }
    }

    fn on_route(&mut self, name: QueuePairId) {
        self.ring(name);
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        let (Phase::Resolving(parameters), Some(id)) = (&qp.phase, &qp.id) else { return };
        let parameters = *parameters;
        match id.connect(&offer(&self.config, qp, &parameters)) {
            Ok(()) => qp.phase = Phase::Connecting(parameters),
            // Soft-iWARP connects its TCP stream on the spot, and says here that nobody listens.
            Err(error) => self.end(name, End::Failed(ConnectFailure::Unreachable(error))),
        }
    }

    /// The peer accepted: InfiniBand leaves the queue pair's last steps to us.
    fn on_response(&mut self, name: QueuePairId, notice: &CmNotice) {
        let path = self.path;
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        let (Phase::Connecting(_), Some(id), Some(hw)) = (&qp.phase, &qp.id, &qp.hw) else { return };
        match hw.connect(id, path).and_then(|()| id.establish()) {
            Ok(()) => self.on_established(name, notice),
            Err(error) => self.end(name, End::Failed(ConnectFailure::Unreachable(error))),
        }
    }

    fn on_established(&mut self, name: QueuePairId, notice: &CmNotice) {
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        let Phase::Connecting(parameters) = &qp.phase else { return };
        let mut parameters = *parameters;
        // The acceptor's offer was cut to the peer's already. iWARP drivers disagree on whose depths an event names, and hold back
        // by themselves what the peer does not serve.
        if notice.kind == NoticeKind::ConnectResponse {
            parameters.initiator_depth =
                parameters.initiator_depth.min(notice.peer_responder_resources.into());
            parameters.responder_resources =
                parameters.responder_resources.min(notice.peer_initiator_depth.into());
        }
        qp.phase = Phase::Ready;
        qp.deadline = None;
        qp.read_depth = u8::try_from(parameters.initiator_depth).unwrap_or(u8::MAX);
        self.events.push_back(CmEvent::Established {
            queue_pair: name,
            private_data: notice.private_data,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
        });
    }

    fn on_disconnected(&mut self, name: QueuePairId) {
        let Some(qp) = self.queue_pairs.get(name.0) else { return };
        let end = match qp.phase {
            Phase::Resolving(_) | Phase::Connecting(_) => End::Failed(unreachable(-libc::ECONNRESET)),
            Phase::Closing | Phase::Farewell => End::Disconnected(DisconnectCause::Local),
            _ => End::Disconnected(DisconnectCause::Peer),
        };
        self.end(name, end);
    }

    /// Looks after the queue pairs that something is due of: deadlines, closing, draining.
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
        let late = qp.deadline.is_some_and(|deadline| now >= deadline);
        match qp.phase {
            Phase::Resolving(_) | Phase::Connecting(_) if late => {
                self.end(name, End::Failed(ConnectFailure::TimedOut));
            }
            Phase::Resolving(_) | Phase::Connecting(_) => {}
            Phase::Closing => {
                self.reap(name);
                self.say_farewell(name, late);
            }
            Phase::Farewell if late => self.end(name, End::Disconnected(DisconnectCause::Local)),
            Phase::Farewell => {}
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

    /// Once everything was sent, or the time for it is over.
    fn say_farewell(&mut self, name: QueuePairId, late: bool) {
        let (now, transport) = (self.now, self.transport);
        let Some(qp) = self.queue_pairs.get_mut(name.0).filter(|qp| qp.sends.is_empty() || late) else {
            return;
        };
        // iWARP: the stream is closed behind the last byte; an error state now would reset it.
        if transport == Transport::Iwarp && qp.id.as_ref().is_some_and(|id| id.disconnect().is_ok()) {
            qp.phase = Phase::Farewell;
            qp.deadline = Some(now + CLOSE_TIME_MAX);
        } else {
            self.end(name, End::Disconnected(DisconnectCause::Local));
        }
    }

    /// Tells the end once everything was flushed; cuts the device off when it takes too long.
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

    fn keep_request(&mut self, request: Request) -> Option<u32> {
        let due = request.since + REQUEST_TIME_MAX;
        let name = self.requests.insert(|_| request)?;
        self.requests_due = Some(self.requests_due.map_or(due, |other| other.min(due)));
        Some(name)
    }

    /// Drops the requests that nobody answered in time.
    pub(crate) fn forget_old_requests(&mut self) {
        let now = self.now;
        if self.requests_due.is_none_or(|due| now < due) {
            return;
        }
        let due = |key| self.requests.get(key).map(|it| it.since + REQUEST_TIME_MAX);
        let old: Vec<_> =
            self.requests.keys().filter(|&key| due(key).is_some_and(|due| due <= now)).collect();
        for request in old {
            self.drop_request(RequestId(request));
        }
        let due = self.requests.keys().filter_map(|key| self.requests.get(key)).map(|it| it.since).min();
        self.requests_due = due.map(|since| since + REQUEST_TIME_MAX);
    }

    /// When something is due of a queue pair or a request. Asked at every turn: it looks at those only that are being set up or
    /// torn down.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let queue_pairs = self.attended.iter().filter_map(|name| self.queue_pairs.get(name.0)?.deadline);
        queue_pairs.chain(self.requests_due).min()
    }

    pub(crate) fn forget_id(&mut self, id: Option<IdKey>) {
        if let Some(id) = id {
            self.roles.remove(&id);
        }
    }
}

/// For a queue pair that is ended before anything was agreed on.
const NOTHING: ConnectParameters = ConnectParameters {
    private_data: PrivateData::EMPTY,
    responder_resources: 0,
    initiator_depth: 0,
    timeout: Duration::ZERO,
};

fn offer<'a>(
    config: &crate::VerbsConfig,
    qp: &QueuePair,
    parameters: &'a ConnectParameters,
) -> ConnectionParameters<'a> {
    let byte = |value: u16| u8::try_from(value).unwrap_or(u8::MAX);
    ConnectionParameters {
        private_data: &parameters.private_data,
        responder_resources: byte(parameters.responder_resources),
        initiator_depth: byte(parameters.initiator_depth),
        retry_count: config.retry_count.min(7),
        rnr_retry_count: config.rnr_retry_count.min(7),
        shared_receive_queue: qp.attributes.shared_receive_queue.is_some(),
        queue_pair: qp.hw.as_ref().map_or(0, crate::ffi::QueuePair::number),
    }
}

fn unreachable(status: i32) -> ConnectFailure {
    match status.abs() {
        libc::ETIMEDOUT => ConnectFailure::TimedOut,
        0 => ConnectFailure::Unreachable(io::ErrorKind::HostUnreachable.into()),
        errno => ConnectFailure::Unreachable(io::Error::from_raw_os_error(errno)),
    }
}
