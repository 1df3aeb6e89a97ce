//! The messages of the ping protocol: 32 bytes, little-endian, at the start of a SEND.

use nvmf_rdma::{RemoteKey, RemoteMemory};

/// Private data of the connection: it tells `nvmf doctor` from other programs.
pub(super) const GREETING: &[u8] = b"nvmf-doctor/1";

/// Bytes of a message. An echo may be longer; the bytes after the first 32 are padding.
pub(super) const LEN: usize = 32;

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// First message of the measuring end: the memory that the listener may read and write.
    Hello(RemoteMemory),
    /// The listener's reply to it: its own memory.
    Ready(RemoteMemory),
    /// A request to send this message back unchanged.
    Echo,
    /// A request to answer every RDMA WRITE of this length with one of the same length, until the next message.
    EchoWrites {
        /// Bytes.
        size: u32,
    },
    /// A request to send RDMA WRITEs for this time, then [`Message::Done`].
    Write {
        /// Milliseconds.
        ms: u32,
    },
    /// A request to send RDMA READs for this time, then [`Message::Done`].
    Read {
        /// Milliseconds.
        ms: u32,
    },
    /// A request for [`Message::Done`] once everything before it has been received.
    Sync,
    /// The end of what was asked for.
    Done {
        /// Bytes that were moved.
        bytes: u64,
    },
}

impl Message {
    /// The wire format: kind, number, key, length (4 bytes each), address, bytes (8 each).
    pub(super) fn emit(self) -> [u8; LEN] {
        let none = RemoteMemory { key: RemoteKey(0), address: 0, len: 0 };
        let (kind, number, memory, bytes) = match self {
            Self::Hello(memory) => (1_u32, 0_u32, memory, 0_u64),
            Self::Ready(memory) => (2, 0, memory, 0),
            Self::Echo => (3, 0, none, 0),
            Self::EchoWrites { size } => (4, size, none, 0),
            Self::Write { ms } => (5, ms, none, 0),
            Self::Read { ms } => (6, ms, none, 0),
            Self::Sync => (7, 0, none, 0),
            Self::Done { bytes } => (8, 0, none, bytes),
        };
        let mut out = [0; LEN];
        out[0..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&number.to_le_bytes());
        out[8..12].copy_from_slice(&memory.key.0.to_le_bytes());
        out[12..16].copy_from_slice(&memory.len.to_le_bytes());
        out[16..24].copy_from_slice(&memory.address.to_le_bytes());
        out[24..32].copy_from_slice(&bytes.to_le_bytes());
        out
    }

    /// `None` for bytes that are no message of this protocol.
    pub(super) fn parse(bytes: &[u8; LEN]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let long = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let memory = RemoteMemory { key: RemoteKey(word(8)), address: long(16), len: word(12) };
        Some(match word(0) {
            1 => Self::Hello(memory),
            2 => Self::Ready(memory),
            3 => Self::Echo,
            4 => Self::EchoWrites { size: word(4) },
            5 => Self::Write { ms: word(4) },
            6 => Self::Read { ms: word(4) },
            7 => Self::Sync,
            8 => Self::Done { bytes: long(24) },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_parse_or_not(bytes: [u8; LEN], kind in 0_u32..10) {
            let mut bytes = bytes;
            bytes[0..4].copy_from_slice(&kind.to_le_bytes());
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(Message::parse(&message.emit()), Some(message));
            }
        }
    }
}
