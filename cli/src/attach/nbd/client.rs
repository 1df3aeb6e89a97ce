//! A client and its socket.

use super::requests::Requests;
use super::session::Session;
use core::time::Duration;
use nvmf_block::Backend;
use nvmf_stream::{Poller, Received, Stream};

/// A client and its socket.
pub(super) struct Client {
    pub(super) stream: Stream,
    pub(super) session: Session,
    /// When it must have negotiated.
    pub(super) deadline: Duration,
    /// It is listed as one with something to send.
    pub(super) is_sending: bool,
    /// It is listed as one whose input is to be looked at.
    pub(super) is_due: bool,
}

impl Client {
    pub(super) fn new(stream: Stream, session: Session, deadline: Duration) -> Self {
        Self { stream, session, deadline, is_sending: false, is_due: false }
    }

    /// Receives what it sent, up to about `budget` bytes; whether there was anything.
    pub(super) fn receive(&mut self, requests: &Requests, budget: usize) -> bool {
        let mut left = budget;
        while left > 0 && self.session.wants_bytes() {
            let (place, staging) = self.session.room(requests);
            match self.stream.receive(place, staging) {
                Ok(Received::Bytes { direct, staged, cost, more }) => {
                    self.session.on_received(direct, staged);
                    left = left.saturating_sub(cost);
                    // Another piece of a long payload may be there.
                    if staged > 0 || !more {
                        break;
                    }
                }
                Ok(Received::Nothing) => break,
                // With an error it is as good as gone.
                Ok(Received::End | Received::Cut) | Err(_) => {
                    self.session.on_end();
                    return true;
                }
            }
        }
        left < budget
    }

    /// Does what it asks for.
    pub(super) fn advance(&mut self, requests: &mut Requests, backend: &mut impl Backend) {
        if let Err(error) = self.session.advance(requests, backend) {
            tracing::warn!(%error, "an NBD client was dropped");
        }
    }

    /// Sends what its socket takes, up to about `budget` bytes; whether anything came of it.
    pub(super) fn send(&mut self, requests: &mut Requests, poller: &Poller, key: u32, budget: usize) -> bool {
        let mut left = budget;
        while left > 0 && !self.stream.is_blocked() && self.session.has_replies() {
            let sent = self.stream.send(&self.session.chunks(), poller, key);
            match sent {
                Ok(taken) => {
                    self.session.on_sent(requests, taken);
                    left = left.saturating_sub(taken);
                }
                // What it sent before is still carried out.
                Err(_) => {
                    self.session.on_deaf(requests);
                    return true;
                }
            }
        }
        left < budget
    }
}
