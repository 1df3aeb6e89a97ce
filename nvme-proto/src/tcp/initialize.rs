//! ICReq and ICResp: what the two sides agree on before the first command.

use super::{CommonHeader, DataAlignment, Digests, FatalError, Flags, PduType};
use core::mem::offset_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// ICReq or ICResp, as on the wire: the two differ in what their fields mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct InitializePdu {
    /// Common header.
    pub common: CommonHeader,
    pfv: U16,
    /// HPDA or CPDA.
    alignment_z: u8,
    dgst: u8,
    /// MAXR2T (0's based) or MAXH2CDATA.
    max: U32,
    reserved: [u8; 112],
}

const _: () = {
    assert!(size_of::<InitializePdu>() == InitializePdu::LEN);
    assert!(offset_of!(InitializePdu, pfv) == 8 && offset_of!(InitializePdu, alignment_z) == 10);
    assert!(offset_of!(InitializePdu, dgst) == 11 && offset_of!(InitializePdu, max) == 12);
};

/// The least MAXH2CDATA that a controller may say.
pub const H2C_DATA_LEN_MIN: u32 = 4096;

/// What the host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// HPDA: how data towards the host are to be aligned.
    pub alignment: DataAlignment,
    /// Digests that the host would use.
    pub digests: Digests,
    /// MAXR2T: R2Ts that the host accepts at a time for one command, 1 to 2^32.
    pub maxr2t: u64,
}

/// What the controller grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    /// CPDA: how data towards the controller are to be aligned.
    pub alignment: DataAlignment,
    /// Digests that will be used: of those that the host asked for.
    pub digests: Digests,
    /// MAXH2CDATA: bytes of data in one H2CData, at least 4096 and a multiple of 4.
    pub maxh2cdata: u32,
}

impl InitializePdu {
    /// Bytes on the wire.
    pub const LEN: usize = 128;

    fn new(kind: PduType, alignment: DataAlignment, digests: Digests, max: u32) -> Self {
        Self {
            common: CommonHeader {
                kind,
                flags: Flags(0),
                hlen: Self::LEN as u8,
                pdo: 0,
                plen: (Self::LEN as u32).into(),
            },
            pfv: 0.into(),
            alignment_z: alignment.dwords_z(),
            dgst: u8::from(digests.header) | u8::from(digests.data) << 1,
            max: max.into(),
            reserved: [0; 112],
        }
    }

    /// What both say. The format version must be 0: another one says that the rest means something else.
    fn parse(&self) -> Result<(DataAlignment, Digests), FatalError> {
        const PFV: FatalError = FatalError::invalid_field(offset_of!(InitializePdu, pfv));
        const ALIGNMENT: FatalError = FatalError::invalid_field(offset_of!(InitializePdu, alignment_z));
        if self.pfv.get() != 0 {
            return Err(PFV);
        }
        let alignment = DataAlignment::from_dwords_z(self.alignment_z).ok_or(ALIGNMENT)?;
        Ok((alignment, Digests { header: self.dgst & 1 != 0, data: self.dgst & 2 != 0 }))
    }
}

impl IcReq {
    /// Reads the request.
    ///
    /// # Errors
    /// The field that is invalid.
    pub fn parse(pdu: &InitializePdu) -> Result<Self, FatalError> {
        let (alignment, digests) = pdu.parse()?;
        Ok(Self { alignment, digests, maxr2t: u64::from(pdu.max.get()) + 1 })
    }

    /// The request.
    ///
    /// # Panics
    /// When `maxr2t` is not from 1 to 2^32.
    #[must_use]
    pub fn emit(&self) -> InitializePdu {
        let maxr2t_z = self.maxr2t.checked_sub(1).and_then(|z| u32::try_from(z).ok());
        let maxr2t_z = maxr2t_z.expect("a host accepts 1 to 2^32 R2Ts");
        InitializePdu::new(PduType::IC_REQ, self.alignment, self.digests, maxr2t_z)
    }
}

impl IcResp {
    /// Reads the response. Whether it grants no more than was asked for is the host's to compare.
    ///
    /// # Errors
    /// The field that is invalid.
    pub fn parse(pdu: &InitializePdu) -> Result<Self, FatalError> {
        const MAXH2CDATA: FatalError = FatalError::invalid_field(offset_of!(InitializePdu, max));
        let (alignment, digests) = pdu.parse()?;
        let maxh2cdata = pdu.max.get();
        if !is_h2c_data_len_max(maxh2cdata) {
            return Err(MAXH2CDATA);
        }
        Ok(Self { alignment, digests, maxh2cdata })
    }

    /// The response.
    ///
    /// # Panics
    /// When `maxh2cdata` is less than [`H2C_DATA_LEN_MIN`] or not a multiple of 4: no host would come.
    #[must_use]
    pub fn emit(&self) -> InitializePdu {
        assert!(is_h2c_data_len_max(self.maxh2cdata), "a MAXH2CDATA of {}", self.maxh2cdata);
        InitializePdu::new(PduType::IC_RESP, self.alignment, self.digests, self.maxh2cdata)
    }
}

fn is_h2c_data_len_max(len: u32) -> bool {
    len >= H2C_DATA_LEN_MIN && len.is_multiple_of(4)
}
