//! Closed connections whose last bytes leave.

use crate::chunk::Chunk;
use crate::deadline::Deadline;
use crate::poller::{Interest, Poller};
use crate::stream::{Received, Stream};
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};

/// A connection that its user is done with: its last bytes leave, then the peer has a little time to close first, and
/// what it still sends is thrown away. Closing on unread bytes would reset the connection, and the peer might never
/// read the last bytes. With [`reset_on_close`](crate::StreamConfig::reset_on_close), what has not left when it is
/// dropped never does.
#[derive(Debug)]
pub struct Lingering {
    stream: Stream,
    final_bytes: Vec<u8>,
    sent: usize,
    /// When it is to be dropped, whatever the peer does.
    pub deadline: Deadline,
}

impl Lingering {
    /// A connection that ends with `final_bytes`, within `timeout`.
    #[must_use]
    pub fn new(stream: Stream, final_bytes: Vec<u8>, timeout: Duration) -> Self {
        Self { stream, final_bytes, sent: 0, deadline: Deadline::After(timeout) }
    }

    /// Gets on with it, first at the start and then whenever `poller` reports `token`; whether it is over. `staging` is
    /// for bytes that nobody wants.
    pub fn advance(&mut self, poller: &Poller, token: impl Into<u64>, staging: &mut [u8]) -> bool {
        if self.sent < self.final_bytes.len() {
            match self.stream.try_send(&[Chunk::Bytes(&self.final_bytes[self.sent..])]) {
                Ok(taken) => self.sent += taken,
                Err(_) => return true,
            }
        }
        let flushed = match self.stream.flush() {
            Ok(flushed) => flushed,
            Err(_) => return true,
        };
        if self.sent < self.final_bytes.len() || !flushed {
            poller.change(&self.stream, token, Interest::Write);
            return false;
        }
        self.stream.shutdown_write();
        poller.change(&self.stream, token, Interest::Read);
        // One buffer a turn: a peer that never stops talking gets no more of our time.
        matches!(self.stream.receive(None, staging), Ok(Received::End | Received::Cut) | Err(_))
    }
}

impl AsFd for Lingering {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
