//! Set-up and tear-down: events of the connection manager, and their effects.

use crate::ffi::{CmId, CmNotice, ConnectionParameters, IdKey, NoticeKind, Transport};
use crate::provider::VerbsProvider;
use crate::queue_pair::{End, Phase, QueuePair};
use crate::requests::Request;
use core::time::Duration;
use nvmf_rdma::{
    CmEvent, ConnectError, ConnectFailure, ConnectParameters, DisconnectCause, ListenerId, PrivateData,
    QueuePairId, RequestId,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

// Reasons of a rejection (InfiniBand Architecture, REJ).
const NO_RESOURCES: i32 = 3;
const INVALID_SERVICE_ID: i32 = 8;
const STALE_CONNECTION: i32 = 10;
const CONSUMER: i32 = 28;
/// iWARP: accepted connections of one peer on which nothing has come yet. They cannot be ended from this side, and no
/// host sets up more than its queues at once.
const UNSPOKEN_PER_PEER: usize = 128;

/// Whose an id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Listener(ListenerId),
    Request(RequestId),
    QueuePair(QueuePairId),
}

impl VerbsProvider {
    pub(crate) fn private_data_max(&self, infiniband: usize) -> usize {
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

    pub(crate) fn start_connecting(
        &mut self,
        now: Duration,
        name: QueuePairId,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        if self.is_lost() {
            let source = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(ConnectError::Os { address, source });
        }
        self.check_private_data(&parameters.private_data, 56, address)?;
        let (channel, tos) = (Arc::clone(&self.channel), self.config.traffic_class);
        let all = self.queue_pairs.keys().filter_map(|key| self.queue_pairs.get(key));
        let exposed = all.map(|qp| qp.attributes.max_exposed as usize).sum();
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
        if self.has_windows {
            // A command of the device for each, so not while the connection is in use.
            self.windows.reserve(&self.device, exposed);
        }
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
        if self.transport == Transport::Iwarp && self.unspoken(address.ip()) >= UNSPOKEN_PER_PEER {
            let rejection = self.config.rejection();
            self.reject_request(request, &rejection);
            return Err(ConnectError::RequestGone);
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
                // iWARP: the kernel releases an accepted connection only when the initiator has sent something or is
                // gone. Destroying the queue pair before that would block until then.
                let waits = self.transport == Transport::InfiniBand;
                qp.deadline = waits.then_some(now + parameters.timeout);
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

    /// Connections to a peer that are being set up.
    fn unspoken(&self, peer: IpAddr) -> usize {
        let is_one = |name: &&QueuePairId| {
            let qp = self.queue_pairs.get(name.0).filter(|qp| matches!(qp.phase, Phase::Connecting(_)));
            qp.and_then(|qp| qp.id.as_ref()?.peer_address()).is_some_and(|address| address.ip() == peer)
        };
        self.attended.iter().filter(is_one).count()
    }

    pub(crate) fn on_notice(&mut self, notice: CmNotice) {
        if notice.kind == NoticeKind::ConnectRequest {
            return self.on_request(notice);
        }
        // Whichever id the event names: all of them belong to the one device.
        if notice.kind == NoticeKind::DeviceRemoved {
            return self.lose();
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

    fn on_connection(&mut self, name: QueuePairId, notice: &CmNotice) {
        match notice.kind {
            NoticeKind::AddressResolved => self.on_address(name),
            NoticeKind::RouteResolved => self.on_route(name),
            NoticeKind::ConnectResponse => self.on_response(name, notice),
            NoticeKind::Established => self.on_established(name, notice),
            NoticeKind::Unreachable => self.end(name, End::Failed(unreachable(notice.status))),
            NoticeKind::Rejected => self.end(name, End::Failed(rejected(self.transport, notice))),
            NoticeKind::Disconnected => self.on_disconnected(name),
            NoticeKind::DeviceRemoved | NoticeKind::ConnectRequest | NoticeKind::Other => {}
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
            // Soft-iWARP connects its TCP stream in the call, and reports here that nothing listens.
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
        // The acceptor's offer was cut to the peer's already. iWARP drivers disagree on whose depths an event names,
        // and hold back by themselves what the peer does not serve.
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
            Phase::Closing | Phase::Disconnecting => End::Disconnected(DisconnectCause::Local),
            _ => End::Disconnected(DisconnectCause::Peer),
        };
        self.end(name, end);
    }

    pub(crate) fn forget_id(&mut self, id: Option<IdKey>) {
        if let Some(id) = id {
            self.roles.remove(&id);
        }
    }
}

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

/// Tells a rejection by the peer's layer above, which has private data, from one by its connection manager.
fn rejected(transport: Transport, notice: &CmNotice) -> ConnectFailure {
    let private_data = notice.private_data;
    let reason = match (transport, notice.status) {
        (Transport::InfiniBand, CONSUMER) => return ConnectFailure::Rejected { private_data },
        // A refused TCP connection has the same status, and no data.
        (Transport::Iwarp, _) if !private_data.as_bytes().is_empty() => {
            return ConnectFailure::Rejected { private_data };
        }
        (Transport::InfiniBand, INVALID_SERVICE_ID) => return unreachable(-libc::ECONNREFUSED),
        (Transport::InfiniBand, NO_RESOURCES) => "it has no resources",
        (Transport::InfiniBand, STALE_CONNECTION) => "it still has a connection of that name",
        (Transport::InfiniBand, 1..) => "its connection manager says why",
        (_, status) => return unreachable(status),
    };
    let text = format!("the peer rejected the connection: {reason} (reason {})", notice.status);
    ConnectFailure::Unreachable(io::Error::new(io::ErrorKind::ConnectionRefused, text))
}

pub(crate) fn unreachable(status: i32) -> ConnectFailure {
    match status.abs() {
        libc::ETIMEDOUT => ConnectFailure::TimedOut,
        0 => ConnectFailure::Unreachable(io::ErrorKind::HostUnreachable.into()),
        errno => ConnectFailure::Unreachable(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_is_distinct_from_refusal() {
        assert!(matches!(unreachable(-libc::ETIMEDOUT), ConnectFailure::TimedOut));
        for (status, kind) in [
            (-libc::ECONNREFUSED, io::ErrorKind::ConnectionRefused),
            (libc::ECONNRESET, io::ErrorKind::ConnectionReset),
            (0, io::ErrorKind::HostUnreachable),
        ] {
            let ConnectFailure::Unreachable(error) = unreachable(status) else { panic!("{status}") };
            assert_eq!(error.kind(), kind);
        }
    }
}
