//! Bytes of the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md), for servers and for clients: fixed
//! newstyle negotiation, simple and structured replies. All integers are big-endian.
//!
//! What it does not do: it reads and writes nothing itself.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;

mod structured;

pub use structured::{
    BASE_ALLOCATION, CHUNK_LEN, Chunk, ChunkHeader, DATA_CHUNK_LEN, MetaQueries, STATE_ZERO, data_chunk,
    error_chunk, hole_chunk, parse_chunk, parse_meta_context, status_chunk, structured_done,
};

use core::fmt;

/// Options, and everything else that a client sends in negotiation, are at most this long.
pub const OPTION_LEN_MAX: u32 = 64 << 10;
/// The most that one request moves.
pub const REQUEST_LEN_MAX: u32 = 32 << 20;

/// The first magic of a server's greeting.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// The second magic of the greeting, and the magic of every option.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// Handshake flags of the server: fixed newstyle, and no zeroes behind an export.
pub const SERVER_FLAGS: u16 = 1 | 2;
/// Handshake flag of the client: fixed newstyle.
pub const CLIENT_FIXED_NEWSTYLE: u32 = 1;
/// Handshake flag of the client: no zeroes behind an export.
pub const CLIENT_NO_ZEROES: u32 = 2;

/// What a client asks for in negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// An export, by name, and at once.
    ExportName,
    /// Nothing; disconnect.
    Abort,
    /// The exports' names.
    List,
    /// What an export is.
    Info,
    /// An export, by name.
    Go,
    /// Replies in chunks.
    StructuredReply,
    /// Which contexts of metadata there are.
    ListMetaContext,
    /// Contexts of metadata to be asked about.
    SetMetaContext,
    /// Anything else.
    Other(u32),
}

impl From<u32> for OptionKind {
    fn from(value: u32) -> Self {
        match value {
            1 => Self::ExportName,
            2 => Self::Abort,
            3 => Self::List,
            6 => Self::Info,
            7 => Self::Go,
            8 => Self::StructuredReply,
            9 => Self::ListMetaContext,
            10 => Self::SetMetaContext,
            other => Self::Other(other),
        }
    }
}

impl From<OptionKind> for u32 {
    fn from(kind: OptionKind) -> Self {
        match kind {
            OptionKind::ExportName => 1,
            OptionKind::Abort => 2,
            OptionKind::List => 3,
            OptionKind::Info => 6,
            OptionKind::Go => 7,
            OptionKind::StructuredReply => 8,
            OptionKind::ListMetaContext => 9,
            OptionKind::SetMetaContext => 10,
            OptionKind::Other(other) => other,
        }
    }
}

/// Replies in negotiation.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// Something about an export.
    pub const INFO: u32 = 3;
    /// A context of metadata: its number and name.
    pub const META_CONTEXT: u32 = 4;
    /// The server does not know the option.
    pub const ERROR_UNSUPPORTED: u32 = 1 << 31 | 1;
    /// The option is invalid.
    pub const ERROR_INVALID: u32 = 1 << 31 | 3;
    /// There is no such export.
    pub const ERROR_UNKNOWN: u32 = 1 << 31 | 6;
}

/// Kinds of information about an export.
pub mod info {
    /// Its size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Its least, preferred and greatest block.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub mod flag {
    /// Set by every server.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// It takes no writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// It takes flushes.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// It takes FUA.
    pub const SEND_FUA: u16 = 1 << 3;
    /// It takes trims.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// It takes writes of zeroes.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// A read can be answered in one piece.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see one disk.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// It takes hints to read ahead.
    pub const SEND_CACHE: u16 = 1 << 10;
}

/// An option's header: its magic, kind and length. `None`: not that magic.
#[must_use]
pub fn parse_option(bytes: &[u8; 16]) -> Option<(OptionKind, u32)> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (kind, len) = rest.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(len.first_chunk().copied()?);
    (u64::from_be_bytes(*magic) == IHAVEOPT).then(|| (u32::from_be_bytes(*kind).into(), len))
}

/// A reply to an option.
///
/// # Panics
/// When the data are longer than a length can say.
#[must_use]
pub fn option_reply(option: OptionKind, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 + data.len());
    bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    bytes.extend(u32::from(option).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).expect("replies are short").to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The data of Info and Go: the export's name, and the kinds of information that the client requests.
#[must_use]
pub fn parse_go(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (name, rest) = rest.split_at_checked(len)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let (pairs, behind) = rest.as_chunks::<2>();
    let asked: Vec<u16> = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
    (behind.is_empty() && asked.len() == usize::from(u16::from_be_bytes(*count))).then_some((name, asked))
}

/// A command of the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Data follow in the reply.
    Read,
    /// Data follow the request.
    Write,
    /// Disconnect.
    Disconnect,
    /// Makes durable every write that was answered before.
    Flush,
    /// A hint that the range is not needed.
    Trim,
    /// A hint that the range is read soon.
    Cache,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
    /// What is known of the range, in the contexts that were agreed on.
    BlockStatus,
    /// Anything else.
    Other(u16),
}

impl From<Command> for u16 {
    fn from(command: Command) -> Self {
        match command {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
            Command::Other(other) => other,
        }
    }
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// Of [`command_flag`], and whatever else was sent.
    pub flags: u16,
    /// Repeated in the reply.
    pub cookie: u64,
    /// Bytes from the export's beginning.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Flags of a request.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Write Zeroes only: do not punch a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Read only: the answer in one piece.
    pub const DF: u16 = 1 << 2;
    /// Block Status only: one extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
}

impl Request {
    /// Whether it is durable before the reply.
    #[must_use]
    pub fn fua(&self) -> bool {
        self.flags & command_flag::FUA != 0
    }

