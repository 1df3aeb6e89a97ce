//! The 64-byte submission queue entry (NVMe Base, "Submission Queue Entry").

use crate::ident::{Cid, Nsid};
use crate::sgl::SglDescriptor;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A submission queue entry, as on the wire. All of its fields but the first four bytes mean what the opcode says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// Opcode.
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    /// Namespace identifier.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub mptr: U64,
    /// Data pointer: SGL descriptor 1.
    pub sgl: SglDescriptor,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<Sqe>() == 64 && core::mem::offset_of!(Sqe, sgl) == 24);

/// PSDT 01b: an SGL, its metadata pointer an address. Admin and I/O commands over Fabrics must have it. In Fabrics
/// commands the standard reserves it (00b without data, 10b with), but hosts send it there as well and the Linux target
/// demands it.
pub const PSDT_SGL: u8 = 0b01 << 6;

impl Sqe {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// A command without data, its data pointer an SGL as Fabrics demands.
    #[must_use]
    pub fn new(opcode: u8) -> Self {
        let mut sqe = Self::zeroed();
        sqe.opcode = opcode;
        sqe.flags = PSDT_SGL;
        sqe
    }

    /// All zeroes.
    #[must_use]
    pub fn zeroed() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }

    /// The command identifier.
    #[must_use]
    pub fn cid(&self) -> Cid {
        Cid(self.cid.get())
    }

    /// The namespace identifier.
    #[must_use]
    pub fn nsid(&self) -> Nsid {
        Nsid(self.nsid.get())
    }

    /// The same for this namespace.
    #[must_use]
    pub fn with_nsid(mut self, nsid: Nsid) -> Self {
        self.nsid = nsid.0.into();
        self
    }

    /// The same with command dwords 10 to 15.
    #[must_use]
    pub fn with_dwords(mut self, cdw: [u32; 6]) -> Self {
        let [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15] = cdw.map(U32::new);
        (self.cdw10, self.cdw11, self.cdw12) = (cdw10, cdw11, cdw12);
        (self.cdw13, self.cdw14, self.cdw15) = (cdw13, cdw14, cdw15);
        self
    }

    /// Command dwords 10 to 15.
    #[must_use]
    pub fn dwords(&self) -> [u32; 6] {
        [self.cdw10, self.cdw11, self.cdw12, self.cdw13, self.cdw14, self.cdw15].map(U32::get)
    }

    /// Fused operation: 0 none, 1 first, 2 second.
    #[must_use]
    pub fn fuse(&self) -> u8 {
        self.flags & 0b11
    }

    /// PRP or SGL for data transfer: 0 PRP, 1 and 2 SGL.
    #[must_use]
    pub fn psdt(&self) -> u8 {
        self.flags >> 6
    }
}
