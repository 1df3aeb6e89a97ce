//! Connections that come in: accepted, their ICReq read, handed over, answered.

use super::Tcp;
use super::connection::Connection;
use super::security::Security;
use crate::exec::transport::{Event, Terms};
use crate::limits::{CM_BUDGET, EVENTS_MAX, IC_TIMEOUT};
use crate::transport::strangers;
use core::fmt;
use nvme_proto::tcp::{FatalError, FatalErrorStatus, IcReq, Receiver};
use nvmf_stream::{Deadline, HalfOpen, Interest, Listener, Received, Stream, Token};
use nvmf_subsystem::{SecureChannel, TransportType};
use nvmf_tcp::{End, PduReceiver};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// Bytes of ICReq.
const IC_LEN: usize = 128;

/// A connection without a queue.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) stream: Stream,
    pub(super) security: Security,
    receiver: PduReceiver,
    /// `None` for one that another worker handed over.
    listener: Option<u32>,
    pub(super) port: u16,
    peer: SocketAddr,
    local: IpAddr,
    deadline: Deadline,
    /// Bytes of ICReq that are still to come.
    left: usize,
    /// What the host asks for, once it has.
    request: Option<IcReq>,
}

impl Pending {
    fn incoming(&self, key: u32) -> Incoming {
        let secure_channel = self.security.channel();
        Incoming { key, port: self.port, peer: self.peer, local: self.local, secure_channel }
    }

    pub(super) fn deadline(&mut self) -> &mut Deadline {
        &mut self.deadline
    }
}

/// A host that asks for a connection.
#[derive(Debug)]
pub struct Incoming {
    key: u32,
    port: u16,
    peer: SocketAddr,
    local: IpAddr,
    secure_channel: Option<SecureChannel>,
}

impl Incoming {
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What a queue may be: its Connect says the rest.
    pub(super) fn terms(&self, entries: u16) -> Terms {
        let Self { port, peer, local, secure_channel, .. } = *self;
        Terms { port, peer, local, qid: None, cntlid: None, secure_channel, entries, pulls: u16::MAX }
    }
}

/// Why a connection is refused before its ICReq was accepted.
#[derive(Debug)]
pub(super) enum Refused {
    /// Its peer has closed it.
    Gone,
    /// Something about TLS.
    Tls(String),
    /// What it sends is not NVMe/TCP.
    Protocol(String),
}

/// A connection on its way to another worker.
#[derive(Debug)]
pub struct Detached(Box<Pending>);

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room.
    NoRoom,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no resources")
    }
}

impl Tcp {
    pub(super) fn open_listener(&mut self, socket: TcpListener, port: u16) -> io::Result<SocketAddr> {
        let key = self.listeners.next_key().ok_or(io::ErrorKind::QuotaExceeded)?;
        let (listener, bound) =
            Listener::adopt(&self.poller, Token::Listener(key), socket, self.options.half_open)?;
        self.listeners.insert(|_| (listener, port)).ok_or(io::ErrorKind::QuotaExceeded)?;
        Ok(bound)
    }

    /// Closes the listeners of a port, or all; connections that have not asked for anything end with theirs.
    pub(super) fn close_listeners(&mut self, port: Option<u16>) {
        let keys: Vec<u32> = self.listeners.keys().collect();
        for key in keys {
            if port.is_some() && self.listeners.get(key).map(|(_, port)| *port) != port {
                continue;
            }
            if let Some((listener, _)) = self.listeners.remove(key) {
                self.poller.remove(&listener);
            }
        }
        let Some(port) = port else { return };
        self.allowed.remove(&port);
        let begun: Vec<u32> = self.pendings.keys().collect();
        for key in begun {
            let asks_nothing = |pending: &Pending| pending.port == port && pending.request.is_none();
            if self.pendings.get(key).is_some_and(asks_nothing) {
                self.drop_pending(key);
            }
        }
    }

    /// Accepts what a listener has, a few in a turn: whoever connects without end delays nobody.
    pub(super) fn accept_streams(&mut self, key: u32) {
        for _ in 0..CM_BUDGET {
            if self.events.len() >= EVENTS_MAX {
                // The poller reports what is left again.
                return;
            }
            let Some((listener, port)) = self.listeners.get_mut(key) else { return };
            let port = *port;
            let Some(stream) = listener.accept(&self.options.stream, &self.poller) else {
                if listener.rest.is_some() && self.makes_room(key) {
                    continue;
                }
                return;
            };
            let (Ok(peer), Ok(local)) = (stream.peer_address(), stream.local_address()) else { continue };
            if self.allowed.get(&port).is_some_and(|allowed| !allowed.has(peer.ip())) {
                self.events.push_back(Event::NotAllowed { peer, local });
                continue;
            }
            if let Some(oldest) = listener.half_open.yields_to(peer.ip()) {
                self.give_way(oldest);
            }
            let pending = Pending {
                stream,
                security: Security::Undecided,
                receiver: PduReceiver::new(Receiver::Controller),
                listener: Some(key),
                port,
                peer,
                local: local.ip().to_canonical(),
                deadline: Deadline::After(IC_TIMEOUT),
                left: IC_LEN,
                request: None,
            };
            let Some(pending) = self.add_pending(pending, Interest::Read) else { continue };
            if let Some((listener, _)) = self.listeners.get_mut(key) {
                listener.half_open.add(pending, peer.ip());
            }
            // Mostly it is there already.
            self.read_request(pending);
        }
    }

