//! What ends a stream: which rule was broken, and the Terminate message with the reason.

use crate::memory::Fault;
use crate::wire::mpa::LENGTH_LEN;
use crate::wire::rdmap::{Header, HeaderError, READ_REQUEST_LEN};
use nvmf_rdma::WcStatus;

/// Bytes of the control word.
const CONTROL_LEN: usize = 4;
/// The longest Terminate: control word and the header of a read request with its length.
pub(crate) const TERMINATE_LEN_MAX: usize = CONTROL_LEN + READ_REQUEST_LEN;

/// Layer, error type, error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u8, pub(crate) u8, pub(crate) u8);

/// A rule that the peer broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Violation {
    Header(HeaderError),
    /// Of an RDMA WRITE.
    Write(Fault),
    /// Of an RDMA READ request.
    Read(Fault),
    /// Of a SEND with invalidate.
    Invalidate(Fault),
    /// A READ response that is not for the oldest READ.
    ReadSink,
    /// A READ response at the wrong offset or of the wrong length.
    ReadBounds,
    /// An untagged message out of sequence.
    Msn,
    /// A segment that does not continue its message.
    Mo,
    /// A SEND longer than its receive buffer.
    TooLong,
    /// More READs outstanding than were granted.
    ReadDepth,
    /// A READ whose key died before it was answered.
    Revoked,
    Crc,
}

impl From<HeaderError> for Violation {
    fn from(error: HeaderError) -> Self {
        Self::Header(error)
    }
}

impl Violation {
    /// What the Terminate says.
    pub(crate) fn code(self) -> Code {
        match self {
            Self::Header(HeaderError::DdpVersion { tagged: true }) => Code(1, 1, 4),
            Self::Header(HeaderError::DdpVersion { tagged: false }) => Code(1, 2, 6),
            Self::Header(HeaderError::RdmapVersion) => Code(0, 2, 5),
            Self::Header(HeaderError::Opcode) => Code(0, 2, 6),
            Self::Header(HeaderError::QueueNumber) => Code(1, 2, 1),
            Self::Header(HeaderError::Length | HeaderError::NotLast) => Code(0, 2, 0xff),
            Self::Write(Fault::Access) => Code(0, 1, 2),
            Self::Write(Fault::Bounds) | Self::ReadBounds => Code(1, 1, 1),
            Self::Write(Fault::NotAssociated) => Code(1, 1, 2),
            Self::Write(Fault::Wrap) => Code(1, 1, 3),
            Self::Write(_) | Self::ReadSink => Code(1, 1, 0),
            Self::Read(fault) | Self::Invalidate(fault) => Code(0, 1, remote_protection(fault)),
            Self::Revoked => Code(0, 1, 0),
            Self::Msn => Code(1, 2, 3),
            Self::Mo => Code(1, 2, 4),
            Self::TooLong => Code(1, 2, 5),
            Self::ReadDepth => Code(0, 2, 7),
            Self::Crc => Code(2, 0, 2),
        }
    }

    /// What this side's layer above gets.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Header(HeaderError::DdpVersion { .. }) => "a segment of an unknown DDP version",
            Self::Header(HeaderError::RdmapVersion) => "a message of an unknown RDMAP version",
            Self::Header(HeaderError::Opcode) => "an unknown RDMAP opcode, or one with the wrong tagged bit",
            Self::Header(HeaderError::QueueNumber) => "an untagged message on the wrong queue",
            Self::Header(HeaderError::Length) => "an FPDU whose length does not fit its header",
            Self::Header(HeaderError::NotLast) => "a message in pieces that has only one",
            Self::Write(fault) => match fault {
                Fault::Access => "an RDMA WRITE without the right to",
                Fault::Bounds | Fault::Wrap => "an RDMA WRITE out of bounds",
                _ => "an RDMA WRITE with a key that is not valid",
            },
            Self::Read(fault) => match fault {
                Fault::Access => "an RDMA READ without the right to",
                Fault::Bounds | Fault::Wrap => "an RDMA READ out of bounds",
                _ => "an RDMA READ with a key that is not valid",
            },
            Self::Invalidate(Fault::InUse) => "an invalidation of a key that its own RDMA READ still needs",
            Self::Invalidate(_) => "an invalidation of a key that is not its to invalidate",
            Self::ReadSink => "a READ response that nobody waits for",
            Self::ReadBounds => "a READ response of the wrong offset or length",
            Self::Msn => "a message out of sequence",
            Self::Mo => "a segment that does not continue its message",
            Self::TooLong => "a SEND longer than the receive buffer",
            Self::ReadDepth => "more RDMA READs outstanding than granted",
            Self::Revoked => "an RDMA READ with a key that was ended before it was answered",
            Self::Crc => "a wrong CRC",
        }
    }

    /// Whether the Terminate includes the offending header.
    fn names_header(self) -> bool {
        !matches!(self, Self::Header(_) | Self::Crc | Self::Revoked)
    }
}

