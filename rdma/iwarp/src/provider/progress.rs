//! Reading and writing sockets, each within a budget.

use super::IwarpProvider;
use super::connection::{Connection, Link, Open, Phase};
use nvmf_rdma::DisconnectCause;
use nvmf_stream::{DIRECT_MIN, Received, Token};
use std::io::{self, ErrorKind};

impl IwarpProvider {
    pub(super) fn progress(&mut self) {
        self.reads.start_turn();
        while let Some(key) = self.reads.next() {
            self.receive(key);
        }
        if self.reads.asks_poller() {
            for index in 0..self.poller.poll() {
                let (token, writable) = self.poller.ready(index);
                match Token::from(token) {
                    Token::Connection(key) => self.on_ready(key, writable),
                    Token::Listener(key) => self.accept_streams(key),
                    Token::Pending(key) => self.read_request(key),
                    Token::Lingering(key) => self.linger(key),
                }
            }
        }
        self.send_dirty();
    }

    fn on_ready(&mut self, key: u32, writable: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match &mut connection.link {
            Link::Connecting(_) => return self.advance_connect(key),
            Link::Open(open) => {
                let sendable = writable && open.stream.on_writable(&self.poller, Token::Connection(key));
                if connection.qp.is_waiting() {
                    // From now on only a broken connection is reported.
                    open.stream.pause(true, &self.poller, Token::Connection(key));
                    if let Err(error) = open.stream.take_error() {
                        return self.end(key, cause_of(&error), None);
                    }
                }
                if sendable {
                    self.mark_dirty(key);
                }
            }
            Link::Idle | Link::Over => return,
        }
        if self.reads.is_due(key) {
            self.receive(key);
        }
    }

    /// A stream that waited for a receive went on.
    pub(super) fn on_resumed(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Connection { qp, link: Link::Open(open), .. } = connection else { return };
        if open.stream.is_paused() && !qp.is_waiting() {
            open.stream.pause(false, &self.poller, Token::Connection(key));
            self.reads.poll_next_turn();
        }
        if qp.has_work() {
            self.mark_dirty(key);
        }
    }

    /// Reads a socket, unless its stream waits for a receive.
    fn receive(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Connection { qp, link: Link::Open(open), .. } = connection else { return };
        let whole = self.reads.budget();
        let mut budget = whole;
        let mut end = None;
        while budget > 0 && !qp.is_waiting() {
            let (direct, staging_len) = match open.phase {
                Phase::Unannounced => break,
                Phase::AwaitRtr { left, .. } => (None, left),
                _ => (qp.direct(&self.domain, DIRECT_MIN), self.staging.len()),
            };
            let staging = &mut self.staging[..staging_len];
            let (direct, staged, more) = match open.stream.receive(direct, staging) {
                Ok(Received::Bytes { direct, staged, more, .. }) => (direct, staged, more),
                Ok(Received::Nothing) => break,
                Ok(Received::End | Received::Cut) if qp.is_between_fpdus() => {
                    end = Some((DisconnectCause::Peer, None));
                    break;
                }
                Ok(Received::End | Received::Cut) => {
                    end = Some((DisconnectCause::Reset, None));
                    break;
                }
                Err(error) => {
                    end = Some((cause_of(&error), None));
                    break;
                }
            };
            budget = budget.saturating_sub(direct + staged);
            if direct > 0 {
                qp.on_placed(direct);
            }
            if let Err(stop) = qp.on_bytes(&mut self.domain, &staging[..staged]) {
                end = Some((stop.cause(), Some(stop)));
                break;
            }
            if let Phase::AwaitRtr { left, .. } = &mut open.phase {
                *left -= staged;
                if *left == 0 {
                    if !qp.has_peer_sent() {
                        let text = "its first message is not the ready-to-receive indication";
                        end = Some((DisconnectCause::PeerViolation(text), None));
                    }
                    break;
                }
            }
            if !more {
                break;
            }
        }
        self.reads.on_read(key, budget < whole);
        let received_fpdu = matches!(open.phase, Phase::AwaitRtr { .. }) && qp.has_peer_sent();
        let sendable = qp.has_work();
        match end {
            Some((cause, stop)) => self.end(key, cause, stop),
            None if received_fpdu => self.establish_responder(key),
            None => {}
        }
        if sendable {
            self.mark_dirty(key);
        }
    }

    /// Whether a queue pair of the dirty list can get on without the peer.
    pub(super) fn can_send(&self, key: u32) -> bool {
        self.connections.get(key).is_some_and(|connection| match &connection.link {
            Link::Open(open) => {
                let closing = matches!(open.phase, Phase::Closing { .. }) && connection.qp.is_drained();
                !open.stream.is_blocked() && (connection.qp.has_work() || closing)
            }
            _ => false,
        })
    }

    pub(super) fn send_dirty(&mut self) {
        self.dirty.start_turn();
        while let Some(key) = self.dirty.next() {
            let more = self.send(key);
            self.dirty.on_sent(more);
            if !more && let Some(connection) = self.connections.get_mut(key) {
                connection.dirty = false;
            }
        }
    }

    /// Writes a socket; whether there is more that it would take.
    fn send(&mut self, key: u32) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let Connection { qp, link: Link::Open(open), .. } = connection else { return false };
        let Open { stream, phase } = open;
        let mut budget = self.dirty.budget();
        let mut end = None;
        while !stream.is_blocked() && budget > 0 {
            if let Err(stop) = qp.fill(&mut self.domain, budget) {
                end = Some((stop.cause(), Some(stop)));
                break;
            }
            let chunks = qp.chunks();
            if chunks.is_empty() {
                break;
            }
            let sent = stream.send(&chunks, &self.poller, Token::Connection(key));
            drop(chunks);
            match sent {
                Ok(n) => {
                    budget = budget.saturating_sub(n);
                    qp.on_sent(&mut self.domain, n);
                }
                Err(error) => {
                    end = Some((cause_of(&error), None));
                    break;
                }
            }
        }
        // What was borrowed for this, and did not leave, is not ours any more.
        qp.settle();
        let closing = matches!(phase, Phase::Closing { .. });
        let (drained, more) = (qp.is_drained(), !stream.is_blocked() && qp.has_work());
        match end {
            Some((cause, stop)) => {
                if stop.is_none() {
                    // The peer's last bytes may hold the reason.
                    self.receive(key);
                }
                self.end(key, cause, stop);
                false
            }
            None if closing && drained => {
                self.end(key, DisconnectCause::Local, None);
                false
            }
            None => more,
        }
    }
}

/// Why a socket failed. A broken pipe is what is left of a reset that was reported before.
fn cause_of(error: &io::Error) -> DisconnectCause {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => DisconnectCause::Reset,
        _ => DisconnectCause::Broken,
    }
}