    /// This listener found no descriptor for one more connection: a half-open one, of whichever listener has most, makes
    /// way. Whether there was one; else accepting rests.
    fn makes_room(&mut self, key: u32) -> bool {
        let of = |key: u32| self.listeners.get(key).map(|(listener, _)| &listener.half_open);
        let most = self.listeners.keys().filter_map(of).max_by_key(|half_open| half_open.len());
        let yields = most.and_then(HalfOpen::first_to_yield);
        let Some((listener, _)) = self.listeners.get_mut(key) else { return false };
        self.events.extend(listener.shortage.take().map(Event::Shortage));
        let Some(oldest) = yields else {
            self.deadlines.add(Token::Listener(key));
            return false;
        };
        listener.resume(&self.poller);
        self.give_way(oldest);
        true
    }

    fn add_pending(&mut self, pending: Pending, interest: Interest) -> Option<u32> {
        let key = self.pendings.insert(|_| pending)?;
        let token = Token::Pending(key);
        let added = self.pendings.get(key).map(|pending| self.poller.add(&pending.stream, token, interest));
        if !matches!(added, Some(Ok(()))) {
            self.pendings.remove(key);
            return None;
        }
        self.deadlines.add(token);
        Some(key)
    }

    /// A new connection's bytes, up to the end of its ICReq.
    pub(super) fn read_request(&mut self, key: u32) {
        let Some(pending) = self.pendings.get_mut(key) else { return };
        if pending.request.is_some() {
            // Only its end is reported: the host gave up.
            return self.drop_pending(key);
        }
        if !self.secure(key) {
            return;
        }
        let Some(pending) = self.pendings.get_mut(key) else { return };
        // No byte behind ICReq is taken: it belongs to the queue that there will be.
        while pending.left > 0 {
            let staging = &mut self.staging[..pending.left];
            let n = match pending.stream.receive(None, staging) {
                Ok(Received::Nothing) => return,
                Ok(Received::Bytes { staged, .. }) => staged,
                Ok(Received::End | Received::Cut) => {
                    return self.lose_pending(key, "closed by the peer before its ICReq");
                }
                Err(error) => {
                    return self.lose_pending(key, &format!("it broke before its ICReq: {error}"));
                }
            };
            pending.left -= n;
            match pending.receiver.on_bytes(&staging[..n]) {
                // They would stay in the memory of TLS, and no host sends them before ICResp.
                Ok((_, Some(_))) if pending.stream.has_unread() => {
                    let status = FatalErrorStatus::PDU_SEQUENCE_ERROR;
                    let error = FatalError { status, information: 0 };
                    return self.refuse_request(key, error, error.to_string());
                }
                Ok((_, Some(nvmf_tcp::Event::IcReq(request)))) => {
                    pending.request = Some(request);
                    return self.announce(key);
                }
                Ok((_, None)) => {}
                Ok((_, Some(_))) | Err(End::Close) => {
                    return self.lose_pending(key, "its first PDU is no ICReq");
                }
                Err(End::Fatal(error)) => {
                    let cause = strangers::cause(&error.to_string(), &staging[..n], TransportType::TCP);
                    return self.refuse_request(key, error, cause);
                }
            }
        }
    }

    /// The host has said what it wants.
    fn announce(&mut self, key: u32) {
        let Some(pending) = self.pendings.get_mut(key) else { return };
        if let Some((listener, _)) = pending.listener.and_then(|key| self.listeners.get_mut(key)) {
            listener.half_open.remove(key);
        }
        self.deadlines.remove(Token::Pending(key), pending.deadline);
        pending.deadline = Deadline::After(IC_TIMEOUT);
        self.deadlines.add(Token::Pending(key));
        self.poller.change(&pending.stream, Token::Pending(key), Interest::HangUp);
        let incoming = pending.incoming(key);
        self.events.push_back(Event::Incoming(incoming));
    }

    /// What is not NVMe/TCP, or not of this version.
    fn refuse_request(&mut self, key: u32, error: FatalError, cause: String) {
        let Some(pending) = self.pendings.get_mut(key) else { return };
        let last = pending.receiver.terminate(error).as_bytes().to_vec();
        self.refuse_pending(key, Refused::Protocol(cause), last);
    }

