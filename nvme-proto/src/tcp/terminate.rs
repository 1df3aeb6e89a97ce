//! Termination requests, and the errors that they report.

use super::{CommonHeader, PduType};
use core::fmt;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the offending PDU's header that a termination request may carry.
pub const ERROR_DATA_LEN_MAX: u32 = 128;

open_enum! {
    /// Fatal Error Status (FES).
    pub struct FatalErrorStatus: u16 {
        /// A field of the header is invalid; FEI is its byte offset in the header.
        INVALID_PDU_HEADER_FIELD = 0x01,
        /// The PDU is not expected now.
        PDU_SEQUENCE_ERROR = 0x02,
        /// The header digest is wrong; FEI is the digest received.
        HEADER_DIGEST_ERROR = 0x03,
        /// The data are not within what was asked for.
        DATA_TRANSFER_OUT_OF_RANGE = 0x04,
        /// More data than MAXH2CDATA in one PDU, or more R2Ts than MAXR2T: one value for both.
        DATA_TRANSFER_LIMIT_EXCEEDED = 0x05,
        /// A parameter is not supported; FEI is its byte offset in the header.
        UNSUPPORTED_PARAMETER = 0x06,
    }
}

/// Why a connection ends: what a termination request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatalError {
    /// FES.
    pub status: FatalErrorStatus,
    /// Fatal Error Information (FEI): what it is depends on the status; 0 where the standard gives it no meaning.
    pub information: u32,
}

impl FatalError {
    /// The header's field at this offset is invalid.
    #[must_use]
    pub const fn invalid_field(offset: usize) -> Self {
        Self { status: FatalErrorStatus::INVALID_PDU_HEADER_FIELD, information: offset as u32 }
    }
}

impl fmt::Display for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.status {
            FatalErrorStatus::INVALID_PDU_HEADER_FIELD => {
                return write!(f, "invalid PDU header field at byte {}", self.information);
            }
            FatalErrorStatus::UNSUPPORTED_PARAMETER => {
                return write!(f, "unsupported parameter at byte {}", self.information);
            }
            FatalErrorStatus::PDU_SEQUENCE_ERROR => "PDU sequence error",
            FatalErrorStatus::HEADER_DIGEST_ERROR => "header digest error",
            FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE => "data transfer out of range",
            FatalErrorStatus::DATA_TRANSFER_LIMIT_EXCEEDED => "data transfer or R2T limit exceeded",
            _ => "unknown error",
        };
        write!(f, "{text} (NVMe/TCP fatal error status {:#x})", self.status.0)
    }
}

/// Why bytes are no PDU (yet).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PduError {
    /// There is more to come: nothing is wrong.
    #[error("the PDU's first {need} bytes are needed")]
    Incomplete {
        /// Bytes of the PDU that are needed, those at hand included.
        need: usize,
    },
    /// The connection is to end, and a termination request is to say why.
    #[error("{0}: terminate the connection")]
    Fatal(FatalError),
    /// The connection is to end without a termination request: the PDU is one itself, and invalid.
    #[error("an invalid termination request: close the connection")]
    Close,
}

impl From<FatalError> for PduError {
    fn from(error: FatalError) -> Self {
        Self::Fatal(error)
    }
}

/// H2CTermReq or C2HTermReq, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TermReqPdu {
    /// Common header.
    pub common: CommonHeader,
    fes: U16,
    fei: U32,
    reserved: [u8; 10],
}

const _: () = {
    assert!(size_of::<TermReqPdu>() == TermReqPdu::LEN);
    assert!(core::mem::offset_of!(TermReqPdu, fes) == 8 && core::mem::offset_of!(TermReqPdu, fei) == 10);
};

impl TermReqPdu {
    /// Bytes on the wire, without the header that it complains of.
    pub const LEN: usize = 24;

    /// A request of this type, before `error_data_len` bytes of the offending header.
    ///
    /// `None` if the type is no termination request, or that is more than [`ERROR_DATA_LEN_MAX`].
    #[must_use]
    pub fn new(kind: PduType, error: FatalError, error_data_len: u32) -> Option<Self> {
        if !kind.is_term_req() || error_data_len > ERROR_DATA_LEN_MAX {
            return None;
        }
        Some(Self {
            common: CommonHeader {
                kind,
                flags: super::Flags(0),
                hlen: Self::LEN as u8,
                pdo: 0,
                plen: (Self::LEN as u32 + error_data_len).into(),
            },
            fes: error.status.0.into(),
            fei: error.information.into(),
            reserved: [0; 10],
        })
    }

    /// What it says.
    #[must_use]
    pub fn error(&self) -> FatalError {
        FatalError { status: FatalErrorStatus(self.fes.get()), information: self.fei.get() }
    }
}
