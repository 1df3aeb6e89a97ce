//! Set-up: listening, connecting, accepting, and the MPA frames.

use super::connection::{Connecting, DetachedRequest, Link, Open, Pending, Phase, Prompt, Stage};
use super::{IwarpProvider, STRANGERS_MAX};
use crate::config::{Fpdu, MAX_FPDU, MIN_FPDU, Revision};
use crate::handshake::{self, Agreement, FrameReader, Refusal, Rtr};
use crate::qp::Role;
use crate::wire::mpa::{CRC_LEN, FRAME_LEN_MAX, Frame, FrameError, Kind};
use crate::wire::rdmap::{READ_REQUEST_LEN, TAGGED_LEN};
use nvmf_rdma::{
    CmEvent, ConnectError, ConnectFailure, ConnectParameters, ListenerId, PrivateData, QueuePairId,
    QueuePairState, RequestId, Stranger,
};
use nvmf_stream::{Chunk, Deadline, Interest, Listener, Received, Stream, Token};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};

/// Connections that one turn accepts.
const ACCEPTS_MAX: usize = 64;

impl IwarpProvider {
    pub(super) fn open_listener(&mut self, socket: TcpListener) -> io::Result<(ListenerId, SocketAddr)> {
        let key = self.listeners.next_key().ok_or(ErrorKind::QuotaExceeded)?;
        let (listener, bound) =
            Listener::adopt(&self.poller, Token::Listener(key), socket, self.config.half_open)?;
        self.listeners.insert(|_| listener);
        Ok((ListenerId(key), bound))
    }

    pub(super) fn close_listener(&mut self, listener: ListenerId) {
        let Some(closed) = self.listeners.remove(listener.0) else { return };
        self.poller.remove(&closed);
        let keys: Vec<u32> = self.pendings.keys().collect();
        for key in keys {
            if self.pendings.get(key).is_some_and(|pending| pending.listener == Some(listener.0)) {
                self.drop_pending(key);
            }
        }
    }

