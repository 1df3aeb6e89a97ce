//! NVMe/TCP protocol data units (NVMe/TCP Transport, "PDU").
//!
//! A PDU is a header (`hlen` bytes, of which the first 8 are common to all), a header digest where that was agreed,
//! padding up to
//! `pdo`, data, and a data digest where that was agreed. Reading one takes four steps, as bytes arrive:
//!
//! 1. [`CommonHeader::header_end`] says from the first 8 bytes where the header and its digest end.
//! 2. The caller verifies the header digest, if there is one, before it believes anything else.
//! 3. [`CommonHeader::check`] says where everything is: a [`Layout`].
//! 4. [`Pdu::parse`] reads the header.
//!
//! Both digests are CRC32C, little-endian on the wire. The header digest covers the header and nothing else; the data
//! digest covers the data and neither the padding nor the header. No digest protects ICReq, ICResp and the termination
//! requests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`header`] | the common header, and the layout of a PDU |
//! | [`initialize`] | ICReq, ICResp |
//! | [`terminate`] | H2CTermReq, C2HTermReq, and the errors that they report |
//! | [`transfer`] | H2CData, C2HData, R2T |
//! | [`pdu`] | any PDU's header; capsules |

pub mod header;
pub mod initialize;
pub mod pdu;
pub mod terminate;
#[cfg(test)]
mod tests;
pub mod transfer;

pub use header::{CommonHeader, DataAlignment, Digests, Flags, Layout, Link, Receiver};
pub use initialize::{IcReq, IcResp};
pub use pdu::Pdu;
pub use terminate::{FatalError, FatalErrorStatus, PduError};
pub use transfer::{C2hData, H2cData, R2t};

/// Bytes of a digest.
pub const DIGEST_LEN: u32 = 4;

open_enum! {
    /// PDU type. The host sends even ones, the controller odd ones.
    pub struct PduType: u8 {
        /// Initialize Connection Request.
        IC_REQ = 0x00,
        /// Initialize Connection Response.
        IC_RESP = 0x01,
        /// Host to Controller Terminate Connection Request.
        H2C_TERM_REQ = 0x02,
        /// Controller to Host Terminate Connection Request.
        C2H_TERM_REQ = 0x03,
        /// Command Capsule.
        CAPSULE_CMD = 0x04,
        /// Response Capsule.
        CAPSULE_RESP = 0x05,
        /// Host to Controller Data.
        H2C_DATA = 0x06,
        /// Controller to Host Data.
        C2H_DATA = 0x07,
        /// Ready to Transfer.
        R2T = 0x09,
    }
}

impl PduType {
    /// Bytes of the header without digest (HLEN); `None` for a type that is not defined.
    #[must_use]
    pub const fn header_len(self) -> Option<u8> {
        Some(match self {
            Self::IC_REQ | Self::IC_RESP => 128,
            Self::CAPSULE_CMD => 72,
            Self::CAPSULE_RESP
            | Self::H2C_TERM_REQ
            | Self::C2H_TERM_REQ
            | Self::H2C_DATA
            | Self::C2H_DATA
            | Self::R2T => 24,
            _ => return None,
        })
    }

    /// Who receives this type; `None` for a type that is not defined.
    #[must_use]
    pub const fn receiver(self) -> Option<Receiver> {
        match (self.header_len(), self.0 & 1) {
            (None, _) => None,
            (_, 0) => Some(Receiver::Controller),
            _ => Some(Receiver::Host),
        }
    }

    /// Whether a header digest follows the header where header digests were agreed.
    #[must_use]
    pub const fn may_have_header_digest(self) -> bool {
        self.may_have_data() || matches!(self, Self::CAPSULE_RESP | Self::R2T)
    }

    /// Whether the PDU may carry data, at `pdo`, and then a data digest where those were agreed.
    #[must_use]
    pub const fn may_have_data(self) -> bool {
        matches!(self, Self::CAPSULE_CMD | Self::H2C_DATA | Self::C2H_DATA)
    }

    /// Whether this is a termination request. What follows its header is no data but the header that it complains of.
    #[must_use]
    pub const fn is_term_req(self) -> bool {
        matches!(self, Self::H2C_TERM_REQ | Self::C2H_TERM_REQ)
    }
}
