//! One queue pair, without I/O: the receiver turns bytes into placements and completions, the transmitter turns work
//! into FPDUs.
//!
//! | module | what it holds |
//! |---|---|
//! | `rx` | the stream parser: checks, placement, delivery |
//! | `tx` | cutting messages into FPDUs, and what the socket is to send |
//! | `terminate` | the rules that can be broken, and the Terminate message |
//! | `send_queue`, `receive`, `inbound_reads` | the queues |
//! | `domain` | what all queue pairs share |

pub(crate) mod domain;
mod inbound_reads;
pub(crate) mod receive;
mod rx;
mod send_queue;
mod terminate;
mod tx;

pub(crate) use domain::{Domain, SharedReceiveQueue};
pub(crate) use rx::Stop;
pub(crate) use terminate::{Terminated, Violation};

use crate::handshake::{Agreement, Rtr};
use inbound_reads::InboundReads;
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, LocalKey, PostError, QueuePairAttributes, QueuePairId, ReceiveRequest, SendRequest, WcStatus,
};
use nvmf_stream::Chunks;
use receive::{Piece, Receive, ReceiveQueue};
use rx::Receiver;
use send_queue::{SendQueue, Work};
use tx::Transmitter;

/// Which side of the connection we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    rx: Receiver,
    tx: Transmitter,
    parts: Parts,
    /// Bytes of the stream behind a SEND that finds no receive: what one read of the socket brought.
    held: Vec<u8>,
    /// How many of them were taken since.
    held_taken: usize,
}

/// What receiver and transmitter both work on.
#[derive(Debug)]
pub(crate) struct Parts {
    id: QueuePairId,
    attributes: QueuePairAttributes,
    send_queue: SendQueue,
    own_receives: ReceiveQueue,
    /// Whether the shared queue knows that this one waits for it.
    starving: bool,
    inbound_reads: InboundReads,
    /// Found when the stream went on: the next [`QueuePair::fill`] returns it.
    broken: Option<Stop>,
}

impl Parts {
    /// Where receives come from.
    fn receives<'a>(&'a mut self, domain: &'a mut Domain) -> &'a mut ReceiveQueue {
        match self.attributes.shared_receive_queue {
            Some(queue) => &mut domain.shared[queue.0 as usize].queue,
            None => &mut self.own_receives,
        }
    }

    /// The work request to send next. None while a READ waits for a credit, or the end of a key for READs of the peer's
    /// that are still being answered from its memory: the poster reuses that memory once the key is invalid.
    fn next_work(&self) -> Option<u64> {
        let sequence = self.send_queue.next()?;
        match self.send_queue.entry(sequence)?.work {
            Work::LocalInvalidate { key } if self.inbound_reads.needs(|stag| stag == key.0) => None,
            _ => Some(sequence),
        }
    }

    /// Whether the next thing to do is to end this key.
    fn is_ending(&self, stag: u32) -> bool {
        let next = self.send_queue.next().and_then(|sequence| self.send_queue.entry(sequence));
        next.is_some_and(|entry| matches!(entry.work, Work::LocalInvalidate { key } if key.0 == stag))
    }

    /// The stream waits for a receive.
    fn note_starving(&mut self, domain: &mut Domain) {
        if let Some(queue) = self.attributes.shared_receive_queue
            && !core::mem::replace(&mut self.starving, true)
        {
            domain.shared[queue.0 as usize].starved.push_back(self.id);
        }
    }
}

impl QueuePair {
    pub(crate) fn new(id: QueuePairId, attributes: &QueuePairAttributes) -> Self {
        let parts = Parts {
            id,
            attributes: *attributes,
            send_queue: SendQueue::new(id, attributes),
            own_receives: ReceiveQueue::new(attributes.max_receive),
            starving: false,
            inbound_reads: InboundReads::default(),
            broken: None,
        };
        Self { rx: Receiver::new(), tx: Transmitter::new(), parts, held: Vec::new(), held_taken: 0 }
    }

    pub(crate) fn attributes(&self) -> &QueuePairAttributes {
        &self.parts.attributes
    }

