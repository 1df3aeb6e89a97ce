//! Bytes of the NBD protocol. All integers are big-endian.

use crate::attach::errno::errno;
use core::fmt;
use nvmf_block::BlockError;

/// Options, and everything else that a client sends in negotiation, are at most this long.
pub(super) const OPTION_LEN_MAX: u32 = 64 << 10;
/// The most that one request moves.
pub(super) const REQUEST_LEN_MAX: u32 = 32 << 20;

pub(super) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// Handshake flags of the server: fixed newstyle, and no zeroes behind an export.
pub(super) const SERVER_FLAGS: u16 = 1 | 2;
/// Handshake flag of the client: fixed newstyle.
pub(super) const CLIENT_FIXED_NEWSTYLE: u32 = 1;
/// Handshake flag of the client: no zeroes behind an export.
pub(super) const CLIENT_NO_ZEROES: u32 = 2;

/// What a client asks for in negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionKind {
    ExportName,
    Abort,
    List,
    Info,
    Go,
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
            OptionKind::Other(other) => other,
        }
    }
}

/// Replies in negotiation.
pub(super) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const ERROR_UNSUPPORTED: u32 = 1 << 31 | 1;
    pub(crate) const ERROR_INVALID: u32 = 1 << 31 | 3;
    pub(crate) const ERROR_UNKNOWN: u32 = 1 << 31 | 6;
}

/// Information about an export.
pub(super) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub(super) mod flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// An option's header: its magic, kind and length. `None`: not that magic.
pub(super) fn parse_option(bytes: &[u8; 16]) -> Option<(OptionKind, u32)> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (kind, len) = rest.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(len.first_chunk().copied()?);
    (u64::from_be_bytes(*magic) == IHAVEOPT).then(|| (u32::from_be_bytes(*kind).into(), len))
}

/// A reply to an option.
pub(super) fn option_reply(option: OptionKind, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 + data.len());
    bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    bytes.extend(u32::from(option).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).expect("replies are short").to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The data of Info and Go: the export's name and the informations asked for.
pub(super) fn parse_go(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
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
pub(super) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    Other(u16),
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) command: Command,
    /// Durable before the reply.
    pub(super) fua: bool,
    /// Write Zeroes only: do not punch a hole.
    pub(super) no_hole: bool,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl Request {
    pub(super) const LEN: usize = 28;

    /// `None`: not the magic of a request; the stream is lost.
    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        let command = match u16_at(6) {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            other => Command::Other(other),
        };
        (u32_at(0) == REQUEST_MAGIC).then(|| Self {
            command,
            fua: u16_at(4) & 1 != 0,
            no_hole: u16_at(4) & 2 != 0,
            cookie: u64_at(8),
            offset: u64_at(16),
            len: u32_at(24),
        })
    }
}

/// An error number, as the protocol has them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(u32);

impl Errno {
    pub(super) const OK: Self = Self(0);
    pub(super) const EPERM: Self = Self(1);
    pub(super) const EIO: Self = Self(5);
    pub(super) const EINVAL: Self = Self(22);
    pub(super) const ENOSPC: Self = Self(28);
    pub(super) const ENOTSUP: Self = Self(95);
    pub(super) const ESHUTDOWN: Self = Self(108);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl From<Result<(), BlockError>> for Errno {
    fn from(result: Result<(), BlockError>) -> Self {
        match result {
            Ok(()) => Self::OK,
            Err(error) => match errno(error) {
                // The protocol has few.
                nix::errno::Errno::EINVAL => Self::EINVAL,
                nix::errno::Errno::EROFS => Self::EPERM,
                nix::errno::Errno::ENOSPC => Self::ENOSPC,
                nix::errno::Errno::EOPNOTSUPP => Self::ENOTSUP,
                nix::errno::Errno::ENOLINK | nix::errno::Errno::ETIMEDOUT => Self::ESHUTDOWN,
                _ => Self::EIO,
            },
        }
    }
}

/// The header of a simple reply; data follow if it answers a read, and well.
pub(super) fn simple_reply(errno: Errno, cookie: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.0.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}
