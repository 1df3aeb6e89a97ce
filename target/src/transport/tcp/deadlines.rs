//! What happens with time: connections that linger, and whatever has a deadline.

use super::Tcp;
use super::connection::Ended;
use super::establish::Pending;
use crate::limits::EVENTS_MAX;
use core::time::Duration;
use nvmf_stream::{Deadline, Lingering, Stream, Token};

impl Tcp {
    /// Sends `last`, then waits a little for the host to close first.
    pub(super) fn start_linger(&mut self, stream: Stream, last: Vec<u8>) {
        let lingering = Lingering::new(stream, last, self.options.stream.linger);
        // Without a place it is closed at once.
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

    /// Acts on the deadlines that have passed, unless what came of others is still to be taken.
    pub(super) fn expire(&mut self, now: Duration) {
        while let Some(token) = self.deadlines.pop_new() {
            if let Some(at) = self.due_at(token, now) {
                self.deadlines.insert(token, at);
            }
        }
        while self.events.len() < EVENTS_MAX
            && let Some(token) = self.deadlines.pop_due(now)
        {
            match self.due_at(token, now) {
                Some(at) if at > now => self.deadlines.insert(token, at),
                Some(_) => self.on_deadline(token),
                None => {}
            }
        }
    }

    fn on_deadline(&mut self, token: Token) {
        match token {
            Token::Connection(queue) => self.end(queue, &Ended::Peer),
            Token::Pending(key) => self.give_up_pending(key),
            Token::Lingering(key) => self.end_linger(key),
            Token::Listener(key) => {
                if let Some((listener, _)) = self.listeners.get_mut(key) {
                    listener.resume(&self.poller);
                }
            }
        }
    }

    /// When it is due, if it still is to be: its clock runs from now on at the latest.
    fn due_at(&mut self, token: Token, now: Duration) -> Option<Duration> {
        let deadline = self.deadline(token)?;
        deadline.start(now);
        Some(deadline.at())
    }

    fn deadline(&mut self, token: Token) -> Option<&mut Deadline> {
        match token {
            Token::Connection(queue) => self.connection(queue)?.closing.as_mut(),
            Token::Pending(key) => self.pendings.get_mut(key).map(Pending::deadline),
            Token::Lingering(key) => self.lingering.get_mut(key).map(|lingering| &mut lingering.deadline),
            Token::Listener(key) => self.listeners.get_mut(key)?.0.rest.as_mut(),
        }
    }
}