    /// The frames are exchanged: FPDUs of up to `fpdu_max` bytes may flow.
    pub(crate) fn start(&mut self, role: Role, agreement: &Agreement, fpdu_max: usize) {
        self.rx.use_crc(agreement.crc);
        self.tx.start(agreement.crc, fpdu_max, role == Role::Responder);
        self.parts.send_queue.read_depth = agreement.initiator_depth;
        // An indication by READ takes one, whatever was granted.
        let rtr_read = agreement.rtr == Some(Rtr::Read) && role == Role::Responder;
        self.parts.inbound_reads.depth = agreement.responder_resources.max(u16::from(rtr_read));
        if let (Role::Initiator, Some(rtr)) = (role, agreement.rtr) {
            self.tx.push_rtr(&mut self.parts, rtr);
        }
    }

    pub(crate) fn post_send(&mut self, domain: &Domain, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.parts.send_queue.post(domain, request)?;
        if self.tx.has_crc() {
            // The bytes under the checksum must not change before they are sent.
            self.settle();
        }
        Ok(())
    }

    /// Posts a receive; whether the stream went on that waited for one.
    pub(crate) fn post_receive(
        &mut self,
        domain: &mut Domain,
        request: &ReceiveRequest,
    ) -> Result<bool, PostError> {
        if self.parts.attributes.shared_receive_queue.is_some() {
            return Err(PostError::Invalid);
        }
        let receive = receive(domain, request)?;
        self.parts.own_receives.post(receive)?;
        Ok(self.rx.is_waiting() && {
            self.resume(domain);
            true
        })
    }

    /// The shared queue has a receive again; whether we wait for another.
    pub(crate) fn on_shared_receive(&mut self, domain: &mut Domain) -> bool {
        self.resume(domain);
        self.parts.starving = self.rx.is_waiting();
        self.parts.starving
    }

    /// Takes bytes of the stream. Those behind a SEND that finds no receive are kept: until there is one, nothing more
    /// is to be read ([`QueuePair::is_waiting`]).
    pub(crate) fn on_bytes(&mut self, domain: &mut Domain, bytes: &[u8]) -> Result<(), Stop> {
        let taken = match self.is_waiting() {
            true => Ok(0),
            false => self.rx.on_bytes(&mut self.parts, domain, bytes),
        };
        if self.rx.has_received() {
            self.tx.held = false;
        }
        let taken = taken?;
        self.held.extend_from_slice(&bytes[taken..]);
        if self.rx.is_waiting() {
            self.parts.note_starving(domain);
        }
        Ok(())
    }

    /// Whether nothing is to be read from the socket: the stream waits for a receive, or is about to end.
    pub(crate) fn is_waiting(&self) -> bool {
        self.rx.is_waiting() || self.parts.broken.is_some()
    }

    /// Goes on with a SEND that waited, and with what is behind it.
    fn resume(&mut self, domain: &mut Domain) {
        if !self.rx.is_waiting() {
            return;
        }
        match self.rx.resume(&mut self.parts, domain, &self.held[self.held_taken..]) {
            Ok(taken) => self.held_taken += taken,
            Err(stop) => self.parts.broken = Some(stop),
        }
        if self.rx.has_received() {
            self.tx.held = false;
        }
        if self.held_taken == self.held.len() {
            self.drop_held();
        }
    }

    fn drop_held(&mut self) {
        (self.held, self.held_taken) = (Vec::new(), 0);
    }

