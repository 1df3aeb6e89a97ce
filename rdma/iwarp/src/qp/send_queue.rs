//! The send queue: work requests in the order posted, and the RDMA READs that wait for their data (the ORQ).

use super::domain::Domain;
use super::receive::Piece;
use crate::config::{MAX_INLINE, MAX_SGE};
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, Completion, Opcode, Payload, PostError, QueuePairAttributes, QueuePairId, RemoteKey,
    RemoteMemory, SendOperation, SendRequest, WcStatus, WorkRequestId,
};
use nvmf_stream::Chunk;
use std::collections::VecDeque;

/// The bytes of a SEND or WRITE.
#[derive(Debug)]
pub(crate) enum Data {
    Inline {
        bytes: [u8; MAX_INLINE],
        len: u8,
    },
    Gather {
        pieces: [Option<Piece>; MAX_SGE],
        len: u32,
    },
    /// Ours until [`SendQueue::settle`].
    Borrowed {
        from: Piece,
        spare: Piece,
    },
}

impl Data {
    pub(crate) fn len(&self) -> u32 {
        match self {
            Self::Inline { len, .. } => u32::from(*len),
            Self::Gather { len, .. } => *len,
            Self::Borrowed { from, .. } => from.len,
        }
    }

    /// Names its bytes `[at, at + len)` to the socket.
    pub(crate) fn name<'a>(&'a self, mut at: usize, mut len: usize, each: &mut dyn FnMut(Chunk<'a>)) {
        match self {
            Self::Inline { bytes, .. } => each(Chunk::Bytes(&bytes[at..at + len])),
            Self::Borrowed { from, .. } => each(Chunk::Region(&from.memory, from.offset + at, len)),
            Self::Gather { pieces, .. } => {
                for piece in pieces.iter().flatten() {
                    let skip = at.min(piece.len as usize);
                    let take = (piece.len as usize - skip).min(len);
                    at -= skip;
                    len -= take;
                    if take > 0 {
                        each(Chunk::Region(&piece.memory, piece.offset + skip, take));
                    }
                }
            }
        }
    }

    fn new(domain: &Domain, payload: &Payload<'_>) -> Result<Self, PostError> {
        match payload {
            Payload::Inline(from) => {
                let mut bytes = [0; MAX_INLINE];
                bytes.get_mut(..from.len()).ok_or(PostError::Invalid)?.copy_from_slice(from);
                Ok(Self::Inline { bytes, len: from.len() as u8 })
            }
            Payload::Gather(list) => {
                let mut pieces = [const { None }; MAX_SGE];
                let mut sum = 0u32;
                if list.len() > MAX_SGE {
                    return Err(PostError::Invalid);
                }
                for (piece, sge) in pieces.iter_mut().zip(*list) {
                    let memory = domain.stags.local(*sge, Access::LOCAL_READ).ok_or(PostError::Invalid)?;
                    sum = sum.checked_add(sge.len).ok_or(PostError::Invalid)?;
                    *piece = Some(Piece { memory: memory.clone(), offset: sge.offset, len: sge.len });
                }
                Ok(Self::Gather { pieces, len: sum })
            }
            &Payload::Borrowed { from, offset, spare } => {
                let memory = domain.stags.local(*spare, Access::LOCAL_WRITE).ok_or(PostError::Invalid)?;
                if !from.contains(offset, spare.len as usize) {
                    return Err(PostError::Invalid);
                }
                let piece =
                    |memory: &Memory, offset| Piece { memory: memory.clone(), offset, len: spare.len };
                Ok(Self::Borrowed { from: piece(from, offset), spare: piece(memory, spare.offset) })
            }
        }
    }

    /// Copies borrowed bytes from `at` on to their spare, which takes their place.
    fn settle(&mut self, at: u32) {
        let Self::Borrowed { from, spare } = self else { return };
        let (at, rest) = (at as usize, from.len.saturating_sub(at) as usize);
        from.memory.copy_to(from.offset + at, &spare.memory, spare.offset + at, rest);
        let mut pieces = [const { None }; MAX_SGE];
        pieces[0] = Some(spare.clone());
        *self = Self::Gather { pieces, len: spare.len };
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Send { data: Data, invalidate: Option<RemoteKey>, solicited: bool },
    Write { data: Data, remote: RemoteMemory },
    Read { into: Piece, remote: RemoteMemory },
    LocalInvalidate { key: RemoteKey },
}

#[derive(Debug)]
pub(crate) struct Entry {
    id: WorkRequestId,
    signaled: bool,
    pub(crate) work: Work,
    /// Payload bytes that were cut into segments.
    pub(crate) cut: u32,
    done: bool,
}

impl Entry {
    fn opcode(&self) -> Opcode {
        match self.work {
            Work::Send { .. } => Opcode::Send,
            Work::Write { .. } => Opcode::Write,
            Work::Read { .. } => Opcode::Read,
            Work::LocalInvalidate { .. } => Opcode::LocalInvalidate,
        }
    }
}

/// A READ whose request is under way. Its sink's STag is a cookie, good for this READ only: a response that
/// is not for the oldest READ reaches no memory.
#[derive(Debug)]
pub(crate) struct OutboundRead {
    pub(crate) sink_stag: u32,
    pub(crate) size: u32,
    pub(crate) received: u32,
    /// `None` for the ready-to-receive indication, which has no work request.
    pub(crate) entry: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct SendQueue {
    queue_pair: QueuePairId,
    completion_queue: nvmf_rdma::CompletionQueueId,
    capacity: usize,
    entries: VecDeque<Entry>,
    /// Sequence number of the entry in front.
    first: u64,
    /// Sequence number of the first entry that was not wholly cut.
    next: u64,
    /// Sequence number of the first entry whose payload may be borrowed.
    borrowed: u64,
    pub(crate) reads: VecDeque<OutboundRead>,
    pub(crate) read_depth: u16,
}

impl SendQueue {
    pub(crate) fn new(queue_pair: QueuePairId, attributes: &QueuePairAttributes) -> Self {
        let capacity = attributes.max_send as usize;
        Self {
            queue_pair,
            completion_queue: attributes.send_cq,
            capacity,
            entries: VecDeque::with_capacity(capacity),
            first: 0,
            next: 0,
            borrowed: 0,
            reads: VecDeque::new(),
            read_depth: 0,
        }
    }

