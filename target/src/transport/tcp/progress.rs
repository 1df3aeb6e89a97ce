//! Reading and writing sockets, each within a budget; and how connections end.

use super::Tcp;
use super::connection::{Connection, Ended};
use crate::exec::transport::{Event, Fault};
use crate::limits::TRANSFER_CHECKS;
use core::time::Duration;
use nvmf_stream::{DIRECT_MIN, Deadline, Received, Token};

/// How long an orderly end waits for the host to take what is left.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl Tcp {
    /// Reads what there is to read.
    pub(super) fn progress(&mut self) {
        self.resume();
        self.reads.start_turn();
        while let Some(queue) = self.reads.next() {
            self.receive(queue);
        }
        if self.reads.asks_poller() {
            for index in 0..self.poller.poll() {
                let (token, writable) = self.poller.ready(index);
                match Token::from(token) {
                    Token::Connection(queue) => self.on_ready(queue, writable),
                    Token::Listener(key) => self.accept_streams(key),
                    Token::Pending(key) => self.read_request(key),
                    Token::Lingering(key) => self.linger(key),
                }
            }
        }
    }

    fn on_ready(&mut self, queue: u32, writable: bool) {
        let Some(Some(connection)) = self.connections.get_mut(queue as usize) else { return };
        if writable && connection.stream.on_writable(&self.poller, Token::Connection(queue)) {
            self.sends.add(queue, &mut connection.listed);
        }
        if connection.stream.is_paused() {
            // Only a broken connection is reported.
            if connection.stream.take_error().is_err() {
                self.end(queue, &Ended::Broken);
            }
        } else if self.reads.is_due(queue) {
            self.receive(queue);
        }
    }

    /// Goes on with connections that waited for a slot, as long as there are some: first with those that have waited
    /// longest. Who wants another stands behind all others.
    fn resume(&mut self) {
        let mut at = 0;
        while let Some(&queue) = self.awaiting.get(at) {
            let Some(Some(connection)) = self.connections.get_mut(queue as usize) else {
                self.awaiting.remove(at);
                continue;
            };
            if !connection.may_go_on(&self.capsules) {
                at += 1;
                continue;
            }
            self.awaiting.remove(at);
            match connection.on_held(&mut self.capsules, &mut self.arrivals) {
                Ok(()) => {
                    if connection.awaits_slot() {
                        self.awaiting.push_back(queue);
                    } else {
                        connection.stream.pause(false, &self.poller, Token::Connection(queue));
                        self.reads.poll_next_turn();
                    }
                    if connection.asks() {
                        self.list_to_send(queue);
                    }
                }
                Err(ended) => self.end(queue, &ended),
            }
        }
    }

    /// Whether a connection that waits for a slot can go on.
    pub(super) fn can_resume(&self) -> bool {
        self.awaiting.iter().any(|&queue| {
            let connection = self.connections.get(queue as usize).and_then(Option::as_ref);
            connection.is_some_and(|connection| connection.may_go_on(&self.capsules))
        })
    }

    /// Reads a socket.
    fn receive(&mut self, queue: u32) {
        let Some(Some(connection)) = self.connections.get_mut(queue as usize) else { return };
        let whole = self.reads.budget();
        let mut budget = whole;
        let mut end = None;
        while budget > 0 && !connection.stream.is_paused() {
            let direct = connection.direct(&self.capsules).filter(|&(.., len)| len >= DIRECT_MIN);
            let received = connection.stream.receive(direct, &mut self.staging);
            let (direct, staged, more) = match received {
                Ok(Received::Nothing) => break,
                Ok(Received::End | Received::Cut) if connection.is_between_pdus() => {
                    end = Some(Ended::Peer);
                    break;
                }
                Ok(Received::End | Received::Cut) => {
                    end = Some(Ended::Broken);
                    break;
                }
                Err(error) => {
                    end = Some(Ended::of(&error));
                    break;
                }
                Ok(Received::Bytes { direct, staged, cost, more }) => {
                    budget = budget.saturating_sub(cost);
                    (direct, staged, more)
                }
            };
            if direct > 0 {
                connection.on_direct(direct, &self.capsules, &mut self.arrivals);
            }
            let staged = &self.staging[..staged];
            match connection.on_bytes(staged, &mut self.capsules, &mut self.arrivals) {
                Ok(used) if used < staged.len() || connection.awaits_slot() => {
                    connection.hold(&staged[used..]);
                    connection.stream.pause(true, &self.poller, Token::Connection(queue));
                    self.awaiting.push_back(queue);
                }
                Ok(_) => {}
                Err(ended) => {
                    end = Some(ended);
                    break;
                }
            }
            if !more {
                break;
            }
        }
        let asks = connection.asks();
        self.reads.on_read(queue, budget < whole);
        match end {
            Some(ended) => self.end(queue, &ended),
            None if asks => self.list_to_send(queue),
            None => {}
        }
    }

    pub(super) fn list_to_send(&mut self, queue: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(queue as usize) {
            self.sends.add(queue, &mut connection.listed);
        }
    }

    /// Sends what there is to send.
    pub(super) fn send_listed(&mut self) {
        self.sends.start_turn();
        while let Some(queue) = self.sends.next() {
            let more = self.send(queue);
            self.sends.on_sent(more);
            if !more && let Some(connection) = self.connection(queue) {
                connection.listed = false;
            }
        }
    }

    /// Whether a connection of that list can get on without its host.
    pub(super) fn can_send(&self, queue: u32) -> bool {
        let connection = self.connections.get(queue as usize).and_then(Option::as_ref);
        connection.is_some_and(|connection| {
            !connection.stream.is_blocked() && (!connection.outbox.is_empty() || connection.asks())
        })
    }

    /// Writes a socket; whether there is more that it would take.
    fn send(&mut self, queue: u32) -> bool {
        let budget = self.sends.budget();
        let Some(Some(connection)) = self.connections.get_mut(queue as usize) else { return false };
        connection.ask();
        let mut left = budget;
        let mut broken = false;
        while !connection.stream.is_blocked() && left > 0 {
            let sent = {
                let Connection { stream, outbox, .. } = &mut **connection;
                let chunks = outbox.chunks();
                if chunks.is_empty() {
                    break;
                }
                stream.send(&chunks, &self.poller, Token::Connection(queue))
            };
            match sent {
                Ok(sent) => {
                    left = left.saturating_sub(sent);
                    connection.outbox.on_sent(sent, &mut self.arrivals, queue);
                }
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        connection.outbox.settle();
        let drained = connection.outbox.is_empty();
        if broken {
            // The host's last bytes may hold the reason.
            self.receive(queue);
            self.end(queue, &Ended::Broken);
            return false;
        }
        if drained && connection.closing.is_some() {
            self.end(queue, &Ended::Peer);
            return false;
        }
        !connection.stream.is_blocked() && !drained
    }

    /// Begins an orderly end.
    pub(super) fn start_disconnect(&mut self, queue: u32) {
        let Some(connection) = self.connection(queue) else { return };
        if connection.closing.is_none() {
            connection.closing = Some(Deadline::After(DISCONNECT_TIMEOUT));
            self.deadlines.add(Token::Connection(queue));
            self.list_to_send(queue);
        }
    }

    /// Ends a connection, and reports it.
    pub(super) fn end(&mut self, queue: u32, ended: &Ended) {
        let Some(mut connection) = self.take_connection(queue) else { return };
        let cause = match ended {
            Ended::Peer if connection.closing.is_some() => "closed by this side".into(),
            Ended::Peer => "closed by the peer".into(),
            Ended::Broken => "the connection broke".into(),
            Ended::Tls(cause) => cause.clone(),
            Ended::Terminated(error) => format!("the peer terminated the connection: {error}"),
            Ended::Violation(Some(error)) => format!("the peer broke the protocol: {error}"),
            Ended::Violation(None) => "the peer broke the protocol: an invalid termination request".into(),
            Ended::Overrun => {
                "the peer broke the protocol: more commands in flight than its queue has entries".into()
            }
            Ended::Stalled => {
                format!("the data of a capsule did not arrive within {:?}", self.capsule_timeout)
            }
        };
        let fault = match ended {
            Ended::Violation(_) | Ended::Overrun | Ended::Tls(_) => Some(Fault::Violation),
            Ended::Stalled => Some(Fault::Stall),
            Ended::Peer | Ended::Broken | Ended::Terminated(_) => None,
        };
        self.events.push_back(Event::Disconnected { queue, fault, cause });
        match ended {
            Ended::Peer => self.start_linger(connection.stream, Vec::new()),
            // In the middle of a PDU nothing else can be said.
            Ended::Violation(Some(error)) if connection.outbox.is_between_pdus() => {
                let last = connection.terminate(*error);
                self.start_linger(connection.stream, last);
            }
            Ended::Violation(_)
            | Ended::Broken
            | Ended::Tls(_)
            | Ended::Terminated(_)
            | Ended::Overrun
            | Ended::Stalled => self.poller.remove(&connection.stream),
        }
    }

    /// Takes a connection out of everything but the capsules that are in use.
    pub(super) fn take_connection(&mut self, queue: u32) -> Option<Box<Connection>> {
        let connection = self.connections.get_mut(queue as usize)?.take()?;
        self.reads.remove(queue);
        if let Some(closing) = connection.closing {
            self.deadlines.remove(Token::Connection(queue), closing);
        }
        self.awaiting.retain(|&other| other != queue);
        Some(connection)
    }

    /// Ends the connections that take too long for a capsule's data, which hold a slot meanwhile.
    pub(super) fn check_capsules(&mut self, now: Duration) {
        self.capsule_check.start(now);
        if self.capsule_check.at() > now {
            return;
        }
        self.capsule_check = Deadline::At(now + self.capsule_timeout / TRANSFER_CHECKS);
        for queue in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[queue] else { continue };
            if !connection.holds_slot() {
                continue;
            }
            // Counted, not timed: after a stall of ours, what came meanwhile is read before the next check.
            connection.capsule_checks += 1;
            if connection.capsule_checks > TRANSFER_CHECKS {
                self.end(u32::try_from(queue).expect("few"), &Ended::Stalled);
            }
        }
    }
}
