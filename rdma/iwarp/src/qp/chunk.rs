//! Bytes named to the socket, which stay where they are until it takes them.

use super::receive::Piece;
use crate::wire::crc32c::Crc32c;
use arrayvec::ArrayVec;
use nvmf_memory::Memory;

/// Chunks handed over in one call.
pub(crate) const CHUNKS_MAX: usize = 128;

/// Bytes to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chunk<'a> {
    Bytes(&'a [u8]),
    /// Memory, offset, length.
    Region(&'a Memory, usize, usize),
}

impl<'a> Chunk<'a> {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Region(_, _, len) => *len,
        }
    }

    /// Its part `[from, to)`.
    fn part(self, from: usize, to: usize) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[from..to]),
            Self::Region(memory, offset, _) => Self::Region(memory, offset + from, to - from),
        }
    }
}

/// The chunks of one call to the socket.
pub(crate) struct Chunks<'a> {
    list: ArrayVec<Chunk<'a>, CHUNKS_MAX>,
    /// Bytes still to be left out: they are sent already.
    skip: usize,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(skip: usize) -> Self {
        Self { list: ArrayVec::new(), skip }
    }

    pub(super) fn push(&mut self, chunk: Chunk<'a>) {
        let (skip, len) = (self.skip.min(chunk.len()), chunk.len());
        self.skip -= skip;
        if skip < len {
            self.list.push(chunk.part(skip, len));
        }
    }

    pub(super) fn has_room_for(&self, chunks: usize) -> bool {
        self.list.remaining_capacity() >= chunks
    }

    /// Bytes in all.
    pub(crate) fn len_bytes(&self) -> usize {
        self.as_slice().iter().map(Chunk::len).sum()
    }

    /// Copies them all behind `bytes`: what the socket would be given, for those who have none.
    #[cfg(any(test, feature = "harness"))]
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        self.list.iter().for_each(|&chunk| append(bytes, chunk));
    }

    pub(crate) fn as_slice(&self) -> &[Chunk<'a>] {
        &self.list
    }
}

/// Names bytes `[at, at + len)` of a gather list.
pub(super) fn gather<'a>(
    pieces: &'a [Option<Piece>],
    mut at: usize,
    mut len: usize,
    each: &mut dyn FnMut(Chunk<'a>),
) {
    for piece in pieces.iter().flatten() {
        let piece_len = piece.len as usize;
        let skip = at.min(piece_len);
        let take = (piece_len - skip).min(len);
        at -= skip;
        len -= take;
        if take > 0 {
            each(Chunk::Region(&piece.memory, piece.offset + skip, take));
        }
    }
}

/// Bytes of a region go through a copy: no reference to memory that others write may be made.
pub(super) fn update(crc: &mut Crc32c, chunk: Chunk<'_>) {
    match chunk {
        Chunk::Bytes(bytes) => crc.update(bytes),
        Chunk::Region(memory, offset, len) => {
            let mut copy = [0; 4096];
            for at in (0..len).step_by(copy.len()) {
                let part = &mut copy[..(len - at).min(4096)];
                memory.read(offset + at, part);
                crc.update(part);
            }
        }
    }
}

pub(super) fn append(bytes: &mut Vec<u8>, chunk: Chunk<'_>) {
    match chunk {
        Chunk::Bytes(part) => bytes.extend_from_slice(part),
        Chunk::Region(memory, offset, len) => {
            let start = bytes.len();
            bytes.resize(start + len, 0);
            memory.read(offset, &mut bytes[start..]);
        }
    }
}
