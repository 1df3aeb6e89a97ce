//! Any PDU's header, and the capsules.

use super::initialize::InitializePdu;
use super::terminate::TermReqPdu;
use super::transfer::TransferPdu;
use super::{
    C2hData, CommonHeader, FatalError, Flags, H2cData, IcReq, IcResp, Layout, Link, PduError, PduType, R2t,
};
use crate::cqe::Cqe;
use crate::sqe::Sqe;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// CapsuleCmd without its in-capsule data, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapsuleCmdPdu {
    /// Common header.
    pub common: CommonHeader,
    /// CCSQE.
    pub sqe: Sqe,
}

/// CapsuleResp, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapsuleRespPdu {
    /// Common header.
    pub common: CommonHeader,
    /// RCCQE.
    pub cqe: Cqe,
}

const _: () = {
    assert!(size_of::<CapsuleCmdPdu>() == 72 && core::mem::offset_of!(CapsuleCmdPdu, sqe) == 8);
    assert!(size_of::<CapsuleRespPdu>() == 24 && core::mem::offset_of!(CapsuleRespPdu, cqe) == 8);
};

impl CapsuleCmdPdu {
    /// The layout and header to send `sqe` over `link` with `data_len` bytes in the capsule; `None` if the link is not
    /// towards a controller or the length is more than PLEN can say.
    #[must_use]
    pub fn new(sqe: Sqe, data_len: u32, link: Link) -> Option<(Layout, Self)> {
        let layout = Layout::new(PduType::CAPSULE_CMD, Flags(0), data_len, link)?;
        Some((layout, Self { common: layout.header(), sqe }))
    }
}

impl CapsuleRespPdu {
    /// The layout and header to send `cqe` over `link`; `None` if the link is not towards a host.
    #[must_use]
    pub fn new(cqe: Cqe, link: Link) -> Option<(Layout, Self)> {
        let layout = Layout::new(PduType::CAPSULE_RESP, Flags(0), 0, link)?;
        Some((layout, Self { common: layout.header(), cqe }))
    }
}

/// What a PDU's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// Initialize Connection Request.
    IcReq(IcReq),
    /// Initialize Connection Response.
    IcResp(IcResp),
    /// H2CTermReq or C2HTermReq: the other side ends the connection, for this reason.
    TermReq(FatalError),
    /// Command Capsule. Its in-capsule data are where the layout says.
    CapsuleCmd(Sqe),
    /// Response Capsule.
    CapsuleResp(Cqe),
    /// Host to Controller Data.
    H2cData(H2cData),
    /// Controller to Host Data.
    C2hData(C2hData),
    /// Ready to Transfer.
    R2t(R2t),
}

impl Pdu {
    /// Reads the header of the PDU that `layout` was made from; `bytes` start at its common header, and its digest has
    /// been verified.
    ///
    /// # Errors
    /// [`PduError::Incomplete`] with less than the header, [`PduError::Fatal`] with a field that is invalid.
    pub fn parse(bytes: &[u8], layout: &Layout) -> Result<Self, PduError> {
        Ok(match layout.kind() {
            PduType::IC_REQ => Self::IcReq(IcReq::parse(&read::<InitializePdu>(bytes)?)?),
            PduType::IC_RESP => Self::IcResp(IcResp::parse(&read::<InitializePdu>(bytes)?)?),
            PduType::CAPSULE_CMD => Self::CapsuleCmd(read::<CapsuleCmdPdu>(bytes)?.sqe),
            PduType::CAPSULE_RESP => Self::CapsuleResp(read::<CapsuleRespPdu>(bytes)?.cqe),
            PduType::H2C_DATA => Self::H2cData(H2cData::parse(&read::<TransferPdu>(bytes)?, layout)?),
            PduType::C2H_DATA => Self::C2hData(C2hData::parse(&read::<TransferPdu>(bytes)?, layout)?),
            PduType::R2T => Self::R2t(R2t::parse(&read::<TransferPdu>(bytes)?)?),
            PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ => {
                Self::TermReq(read::<TermReqPdu>(bytes)?.error())
            }
            // No layout is of another type.
            _ => return Err(FatalError::invalid_field(0).into()),
        })
    }
}

fn read<T: FromBytes>(bytes: &[u8]) -> Result<T, PduError> {
    match T::read_from_prefix(bytes) {
        Ok((pdu, _)) => Ok(pdu),
        Err(_) => Err(PduError::Incomplete { need: size_of::<T>() }),
    }
}
