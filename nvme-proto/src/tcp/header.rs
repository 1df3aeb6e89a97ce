//! The common header, and what it says of where a PDU's parts are.

use super::terminate::{ERROR_DATA_LEN_MAX, FatalError, PduError};
use super::{DIGEST_LEN, PduType};
use core::mem::offset_of;
use core::ops::{BitOr, Range};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The 8 bytes that every PDU starts with, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// PDU-Type.
    pub kind: PduType,
    /// FLAGS.
    pub flags: Flags,
    /// HLEN: bytes of the header, without its digest.
    pub hlen: u8,
    /// PDO: where data start, in bytes from the start of the PDU. Means nothing without data.
    pub pdo: u8,
    /// PLEN: bytes of the PDU, digests and padding included.
    pub plen: U32,
}

const _: () = {
    assert!(size_of::<CommonHeader>() == CommonHeader::LEN);
    assert!(offset_of!(CommonHeader, hlen) == 2 && offset_of!(CommonHeader, plen) == 4);
};

/// Bits of FLAGS.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct Flags(pub u8);

impl Flags {
    /// HDGSTF: a header digest follows the header.
    pub const HEADER_DIGEST: Self = Self(1 << 0);
    /// DDGSTF: a data digest follows the data.
    pub const DATA_DIGEST: Self = Self(1 << 1);
    /// LAST_PDU, of H2CData and C2HData: no more data for this R2T, or this command.
    pub const LAST_PDU: Self = Self(1 << 2);
    /// SUCCESS, of C2HData: the command succeeded, and no response capsule will say so.
    pub const SUCCESS: Self = Self(1 << 3);

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// All flags that the standard defines for this type.
    const fn of(kind: PduType) -> Self {
        let digests = Self::HEADER_DIGEST.0 | Self::DATA_DIGEST.0;
        Self(match kind {
            PduType::CAPSULE_CMD => digests,
            PduType::H2C_DATA => digests | Self::LAST_PDU.0,
            PduType::C2H_DATA => digests | Self::LAST_PDU.0 | Self::SUCCESS.0,
            PduType::CAPSULE_RESP | PduType::R2T => Self::HEADER_DIGEST.0,
            _ => 0,
        })
    }

    /// Of LAST and SUCCESS what this type has; `None` for success before the last data.
    const fn transfer(self, kind: PduType) -> Option<Self> {
        let flags = Self(self.0 & Self::of(kind).0 & (Self::LAST_PDU.0 | Self::SUCCESS.0));
        if flags.0 == Self::SUCCESS.0 { None } else { Some(flags) }
    }

    /// These flags if `on`, else none.
    #[must_use]
    pub const fn when(self, on: bool) -> Self {
        if on { self } else { Self(0) }
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Which digests are used on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Digests {
    /// HDGST.
    pub header: bool,
    /// DDGST.
    pub data: bool,
}

/// What a receiver's data must be aligned to in their PDU: HPDA towards a host, CPDA towards a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DataAlignment(u8);

impl DataAlignment {
    /// From the wire's 0's based count of dwords; `None` above 31, which the standard does not allow.
    #[must_use]
    pub const fn from_dwords_z(dwords_z: u8) -> Option<Self> {
        if dwords_z < 32 { Some(Self(dwords_z)) } else { None }
    }

    /// The wire's 0's based count of dwords.
    #[must_use]
    pub const fn dwords_z(self) -> u8 {
        self.0
    }

    /// In bytes, 4 to 128.
    #[must_use]
    pub const fn bytes(self) -> u8 {
        (self.0 + 1) * 4
    }
}

/// Who receives a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// The controller, from a host.
    Controller,
    /// The host, from a controller.
    Host,
}

/// One direction of a connection: what was agreed of PDUs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Who receives.
    pub receiver: Receiver,
    /// Digests that ICReq and ICResp agreed on; none before that.
    pub digests: Digests,
    /// What the receiver asked for.
    pub alignment: DataAlignment,
}

/// Where the parts of a PDU are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    kind: PduType,
    flags: Flags,
    hlen: u8,
    data_at: u32,
    data_len: u32,
    plen: u32,
}