fn remote_protection(fault: Fault) -> u8 {
    match fault {
        Fault::Stag => 0,
        Fault::Bounds => 1,
        Fault::Access => 2,
        Fault::NotAssociated => 3,
        Fault::Wrap => 4,
        Fault::CannotInvalidate | Fault::InUse => 9,
    }
}

/// The payload of the Terminate for `violation`, whose segment had the header `head` (with its length field); its
/// length.
pub(crate) fn emit(violation: Violation, head: &[u8], into: &mut [u8; TERMINATE_LEN_MAX]) -> usize {
    let Code(layer, kind, code) = violation.code();
    let head = if violation.names_header() && head.len() <= READ_REQUEST_LEN { head } else { &[] };
    // M: the segment's length is there. D: its DDP header. R: the read request's own part.
    let included = match head.len() {
        0..=LENGTH_LEN => 0,
        READ_REQUEST_LEN => 0xe0,
        _ => 0xc0,
    };
    into[..CONTROL_LEN].copy_from_slice(&[layer << 4 | kind, code, included, 0]);
    into[CONTROL_LEN..CONTROL_LEN + head.len()].copy_from_slice(head);
    CONTROL_LEN + head.len()
}

/// A Terminate of the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terminated {
    pub(crate) code: Code,
    /// The sequence number of the READ request that it names.
    pub(crate) read_msn: Option<u32>,
}

impl Terminated {
    /// Parses the payload of a Terminate, in RFC 5040's form or in the one that Linux siw sends on little-endian
    /// machines, where each byte's fields are mirrored.
    pub(crate) fn parse(payload: &[u8]) -> Self {
        let &[b0, b1, b2, _, ref rest @ ..] = payload else {
            return Self { code: Code(0, 2, 0xff), read_msn: None };
        };
        // RFC 5040 leaves the low bits of the third byte 0; siw has M, D and R there.
        let mirrored = b2 & 0x1f != 0;
        let (layer, kind) = if mirrored { (b0 & 0xf, b0 >> 4) } else { (b0 >> 4, b0 & 0xf) };
        let included = if mirrored { b2 & 3 == 3 } else { b2 & 0xc0 == 0xc0 };
        let read_msn = match Header::parse(rest) {
            Ok((Header::ReadRequest { msn, .. }, _)) if included => Some(msn),
            _ => None,
        };
        Self { code: Code(layer, kind, b1), read_msn }
    }

    /// How the READ ends that the peer refused.
    pub(crate) fn status(self) -> WcStatus {
        match self.code {
            Code(0, 1, _) | Code(1, 1, _) => WcStatus::RemoteAccess,
            _ => WcStatus::RemoteOperation,
        }
    }

    /// Whether it is about a READ of ours, by its code.
    pub(crate) fn is_about_read(self) -> bool {
        self.read_msn.is_some() || matches!(self.code, Code(0, 1, 0 | 1 | 3 | 4))
    }

