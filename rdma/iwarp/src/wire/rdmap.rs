//! RDMAP: the seven messages (RFC 5040).

use super::ddp::{Control, QN_READ, QN_SEND, QN_TERMINATE, RawTagged, RawUntagged};
use super::mpa::LENGTH_LEN;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a tagged header.
pub const TAGGED_LEN: usize = size_of::<RawTagged>();
/// Bytes of an untagged header.
pub const UNTAGGED_LEN: usize = size_of::<RawUntagged>();
/// Bytes of the header of a read request: the longest there is.
pub const READ_REQUEST_LEN: usize = UNTAGGED_LEN + size_of::<RawReadRequest>();

const WRITE: u8 = 0;
const READ_REQUEST: u8 = 1;
const READ_RESPONSE: u8 = 2;
const SEND: u8 = 3;
const SEND_INVALIDATE: u8 = 4;
const SEND_SE: u8 = 5;
const SEND_SE_INVALIDATE: u8 = 6;
const TERMINATE: u8 = 7;

/// What a read request adds to the untagged header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawReadRequest {
    /// Where the response goes.
    pub sink_stag: U32,
    /// Tagged offset there.
    pub sink_to: U64,
    /// Bytes.
    pub size: U32,
    /// Where they come from.
    pub source_stag: U32,
    /// Tagged offset there.
    pub source_to: U64,
}
const _: () = assert!(size_of::<RawReadRequest>() == 28);

/// A header, checked for what can be checked without knowing the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// RDMA WRITE.
    Write {
        /// Last segment.
        last: bool,
        /// Where to.
        stag: u32,
        /// Offset there.
        to: u64,
    },
    /// RDMA READ response.
    ReadResponse {
        /// Last segment.
        last: bool,
        /// The sink that the request named.
        stag: u32,
        /// Offset there.
        to: u64,
    },
    /// RDMA READ request.
    ReadRequest {
        /// Sequence number.
        msn: u32,
        /// Message offset: must be 0.
        mo: u32,
        /// The sink, to be named in the response.
        sink_stag: u32,
        /// Offset there.
        sink_to: u64,
        /// Bytes.
        size: u32,
        /// What to read.
        source_stag: u32,
        /// Offset there.
        source_to: u64,
    },
    /// SEND in its four forms.
    Send {
        /// Last segment.
        last: bool,
        /// Key to invalidate.
        invalidate: Option<u32>,
        /// Solicited event.
        solicited: bool,
        /// Sequence number.
        msn: u32,
        /// Message offset.
        mo: u32,
    },
    /// Terminate.
    Terminate {
        /// Sequence number.
        msn: u32,
        /// Message offset.
        mo: u32,
    },
}

/// What is wrong with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderError {
    /// DV is not 1.
    DdpVersion {
        /// Of a tagged segment.
        tagged: bool,
    },
    /// RV is not 1.
    RdmapVersion,
    /// An opcode that does not exist, or whose T bit is the other one.
    Opcode,
    /// Shorter than its header, or longer than a read request can be.
    Length,
    /// An untagged queue that the opcode does not use.
    QueueNumber,
    /// A message of one segment that is not marked last.
    NotLast,
}

