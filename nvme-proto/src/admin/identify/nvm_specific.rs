//! What is specific to the NVM command set (NVM Command Set, "I/O Command Set specific Identify").

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The controller's limits (CNS 06h, CSI 0), as on the wire.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NvmController {
    /// Verify size limit, a power of two of pages; 0 is none.
    pub vsl: u8,
    /// Write Zeroes size limit, likewise.
    pub wzsl: u8,
    /// Write Uncorrectable size limit, likewise.
    pub wusl: u8,
    /// Dataset Management ranges; 0 is no limit below 256.
    pub dmrl: u8,
    /// Blocks in a Dataset Management range; 0 is no limit.
    pub dmrsl: U32,
    /// Blocks in a Dataset Management command; 0 is no limit.
    pub dmsl: U64,
    reserved: [u8; 4080],
}

/// A namespace's protection information formats (CNS 05h, CSI 0), as on the wire; all zero where there is none.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NvmNamespace {
    /// Logical block storage tag mask.
    pub lbstm: U64,
    /// Protection information capabilities.
    pub pic: u8,
    reserved0: [u8; 3],
    /// Extended LBA formats.
    pub elbaf: [U32; 64],
    reserved1: [u8; 3828],
}

const _: () = assert!(size_of::<NvmController>() == super::LEN && size_of::<NvmNamespace>() == super::LEN);