    /// Whether a write of zeroes may punch no hole.
    #[must_use]
    pub fn no_hole(&self) -> bool {
        self.flags & command_flag::NO_HOLE != 0
    }

    /// Bytes of a request's header.
    pub const LEN: usize = 28;

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&u16::from(self.command).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// `None`: not the magic of a request; the stream is lost.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        let command = match u16_at(6) {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Other(other),
        };
        (u32_at(0) == REQUEST_MAGIC).then(|| Self {
            command,
            flags: u16_at(4),
            cookie: u64_at(8),
            offset: u64_at(16),
            len: u32_at(24),
        })
    }
}

/// An error number, as the protocol has them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub u32);

impl Errno {
    /// None.
    pub const OK: Self = Self(0);
    /// The export takes no writes.
    pub const EPERM: Self = Self(1);
    /// The disk failed.
    pub const EIO: Self = Self(5);
    /// The request is invalid.
    pub const EINVAL: Self = Self(22);
    /// No memory is left.
    pub const ENOMEM: Self = Self(12);
    /// No space is left.
    pub const ENOSPC: Self = Self(28);
    /// Not supported.
    pub const ENOTSUP: Self = Self(95);
    /// The server is about to stop.
    pub const ESHUTDOWN: Self = Self(108);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// The header of a simple reply; data follow if it answers a read, and well.
#[must_use]
pub fn simple_reply(errno: Errno, cookie: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.0.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Bytes of a simple reply's header.
pub const SIMPLE_REPLY_LEN: usize = 16;

/// A simple reply's header: how it went, and which request it answers. `None`: not its magic; the stream is lost.
#[must_use]
pub fn parse_simple_reply(bytes: &[u8; SIMPLE_REPLY_LEN]) -> Option<(Errno, u64)> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (errno, rest) = rest.split_first_chunk::<4>()?;
    let cookie = u64::from_be_bytes(rest.first_chunk().copied()?);
    (u32::from_be_bytes(*magic) == SIMPLE_REPLY_MAGIC).then(|| (Errno(u32::from_be_bytes(*errno)), cookie))
}

/// The option Go for the export of this name. It requests no information beside what every server sends.
///
/// # Panics
/// When the name is longer than a length can say.
#[must_use]
pub fn go(name: &str) -> Vec<u8> {
    let len = u32::try_from(name.len()).expect("names are short");
    let mut bytes = Vec::with_capacity(22 + name.len());
    bytes.extend(IHAVEOPT.to_be_bytes());
    bytes.extend(u32::from(OptionKind::Go).to_be_bytes());
    bytes.extend((len + 6).to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(name.as_bytes());
    bytes.extend([0; 2]);
    bytes
}

/// Bytes of the header of a reply to an option.
pub const OPTION_REPLY_LEN: usize = 20;

/// The header of a reply to an option: its kind, and the length of its data. `None`: not its magic.
#[must_use]
pub fn parse_option_reply(bytes: &[u8; OPTION_REPLY_LEN]) -> Option<(u32, u32)> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (_, rest) = rest.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(rest.first_chunk().copied()?);
    (u64::from_be_bytes(*magic) == OPTION_REPLY_MAGIC).then(|| (u32::from_be_bytes(*kind), len))
}

/// Information about an export, in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Info {
    /// Its bytes and transmission flags ([`flag`]).
    Export {
        /// Bytes.
        bytes: u64,
        /// Transmission flags.
        flags: u16,
    },
    /// The least block that it takes, in bytes.
    LeastBlock(u32),
    /// Anything else.
    Other,
}

/// The data of [`reply::INFO`]; `None` when they are too short for what they are.
#[must_use]
pub fn parse_info(data: &[u8]) -> Option<Info> {
    let (kind, rest) = data.split_first_chunk::<2>()?;
    match u16::from_be_bytes(*kind) {
        info::EXPORT => {
            let (bytes, rest) = rest.split_first_chunk::<8>()?;
            let flags = u16::from_be_bytes(rest.first_chunk().copied()?);
            Some(Info::Export { bytes: u64::from_be_bytes(*bytes), flags })
        }
        info::BLOCK_SIZE => Some(Info::LeastBlock(u32::from_be_bytes(rest.first_chunk().copied()?))),
        _ => Some(Info::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(command in 0_u16..8, flags: u16, cookie: u64, offset: u64, len: u32) {
            let mut bytes = [0; Request::LEN];
            bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            bytes[7] = u8::try_from(command).unwrap();
            let request = Request { flags, cookie, offset, len, ..Request::parse(&bytes).unwrap() };
            prop_assert_eq!(Request::parse(&request.emit()), Some(request));
        }

        #[test]
        fn a_reply_is_read_as_it_was_written(errno: u32, cookie: u64) {
            prop_assert_eq!(parse_simple_reply(&simple_reply(Errno(errno), cookie)), Some((Errno(errno), cookie)));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(a: [u8; 16], b: [u8; 20], data: Vec<u8>) {
            let _ = (parse_simple_reply(&a), parse_option(&a), parse_option_reply(&b), parse_info(&data), parse_go(&data));
        }
    }

    #[test]
    fn a_server_understands_go() {
        let bytes = go("disk");
        let (kind, len) = parse_option(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!((kind, len as usize), (OptionKind::Go, bytes.len() - 16));
        assert_eq!(parse_go(&bytes[16..]), Some((&b"disk"[..], Vec::new())));
        let reply = option_reply(OptionKind::Go, reply::ACK, &[1, 2]);
        assert_eq!(parse_option_reply(reply.first_chunk().unwrap()), Some((reply::ACK, 2)));
    }
}
