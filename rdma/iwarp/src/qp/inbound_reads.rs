//! RDMA READs of the peer's that wait for our responses (the IRQ), in the order they came.

use nvmf_memory::Memory;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct InboundRead {
    pub(crate) sink_stag: u32,
    pub(crate) sink_to: u64,
    pub(crate) size: u32,
    pub(crate) source_stag: u32,
    pub(crate) source_to: u64,
    /// The bytes, held until they are sent, and where they begin; `None` for a READ of nothing.
    pub(crate) source: Option<(Memory, usize)>,
    /// Bytes that were cut into segments.
    pub(crate) cut: u32,
}

#[derive(Debug, Default)]
pub(crate) struct InboundReads {
    reads: VecDeque<InboundRead>,
    first: u64,
    next: u64,
    pub(crate) depth: u16,
}

impl InboundReads {
    /// Takes a request; `false` when the peer has more outstanding than it was granted.
    pub(crate) fn push(&mut self, read: InboundRead) -> bool {
        let room = self.reads.len() < usize::from(self.depth);
        if room {
            self.reads.push_back(read);
        }
        room
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// The read to cut next.
    pub(crate) fn next(&self) -> Option<u64> {
        (self.next < self.first + self.reads.len() as u64).then_some(self.next)
    }

    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<&InboundRead> {
        self.reads.get(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut InboundRead> {
        self.reads.get_mut(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    /// Whether bytes that `names` names are still to be sent: those of a READ leave the queue with their last byte.
    pub(crate) fn needs(&self, names: impl Fn(u32) -> bool) -> bool {
        self.reads.iter().any(|read| read.source.is_some() && names(read.source_stag))
    }

    /// The oldest was answered.
    pub(crate) fn on_done(&mut self) {
        if self.reads.pop_front().is_some() {
            self.first += 1;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.reads.clear();
        self.next = self.first;
    }
}