impl CommonHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// The common header that `bytes` start with.
    ///
    /// # Errors
    /// [`PduError::Incomplete`] with fewer than 8 bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, PduError> {
        match Self::read_from_prefix(bytes) {
            Ok((header, _)) => Ok(header),
            Err(_) => Err(PduError::Incomplete { need: Self::LEN }),
        }
    }

    /// Bytes from the PDU's start to the end of its header digest, or of the header where none follows. Only what it
    /// takes to find the digest is checked: the type, HDGSTF and HLEN. Nothing else may be believed before the digest
    /// was verified.
    ///
    /// # Errors
    /// As [`CommonHeader::check`].
    pub fn header_end(&self, link: Link) -> Result<usize, PduError> {
        const FLAGS: FatalError = FatalError::invalid_field(offset_of!(CommonHeader, flags));
        const HLEN: FatalError = FatalError::invalid_field(offset_of!(CommonHeader, hlen));
        let hlen = self.check_kind(link.receiver)?;
        let has_digest = self.kind.may_have_header_digest() && link.digests.header;
        if self.flags.contains(Flags::HEADER_DIGEST) != has_digest && !self.kind.is_term_req() {
            return Err(FLAGS.into());
        }
        if self.hlen != hlen {
            return Err(HLEN.into());
        }
        Ok(usize::from(hlen) + if has_digest { DIGEST_LEN as usize } else { 0 })
    }

    /// Checks the header against what was agreed, and says where the PDU's parts are. Of several invalid fields the
    /// first is reported. PDO without data is ignored, and so are the flags of a termination request.
    ///
    /// Whether the PDU may come now is the caller's to know ([`PDU_SEQUENCE_ERROR`]), and how much data it takes
    /// ([`DATA_TRANSFER_LIMIT_EXCEEDED`]).
    ///
    /// # Errors
    /// [`PduError::Fatal`] with the first field that is invalid, or [`PduError::Close`].
    ///
    /// [`PDU_SEQUENCE_ERROR`]: super::FatalErrorStatus::PDU_SEQUENCE_ERROR
    /// [`DATA_TRANSFER_LIMIT_EXCEEDED`]: super::FatalErrorStatus::DATA_TRANSFER_LIMIT_EXCEEDED
    pub fn check(&self, link: Link) -> Result<Layout, PduError> {
        const HLEN: FatalError = FatalError::invalid_field(offset_of!(CommonHeader, hlen));
        let hlen = self.check_kind(link.receiver)?;
        let flags = self.check_flags(hlen, link.digests)?;
        if self.hlen != hlen {
            return Err(HLEN.into());
        }
        let header_end = u32::from(hlen) + digest_len(flags, Flags::HEADER_DIGEST);
        let (data_at, data_len) = self.check_data(flags, header_end, link.alignment)?;
        Ok(Layout { kind: self.kind, flags, hlen, data_at, data_len, plen: self.plen.get() })
    }

    /// HLEN of the type, if the type is one for this receiver.
    fn check_kind(&self, receiver: Receiver) -> Result<u8, PduError> {
        const KIND: FatalError = FatalError::invalid_field(offset_of!(CommonHeader, kind));
        let hlen = self.kind.header_len().ok_or(KIND)?;
        let is_for_receiver = self.kind.receiver() == Some(receiver);
        let term_lens = u32::from(hlen)..=u32::from(hlen) + ERROR_DATA_LEN_MAX;
        let is_good_term = is_for_receiver && self.hlen == hlen && term_lens.contains(&self.plen.get());
        if self.kind.is_term_req() && !is_good_term {
            // A termination request is not answered with one: the two sides would never stop.
            return Err(PduError::Close);
        }
        if is_for_receiver { Ok(hlen) } else { Err(KIND.into()) }
    }

    /// The flags that count. A digest is there if and only if it was agreed and there is what it covers.
    fn check_flags(&self, hlen: u8, digests: Digests) -> Result<Flags, FatalError> {
        const FLAGS: FatalError = FatalError::invalid_field(offset_of!(CommonHeader, flags));
        let (kind, flags) = (self.kind, self.flags);
        if kind.is_term_req() {
            return Ok(Flags(0));
        }
        if !Flags::of(kind).contains(flags) {
            return Err(FLAGS);
        }
        if kind.may_have_header_digest() && flags.contains(Flags::HEADER_DIGEST) != digests.header {
            return Err(FLAGS);
        }
        let header_end = u32::from(hlen) + digest_len(flags, Flags::HEADER_DIGEST);
        let data_digest = digests.data && self.plen.get() > header_end;
        if kind.may_have_data() && flags.contains(Flags::DATA_DIGEST) != data_digest {
            return Err(FLAGS);
        }
        let transfer = flags.transfer(kind).ok_or(FLAGS)?;
        Ok(Flags::HEADER_DIGEST.when(kind.may_have_header_digest() && digests.header)
            | Flags::DATA_DIGEST.when(kind.may_have_data() && data_digest)
            | transfer)
    }

    /// Where data start, and how many bytes there are without their digest.
    fn check_data(
        &self,
        flags: Flags,
        header_end: u32,
        alignment: DataAlignment,
    ) -> Result<(u32, u32), FatalError> {
        const PDO: FatalError = FatalError::invalid_field(offset_of!(CommonHeader, pdo));
        const PLEN: FatalError = FatalError::invalid_field(offset_of!(CommonHeader, plen));
        let (pdo, plen) = (u32::from(self.pdo), self.plen.get());
        let behind_header = plen.checked_sub(header_end).ok_or(PLEN)?;
        if behind_header == 0 || self.kind.is_term_req() {
            return Ok((header_end, behind_header));
        }
        if !self.kind.may_have_data() {
            return Err(PLEN);
        }
        if pdo < header_end || pdo >= plen || !self.pdo.is_multiple_of(alignment.bytes()) {
            return Err(PDO);
        }
        match (plen - pdo).checked_sub(digest_len(flags, Flags::DATA_DIGEST)) {
            None | Some(0) => Err(PLEN),
            Some(data_len) => Ok((pdo, data_len)),
        }
    }
}

