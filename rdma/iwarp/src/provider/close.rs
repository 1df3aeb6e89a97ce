//! Ends of connections: by this side, by the peer, by errors and by deadlines.

use super::IwarpProvider;
use super::connection::{Connection, Link, Open, Phase, Prompt};
use crate::qp::{Stop, Violation};
use core::time::Duration;
use nvmf_rdma::{CmEvent, ConnectFailure, DisconnectCause, LocalKey, QueuePairId};
use nvmf_stream::{Deadline, Lingering, Stream, Token};

impl Stop {
    pub(super) fn cause(&self) -> DisconnectCause {
        match self {
            Self::Violation(violation) => DisconnectCause::PeerViolation(violation.text()),
            Self::Terminated(terminated) => DisconnectCause::PeerTerminated(terminated.text()),
        }
    }
}

impl IwarpProvider {
    /// Ends an open connection: flushes, sends the peer a Terminate where there is a reason, and reports the end.
    pub(super) fn end(&mut self, key: u32, cause: DisconnectCause, stop: Option<Stop>) {
        self.forget_deadline(key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Link::Open(open) = core::mem::replace(&mut connection.link, Link::Over) else { return };
        self.reads.remove(key);
        let final_bytes = connection.qp.fail(&mut self.domain, stop);
        let queue_pair = QueuePairId(key);
        self.events.push_back(match open.phase {
            Phase::AwaitRtr { .. } => CmEvent::ConnectFailed { queue_pair, failure: failure_of(cause) },
            Phase::Closing { .. } => CmEvent::Disconnected { queue_pair, cause: DisconnectCause::Local },
            Phase::Unannounced | Phase::Ready => CmEvent::Disconnected { queue_pair, cause },
        });
        match cause {
            DisconnectCause::Broken | DisconnectCause::Reset => self.poller.remove(&open.stream),
            _ => self.start_linger(open.stream, final_bytes),
        }
    }

    /// Ends the connections whose READs are still being answered from a region that goes: they must not see what its
    /// memory holds next.
    pub(super) fn end_readers(&mut self, region: LocalKey) {
        let reads =
            |key: &u32| self.connections.get(*key).is_some_and(|it| it.qp.answers_from(&self.domain, region));
        let readers: Vec<u32> = self.connections.keys().filter(reads).collect();
        for key in readers {
            let stop = Stop::Violation(Violation::Revoked);
            self.end(key, stop.cause(), Some(stop));
        }
    }

    /// A connection that came to nothing.
    pub(super) fn fail_connect(&mut self, key: u32, failure: ConnectFailure) {
        self.forget_deadline(key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Link::Connecting(connecting) = core::mem::replace(&mut connection.link, Link::Over) {
            self.poller.remove(&connecting.stream);
        }
        connection.qp.fail(&mut self.domain, None);
        self.events.push_back(CmEvent::ConnectFailed { queue_pair: QueuePairId(key), failure });
    }

    pub(super) fn start_disconnect(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match &mut connection.link {
            Link::Open(Open { phase: phase @ (Phase::Unannounced | Phase::Ready), .. }) => {
                *phase = Phase::Closing { deadline: Deadline::After(self.config.disconnect_timeout) };
                self.deadlines.add(Token::Connection(key));
                self.mark_dirty(key);
            }
            Link::Open(Open { phase: Phase::AwaitRtr { .. }, .. }) => {
                self.end(key, DisconnectCause::Local, None);
            }
            Link::Connecting(_) => {
                self.fail_connect(key, ConnectFailure::Protocol("given up by this side"));
            }
            Link::Open(_) | Link::Idle | Link::Over => {}
        }
    }

    pub(super) fn destroy(&mut self, queue_pair: QueuePairId) {
        self.forget_deadline(queue_pair.0);
        let Some(mut connection) = self.connections.remove(queue_pair.0) else { return };
        self.reads.remove(queue_pair.0);
        connection.qp.release(&mut self.domain);
        match &connection.link {
            Link::Open(open) => self.poller.remove(&open.stream),
            Link::Connecting(connecting) => self.poller.remove(&connecting.stream),
            Link::Idle | Link::Over => {}
        }
        let attributes = *connection.qp.attributes();
        for queue in [attributes.send_cq, attributes.receive_cq] {
            if let Some(queue) = self.domain.completion_queues.get_mut(queue.0 as usize) {
                queue.retain(|completion| completion.queue_pair != queue_pair);
            }
        }
        self.events.retain(|event| match event {
            CmEvent::Established { queue_pair: other, .. }
            | CmEvent::ConnectFailed { queue_pair: other, .. }
            | CmEvent::Disconnected { queue_pair: other, .. } => *other != queue_pair,
            CmEvent::ConnectRequest { .. } | CmEvent::DeviceRemoved => true,
        });
    }

    /// Sends `final_bytes`, then waits a little for the peer to close first.
    pub(super) fn start_linger(&mut self, stream: Stream, final_bytes: Vec<u8>) {
        let lingering = Lingering::new(stream, final_bytes, self.config.stream.linger);
        // There are as many places as queue pairs. Without one the stream is closed at once.
        let Some(key) = self.lingering.insert(|_| lingering) else { return };
        self.deadlines.add(Token::Lingering(key));
        self.linger(key);
    }

    pub(super) fn linger(&mut self, key: u32) {
        let Some(lingering) = self.lingering.get_mut(key) else { return };
        if lingering.advance(&self.poller, Token::Lingering(key), &mut self.staging) {
            self.end_linger(key);
        }
    }

    fn end_linger(&mut self, key: u32) {
        if let Some(lingering) = self.lingering.remove(key) {
            self.deadlines.remove(Token::Lingering(key), lingering.deadline);
            self.poller.remove(&lingering);
        }
    }

    /// A connection has another deadline from now on, or none.
    pub(super) fn forget_deadline(&mut self, key: u32) {
        if let Some(at) = self.connections.get(key).and_then(Connection::deadline) {
            self.deadlines.remove(Token::Connection(key), Deadline::At(at));
        }
    }

    fn deadline_of(&self, token: Token) -> Option<Duration> {
        match token {
            Token::Connection(key) => self.connections.get(key)?.deadline(),
            Token::Pending(key) => Some(self.pendings.get(key)?.deadline.at()),
            Token::Lingering(key) => Some(self.lingering.get(key)?.deadline.at()),
            Token::Listener(key) => self.listeners.get(key)?.rest.map(Deadline::at),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.next()
    }

    /// Does what is due.
    pub(super) fn expire(&mut self) {
        while let Some(token) = self.deadlines.pop_new() {
            self.start_clock(token);
            if let Some(at) = self.deadline_of(token) {
                self.deadlines.insert(token, at);
            }
        }
        while let Some(token) = self.deadlines.pop_due(self.now) {
            self.start_clock(token);
            match self.deadline_of(token) {
                Some(at) if at > self.now => self.deadlines.insert(token, at),
                Some(_) => self.on_deadline(token),
                None => {}
            }
        }
    }

    fn start_clock(&mut self, token: Token) {
        let now = self.now;
        match token {
            Token::Connection(key) => {
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.start_clock(now);
                }
            }
            Token::Pending(key) => {
                if let Some(pending) = self.pendings.get_mut(key) {
                    pending.deadline.start(now);
                }
            }
            Token::Lingering(key) => {
                if let Some(lingering) = self.lingering.get_mut(key) {
                    lingering.deadline.start(now);
                }
            }
            Token::Listener(key) => {
                if let Some(rest) = self.listeners.get_mut(key).and_then(|listener| listener.rest.as_mut()) {
                    rest.start(now);
                }
            }
        }
    }

    fn on_deadline(&mut self, token: Token) {
        match token {
            Token::Connection(key) => match self.connections.get(key).map(|connection| &connection.link) {
                Some(Link::Connecting(_)) => self.fail_connect(key, ConnectFailure::TimedOut),
                Some(Link::Open(Open { phase: Phase::AwaitRtr { .. }, .. })) => {
                    self.end(key, DisconnectCause::Broken, None);
                }
                Some(Link::Open(Open { phase: Phase::Unannounced | Phase::Ready, .. })) => self.prompt(key),
                _ => self.end(key, DisconnectCause::Local, None),
            },
            Token::Pending(key) => self.drop_stranger(key, "no MPA request came in time"),
            Token::Lingering(key) => self.end_linger(key),
            Token::Listener(key) => {
                if let Some(listener) = self.listeners.get_mut(key) {
                    listener.resume(&self.poller);
                }
            }
        }
    }
}

impl IwarpProvider {
    /// Sends an empty WRITE to a peer from which nothing has come.
    fn prompt(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.prompt = connection.prompt.and_then(Prompt::next);
        connection.qp.prompt();
        if connection.prompt.is_some() {
            self.deadlines.add(Token::Connection(key));
        }
        self.mark_dirty(key);
    }
}

/// How a responder's connection failed that never got its ready-to-receive indication.
fn failure_of(cause: DisconnectCause) -> ConnectFailure {
    match cause {
        DisconnectCause::PeerViolation(text) | DisconnectCause::PeerTerminated(text) => {
            ConnectFailure::Protocol(text)
        }
        DisconnectCause::Local => ConnectFailure::Protocol("given up by this side"),
        DisconnectCause::Peer => ConnectFailure::Protocol("it closed without a ready-to-receive indication"),
        DisconnectCause::Reset | DisconnectCause::Broken | DisconnectCause::DeviceRemoved => {
            ConnectFailure::TimedOut
        }
    }
}