    /// Where at least `min` next bytes of the stream can go without a copy.
    pub(crate) fn direct<'a>(&'a self, domain: &'a Domain, min: usize) -> Option<(&'a Memory, usize, usize)> {
        self.rx.direct(&self.parts, domain, min)
    }

    pub(crate) fn on_placed(&mut self, n: usize) {
        self.rx.on_placed(n);
    }

    /// Whether bytes of the region are still to be sent to the peer, in answer to its READs.
    pub(crate) fn answers_from(&self, domain: &Domain, region: LocalKey) -> bool {
        self.parts.inbound_reads.needs(|stag| domain.stags.is_part_of(stag, region))
    }

    /// Reads that are served at once, and that may be outstanding.
    pub(crate) fn read_depths(&self) -> (u16, u16) {
        (self.parts.inbound_reads.depth, self.parts.send_queue.read_depth)
    }

    /// A WRITE of no bytes: nothing but bytes for the peer's socket.
    pub(crate) fn prompt(&mut self) {
        self.tx.push_prompt(&self.parts);
    }

    /// Whether the peer has sent an FPDU.
    pub(crate) fn has_peer_sent(&self) -> bool {
        self.rx.has_received()
    }

    pub(crate) fn is_between_fpdus(&self) -> bool {
        self.rx.is_between_fpdus()
    }

    pub(crate) fn fill(&mut self, domain: &mut Domain, budget: usize) -> Result<(), Stop> {
        match self.parts.broken {
            Some(stop) => Err(stop),
            None => Ok(self.tx.fill(&mut self.parts, domain, budget)?),
        }
    }

    pub(crate) fn chunks(&self) -> Chunks<'_> {
        self.tx.chunks(&self.parts)
    }

    pub(crate) fn on_sent(&mut self, domain: &mut Domain, n: usize) {
        self.tx.on_sent(&mut self.parts, domain, n);
    }

    /// What was borrowed is so no more.
    pub(crate) fn settle(&mut self) {
        self.parts.send_queue.settle(self.tx.sending());
    }

    /// Whether something could be sent now.
    pub(crate) fn has_work(&self) -> bool {
        self.tx.has_work(&self.parts)
    }

    /// Whether nothing that was posted, or that the peer asked for, is left to send.
    pub(crate) fn is_drained(&self) -> bool {
        !self.tx.has_segments() && !self.parts.send_queue.has_uncut() && self.parts.inbound_reads.is_empty()
    }

    /// Ends everything: completes what is outstanding, in order, and ends the keys. Returns the last bytes for the
    /// peer.
    pub(crate) fn fail(&mut self, domain: &mut Domain, stop: Option<Stop>) -> Vec<u8> {
        let violation = match stop {
            Some(Stop::Violation(violation)) => Some((violation, self.rx.head())),
            _ => None,
        };
        let final_bytes = self.tx.final_bytes(&self.parts, violation);
        let refused = match stop {
            Some(Stop::Terminated(terminated)) => self.refused_read(terminated),
            _ => None,
        };
        let too_long = stop == Some(Stop::Violation(Violation::TooLong));
        let status = if too_long { WcStatus::LocalLength } else { WcStatus::Flushed };
        self.rx.abandon(&self.parts, domain, status);
        self.parts.send_queue.flush(domain, refused);
        while let Some(receive) = self.parts.own_receives.take() {
            self.parts.fail_receive(domain, &receive, WcStatus::Flushed);
        }
        self.release(domain);
        final_bytes
    }

    /// Gives back what is shared with others.
    pub(crate) fn release(&mut self, domain: &mut Domain) {
        self.drop_held();
        self.parts.inbound_reads.clear();
        domain.stags.invalidate_all(self.parts.id);
        let unfilled = self.rx.take_receive();
        if let Some(queue) = self.parts.attributes.shared_receive_queue {
            if let Some(receive) = unfilled {
                domain.shared[queue.0 as usize].queue.put_back(receive);
            }
            domain.shared[queue.0 as usize].starved.retain(|id| *id != self.parts.id);
        }
    }

    /// The READ that a Terminate is about.
    fn refused_read(&self, terminated: Terminated) -> Option<(u64, WcStatus)> {
        if !terminated.is_about_read() {
            return None;
        }
        let named = |msn: u32| move |read: &&send_queue::OutboundRead| read.sink_stag == msn.rotate_left(8);
        let reads = &self.parts.send_queue.reads;
        let read = match terminated.read_msn {
            Some(msn) => reads.iter().find(named(msn)),
            None => reads.front(),
        };
        Some((read?.entry?, terminated.status()))
    }
}

/// Checks a receive, and takes hold of its memory.
pub(crate) fn receive(domain: &Domain, request: &ReceiveRequest) -> Result<Receive, PostError> {
    let memory = domain.stags.local(request.buffer, Access::LOCAL_WRITE).ok_or(PostError::Invalid)?;
    let (offset, len) = (request.buffer.offset, request.buffer.len);
    Ok(Receive { id: request.id, buffer: Piece { memory: memory.clone(), offset, len } })
}

#[cfg(test)]
mod tests;
