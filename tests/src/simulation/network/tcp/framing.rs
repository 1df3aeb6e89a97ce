//! Where PDUs begin in a stream, and what their bytes are.

use core::ops::Range;
use nvme_proto::tcp::{CommonHeader, Flags};

/// Bytes of the common header.
const COMMON: usize = CommonHeader::LEN;
/// Bytes of a digest.
const DIGEST: usize = 4;

/// Bytes of a PDU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) range: Range<usize>,
    pub(super) kind: Kind,
    /// Whether a digest covers them, or they are one.
    pub(super) digest: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first bytes of a PDU.
    Start,
    /// More of its header.
    Header,
    Data,
}

/// How far a stream has come within a PDU.
#[derive(Debug, Default)]
pub(super) struct Framing {
    common: [u8; COMMON],
    /// Bytes of the PDU that have passed.
    passed: usize,
    header_len: usize,
    len: usize,
    flags: Flags,
}

impl Framing {
    /// Takes the next bytes of the stream, and says what they are.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let start = self.passed == 0;
            let end = if self.passed < COMMON {
                COMMON
            } else if self.passed < self.header_len {
                self.header_len
            } else {
                self.len
            };
            let len = (end - self.passed).min(bytes.len() - at);
            let range = at..at + len;
            if self.passed < COMMON {
                self.common[self.passed..self.passed + len].copy_from_slice(&bytes[range.clone()]);
            }
            let is_data = self.passed >= COMMON && self.passed >= self.header_len;
            self.passed += len;
            if self.passed == COMMON {
                self.begin();
            }
            // Of a common header that comes in parts, the first ones do not tell whether a digest follows.
            let known = self.passed >= COMMON;
            let (kind, flag) = match (is_data, start) {
                (true, _) => (Kind::Data, Flags::DATA_DIGEST),
                (false, true) => (Kind::Start, Flags::HEADER_DIGEST),
                (false, false) => (Kind::Header, Flags::HEADER_DIGEST),
            };
            parts.push(Part { range, kind, digest: known && self.flags.contains(flag) });
            if known && self.passed == self.len {
                self.passed = 0;
            }
            at += len;
        }
        parts
    }

    fn begin(&mut self) {
        let common = CommonHeader::read(&self.common).expect("as many bytes");
        self.flags = common.flags;
        self.header_len = usize::from(common.hlen).max(COMMON);
        if self.flags.contains(Flags::HEADER_DIGEST) {
            self.header_len += DIGEST;
        }
        self.len = (common.plen.get() as usize).max(self.header_len);
    }
}