    pub(super) fn accept_streams(&mut self, key: u32) {
        // What is left is reported again at the next poll.
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = self.listeners.get_mut(key) else { return };
            let Some(stream) = listener.accept(&self.config.stream, &self.poller) else {
                if listener.rest.is_some() {
                    if let Some(oldest) = listener.half_open.first_to_yield() {
                        listener.resume(&self.poller);
                        self.give_way(oldest);
                        continue;
                    }
                    self.deadlines.add(Token::Listener(key));
                }
                return;
            };
            // A peer that is gone again has no address.
            let (Ok(peer), Ok(local)) = (stream.peer_address(), stream.local_address()) else { continue };
            if let Some(oldest) = listener.half_open.yields_to(peer.ip()) {
                self.give_way(oldest);
            }
            let deadline = Deadline::After(self.config.request_timeout);
            let stage = Stage::Reading(Box::new(FrameReader::new(Kind::Request)));
            let pending = Pending { stream, listener: Some(key), peer, local, stage, deadline };
            let Some(request) = self.pendings.insert(|_| pending) else { return };
            if let Some(listener) = self.listeners.get_mut(key) {
                listener.half_open.add(request, peer.ip());
            }
            let token = Token::Pending(request);
            let added = self.pendings.get(request).map(|p| self.poller.add(&p.stream, token, Interest::Read));
            if !matches!(added, Some(Ok(()))) {
                self.drop_pending(request);
                continue;
            }
            self.deadlines.add(token);
        }
    }

    /// Ends a connection whose place another needs, unless its request has come by now.
    fn give_way(&mut self, key: u32) {
        self.read_request(key);
        if self.pendings.get(key).is_some_and(|it| matches!(it.stage, Stage::Reading(_))) {
            self.drop_stranger(key, "it sent no MPA request, and newer connections need its place");
        }
    }

    /// A new connection's bytes, up to the end of its request.
    pub(super) fn read_request(&mut self, key: u32) {
        let Some(pending) = self.pendings.get_mut(key) else { return };
        let Stage::Reading(reader) = &mut pending.stage else {
            // Only its end is reported: the peer gave up.
            return self.drop_pending(key);
        };
        let frame = match read_frame(&pending.stream, reader) {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(ReadError::Frame(error)) => return self.drop_stranger(key, error.text()),
            Err(ReadError::Ended) => return self.drop_pending(key),
        };
        // An initiator must not send before the reply.
        if handshake::check_request(&self.config, &frame).is_err() || pending.stream.has_bytes() {
            return self.refuse(key, &frame, &PrivateData::EMPTY);
        }
        let Some(listener) = pending.listener else { return };
        pending.stage = Stage::Asked(frame);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.half_open.remove(key);
        }
        self.deadlines.remove(Token::Pending(key), pending.deadline);
        pending.deadline = Deadline::After(self.config.answer_timeout);
        self.deadlines.add(Token::Pending(key));
        self.poller.change(&pending.stream, Token::Pending(key), Interest::HangUp);
        let (ird, ord) = handshake::peer_depths(&frame);
        self.events.push_back(CmEvent::ConnectRequest {
            listener: ListenerId(listener),
            request: RequestId(key),
            peer: pending.peer,
            local: pending.local,
            private_data: frame.private_data,
            peer_responder_resources: ird,
            peer_initiator_depth: ord,
        });
    }

    /// Takes a connection out of the table, and out of its listener's when its request has not come.
    fn take_pending(&mut self, key: u32) -> Option<Pending> {
        let pending = self.pendings.remove(key)?;
        self.deadlines.remove(Token::Pending(key), pending.deadline);
        if let Some(listener) = pending.listener.and_then(|key| self.listeners.get_mut(key)) {
            listener.half_open.remove(key);
        }
        Some(pending)
    }

    /// A request that is gone: an event of it that was not polled yet is dropped.
    pub(super) fn drop_pending(&mut self, key: u32) {
        if let Some(pending) = self.take_pending(key) {
            self.poller.remove(&pending.stream);
            self.events.retain(
                |event| !matches!(event, CmEvent::ConnectRequest { request, .. } if request.0 == key),
            );
        }
    }

    /// The same, for a peer that sent no request, or not in time.
    pub(super) fn drop_stranger(&mut self, key: u32, cause: &'static str) {
        if let Some(Pending { peer, stage: Stage::Reading(reader), .. }) = self.pendings.get(key)
            && self.strangers.len() < STRANGERS_MAX
        {
            self.strangers.push_back(Stranger { peer: *peer, cause, bytes: reader.beginning() });
        }
        self.drop_pending(key);
    }

    fn refuse(&mut self, key: u32, request: &Frame, private_data: &PrivateData) {
        let Some(pending) = self.take_pending(key) else { return };
        let mut bytes = [0; FRAME_LEN_MAX];
        let len = handshake::reject(request, private_data).emit(&mut bytes);
        self.start_linger(pending.stream, bytes[..len].to_vec());
    }

    pub(super) fn reject_request(&mut self, request: RequestId, private_data: &PrivateData) {
        let Some(Pending { stage: Stage::Asked(frame), .. }) = self.pendings.get(request.0) else { return };
        let frame = *frame;
        self.refuse(request.0, &frame, private_data);
    }

    pub(super) fn detach_request(&mut self, request: RequestId) -> Option<DetachedRequest> {
        let Pending { stage: Stage::Asked(frame), .. } = self.pendings.get(request.0)? else { return None };
        let frame = *frame;
        let Pending { stream, peer, local, .. } = self.take_pending(request.0)?;
        self.poller.remove(&stream);
        Some(DetachedRequest { stream, request: frame, peer, local })
    }

    pub(super) fn adopt_request(&mut self, detached: DetachedRequest) -> RequestId {
        let DetachedRequest { stream, request, peer, local } = detached;
        let deadline = Deadline::After(self.config.answer_timeout);
        let stage = Stage::Asked(request);
        let pending = Pending { stream, listener: None, peer, local, stage, deadline };
        // When the table or epoll is full the request is dropped; 0 is no request's name, so accepting it fails.
        let Some(key) = self.pendings.insert(|_| pending) else { return RequestId(0) };
        let token = Token::Pending(key);
        let added = self.pendings.get(key).map(|p| self.poller.add(&p.stream, token, Interest::HangUp));
        if !matches!(added, Some(Ok(()))) {
            self.drop_pending(key);
        }
        self.deadlines.add(token);
        RequestId(key)
    }

    pub(super) fn accept_request(
        &mut self,
        request: RequestId,
        key: u32,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        let connection = self.connections.get(key).ok_or(ConnectError::NotIdle)?;
        if connection.state() != QueuePairState::Idle {
            return Err(ConnectError::NotIdle);
        }
        let Some(Pending { stage: Stage::Asked(frame), .. }) = self.pendings.get(request.0) else {
            return Err(ConnectError::RequestGone);
        };
        let (reply, agreement) = handshake::accept(&self.config, parameters, frame);
        let pending = self.take_pending(request.0).ok_or(ConnectError::RequestGone)?;
        // An initiator must not send before the reply, nor hang up.
        if pending.stream.has_bytes() || send_frame(&pending.stream, &reply).is_err() {
            self.poller.remove(&pending.stream);
            return Err(ConnectError::RequestGone);
        }
        let phase = match agreement.rtr {
            Some(rtr) => Phase::AwaitRtr { left: rtr_len(rtr), deadline: self.now + parameters.timeout },
            None => Phase::Unannounced,
        };
        self.open(key, pending.stream, Role::Responder, &agreement, phase);
        match phase {
            Phase::Unannounced => self.push_established(key, PrivateData::EMPTY, &agreement),
            _ => self.deadlines.add(Token::Connection(key)),
        }
        Ok(())
    }

    fn open(&mut self, key: u32, stream: Stream, role: Role, agreement: &Agreement, phase: Phase) {
        if stream.is_local() {
            stream.send_unpaced();
        }
        let fpdu_max = self.fpdu_max(&stream, agreement);
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.qp.start(role, agreement, fpdu_max);
        self.poller.change(&stream, Token::Connection(key), Interest::Read);
        connection.link = Link::Open(Open { stream, phase });
        self.mark_dirty(key);
    }

    fn fpdu_max(&self, stream: &Stream, agreement: &Agreement) -> usize {
        let large = match self.config.fpdu {
            Fpdu::Large => true,
            Fpdu::Segment => false,
            Fpdu::Auto => agreement.large_fpdu || stream.is_local(),
        };
        if large { MAX_FPDU } else { stream.segment_len().unwrap_or(MIN_FPDU) }
    }

    fn push_established(&mut self, key: u32, private_data: PrivateData, agreement: &Agreement) {
        self.events.push_back(CmEvent::Established {
            queue_pair: QueuePairId(key),
            private_data,
            responder_resources: agreement.responder_resources,
            initiator_depth: agreement.initiator_depth,
        });
    }

    /// The initiator's first message has come.
    pub(super) fn establish_responder(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let depths = connection.qp.read_depths();
        if let Link::Open(open) = &mut connection.link {
            if let Phase::AwaitRtr { deadline, .. } = open.phase {
                self.deadlines.remove(Token::Connection(key), Deadline::At(deadline));
            }
            open.phase = Phase::Unannounced;
            let (responder_resources, initiator_depth) = depths;
            self.events.push_back(CmEvent::Established {
                queue_pair: QueuePairId(key),
                private_data: PrivateData::EMPTY,
                responder_resources,
                initiator_depth,
            });
        }
    }

    /// The layer above knows: bytes may come.
    pub(super) fn announce(&mut self, key: u32) {
        self.reads.poll_next_turn();
        if let Some(connection) = self.connections.get_mut(key)
            && let Link::Open(Open { phase: phase @ Phase::Unannounced, .. }) = &mut connection.link
        {
            *phase = Phase::Ready;
        }
    }

    pub(super) fn start_connect(
        &mut self,
        key: u32,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        if self.connections.get(key).is_none_or(|connection| connection.state() != QueuePairState::Idle) {
            return Err(ConnectError::NotIdle);
        }
        let revision = if self.config.revision == Revision::One { 1 } else { 2 };
        let deadline = self.now + parameters.timeout;
        let os = |source| ConnectError::Os { address, source };
        let stream = Stream::open(&self.config.stream, address, source).map_err(os)?;
        let request = handshake::request(&self.config, parameters, revision);
        let parameters = *parameters;
        let connecting = Connecting { stream, address, source, parameters, request, reader: None, deadline };
        self.deadlines.add(Token::Connection(key));
        self.dial(key, connecting);
        Ok(())
    }

    /// Starts TCP.
    fn dial(&mut self, key: u32, connecting: Connecting) {
        let (stream, token) = (&connecting.stream, Token::Connection(key));
        let started = stream
            .connect(connecting.address)
            .and_then(|()| self.poller.add(stream, token, Interest::ReadWrite));
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.link = Link::Connecting(Box::new(connecting));
        if let Err(error) = started {
            self.fail_connect(key, ConnectFailure::Unreachable(error));
        }
    }

    /// The socket of a `connect` is ready.
    pub(super) fn advance_connect(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Link::Connecting(connecting) = &mut connection.link else { return };
        let Some(reader) = &mut connecting.reader else {
            let stream = &connecting.stream;
            let sent = stream.take_error().and_then(|()| send_frame(stream, &connecting.request));
            if let Err(error) = sent {
                return self.fail_connect(key, ConnectFailure::Unreachable(error));
            }
            self.poller.change(stream, Token::Connection(key), Interest::Read);
            connecting.reader = Some(FrameReader::new(Kind::Reply));
            return;
        };
        let read = read_frame(&connecting.stream, reader);
        let (is_empty, answer) = (reader.is_empty(), reader.beginning());
        match read {
            Ok(None) => {}
            Ok(Some(reply)) => self.on_reply(key, &reply),
            Err(ReadError::Frame(error @ FrameError::Key)) => {
                self.fail_connect(key, ConnectFailure::Foreign { text: error.text(), answer });
            }
            Err(ReadError::Frame(error)) => {
                self.fail_connect(key, ConnectFailure::Protocol(error.text()));
            }
            Err(ReadError::Ended) if is_empty && self.may_ask_again(key) => self.ask_again(key),
            Err(ReadError::Ended) => {
                let text = "it hung up without an MPA reply";
                self.fail_connect(key, ConnectFailure::Foreign { text, answer });
            }
        }
    }

    fn on_reply(&mut self, key: u32, reply: &Frame) {
        let may_ask_again = self.may_ask_again(key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Link::Connecting(connecting) = &connection.link else { return };
        let agreed = handshake::on_reply(&self.config, &connecting.parameters, &connecting.request, reply);
        match agreed {
            Err(Refusal::Rejected) if reply.revision == 1 && may_ask_again => {
                self.ask_again(key);
            }
            Err(Refusal::Rejected) => {
                let private_data = reply.private_data;
                self.fail_connect(key, ConnectFailure::Rejected { private_data });
            }
            Err(Refusal::Protocol(text)) => self.fail_connect(key, ConnectFailure::Protocol(text)),
            Ok(agreement) => {
                let Link::Connecting(connecting) = core::mem::replace(&mut connection.link, Link::Over)
                else {
                    return;
                };
                self.deadlines.remove(Token::Connection(key), Deadline::At(connecting.deadline));
                connection.prompt = Some(Prompt::first());
                self.deadlines.add(Token::Connection(key));
                self.open(key, connecting.stream, Role::Initiator, &agreement, Phase::Unannounced);
                self.push_established(key, reply.private_data, &agreement);
            }
        }
    }

    /// Whether the peer may know only revision 1, and may be asked in it.
    fn may_ask_again(&self, key: u32) -> bool {
        let Some(connection) = self.connections.get(key) else { return false };
        let Link::Connecting(connecting) = &connection.link else { return false };
        self.config.revision == Revision::Auto && connecting.request.revision == 2
    }

    fn ask_again(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Link::Connecting(connecting) = &mut connection.link else { return };
        self.poller.remove(&connecting.stream);
        let Connecting { address, source, parameters, deadline, .. } = **connecting;
        match Stream::open(&self.config.stream, address, source) {
            Ok(stream) => {
                let request = handshake::request(&self.config, &parameters, 1);
                let again =
                    Connecting { stream, address, source, parameters, request, reader: None, deadline };
                self.dial(key, again);
            }
            Err(error) => self.fail_connect(key, ConnectFailure::Unreachable(error)),
        }
    }
}

