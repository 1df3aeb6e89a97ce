//! DDP: the control field and the two headers (RFC 5041). Each begins with MPA's length field, so that one FPDU's
//! header is one run of bytes.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Untagged queue of SENDs.
pub const QN_SEND: u32 = 0;
/// Untagged queue of RDMA READ requests.
pub const QN_READ: u32 = 1;
/// Untagged queue of the Terminate.
pub const QN_TERMINATE: u32 = 2;
/// The first message sequence number of each queue.
pub const FIRST_MSN: u32 = 1;

/// The control fields of DDP and RDMAP, 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control(pub u16);

impl Control {
    const TAGGED: u16 = 0x8000;
    const LAST: u16 = 0x4000;
    const VERSIONS: u16 = 0x0140;

    /// Of a segment, with both versions 1.
    #[must_use]
    pub fn new(tagged: bool, last: bool, opcode: u8) -> Self {
        let tagged = if tagged { Self::TAGGED } else { 0 };
        let last = if last { Self::LAST } else { 0 };
        Self(tagged | last | Self::VERSIONS | u16::from(opcode & 0xf))
    }

    /// T: placed by STag and offset rather than by queue.
    #[must_use]
    pub fn tagged(self) -> bool {
        self.0 & Self::TAGGED != 0
    }

    /// L: the last segment of its message.
    #[must_use]
    pub fn last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    /// DV.
    #[must_use]
    pub fn ddp_version(self) -> u8 {
        (self.0 >> 8 & 3) as u8
    }

    /// RV.
    #[must_use]
    pub fn rdmap_version(self) -> u8 {
        (self.0 >> 6 & 3) as u8
    }

    /// RDMAP's opcode.
    #[must_use]
    pub fn opcode(self) -> u8 {
        (self.0 & 0xf) as u8
    }
}

/// A tagged header, with the length field.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawTagged {
    /// Bytes of the ULPDU.
    pub length: U16,
    /// [`Control`].
    pub control: U16,
    /// STag.
    pub stag: U32,
    /// Tagged offset.
    pub to: U64,
}
const _: () = assert!(size_of::<RawTagged>() == 16);

/// An untagged header, with the length field.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawUntagged {
    /// Bytes of the ULPDU.
    pub length: U16,
    /// [`Control`].
    pub control: U16,
    /// RDMAP's: the STag to invalidate, or 0.
    pub rdmap: U32,
    /// Queue number.
    pub qn: U32,
    /// Message sequence number.
    pub msn: U32,
    /// Message offset.
    pub mo: U32,
}
const _: () = assert!(size_of::<RawUntagged>() == 20);
