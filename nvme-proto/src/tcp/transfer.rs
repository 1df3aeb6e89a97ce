//! H2CData, C2HData and R2T: which bytes of which command move.

use super::{CommonHeader, FatalError, FatalErrorStatus, Flags, Layout, Link, PduType};
use crate::ident::Cid;
use core::mem::offset_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header of H2CData, C2HData and R2T, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TransferPdu {
    /// Common header.
    pub common: CommonHeader,
    cccid: U16,
    /// Reserved in C2HData.
    ttag: U16,
    /// DATAO or R2TO.
    offset: U32,
    /// DATAL or R2TL.
    len: U32,
    reserved: [u8; 4],
}

const _: () = {
    assert!(size_of::<TransferPdu>() == TransferPdu::LEN);
    assert!(offset_of!(TransferPdu, cccid) == 8 && offset_of!(TransferPdu, ttag) == 10);
    assert!(offset_of!(TransferPdu, offset) == 12 && offset_of!(TransferPdu, len) == 16);
};

/// DATAO, DATAL, R2TO and R2TL are multiples of it.
const DWORD: u32 = 4;

/// Data from the host, as an R2T asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2cData {
    /// The command.
    pub cid: Cid,
    /// Transfer tag of the R2T.
    pub ttag: u16,
    /// Where in the command's data these start, in bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// No more data for this R2T.
    pub last: bool,
}

/// Data from the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct C2hData {
    /// The command.
    pub cid: Cid,
    /// Where in the command's data these start, in bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// No more data for this command.
    pub last: bool,
    /// The command succeeded, and no response capsule follows. Only with `last`.
    pub success: bool,
}

/// The controller is ready for data from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// The command.
    pub cid: Cid,
    /// Transfer tag: the controller's name for this transfer.
    pub ttag: u16,
    /// Where in the command's data it starts, in bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

impl TransferPdu {
    /// Bytes on the wire, without digest and data.
    pub const LEN: usize = 24;

    fn new(layout: &Layout, cid: Cid, ttag: u16, offset: u32, len: u32) -> Self {
        Self {
            common: layout.header(),
            cccid: cid.0.into(),
            ttag: ttag.into(),
            offset: offset.into(),
            len: len.into(),
            reserved: [0; 4],
        }
    }

    /// Offset and length in whole dwords, at least one; a sum that does not fit is beyond any command's data.
    fn range(&self) -> Result<(u32, u32), FatalError> {
        const OFFSET: FatalError = FatalError::invalid_field(offset_of!(TransferPdu, offset));
        const LEN: FatalError = FatalError::invalid_field(offset_of!(TransferPdu, len));
        let (offset, len) = (self.offset.get(), self.len.get());
        if !offset.is_multiple_of(DWORD) {
            return Err(OFFSET);
        }
        if len == 0 || !len.is_multiple_of(DWORD) {
            return Err(LEN);
        }
        match offset.checked_add(len) {
            Some(_) => Ok((offset, len)),
            None => Err(FatalError { status: FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE, information: 0 }),
        }
    }

    /// Whether [`TransferPdu::range`] takes these.
    fn is_range(offset: u32, len: u32) -> bool {
        len > 0 && offset.is_multiple_of(DWORD) && len.is_multiple_of(DWORD)
    }

    /// The same of a PDU that has these data with it: DATAL says as much as the layout.
    fn data_range(&self, layout: &Layout) -> Result<(u32, u32), FatalError> {
        const DATAL: FatalError = FatalError::invalid_field(offset_of!(TransferPdu, len));
        if self.len.get() != layout.data_len() {
            return Err(DATAL);
        }
        self.range()
    }
}

impl H2cData {
    pub(super) fn parse(pdu: &TransferPdu, layout: &Layout) -> Result<Self, FatalError> {
        let (offset, len) = pdu.data_range(layout)?;
        let last = layout.flags().contains(Flags::LAST_PDU);
        Ok(Self { cid: Cid(pdu.cccid.get()), ttag: pdu.ttag.get(), offset, len, last })
    }

    /// The layout and header to send it over `link`; `None` if the link is not towards a controller, offset and length
    /// are not whole dwords, or the length is 0 or more than PLEN can say.
    #[must_use]
    pub fn emit(&self, link: Link) -> Option<(Layout, TransferPdu)> {
        if !TransferPdu::is_range(self.offset, self.len) {
            return None;
        }
        let layout = Layout::new(PduType::H2C_DATA, Flags::LAST_PDU.when(self.last), self.len, link)?;
        Some((layout, TransferPdu::new(&layout, self.cid, self.ttag, self.offset, self.len)))
    }
}

impl C2hData {
    pub(super) fn parse(pdu: &TransferPdu, layout: &Layout) -> Result<Self, FatalError> {
        let (offset, len) = pdu.data_range(layout)?;
        let flags = layout.flags();
        let (last, success) = (flags.contains(Flags::LAST_PDU), flags.contains(Flags::SUCCESS));
        Ok(Self { cid: Cid(pdu.cccid.get()), offset, len, last, success })
    }

    /// The layout and header to send it over `link`; `None` if the link is not towards a host, offset and length are
    /// not whole dwords, the length is 0 or more than PLEN can say, or `success` is said without `last`.
    #[must_use]
    pub fn emit(&self, link: Link) -> Option<(Layout, TransferPdu)> {
        if !TransferPdu::is_range(self.offset, self.len) {
            return None;
        }
        let flags = Flags::LAST_PDU.when(self.last) | Flags::SUCCESS.when(self.success);
        let layout = Layout::new(PduType::C2H_DATA, flags, self.len, link)?;
        Some((layout, TransferPdu::new(&layout, self.cid, 0, self.offset, self.len)))
    }
}

impl R2t {
    pub(super) fn parse(pdu: &TransferPdu) -> Result<Self, FatalError> {
        let (offset, len) = pdu.range()?;
        Ok(Self { cid: Cid(pdu.cccid.get()), ttag: pdu.ttag.get(), offset, len })
    }

    /// The layout and header to send it over `link`; `None` if the link is not towards a host, offset and length are
    /// not whole dwords, or the length is 0.
    #[must_use]
    pub fn emit(&self, link: Link) -> Option<(Layout, TransferPdu)> {
        if !TransferPdu::is_range(self.offset, self.len) {
            return None;
        }
        let layout = Layout::new(PduType::R2T, Flags(0), 0, link)?;
        Some((layout, TransferPdu::new(&layout, self.cid, self.ttag, self.offset, self.len)))
    }
}
