//! A client: what it sends, and what it is answered. It does no I/O.

use super::input::Input;
use super::negotiation::{Negotiation, Progress, Terms, greeting};
use super::requests::Requests;
use super::structured::{self, Head};
use nbd_proto::{self as wire, Command, Request};
use nvmf_block::Backend;
use nvmf_memory::Memory;
use nvmf_stream::{Chunk, Chunks, DIRECT_MIN, Frame, Outbox, Region};
use thiserror::Error;

/// Units that the requests of one client hold at once: 64 MiB. A request takes at least one.
pub(super) const BUDGET: u32 = 16384;

/// The client breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0}")]
pub(super) struct Violation(pub(super) &'static str);

/// A client, without its socket.
pub(super) struct Session {
    /// Its number among the clients.
    key: u32,
    input: Input,
    phase: Phase,
    /// What it has agreed on.
    terms: Terms,
    /// The socket has no more bytes to come.
    is_at_end: bool,
    /// The disk goes: no request is looked at any more.
    is_closing: bool,
    /// It takes no more answers.
    is_deaf: bool,
    /// The next request waits until others of this client are over.
    is_full: bool,
    /// Requests that are not released, and what they hold of the budget.
    under_way: u32,
    units: u32,
    /// Requests that have begun and not ended.
    begun: u32,
    /// Answers of the negotiation, and how much of them has left.
    text: Vec<u8>,
    text_sent: usize,
    /// Replies; the last part of each names its request.
    replies: Outbox<Head, Option<u32>>,
}

#[derive(Debug)]
enum Phase {
    Negotiation(Negotiation),
    /// A request's header comes next.
    Header,
    /// A request's payload comes.
    Payload {
        index: u32,
        received: usize,
    },
    /// A request that was received waits for others to end.
    Waiting(u32),
    /// Nothing more is heard.
    Ended,
}

impl Session {
    /// A client that has connected.
    pub(super) fn new(key: u32) -> Self {
        Self {
            key,
            input: Input::new(),
            phase: Phase::Negotiation(Negotiation::default()),
            terms: Terms::default(),
            is_at_end: false,
            is_closing: false,
            is_deaf: false,
            is_full: false,
            under_way: 0,
            units: 0,
            begun: 0,
            text: greeting(),
            text_sent: 0,
            replies: Outbox::with_capacity(64),
        }
    }

    /// A client that needs no negotiation.
    pub(super) fn agreed(key: u32) -> Self {
        Self { phase: Phase::Header, text: Vec::new(), ..Self::new(key) }
    }

    /// Whether it is still negotiating.
    pub(super) fn is_negotiating(&self) -> bool {
        matches!(self.phase, Phase::Negotiation(_))
    }

    /// Whether nothing more is heard of it.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Whether nothing is left to be done for it.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended() && self.under_way == 0 && (self.is_deaf || self.text_sent == self.text.len())
    }

    /// Whether more bytes of it are wanted now.
    pub(super) fn wants_bytes(&self) -> bool {
        !self.is_at_end && self.needs_bytes()
    }

    /// Whether it goes on when bytes come, and with nothing else.
    fn needs_bytes(&self) -> bool {
        match self.phase {
            Phase::Negotiation(_) | Phase::Payload { .. } => true,
            Phase::Header => !self.is_full,
            Phase::Waiting(_) | Phase::Ended => false,
        }
    }

    /// Whether the last bytes that came are its goodbye. It may be wrong: a payload may look like one.
    pub(super) fn seems_to_leave(&self) -> bool {
        let last = self.input.last().and_then(Request::parse);
        last.is_some_and(|request| request.command == Command::Disconnect)
    }

    /// Where the next bytes are received to: first, for a long payload, its own place, then the staging.
    pub(super) fn room<'a>(
        &'a mut self,
        requests: &'a Requests,
    ) -> (Option<(&'a Memory, usize, usize)>, &'a mut [u8]) {
        let place = match self.phase {
            Phase::Payload { index, received } if self.input.is_empty() => requests.place(index, received),
            _ => None,
        };
        (place.filter(|(_, _, len)| *len >= DIRECT_MIN), self.input.room())
    }

    /// Bytes were received to the places that [`Session::room`] gave.
    pub(super) fn on_received(&mut self, direct: usize, staged: usize) {
        if let Phase::Payload { received, .. } = &mut self.phase {
            *received += direct;
        }
        self.input.on_received(staged);
    }

    /// No more bytes come.
    pub(super) fn on_end(&mut self) {
        self.is_at_end = true;
    }

    /// Lets everything that was received be looked at.
    pub(super) fn release_input(&mut self) {
        self.input.release();
    }

    /// Does what the bytes ask for that were received and released, as far as it may begin.
    ///
    /// # Errors
    /// When the client breaks the protocol: [`Session::end`] is called for it.
    pub(super) fn advance(
        &mut self,
        requests: &mut Requests,
        backend: &mut impl Backend,
    ) -> Result<(), Violation> {
        let advanced = self.try_advance(requests, backend);
        let is_starved = self.is_at_end && self.needs_bytes() && self.input.is_released();
        if advanced.is_err() || is_starved {
            self.end(requests);
        }
        advanced
    }

    fn try_advance(&mut self, requests: &mut Requests, backend: &mut impl Backend) -> Result<(), Violation> {
        loop {
            match &mut self.phase {
                Phase::Negotiation(negotiation) => {
                    match negotiation.advance(&mut self.input, requests.disk(), &mut self.text)? {
                        Progress::NeedsBytes => return Ok(()),
                        Progress::Aborted => self.phase = Phase::Ended,
                        Progress::Agreed(terms) => {
                            (self.terms, self.phase) = (terms, Phase::Header);
                        }
                    }
                }
                Phase::Header if self.is_closing => self.end(requests),
                Phase::Header => match self.next_request(requests)? {
                    Some(request) if request.command == Command::Disconnect => self.end(requests),
                    Some(request) if self.admit(request, requests, backend) => {}
                    _ => return Ok(()),
                },
                Phase::Payload { index, received } => {
                    let (index, len) = (*index, requests.payload_len(*index));
                    let bytes = self.input.take(len - *received);
                    requests.on_payload(index, *received, bytes);
                    *received += bytes.len();
                    if *received < len {
                        return Ok(());
                    }
                    if requests.begin(index, backend) {
                        self.on_begun(requests, index);
                    } else {
                        self.phase = Phase::Waiting(index);
                    }
                }
                Phase::Waiting(_) | Phase::Ended => return Ok(()),
            }
        }
    }

    /// The next request, whose payload follows; `None` when it is not there.
    fn next_request(&self, requests: &Requests) -> Result<Option<Request>, Violation> {
        let Some(header) = self.input.header() else { return Ok(None) };
        let mut request = Request::parse(header).ok_or(Violation("not a request"))?;
        if request.command == Command::BlockStatus {
            structured::bound_status(&mut request, self.terms, requests.disk());
        }
        if request.command == Command::Write && request.len > wire::REQUEST_LEN_MAX {
            return Err(Violation("a write is too long"));
        }
        Ok(Some(request))
    }

    /// Takes the next request, unless it must wait until others of this client are over: for the budget, or for memory,
    /// which the requests of all clients share. The only one never waits, so that a client always goes on.
    fn admit(&mut self, request: Request, requests: &mut Requests, backend: &mut impl Backend) -> bool {
        let (need, may_wait) = (requests.need(&request), self.under_way > 0);
        let has_budget = self.units + need.units <= BUDGET;
        let admitted =
            if has_budget { requests.admit(self.key, request, need, may_wait, backend) } else { None };
        self.is_full = admitted.is_none();
        let Some(index) = admitted else { return false };
        self.input.take(Request::LEN);
        self.under_way += 1;
        self.units += need.units;
        self.phase = Phase::Payload { index, received: 0 };
        true
    }

    /// A request that was received has begun, or was refused.
    pub(super) fn on_begun(&mut self, requests: &Requests, index: u32) {
        self.begun += u32::from(requests.get(index).has_begun);
        self.phase = Phase::Header;
    }

    /// Hears nothing more of the client. What it has begun ends before anything else begins, and what it has not begun is
    /// dropped.
    pub(super) fn end(&mut self, requests: &mut Requests) {
        let phase = core::mem::replace(&mut self.phase, Phase::Ended);
        if let Phase::Payload { index, .. } | Phase::Waiting(index) = phase {
            self.units -= requests.drop_waiting(index);
            self.under_way -= 1;
        }
        if self.begun > 0 && !matches!(phase, Phase::Ended) {
            requests.order.settle();
        }
    }

    /// The disk goes. What was begun, and a request that waits to begin, is carried out and answered. Everything else
    /// is dropped, received or not: the client sees the connection end, and no answer.
    pub(super) fn close(&mut self, requests: &mut Requests) {
        self.is_closing = true;
        if !matches!(self.phase, Phase::Waiting(_)) {
            self.end(requests);
        }
    }

    /// Answers a request that has ended.
    pub(super) fn reply(&mut self, requests: &mut Requests, index: u32) {
        let under_way = requests.get(index);
        self.begun -= u32::from(under_way.has_begun);
        if self.is_deaf {
            return self.on_left(requests, index);
        }
        if self.terms.structured {
            return structured::reply(&mut self.replies, requests, index);
        }
        let (errno, cookie) = (under_way.errno, under_way.request.cookie);
        let mut head: Head = wire::simple_reply(errno, cookie).into_iter().collect();
        for part in under_way.reply_data(requests.disk(), &requests.pool) {
            let (memory, offset, len) = (part.memory.clone(), part.buffer.offset, part.buffer.len);
            let data = Some(Region { memory, offset, len });
            self.replies.push(Frame { head: head.take(), data, trailer: None, note: None });
        }
        match self.replies.last_mut() {
            Some(last) if head.is_empty() => last.note = Some(index),
            _ => self.replies.push(Frame { head, data: None, trailer: None, note: Some(index) }),
        }
    }

    /// What is to be sent next.
    pub(super) fn chunks(&self) -> Chunks<'_> {
        if self.text_sent == self.text.len() {
            return self.replies.chunks();
        }
        let mut chunks = Chunks::new(self.text_sent);
        chunks.push(Chunk::Bytes(&self.text));
        chunks
    }

    /// Whether anything is to be sent.
    pub(super) fn has_replies(&self) -> bool {
        !self.is_deaf && (self.text_sent < self.text.len() || !self.replies.is_empty())
    }

    /// The socket took so many bytes of [`Session::chunks`].
    pub(super) fn on_sent(&mut self, requests: &mut Requests, bytes: usize) {
        if self.text_sent < self.text.len() {
            self.text_sent += bytes;
            return;
        }
        let (mut units, mut left) = (0, 0);
        self.replies.on_sent(bytes, |note| {
            if let Some(index) = note {
                units += requests.release(index);
                left += 1;
            }
        });
        self.units -= units;
        self.under_way -= left;
        self.is_full &= left == 0;
    }

    /// The client takes no more answers: it is gone.
    pub(super) fn on_deaf(&mut self, requests: &mut Requests) {
        self.is_deaf = true;
        let mut replies = core::mem::replace(&mut self.replies, Outbox::with_capacity(0));
        replies.on_sent(usize::MAX / 2, |note| {
            if let Some(index) = note {
                self.on_left(requests, index);
            }
        });
    }

    fn on_left(&mut self, requests: &mut Requests, index: u32) {
        self.units -= requests.release(index);
        self.under_way -= 1;
        self.is_full = false;
    }
}