    pub(crate) fn post(&mut self, domain: &Domain, request: &SendRequest<'_>) -> Result<(), PostError> {
        if self.entries.len() >= self.capacity {
            return Err(PostError::Full);
        }
        let work = match &request.operation {
            SendOperation::Send { payload, invalidate, solicited } => {
                let (invalidate, solicited) = (*invalidate, *solicited);
                Work::Send { data: Data::new(domain, payload)?, invalidate, solicited }
            }
            SendOperation::Write { payload, remote } => {
                Work::Write { data: Data::new(domain, payload)?, remote: *remote }
            }
            SendOperation::Read { .. } if self.read_depth == 0 => return Err(PostError::Invalid),
            SendOperation::Read { into, remote } => {
                let memory = domain.stags.local(*into, Access::LOCAL_WRITE).ok_or(PostError::Invalid)?;
                let into = Piece { memory: memory.clone(), offset: into.offset, len: into.len };
                Work::Read { into, remote: *remote }
            }
            SendOperation::LocalInvalidate { key } => Work::LocalInvalidate { key: *key },
        };
        let (id, signaled) = (request.id, request.signaled);
        self.entries.push_back(Entry { id, signaled, work, cut: 0, done: false });
        Ok(())
    }

    /// Copies what is borrowed and not sent to its spare. Of the entry `sending`, if any, the bytes up to that place
    /// are sent.
    pub(crate) fn settle(&mut self, sending: Option<(u64, u32)>) {
        let (from, to) = (self.borrowed.max(self.first), self.first + self.entries.len() as u64);
        for sequence in from..to {
            let at = sending.filter(|&(entry, _)| entry == sequence).map_or(0, |(_, at)| at);
            if let Some(entry) = self.entry_mut(sequence).filter(|entry| !entry.done)
                && let Work::Send { data, .. } | Work::Write { data, .. } = &mut entry.work
            {
                data.settle(at);
            }
        }
        self.borrowed = to;
    }

    /// Whether something waits to be cut, be it only for a read credit.
    pub(crate) fn has_uncut(&self) -> bool {
        self.next < self.first + self.entries.len() as u64
    }

    /// The entry to cut next; `None` when there is none, or it is a READ without a credit.
    pub(crate) fn next(&self) -> Option<u64> {
        let entry = self.entry(self.next)?;
        let held =
            matches!(entry.work, Work::Read { .. }) && self.reads.len() >= usize::from(self.read_depth);
        (!held).then_some(self.next)
    }

    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }

    pub(crate) fn entry(&self, sequence: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn entry_mut(&mut self, sequence: u64) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    /// Where the data of the oldest READ go from here on.
    pub(crate) fn sink(&self, ahead: u32) -> Option<(&nvmf_memory::Memory, usize)> {
        let read = self.reads.front()?;
        match &self.entry(read.entry?)?.work {
            Work::Read { into, .. } => Some((&into.memory, into.offset + (read.received + ahead) as usize)),
            _ => None,
        }
    }

    /// The last segment of the oldest READ is there.
    pub(crate) fn on_read(&mut self, domain: &mut Domain) {
        if let Some(sequence) = self.reads.pop_front().and_then(|read| read.entry) {
            self.on_done(sequence);
            self.reap(domain);
        }
    }

    /// An entry has taken effect. It completes once those before it have, with the next [`SendQueue::reap`].
    pub(crate) fn on_done(&mut self, sequence: u64) {
        if let Some(entry) = self.entry_mut(sequence) {
            entry.done = true;
        }
    }

    /// Completes what is done, in order.
    pub(crate) fn reap(&mut self, domain: &mut Domain) {
        let done = self.entries.iter().take_while(|entry| entry.done).count();
        for entry in self.entries.range(..done).filter(|entry| entry.signaled) {
            self.complete(domain, entry, WcStatus::Success);
        }
        // Entries are large: they are dropped where they are.
        self.entries.drain(..done);
        self.first += done as u64;
    }

    /// Completes everything, in order: as flushed, but for the one READ that the peer refused.
    pub(crate) fn flush(&mut self, domain: &mut Domain, refused: Option<(u64, WcStatus)>) {
        while let Some(entry) = self.entries.pop_front() {
            let status = match refused {
                Some((sequence, status)) if sequence == self.first => status,
                _ => WcStatus::Flushed,
            };
            self.first += 1;
            self.complete(domain, &entry, status);
        }
        self.next = self.first;
        self.reads.clear();
    }

    fn complete(&self, domain: &mut Domain, entry: &Entry, status: WcStatus) {
        let byte_len = match (&entry.work, status) {
            (Work::Read { into, .. }, WcStatus::Success) => into.len,
            _ => 0,
        };
        let (id, queue_pair, opcode) = (entry.id, self.queue_pair, entry.opcode());
        let completion = Completion { id, queue_pair, opcode, status, byte_len, invalidated: None };
        domain.complete(self.completion_queue, completion);
    }
}
