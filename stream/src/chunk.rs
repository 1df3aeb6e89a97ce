//! Bytes named to a socket, which stay where they are until it takes them.

use arrayvec::ArrayVec;
use nvmf_memory::Memory;

/// Chunks handed to a socket in one call.
pub const CHUNKS_MAX: usize = 128;

/// Bytes to be sent.
#[derive(Debug, Clone, Copy)]
pub enum Chunk<'a> {
    /// Bytes that nobody else writes.
    Bytes(&'a [u8]),
    /// Memory, offset, length.
    Region(&'a Memory, usize, usize),
}

impl<'a> Chunk<'a> {
    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Region(_, _, len) => *len,
        }
    }

    /// Whether it has none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its part `[from, to)`.
    #[inline]
    pub(crate) fn part(self, from: usize, to: usize) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[from..to]),
            Self::Region(memory, offset, _) => Self::Region(memory, offset + from, to - from),
        }
    }

    /// Copies it behind `bytes`.
    #[inline]
    pub fn append_to(self, bytes: &mut Vec<u8>) {
        match self {
            Self::Bytes(part) => bytes.extend_from_slice(part),
            Self::Region(memory, offset, len) => {
                let start = bytes.len();
                bytes.resize(start + len, 0);
                memory.read(offset, &mut bytes[start..]);
            }
        }
    }

    /// Passes its bytes on in order, such as to a checksum. Those of a region go through a copy: no reference to memory
    /// that others write may be made.
    #[inline]
    pub fn for_each_part(self, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Bytes(bytes) => each(bytes),
            Self::Region(memory, offset, len) => {
                let mut copy = [0; 4096];
                for at in (0..len).step_by(copy.len()) {
                    let part = &mut copy[..(len - at).min(4096)];
                    memory.read(offset + at, part);
                    each(part);
                }
            }
        }
    }
}

/// The chunks of one call to a socket, at most [`CHUNKS_MAX`].
#[derive(Debug)]
pub struct Chunks<'a> {
    list: ArrayVec<Chunk<'a>, CHUNKS_MAX>,
    /// Bytes still to be left out: they are sent already.
    skip: usize,
}

impl<'a> Chunks<'a> {
    /// An empty list that will leave out the first `skip` bytes: those that earlier calls have sent.
    #[inline]
    #[must_use]
    pub fn new(skip: usize) -> Self {
        Self { list: ArrayVec::new(), skip }
    }

    /// Appends a chunk.
    ///
    /// # Panics
    /// When the list is full: [`Chunks::has_room_for`].
    #[inline]
    pub fn push(&mut self, chunk: Chunk<'a>) {
        let (skip, len) = (self.skip.min(chunk.len()), chunk.len());
        self.skip -= skip;
        if skip < len {
            self.list.push(chunk.part(skip, len));
        }
    }

    /// Whether this many more chunks find room.
    #[inline]
    #[must_use]
    pub fn has_room_for(&self, chunks: usize) -> bool {
        self.list.remaining_capacity() >= chunks
    }

    /// Bytes in all.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.list.iter().map(Chunk::len).sum()
    }

    /// Whether there is nothing to send.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The chunks.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Chunk<'a>] {
        &self.list
    }

    /// Copies them all behind `bytes`: what a socket would be given, for those who have none.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        self.list.iter().for_each(|chunk| chunk.append_to(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let memory = Memory::alloc(8192).unwrap();
        for at in 0..8192 {
            memory.write(at, &[(at % 251) as u8]);
        }
        memory
    }

    #[test]
    fn skip_leaves_out_what_is_sent() {
        let memory = memory();
        let list =
            [Chunk::Bytes(b"head"), Chunk::Region(&memory, 5, 10), Chunk::Bytes(b""), Chunk::Bytes(b"tail")];
        let named = |skip: usize| {
            let (mut chunks, mut bytes) = (Chunks::new(skip), Vec::new());
            list.iter().for_each(|&chunk| chunks.push(chunk));
            chunks.append_to(&mut bytes);
            assert_eq!((chunks.len_bytes(), chunks.is_empty()), (bytes.len(), bytes.is_empty()));
            assert!(chunks.as_slice().iter().all(|chunk| !chunk.is_empty()));
            bytes
        };
        let whole = named(0);
        assert_eq!(whole, b"head\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0etail");
        for skip in 0..=whole.len() {
            assert_eq!(named(skip), whole[skip..], "{skip} bytes are sent");
        }
    }

    #[test]
    fn parts_of_a_region_are_in_order() {
        let memory = memory();
        for (offset, len) in [(0, 0), (3, 1), (1, 4096), (7, 8185), (0, 8192)] {
            let chunk = Chunk::Region(&memory, offset, len);
            let (mut parts, mut copy) = (Vec::new(), Vec::new());
            chunk.for_each_part(|part| parts.extend_from_slice(part));
            chunk.append_to(&mut copy);
            assert_eq!(parts, copy);
            assert_eq!(parts, (offset..offset + len).map(|at| (at % 251) as u8).collect::<Vec<_>>());
        }
    }
}