impl Header {
    /// Bytes of the header that begins with this control field.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn len_of(control: Control) -> Result<usize, HeaderError> {
        if control.ddp_version() != 1 {
            return Err(HeaderError::DdpVersion { tagged: control.tagged() });
        }
        if control.rdmap_version() != 1 {
            return Err(HeaderError::RdmapVersion);
        }
        match (control.opcode(), control.tagged()) {
            (WRITE | READ_RESPONSE, true) => Ok(TAGGED_LEN),
            (READ_REQUEST, false) => Ok(READ_REQUEST_LEN),
            (SEND..=TERMINATE, false) => Ok(UNTAGGED_LEN),
            _ => Err(HeaderError::Opcode),
        }
    }

    /// Parses a whole header, as long as [`Header::len_of`] says, and the bytes of payload behind it.
    ///
    /// # Errors
    /// [`HeaderError`]; `Length` as well when `bytes` are fewer.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), HeaderError> {
        let [l0, l1, c0, c1, ..] = *bytes else { return Err(HeaderError::Length) };
        let control = Control(u16::from_be_bytes([c0, c1]));
        let header_len = Self::len_of(control)?;
        let payload = (usize::from(u16::from_be_bytes([l0, l1])) + LENGTH_LEN)
            .checked_sub(header_len)
            .ok_or(HeaderError::Length)?;
        let header = if control.tagged() {
            Self::parse_tagged(control, bytes)?
        } else {
            Self::parse_untagged(control, bytes, payload)?
        };
        Ok((header, payload))
    }

    fn parse_tagged(control: Control, bytes: &[u8]) -> Result<Self, HeaderError> {
        let (raw, _) = RawTagged::ref_from_prefix(bytes).map_err(|_| HeaderError::Length)?;
        let (last, stag, to) = (control.last(), raw.stag.get(), raw.to.get());
        Ok(match control.opcode() {
            WRITE => Self::Write { last, stag, to },
            _ => Self::ReadResponse { last, stag, to },
        })
    }

    fn parse_untagged(control: Control, bytes: &[u8], payload: usize) -> Result<Self, HeaderError> {
        let (raw, rest) = RawUntagged::ref_from_prefix(bytes).map_err(|_| HeaderError::Length)?;
        let (msn, mo) = (raw.msn.get(), raw.mo.get());
        let (header, qn) = match control.opcode() {
            READ_REQUEST => {
                let (read, _) = RawReadRequest::ref_from_prefix(rest).map_err(|_| HeaderError::Length)?;
                if payload != 0 {
                    return Err(HeaderError::Length);
                }
                let header = Self::ReadRequest {
                    msn,
                    mo,
                    sink_stag: read.sink_stag.get(),
                    sink_to: read.sink_to.get(),
                    size: read.size.get(),
                    source_stag: read.source_stag.get(),
                    source_to: read.source_to.get(),
                };
                (header, QN_READ)
            }
            TERMINATE => (Self::Terminate { msn, mo }, QN_TERMINATE),
            opcode => {
                let invalidate =
                    matches!(opcode, SEND_INVALIDATE | SEND_SE_INVALIDATE).then_some(raw.rdmap.get());
                let solicited = matches!(opcode, SEND_SE | SEND_SE_INVALIDATE);
                (Self::Send { last: control.last(), invalidate, solicited, msn, mo }, QN_SEND)
            }
        };
        if raw.qn.get() != qn {
            return Err(HeaderError::QueueNumber);
        }
        if qn != QN_SEND && !control.last() {
            return Err(HeaderError::NotLast);
        }
        Ok(header)
    }

    /// Bytes of the header.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Write { .. } | Self::ReadResponse { .. } => TAGGED_LEN,
            Self::ReadRequest { .. } => READ_REQUEST_LEN,
            Self::Send { .. } | Self::Terminate { .. } => UNTAGGED_LEN,
        }
    }

    /// Writes the header of a segment of `payload` bytes to the front of `into`; how long it is.
    ///
    /// # Panics
    /// When the segment is longer than the length field can say: our own cutting is wrong.
    pub fn emit(&self, payload: usize, into: &mut [u8; READ_REQUEST_LEN]) -> usize {
        let len = self.len();
        let length =
            U16::new(u16::try_from(len - LENGTH_LEN + payload).expect("segments fit the length field"));
        match *self {
            Self::Write { last, stag, to } => emit_tagged(into, length, last, WRITE, stag, to),
            Self::ReadResponse { last, stag, to } => emit_tagged(into, length, last, READ_RESPONSE, stag, to),
            Self::Send { last, invalidate, solicited, msn, mo } => {
                let opcode = match (invalidate, solicited) {
                    (None, false) => SEND,
                    (Some(_), false) => SEND_INVALIDATE,
                    (None, true) => SEND_SE,
                    (Some(_), true) => SEND_SE_INVALIDATE,
                };
                let control = Control::new(false, last, opcode);
                emit_untagged(into, length, control, invalidate.unwrap_or(0), QN_SEND, msn, mo);
            }
            Self::Terminate { msn, mo } => {
                emit_untagged(into, length, Control::new(false, true, TERMINATE), 0, QN_TERMINATE, msn, mo);
            }
            Self::ReadRequest { msn, mo, sink_stag, sink_to, size, source_stag, source_to } => {
                emit_untagged(into, length, Control::new(false, true, READ_REQUEST), 0, QN_READ, msn, mo);
                let read = RawReadRequest {
                    sink_stag: U32::new(sink_stag),
                    sink_to: U64::new(sink_to),
                    size: U32::new(size),
                    source_stag: U32::new(source_stag),
                    source_to: U64::new(source_to),
                };
                into[UNTAGGED_LEN..].copy_from_slice(read.as_bytes());
            }
        }
        len
    }
}

fn emit_tagged(into: &mut [u8], length: U16, last: bool, opcode: u8, stag: u32, to: u64) {
    let control = U16::new(Control::new(true, last, opcode).0);
    let raw = RawTagged { length, control, stag: U32::new(stag), to: U64::new(to) };
    into[..TAGGED_LEN].copy_from_slice(raw.as_bytes());
}

fn emit_untagged(into: &mut [u8], length: U16, control: Control, rdmap: u32, qn: u32, msn: u32, mo: u32) {
    let raw = RawUntagged {
        length,
        control: U16::new(control.0),
        rdmap: U32::new(rdmap),
        qn: U32::new(qn),
        msn: U32::new(msn),
        mo: U32::new(mo),
    };
    into[..UNTAGGED_LEN].copy_from_slice(raw.as_bytes());
}

#[cfg(test)]
#[path = "rdmap_tests.rs"]
mod tests;