impl Layout {
    /// The layout of a PDU of this type with `data_len` bytes of data to be sent over `link`; `flags` other than the
    /// digests' as given.
    ///
    /// `None` if the type is not defined, not for this receiver or not for data, if the length is more than PLEN can say,
    /// or for success before the last data.
    #[must_use]
    pub fn new(kind: PduType, flags: Flags, data_len: u32, link: Link) -> Option<Self> {
        let hlen = kind.header_len()?;
        if kind.receiver() != Some(link.receiver) || (data_len > 0 && !kind.may_have_data()) {
            return None;
        }
        let flags = flags.transfer(kind)?
            | Flags::HEADER_DIGEST.when(kind.may_have_header_digest() && link.digests.header)
            | Flags::DATA_DIGEST.when(data_len > 0 && link.digests.data);
        let header_end = u32::from(hlen) + digest_len(flags, Flags::HEADER_DIGEST);
        let aligned = header_end.next_multiple_of(u32::from(link.alignment.bytes()));
        let data_at = if data_len > 0 { aligned } else { header_end };
        let plen = data_at.checked_add(data_len)?.checked_add(digest_len(flags, Flags::DATA_DIGEST))?;
        Some(Self { kind, flags, hlen, data_at, data_len, plen })
    }

    /// The common header that says so.
    #[must_use]
    pub fn header(&self) -> CommonHeader {
        let has_pdo = self.kind.may_have_data() && self.data_len > 0;
        CommonHeader {
            kind: self.kind,
            flags: self.flags,
            hlen: self.hlen,
            // At most 144: a command's header and digest (76) with an alignment of 72.
            pdo: if has_pdo { self.data_at as u8 } else { 0 },
            plen: self.plen.into(),
        }
    }

    /// The PDU's type.
    #[must_use]
    pub fn kind(&self) -> PduType {
        self.kind
    }

    /// The flags that the standard defines for the type.
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Bytes of the header, without its digest: what the header digest covers.
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.hlen)
    }

    /// Where the header digest is, if there is one: right behind the header.
    #[must_use]
    pub fn header_digest(&self) -> Option<Range<usize>> {
        let at = self.header_len();
        self.flags.contains(Flags::HEADER_DIGEST).then_some(at..at + DIGEST_LEN as usize)
    }

    /// Where the data are: what the data digest covers. In a termination request, where the offending header is.
    #[must_use]
    pub fn data(&self) -> Range<usize> {
        let at = self.data_at as usize;
        at..at + self.data_len as usize
    }

    /// Bytes of data.
    #[must_use]
    pub fn data_len(&self) -> u32 {
        self.data_len
    }

    /// Where the data digest is, if there is one: right behind the data, at the PDU's end.
    #[must_use]
    pub fn data_digest(&self) -> Option<Range<usize>> {
        let at = self.data().end;
        self.flags.contains(Flags::DATA_DIGEST).then_some(at..at + DIGEST_LEN as usize)
    }

    /// Bytes of the whole PDU.
    #[must_use]
    pub fn pdu_len(&self) -> u32 {
        self.plen
    }
}

fn digest_len(flags: Flags, digest: Flags) -> u32 {
    if flags.contains(digest) { DIGEST_LEN } else { 0 }
}