    /// Ends a connection with `last`.
    pub(super) fn refuse_pending(&mut self, key: u32, refused: Refused, last: Vec<u8>) {
        let (cause, at_tls) = match refused {
            Refused::Gone => return self.drop_pending(key),
            Refused::Tls(cause) => (cause, true),
            Refused::Protocol(cause) => (cause, false),
        };
        let Some(pending) = self.take_pending(key) else { return };
        self.events.push_back(Event::Refused { peer: pending.peer, cause, at_tls });
        self.start_linger(pending.stream, last);
    }

    fn take_pending(&mut self, key: u32) -> Option<Pending> {
        let pending = self.pendings.remove(key)?;
        self.deadlines.remove(Token::Pending(key), pending.deadline);
        if let Some((listener, _)) = pending.listener.and_then(|key| self.listeners.get_mut(key)) {
            listener.half_open.remove(key);
        }
        Some(pending)
    }

    /// A connection whose time is over, unless its ICReq is here after all: this worker may have stood still.
    pub(super) fn give_up_pending(&mut self, key: u32) {
        let waits = |pending: &&Pending| pending.request.is_none();
        if self.pendings.get(key).filter(waits).is_some() {
            self.read_request(key);
            if self.pendings.get(key).is_some_and(|pending| pending.request.is_some()) {
                return;
            }
        }
        if let Some(pending) = self.pendings.get(key).filter(waits) {
            let at_tls = matches!(pending.security, Security::Handshake);
            let what = if at_tls { "the TLS handshake was not over" } else { "no ICReq came" };
            let cause = format!("{what} within {IC_TIMEOUT:?}");
            self.events.push_back(Event::Refused { peer: pending.peer, cause, at_tls });
        }
        self.drop_pending(key);
    }

    /// A half-open connection makes way for a newer one, unless its ICReq is here.
    fn give_way(&mut self, key: u32) {
        self.read_request(key);
        if let Some(pending) = self.pendings.get(key).filter(|pending| pending.request.is_none()) {
            self.events.push_back(Event::Yielded { peer: pending.peer });
            self.drop_pending(key);
        }
    }

    /// A connection that its peer ended before its ICReq. One that said nothing at all is no news: that is how health
    /// checks look whether a port is open.
    fn lose_pending(&mut self, key: u32, cause: &str) {
        let Some(pending) = self.pendings.get(key) else { return };
        let with_tls = matches!(pending.security, Security::Tls(_));
        if with_tls || pending.left < IC_LEN {
            let (peer, behind) = (pending.peer, if with_tls { ", behind the TLS handshake" } else { "" });
            let cause = format!("{cause}{behind}");
            self.events.push_back(Event::Refused { peer, cause, at_tls: with_tls });
        }
        self.drop_pending(key);
    }

    /// A connection that came to nothing.
    pub(super) fn drop_pending(&mut self, key: u32) {
        if let Some(pending) = self.take_pending(key) {
            self.poller.remove(&pending.stream);
            self.events.retain(|event| !matches!(event, Event::Incoming(incoming) if incoming.key == key));
        }
    }

    pub(super) fn refuse_incoming(&mut self, incoming: &Incoming) {
        // NVMe/TCP has no answer that says "later"; a host tries again when its connection ends.
        self.drop_pending(incoming.key);
    }

    pub(super) fn detach_incoming(&mut self, incoming: &Incoming) -> Option<Detached> {
        let mut pending = self.take_pending(incoming.key)?;
        self.poller.remove(&pending.stream);
        pending.listener = None;
        Some(Detached(Box::new(pending)))
    }

    /// An incoming connection that is gone already has a key that finds nothing.
    pub(super) fn adopt_detached(&mut self, Detached(mut pending): Detached) -> Incoming {
        pending.deadline = Deadline::After(IC_TIMEOUT);
        let mut incoming = pending.incoming(0);
        incoming.key = self.add_pending(*pending, Interest::HangUp).unwrap_or(0);
        incoming
    }

    /// Answers, as this queue. `false`: the host is gone.
    pub(super) fn open_queue(&mut self, incoming: &Incoming, queue: u32) -> bool {
        let Some(Pending { stream, receiver, peer, request: Some(request), .. }) =
            self.take_pending(incoming.key)
        else {
            return false;
        };
        if stream.is_local() {
            stream.send_unpaced();
        }
        self.poller.change(&stream, Token::Connection(queue), Interest::Read);
        let connection = Connection::new(queue, stream, receiver, &request);
        self.connections[queue as usize] = Some(Box::new(connection));
        self.capsules.add(queue, peer.ip());
        self.list_to_send(queue);
        self.events.push_back(Event::Established(queue));
        true
    }
}
