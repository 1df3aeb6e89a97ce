//! Scatter gather list descriptors (NVMe Base, "Scatter Gather List"; NVMe/RDMA 1.0).

use crate::status::Status;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A descriptor, as on the wire: type in the high nibble of its last byte, subtype in the low one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SglDescriptor {
    /// Address or offset.
    pub address: U64,
    /// Length: 32 bits, or 24 bits and a 32-bit key.
    pub rest: [u8; 7],
    /// Type and subtype.
    pub kind: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == 16);

/// Data block at an address.
pub const DATA_BLOCK_ADDRESS: u8 = 0x00;
/// Data block at an offset in the capsule.
pub const DATA_BLOCK_OFFSET: u8 = 0x01;
/// Last segment at an offset in the capsule: a list of descriptors.
pub const LAST_SEGMENT_OFFSET: u8 = 0x31;
/// Keyed data block.
pub const KEYED_ADDRESS: u8 = 0x40;
/// Keyed data block whose key the controller invalidates.
pub const KEYED_INVALIDATE: u8 = 0x4f;
/// Transport data block (NVMe/TCP).
pub const TRANSPORT: u8 = 0x5a;
/// Bytes that a keyed descriptor can name: its length has 24 bits.
pub const KEYED_LEN_MAX: u32 = 0x00ff_ffff;

/// What a descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// Data in the capsule.
    InCapsule {
        /// Bytes from the end of the submission queue entry (ICDOFF is 0).
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Data in the host's memory, behind a key.
    Keyed {
        /// Address (for iWARP the tagged offset).
        address: u64,
        /// Bytes, at most [`KEYED_LEN_MAX`].
        len: u32,
        /// The key.
        key: u32,
        /// The key is to be invalidated with the response.
        invalidate: bool,
    },
    /// A list of descriptors in the capsule.
    InCapsuleList {
        /// Bytes from the end of the submission queue entry.
        offset: u64,
        /// Bytes: 16 a descriptor.
        len: u32,
    },
    /// Data in the transport's own messages (NVMe/TCP).
    Transport {
        /// Bytes.
        len: u32,
    },
}

impl Sgl {
    /// Bytes that it names (for a list, of the list itself).
    #[must_use]
    pub fn len(&self) -> u32 {
        match *self {
            Self::InCapsule { len, .. }
            | Self::Keyed { len, .. }
            | Self::InCapsuleList { len, .. }
            | Self::Transport { len } => len,
        }
    }

    /// Whether it names no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl SglDescriptor {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// What it says.
    ///
    /// # Errors
    /// [`Status::SGL_DESCRIPTOR_TYPE_INVALID`] for a type, or a subtype of it, that Fabrics does not use.
    pub fn parse(&self) -> Result<Sgl, Status> {
        let [a, b, c, d, e, f, g] = self.rest;
        let (address, len) = (self.address.get(), u32::from_le_bytes([a, b, c, d]));
        match self.kind {
            DATA_BLOCK_OFFSET => Ok(Sgl::InCapsule { offset: address, len }),
            LAST_SEGMENT_OFFSET => Ok(Sgl::InCapsuleList { offset: address, len }),
            KEYED_ADDRESS | KEYED_INVALIDATE => Ok(Sgl::Keyed {
                address,
                len: u32::from_le_bytes([a, b, c, 0]),
                key: u32::from_le_bytes([d, e, f, g]),
                invalidate: self.kind == KEYED_INVALIDATE,
            }),
            TRANSPORT => Ok(Sgl::Transport { len }),
            _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        }
    }

    fn plain(address: u64, len: u32, kind: u8) -> Self {
        let [a, b, c, d] = len.to_le_bytes();
        Self { address: address.into(), rest: [a, b, c, d, 0, 0, 0], kind }
    }

    /// Data in the capsule.
    #[must_use]
    pub fn in_capsule(offset: u64, len: u32) -> Self {
        Self::plain(offset, len, DATA_BLOCK_OFFSET)
    }

    /// A list in the capsule.
    #[must_use]
    pub fn in_capsule_list(offset: u64, len: u32) -> Self {
        Self::plain(offset, len, LAST_SEGMENT_OFFSET)
    }

    /// Data in the transport's own messages.
    #[must_use]
    pub fn transport(len: u32) -> Self {
        Self::plain(0, len, TRANSPORT)
    }

    /// Data in host memory, behind a key.
    ///
    /// # Panics
    /// When `len` is over [`KEYED_LEN_MAX`]: the caller splits.
    #[must_use]
    pub fn keyed(address: u64, len: u32, key: u32, invalidate: bool) -> Self {
        assert!(len <= KEYED_LEN_MAX, "a keyed descriptor of {len} bytes");
        let ([a, b, c, _], [d, e, f, g]) = (len.to_le_bytes(), key.to_le_bytes());
        let kind = if invalidate { KEYED_INVALIDATE } else { KEYED_ADDRESS };
        Self { address: address.into(), rest: [a, b, c, d, e, f, g], kind }
    }

    /// The descriptor that says so.
    ///
    /// # Panics
    /// As [`SglDescriptor::keyed`].
    #[must_use]
    pub fn emit(sgl: &Sgl) -> Self {
        match *sgl {
            Sgl::InCapsule { offset, len } => Self::in_capsule(offset, len),
            Sgl::InCapsuleList { offset, len } => Self::in_capsule_list(offset, len),
            Sgl::Keyed { address, len, key, invalidate } => Self::keyed(address, len, key, invalidate),
            Sgl::Transport { len } => Self::transport(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let keyed = SglDescriptor::keyed(0x0102_0304_0506_0708, 0x00a0_b0c0, 0x1122_3344, true);
        assert_eq!(
            keyed.as_bytes(),
            [8, 7, 6, 5, 4, 3, 2, 1, 0xc0, 0xb0, 0xa0, 0x44, 0x33, 0x22, 0x11, 0x4f],
        );
        assert_eq!(
            SglDescriptor::in_capsule(0, 4096).as_bytes(),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 1]
        );
    }

    #[test]
    fn parse_unsupported_type_or_subtype_is_an_invalid_type() {
        for kind in [0x20, 0x10, 0xf0, 0x00, 0x41, 0x30] {
            let descriptor = SglDescriptor { address: 0.into(), rest: [0; 7], kind };
            assert_eq!(descriptor.parse(), Err(Status::SGL_DESCRIPTOR_TYPE_INVALID), "{kind:#x}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_is_emitted_the_same(bytes: [u8; 16]) {
            let descriptor = SglDescriptor::read_from_bytes(&bytes).unwrap();
            if let Ok(sgl) = descriptor.parse() {
                prop_assert_eq!(SglDescriptor::emit(&sgl).parse(), Ok(sgl));
            }
        }
    }
}
