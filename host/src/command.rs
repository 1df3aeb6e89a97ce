//! A submission queue entry that still lacks its CID and its data pointer.

use crate::Cid;

/// Bytes in a submission queue entry.
pub const SQE_LEN: usize = 64;
/// Bytes in a completion queue entry.
pub const CQE_LEN: usize = 16;

/// An SQE but for the CID, which the [`crate::Queue`] gives, and the data pointer, which the transport knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Command {
    sqe: [u8; SQE_LEN],
}

/// Where a command's data are: SGL 1 of the SQE. One descriptor a command, which is what every controller takes (MSDBD 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPointer {
    /// No data: a keyed descriptor of length 0, as kernel controllers demand.
    None,
    /// `len` bytes right behind the SQE in the capsule (host to controller, I/O queues only).
    InCapsule {
        /// Bytes.
        len: u32,
    },
    /// Memory of the host's that is exposed to the controller.
    Keyed {
        /// The address (tagged offset) of its first byte.
        address: u64,
        /// Bytes: below 2^24.
        len: u32,
        /// The key (rkey, STag).
        key: u32,
        /// The controller may end the key with its response (SEND with invalidate).
        invalidate: bool,
    },
}

impl Command {
    /// A command with this opcode and nothing else.
    #[must_use]
    pub fn new(opcode: u8) -> Self {
        let mut sqe = [0; SQE_LEN];
        sqe[0] = opcode;
        // PSDT 01b: the data pointer is an SGL. Fabrics knows nothing else.
        sqe[1] = 0x40;
        Self { sqe }
    }

    /// The opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.sqe[0]
    }

    /// The 64 bytes to send.
    ///
    /// # Panics
    /// When a keyed length does not fit 24 bits: [`crate::limits`] keeps every part below that.
    #[must_use]
    pub fn encode(&self, cid: Cid, data: DataPointer) -> [u8; SQE_LEN] {
        let mut sqe = self.sqe;
        sqe[2..4].copy_from_slice(&cid.0.to_le_bytes());
        sqe[24..40].copy_from_slice(&data.descriptor());
        sqe
    }

    /// The same with command dword `index` (10 to 15) set.
    #[must_use]
    pub(crate) fn with_dword(mut self, index: usize, value: u32) -> Self {
        self.sqe[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
        self
    }
}

impl DataPointer {
    fn descriptor(self) -> [u8; 16] {
        let mut sgl = [0; 16];
        let keyed = |sgl: &mut [u8; 16], address: u64, len: u32, key: u32, subtype: u8| {
            assert!(len < 1 << 24, "a keyed descriptor of {len} bytes");
            sgl[..8].copy_from_slice(&address.to_le_bytes());
            sgl[8..11].copy_from_slice(&len.to_le_bytes()[..3]);
            sgl[11..15].copy_from_slice(&key.to_le_bytes());
            sgl[15] = KEYED_DATA_BLOCK << 4 | subtype;
        };
        match self {
            Self::None => keyed(&mut sgl, 0, 0, 0, 0),
            Self::InCapsule { len } => {
                // The address is an offset from the end of the SQE: ICDOFF is 0, a gate of ours.
                sgl[8..12].copy_from_slice(&len.to_le_bytes());
                sgl[15] = DATA_BLOCK << 4 | SUBTYPE_OFFSET;
            }
            Self::Keyed { address, len, key, invalidate } => {
                let subtype = if invalidate { SUBTYPE_INVALIDATE } else { 0 };
                keyed(&mut sgl, address, len, key, subtype);
            }
        }
        sgl
    }
}

const DATA_BLOCK: u8 = 0x0;
const KEYED_DATA_BLOCK: u8 = 0x4;
const SUBTYPE_OFFSET: u8 = 0x1;
const SUBTYPE_INVALIDATE: u8 = 0xf;

impl core::fmt::Debug for Command {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Command {{ opcode: {:#04x} }}", self.opcode())
    }
}
