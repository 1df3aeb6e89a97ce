//! Reading and writing sockets, each within a budget; and how connections end.

use super::connection::{Connection, Ended, Phase};
use super::{Event, Link, Tcp};
use crate::transport::Arrival;
use core::time::Duration;
use nvme_proto::Qid;
use nvmf_host::QueueFailure;
use nvmf_stream::{DIRECT_MIN, Interest, Lingering, Received, TlsError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

fn qid(key: u32) -> Qid {
    Qid(key as u16)
}

impl Tcp {
    /// Reads what there is to read; whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        let mut worked = false;
        self.reads.start_turn();
        while let Some(key) = self.reads.next() {
            worked |= self.receive(qid(key));
        }
        if self.reads.asks_poller() {
            for index in 0..self.poller.poll() {
                let (token, writable) = self.poller.ready(index);
                worked |= self.on_ready(qid(token as u32), writable);
            }
        }
        worked
    }

    fn on_ready(&mut self, qid: Qid, writable: bool) -> bool {
        match self.links.get_mut(usize::from(qid.0)) {
            Some(Some(Link::Open(connection))) => {
                if connection.phase == Phase::Connecting {
                    self.on_connected(qid);
                    return true;
                }
                if connection.phase == Phase::Securing {
                    self.handshake(qid);
                    return true;
                }
                if writable && connection.stream.on_writable(&self.poller, qid.0) {
                    self.sends.add(qid.0.into(), &mut connection.listed);
                }
                self.reads.is_due(qid.0.into()) && self.receive(qid)
            }
            Some(Some(Link::Closing(..))) => {
                self.linger(qid);
                true
            }
            _ => false,
        }
    }

    fn on_connected(&mut self, qid: Qid) {
        let Some(connection) = self.connection(qid) else { return };
        if let Err(error) = connection.stream.take_error() {
            return self.end(qid, &Ended::Broken(error));
        }
        if connection.stream.is_local() {
            connection.stream.send_unpaced();
        }
        if let Some(Some(Link::Open(connection))) = self.links.get_mut(usize::from(qid.0)) {
            self.poller.change(&connection.stream, qid.0, Interest::Read);
            if let Some(connector) = self.secured.as_ref().or(self.tls.as_ref()) {
                connection.phase = Phase::Securing;
                if let Err(error) = connection.stream.connect_tls(connector) {
                    return self.end(qid, &Ended::Tls(error));
                }
                return self.handshake(qid);
            }
            connection.on_connected();
        }
        self.list_to_send(qid);
    }

    /// Goes on with the TLS handshake; ICReq follows it.
    fn handshake(&mut self, qid: Qid) {
        let Some(connection) = self.connection(qid) else { return };
        match connection.stream.handshake() {
            Ok(None) => {}
            Ok(Some(_)) => {
                connection.on_connected();
                self.list_to_send(qid);
            }
            Err(error) => self.end(qid, &Ended::Tls(error)),
        }
    }

    /// Reads a socket; whether it had bytes.
    fn receive(&mut self, qid: Qid) -> bool {
        let Some(Some(Link::Open(connection))) = self.links.get_mut(usize::from(qid.0)) else { return false };
        let whole = self.reads.budget();
        let mut budget = whole;
        let mut end = None;
        let before = connection.phase;
        while budget > 0 {
            let direct = connection.direct().filter(|&(.., len)| len >= DIRECT_MIN);
            let (direct, staged, more) = match connection.stream.receive(direct, &mut self.staging) {
                Ok(Received::Nothing) => break,
                Ok(Received::End) if connection.is_between_pdus() => {
                    end = Some(Ended::Peer);
                    break;
                }
                Ok(Received::Cut) => {
                    end = Some(Ended::Cut);
                    break;
                }
                Ok(Received::End) => {
                    end = Some(Ended::Broken(io::ErrorKind::UnexpectedEof.into()));
                    break;
                }
                Err(error) => {
                    end = Some(Ended::Broken(error));
                    break;
                }
                Ok(Received::Bytes { direct, staged, cost, more }) => {
                    budget = budget.saturating_sub(cost);
                    (direct, staged, more)
                }
            };
            if direct > 0 {
                connection.on_direct(direct, &mut self.arrivals);
            }
            if let Err(ended) = connection.on_bytes(&self.staging[..staged], &mut self.arrivals) {
                end = Some(ended);
                break;
            }
            if !more {
                break;
            }
        }
        let had_bytes = budget < whole;
        let has_more = connection.has_more();
        if before != Phase::Ready && connection.phase == Phase::Ready {
            self.events.push_back(Event::Connected { qid, private_data: Vec::new() });
        }
        self.reads.on_read(qid.0.into(), had_bytes);
        match end {
            Some(ended) => {
                self.end(qid, &ended);
                true
            }
            None if has_more => {
                self.list_to_send(qid);
                had_bytes
            }
            None => had_bytes,
        }
    }

    /// Sends what there is to send.
    pub(super) fn send_listed(&mut self) {
        self.sends.start_turn();
        while let Some(key) = self.sends.next() {
            let more = self.send_to(qid(key));
            self.sends.on_sent(more);
            if !more && let Some(connection) = self.connection(qid(key)) {
                connection.listed = false;
            }
        }
    }

    /// Whether some connection would take more bytes.
    pub(super) fn can_send(&self) -> bool {
        self.sends.keys().any(|key| match self.links.get(key as usize) {
            Some(Some(Link::Open(connection))) => !connection.stream.is_blocked() && connection.has_more(),
            _ => false,
        })
    }

    /// Writes a socket; whether there is more that it would take.
    fn send_to(&mut self, qid: Qid) -> bool {
        let mut left = self.sends.budget();
        let Some(Some(Link::Open(connection))) = self.links.get_mut(usize::from(qid.0)) else { return false };
        if matches!(connection.phase, Phase::Connecting | Phase::Securing) {
            return false;
        }
        while !connection.stream.is_blocked() && left > 0 {
            connection.answer_r2ts();
            let sent = {
                let Connection { stream, outbox, .. } = &mut **connection;
                let chunks = outbox.chunks();
                if chunks.is_empty() {
                    break;
                }
                stream.send(&chunks, &self.poller, qid.0)
            };
            match sent {
                Ok(sent) => {
                    left = left.saturating_sub(sent);
                    connection.on_sent(sent, &mut self.arrivals);
                }
                Err(error) => {
                    // The controller's last bytes may hold the reason, and then it ends with that.
                    self.receive(qid);
                    self.end(qid, &Ended::Broken(error));
                    return false;
                }
            }
        }
        !connection.stream.is_blocked() && connection.has_more()
    }

    /// Closes a connection: in order if nothing of it is to be sent any more, else at once.
    pub(super) fn close(&mut self, qid: Qid, orderly: bool) {
        if orderly {
            // A command of the shutdown may wait to be sent.
            self.send_to(qid);
        }
        let event =
            Event::Disconnected { qid, cause: "closed by this side".to_owned(), peer_has_ended: false };
        match self.take_link(qid) {
            Some(Link::Open(connection)) if orderly && !connection.has_more() => {
                self.start_linger(qid, *connection, Vec::new(), event);
            }
            Some(link) => {
                self.poller.remove(link.stream());
                drop(link);
                self.events.push_back(event);
            }
            None => {}
        }
    }

    /// Ends a connection, and reports it once nothing of it can leave any more.
    fn end(&mut self, qid: Qid, ended: &Ended) {
        let Some(Link::Open(mut connection)) = self.take_link(qid) else { return };
        let event = match connection.phase {
            Phase::Ready => {
                let peer_has_ended = ended.peer_has_ended(connection.stream.has_tls());
                Event::Disconnected { qid, cause: cause(ended), peer_has_ended }
            }
            phase => Event::Failed(qid, failure(phase, ended, self.tls.is_some() || self.secured.is_some())),
        };
        match ended {
            // In the middle of a PDU nothing else can be said.
            Ended::Violation(Some(error)) | Ended::Digests(error)
                if connection.outbox.is_between_frames() =>
            {
                let last = connection.terminate(*error);
                self.start_linger(qid, *connection, last, event);
            }
            _ => {
                self.poller.remove(&connection.stream);
                drop(connection);
                self.events.push_back(event);
            }
        }
    }

    /// Sends `last`, then waits a little for the controller to close first. What else was to be sent is forgotten.
    fn start_linger(&mut self, qid: Qid, connection: Connection, last: Vec<u8>, event: Event) {
        let lingering = Lingering::new(connection.stream, last, self.config.linger);
        self.links[usize::from(qid.0)] = Some(Link::Closing(lingering, Some(event)));
        self.is_timed = true;
        self.linger(qid);
    }

    fn linger(&mut self, qid: Qid) {
        let Some(Some(Link::Closing(lingering, _))) = self.links.get_mut(usize::from(qid.0)) else { return };
        if lingering.advance(&self.poller, qid.0, &mut self.staging) {
            self.end_linger(qid);
        }
    }

    fn end_linger(&mut self, qid: Qid) {
        if let Some(Link::Closing(lingering, event)) = self.take_link(qid) {
            self.poller.remove(&lingering);
            drop(lingering);
            self.events.extend(event);
        }
    }

    /// Takes a connection out of everything. Its commands stay in use until the queue is destroyed.
    pub(super) fn take_link(&mut self, qid: Qid) -> Option<Link> {
        let link = self.links.get_mut(usize::from(qid.0))?.take()?;
        self.reads.remove(qid.0.into());
        Some(link)
    }

    /// Acts on the deadlines that have passed.
    pub(super) fn expire(&mut self, now: Duration) {
        self.is_timed = false;
        for index in 0..self.links.len() {
            let due = match &mut self.links[index] {
                Some(Link::Open(connection)) if connection.phase != Phase::Ready => {
                    connection.deadline <= now
                }
                Some(Link::Closing(lingering, _)) => {
                    lingering.deadline.start(now);
                    lingering.deadline.at() <= now
                }
                _ => continue,
            };
            let qid = qid(index as u32);
            match &self.links[index] {
                Some(Link::Open(_)) if due => self.end(qid, &Ended::TimedOut),
                Some(Link::Closing(..)) if due => self.end_linger(qid),
                _ => self.is_timed = true,
            }
        }
    }
}

