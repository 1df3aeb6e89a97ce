//! Replies in chunks, and contexts of metadata.

use crate::Errno;
use alloc::vec::Vec;

const MAGIC: u32 = 0x668e_33ef;
/// The chunk is the last of its reply.
const DONE: u16 = 1;
const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const OFFSET_HOLE: u16 = 2;
const BLOCK_STATUS: u16 = 5;
const ERROR: u16 = 1 << 15 | 1;

/// Bytes of a chunk's header, and of the header of one that carries data, with their offset.
pub const CHUNK_LEN: usize = 20;
/// Bytes of the header of a chunk with data.
pub const DATA_CHUNK_LEN: usize = CHUNK_LEN + 8;

/// The context that says where there are data, holes and zeroes.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// Of that context: the extent reads as zeroes.
pub const STATE_ZERO: u32 = 2;

fn header(kind: u16, is_last: bool, cookie: u64, len: u32) -> [u8; CHUNK_LEN] {
    let mut bytes = [0; CHUNK_LEN];
    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&(if is_last { DONE } else { 0 }).to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// The reply of a request that went well and has no data.
#[must_use]
pub fn structured_done(cookie: u64) -> [u8; CHUNK_LEN] {
    header(NONE, true, cookie, 0)
}

/// The beginning of a chunk with `len` bytes of data, which follow; `offset` is that in the export.
#[must_use]
pub fn data_chunk(cookie: u64, offset: u64, len: u32, is_last: bool) -> [u8; DATA_CHUNK_LEN] {
    let mut bytes = [0; DATA_CHUNK_LEN];
    bytes[..CHUNK_LEN].copy_from_slice(&header(OFFSET_DATA, is_last, cookie, len.saturating_add(8)));
    bytes[CHUNK_LEN..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// A chunk that says that `len` bytes are zeroes.
#[must_use]
pub fn hole_chunk(cookie: u64, offset: u64, len: u32, is_last: bool) -> [u8; DATA_CHUNK_LEN + 4] {
    let mut bytes = [0; DATA_CHUNK_LEN + 4];
    bytes[..CHUNK_LEN].copy_from_slice(&header(OFFSET_HOLE, is_last, cookie, 12));
    bytes[CHUNK_LEN..DATA_CHUNK_LEN].copy_from_slice(&offset.to_be_bytes());
    bytes[DATA_CHUNK_LEN..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// The reply of a request that failed; it has no message.
#[must_use]
pub fn error_chunk(errno: Errno, cookie: u64) -> [u8; CHUNK_LEN + 6] {
    let mut bytes = [0; CHUNK_LEN + 6];
    bytes[..CHUNK_LEN].copy_from_slice(&header(ERROR, true, cookie, 6));
    bytes[CHUNK_LEN..CHUNK_LEN + 4].copy_from_slice(&errno.0.to_be_bytes());
    bytes
}

/// The beginning of the reply to Block Status: so many extents follow, of a length and a state each.
#[must_use]
pub fn status_chunk(cookie: u64, context: u32, extents: u32) -> [u8; CHUNK_LEN + 4] {
    let mut bytes = [0; CHUNK_LEN + 4];
    bytes[..CHUNK_LEN].copy_from_slice(&header(
        BLOCK_STATUS,
        true,
        cookie,
        extents.saturating_mul(8).saturating_add(4),
    ));
    bytes[CHUNK_LEN..].copy_from_slice(&context.to_be_bytes());
    bytes
}

/// What a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// Nothing.
    None,
    /// Data.
    Data,
    /// Zeroes.
    Hole,
    /// Extents of a context.
    BlockStatus,
    /// An error.
    Error,
    /// Anything else.
    Other(u16),
}

/// The header of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// What follows.
    pub kind: Chunk,
    /// It ends the reply.
    pub is_last: bool,
    /// The request that it answers.
    pub cookie: u64,
    /// Bytes that follow.
    pub len: u32,
}

/// A chunk's header. `None`: not its magic; the stream is lost.
#[must_use]
pub fn parse_chunk(bytes: &[u8; CHUNK_LEN]) -> Option<ChunkHeader> {
    let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
    let kind = match u16_at(6) {
        NONE => Chunk::None,
        OFFSET_DATA => Chunk::Data,
        OFFSET_HOLE => Chunk::Hole,
        BLOCK_STATUS => Chunk::BlockStatus,
        ERROR => Chunk::Error,
        other => Chunk::Other(other),
    };
    (u32_at(0) == MAGIC).then(|| ChunkHeader {
        kind,
        is_last: u16_at(4) & DONE != 0,
        cookie: u64::from(u32_at(8)) << 32 | u64::from(u32_at(12)),
        len: u32_at(16),
    })
}

/// Which contexts of metadata a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaQueries<'a> {
    /// Of this export.
    pub export: &'a [u8],
    /// These.
    pub queries: Vec<&'a [u8]>,
}

/// The data of List Meta Context and Set Meta Context.
#[must_use]
pub fn parse_meta_context(data: &[u8]) -> Option<MetaQueries<'_>> {
    fn text(data: &[u8]) -> Option<(&[u8], &[u8])> {
        let (len, rest) = data.split_first_chunk::<4>()?;
        rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)
    }
    let (export, rest) = text(data)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let mut queries = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (query, behind) = text(rest)?;
        queries.push(query);
        rest = behind;
    }
    rest.is_empty().then_some(MetaQueries { export, queries })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn chunks_are_read_as_they_were_written() {
        let parse = |bytes: &[u8]| parse_chunk(bytes.first_chunk().unwrap()).unwrap();
        let data = data_chunk(7, 512, 4096, false);
        let expected = ChunkHeader { kind: Chunk::Data, is_last: false, cookie: 7, len: 4104 };
        assert_eq!(parse(&data), expected);
        assert_eq!(data[CHUNK_LEN..], 512_u64.to_be_bytes());
        let hole = parse(&hole_chunk(7, 512, 4096, true));
        assert_eq!((hole.kind, hole.is_last, hole.len), (Chunk::Hole, true, 12));
        let error = error_chunk(Errno::EIO, 8);
        assert_eq!((parse(&error).kind, parse(&error).len as usize), (Chunk::Error, error.len() - CHUNK_LEN));
        assert_eq!(error[CHUNK_LEN..CHUNK_LEN + 4], [0, 0, 0, 5]);
        assert_eq!((parse(&status_chunk(1, 9, 3)).len, parse(&structured_done(1)).kind), (28, Chunk::None));
    }

    #[test]
    fn queries_are_read() {
        let data =
            [&[0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 15][..], BASE_ALLOCATION, &[0, 0, 0, 1, b'x']].concat();
        let queries = parse_meta_context(&data).unwrap();
        assert_eq!((queries.export, queries.queries), (&b""[..], vec![BASE_ALLOCATION, b"x"]));
        assert_eq!(parse_meta_context(&data[..data.len() - 1]), None);
        assert_eq!(parse_meta_context(&[&data[..], &[0]].concat()), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(a: [u8; 20], data: Vec<u8>) {
            let _ = (parse_chunk(&a), parse_meta_context(&data));
        }
    }
}