    pub(crate) fn text(self) -> &'static str {
        match self.code {
            Code(0, 1, 0) => "RDMAP: invalid STag",
            Code(0, 1, 1) => "RDMAP: base or bounds violation",
            Code(0, 1, 2) => "RDMAP: access rights violation",
            Code(0, 1, 3) => "RDMAP: STag not associated with the stream",
            Code(0, 1, 4) => "RDMAP: tagged offset wrap",
            Code(0, 1, 9) => "RDMAP: STag cannot be invalidated",
            Code(0, 1, _) => "RDMAP: remote protection error",
            Code(0, 2, 5) => "RDMAP: invalid version",
            Code(0, 2, 6) => "RDMAP: unexpected opcode",
            Code(0, 2, 7) => "RDMAP: catastrophic error, localised to the stream",
            Code(0, 2, 8) => "RDMAP: catastrophic error, global",
            Code(0, 2, 9) => "RDMAP: STag cannot be invalidated",
            Code(0, ..) => "RDMAP: remote operation error",
            Code(1, 1, 0) => "DDP: invalid STag",
            Code(1, 1, 1) => "DDP: base or bounds violation",
            Code(1, 1, 2) => "DDP: STag not associated with the stream",
            Code(1, 1, 3) => "DDP: tagged offset wrap",
            Code(1, 1, _) => "DDP: tagged buffer error",
            Code(1, 2, 1) => "DDP: invalid queue number",
            Code(1, 2, 2) => "DDP: no buffer available",
            Code(1, 2, 3) => "DDP: message sequence number out of range",
            Code(1, 2, 4) => "DDP: invalid message offset",
            Code(1, 2, 5) => "DDP: message too long for the buffer",
            Code(1, 2, _) => "DDP: untagged buffer error",
            Code(1, ..) => "DDP: local catastrophic error",
            Code(2, 0, 1) => "MPA: stream lost",
            Code(2, 0, 2) => "MPA: wrong CRC",
            Code(2, 0, 6) => "MPA: insufficient IRD",
            Code(2, 0, 7) => "MPA: no matching ready-to-receive indication",
            Code(2, ..) => "MPA: error",
            _ => "an unknown layer",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_request() -> [u8; READ_REQUEST_LEN] {
        let mut head = [0; READ_REQUEST_LEN];
        let header = Header::ReadRequest {
            msn: 5,
            mo: 0,
            sink_stag: 1,
            sink_to: 0,
            size: 9,
            source_stag: 2,
            source_to: 0,
        };
        header.emit(0, &mut head);
        head
    }

    #[test]
    fn a_bad_read_in_both_forms() {
        let mut bytes = [0; TERMINATE_LEN_MAX];
        let len = emit(Violation::Read(Fault::Stag), &read_request(), &mut bytes);
        assert_eq!((len, &bytes[..6]), (52, &[0x01, 0x00, 0xe0, 0x00, 0, 46][..]));
        let parsed = Terminated::parse(&bytes);
        assert_eq!(parsed, Terminated { code: Code(0, 1, 0), read_msn: Some(5) });
        // As captured from siw.
        bytes[..4].copy_from_slice(&[0x10, 0x00, 0x07, 0x00]);
        assert_eq!(Terminated::parse(&bytes), parsed);
        assert_eq!((parsed.status(), parsed.text()), (WcStatus::RemoteAccess, "RDMAP: invalid STag"));
    }

    #[test]
    fn a_write_out_of_bounds_in_both_forms() {
        let mut head = [0; READ_REQUEST_LEN];
        let n = Header::Write { last: true, stag: 1, to: 2 }.emit(100, &mut head);
        let mut bytes = [0; TERMINATE_LEN_MAX];
        let len = emit(Violation::Write(Fault::Bounds), &head[..n], &mut bytes);
        assert_eq!((len, &bytes[..6]), (20, &[0x11, 0x01, 0xc0, 0x00, 0, 114][..]));
        for control in [[0x11, 0x01, 0xc0, 0x00], [0x11, 0x01, 0x03, 0x00]] {
            bytes[..4].copy_from_slice(&control);
            let parsed = Terminated::parse(&bytes[..len]);
            assert_eq!((parsed.code, parsed.read_msn), (Code(1, 1, 1), None));
        }
    }

    #[test]
    fn cut_short_it_still_ends_the_stream() {
        for len in 0..4 {
            assert_eq!(Terminated::parse(&[0; 4][..len]).code, Code(0, 2, 0xff));
        }
        assert_eq!(Terminated::parse(&[0x12, 2, 0, 0]).text(), "DDP: no buffer available");
    }
}