/// Bytes of the FPDU that is the indication: a header without payload, and a CRC.
fn rtr_len(rtr: Rtr) -> usize {
    CRC_LEN
        + match rtr {
            Rtr::Write => TAGGED_LEN,
            Rtr::Read => READ_REQUEST_LEN,
        }
}

/// A frame goes out in one call; a fresh socket has room for it.
fn send_frame(stream: &Stream, frame: &Frame) -> io::Result<()> {
    let mut bytes = [0; FRAME_LEN_MAX];
    let len = frame.emit(&mut bytes);
    if stream.try_send(&[Chunk::Bytes(&bytes[..len])])? == len {
        Ok(())
    } else {
        Err(ErrorKind::WriteZero.into())
    }
}

enum ReadError {
    Frame(FrameError),
    Ended,
}

fn read_frame(stream: &Stream, reader: &mut FrameReader) -> Result<Option<Frame>, ReadError> {
    loop {
        match stream.receive(None, reader.room()) {
            Ok(Received::Nothing) => return Ok(None),
            Ok(Received::End | Received::Cut) | Err(_) => return Err(ReadError::Ended),
            Ok(Received::Bytes { staged, .. }) => {
                if let Some(frame) = reader.on_filled(staged).map_err(ReadError::Frame)? {
                    return Ok(Some(frame));
                }
            }
        }
    }
}