impl Link {
    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        match self {
            Self::Open(connection) => connection.stream.as_fd(),
            Self::Closing(lingering, _) => lingering.as_fd(),
        }
    }
}

fn cause(ended: &Ended) -> String {
    match ended {
        Ended::Peer => "the controller closed it".to_owned(),
        Ended::Cut => "it was cut: the end of TLS (close_notify) is missing".to_owned(),
        Ended::Broken(error) => error.to_string(),
        Ended::Terminated(error) => format!("the controller terminated it: {error}"),
        Ended::Violation(Some(error)) => format!("the controller broke the protocol: {error}"),
        Ended::Violation(None) => {
            "the controller broke the protocol: an invalid termination request".to_owned()
        }
        Ended::Digests(_) => "the controller's digests are not those that were asked for".to_owned(),
        Ended::TimedOut => "it was not set up in time".to_owned(),
        Ended::Tls(error) => error.to_string(),
        Ended::WantsTls => "the answer is an alert of TLS".to_owned(),
    }
}

/// Why a queue could not be opened, and what may help. `has_tls`: it was to have TLS.
fn failure(phase: Phase, ended: &Ended, has_tls: bool) -> QueueFailure {
    match (phase, ended) {
        (_, Ended::TimedOut) => QueueFailure::TimedOut,
        (_, Ended::Tls(TlsError::Alert(_) | TlsError::Key(_))) => QueueFailure::Other(format!(
            "{}; give host and target the same key (nvmf check-tls-key), and use the host NQN that it is for",
            cause(ended)
        )),
        (_, Ended::Tls(TlsError::Closed | TlsError::Io(_))) => QueueFailure::Other(format!(
            "{}; is it a port with TLS (one for -t rdma has none), with room for one more \
             connection?",
            cause(ended)
        )),
        (_, Ended::Tls(TlsError::Protocol(_))) => {
            QueueFailure::Other(format!("{}; is it an NVMe/TCP port with TLS?", cause(ended)))
        }
        (_, Ended::WantsTls) => {
            QueueFailure::Other(format!("{}; if it is an NVMe/TCP target, connect with --tls", cause(ended)))
        }
        (Phase::Connecting, Ended::Broken(error)) => QueueFailure::Unreachable(error.to_string()),
        (_, Ended::Digests(_)) => QueueFailure::Other(format!(
            "{}; connect with or without header and data digests as it wants them",
            cause(ended)
        )),
        (_, Ended::Terminated(_)) => QueueFailure::Other(format!("{} before ICResp", cause(ended))),
        // Something that is no ICResp came, or the beginning of it.
        (_, Ended::Violation(_)) => {
            QueueFailure::Other(format!("{} before ICResp; is it an NVMe/TCP target?", cause(ended)))
        }
        (_, Ended::Broken(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            QueueFailure::Other(format!("{error} before ICResp; is it an NVMe/TCP target?"))
        }
        (_, Ended::Broken(error)) if error.get_ref().is_some_and(|error| error.is::<TlsError>()) => {
            QueueFailure::Other(format!("{error} before ICResp; the target's log may say why"))
        }
        (_, Ended::Peer | Ended::Cut | Ended::Broken(_)) if has_tls => QueueFailure::Other(format!(
            "{} before ICResp, behind the TLS handshake; has the target room for one more connection? Its log may say \
             why",
            cause(ended)
        )),
        (_, Ended::Peer | Ended::Cut | Ended::Broken(_)) => QueueFailure::Other(format!(
            "{} before ICResp; is it NVMe/RDMA (-t rdma), or an NVMe/TCP target that requires TLS (--tls) or has no \
             room for one more connection?",
            cause(ended)
        )),
    }
}

impl Arrival {
    /// The queue that it is of.
    pub(super) fn qid(&self) -> Option<Qid> {
        match self {
            Self::Response(qid, ..) | Self::Released(qid, _) => Some(*qid),
            Self::Violation(_) => None,
        }
    }
}

impl Event {
    /// The queue that it is of.
    pub(super) fn qid(&self) -> Option<Qid> {
        match self {
            Self::Connected { qid, .. } | Self::Failed(qid, _) | Self::Disconnected { qid, .. } => Some(*qid),
            Self::Other => None,
        }
    }
}
