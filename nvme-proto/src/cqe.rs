//! The 16-byte completion queue entry (NVMe Base, "Completion Queue Entry").

use crate::ident::Cid;
use crate::status::Status;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A completion queue entry, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// Command-specific result, low half.
    pub dw0: U32,
    /// Command-specific result, high half.
    pub dw1: U32,
    /// Where the controller's submission queue head is; [`Cqe::SQHD_NONE`] without flow control.
    pub sqhd: U16,
    /// Submission queue (reserved in Fabrics).
    pub sqid: U16,
    /// The command.
    pub cid: U16,
    /// Status in bits 15:1; bit 0 is the phase, which Fabrics does not use.
    pub status: U16,
}

const _: () = assert!(size_of::<Cqe>() == 16);

impl Cqe {
    /// Bytes on the wire.
    pub const LEN: usize = 16;
    /// SQHD in the Connect response when flow control is off.
    pub const SQHD_NONE: u16 = 0xffff;

    /// A completion.
    #[must_use]
    pub fn new(cid: Cid, status: Status, dw0: u32) -> Self {
        Self {
            dw0: dw0.into(),
            dw1: 0.into(),
            sqhd: 0.into(),
            sqid: 0.into(),
            cid: cid.0.into(),
            status: status.to_field().into(),
        }
    }

    /// The command.
    #[must_use]
    pub fn cid(&self) -> Cid {
        Cid(self.cid.get())
    }

    /// How it went.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }

    /// The 64-bit result (Property Get).
    #[must_use]
    pub fn result(&self) -> u64 {
        u64::from(self.dw1.get()) << 32 | u64::from(self.dw0.get())
    }

    /// The same with a 64-bit result.
    #[must_use]
    pub fn with_result(mut self, result: u64) -> Self {
        self.dw0 = (result as u32).into();
        self.dw1 = ((result >> 32) as u32).into();
        self
    }
}
