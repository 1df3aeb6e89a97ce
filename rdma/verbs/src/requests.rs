//! Listeners, and connection requests.

use crate::connection::Role;
use crate::ffi::{CmId, CmNotice};
use crate::provider::VerbsProvider;
use core::time::Duration;
use nvmf_rdma::{CmEvent, ListenError, ListenerId, PrivateData, RequestId};
use std::io;
use std::net::SocketAddr;

/// How long a connection request may stay unanswered.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Requests that wait for an answer.
const REQUESTS_MAX: usize = 1024;

/// A peer's connection request.
pub(crate) struct Request {
    pub(crate) id: CmId,
    /// Of this provider; `None` for one that was adopted.
    listener: Option<ListenerId>,
    since: Duration,
    pub(crate) peer_initiator_depth: u8,
    pub(crate) peer_responder_resources: u8,
}

/// A connection request between two threads.
pub struct DetachedRequest(Request);

impl VerbsProvider {
    pub(crate) fn start_listening(
        &mut self,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<(ListenerId, SocketAddr), ListenError> {
        let failed = |source| ListenError { address, source };
        if self.is_lost() {
            return Err(failed(io::Error::from_raw_os_error(libc::ENODEV)));
        }
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
        // One that cannot be moved is dropped: `accept` fails. So is one for another device, which has no such queue pair.
        let here = request.id.device_name().is_some_and(|device| device == self.device_name);
        if self.is_lost() || !here {
            return RequestId(u32::MAX);
        }
        if request.id.migrate(&self.channel).is_err() {
            return RequestId(u32::MAX);
        }
        let key = request.id.key();
        let Some(name) = self.keep_request(request) else { return RequestId(u32::MAX) };
        self.roles.insert(key, Role::Request(RequestId(name)));
        RequestId(name)
    }

    pub(crate) fn on_request(&mut self, notice: CmNotice) {
        let (Some(id), Some(listener)) = (notice.request, notice.listener) else { return };
        let Some(Role::Listener(listener)) = self.roles.get(&listener).copied() else { return };
        let here = id.device_name().is_some_and(|device| device == self.device_name);
        let (Some(local), Some(peer)) = (id.local_address(), id.peer_address()) else { return };
        if !here || self.requests.len() >= REQUESTS_MAX {
            let _ = id.reject(&self.config.rejection());
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

    fn keep_request(&mut self, request: Request) -> Option<u32> {
        let due = request.since + REQUEST_TIME_MAX;
        let name = self.requests.insert(|_| request)?;
        self.requests_due = Some(self.requests_due.map_or(due, |other| other.min(due)));
        Some(name)
    }

    /// Drops the requests that were not answered in time.
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
}
