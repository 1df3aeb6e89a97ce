//! A submission queue entry that still lacks its CID and its data pointer.

use core::fmt;
use nvme_proto::sgl::SglDescriptor;
use nvme_proto::{Cid, Sqe};
use zerocopy::transmute;

/// An SQE but for the CID, which the [`crate::Queue`] gives, and the data pointer, which the transport knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Command(Sqe);

/// Where a command's data are: SGL 1 of the SQE. One descriptor a command, which is what every controller takes (MSDBD 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPointer {
    /// No data over RDMA: a keyed descriptor of length 0, as kernel controllers demand.
    None,
    /// `len` bytes right behind the SQE in the capsule (host to controller, I/O queues only).
    InCapsule {
        /// Bytes.
        len: u32,
    },
    /// `len` bytes in the transport's own messages (NVMe/TCP); 0 where the command has no data.
    Transport {
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
    /// This command, whatever its CID and data pointer say.
    #[must_use]
    pub fn new(sqe: Sqe) -> Self {
        Self(sqe)
    }

    /// The opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.0.opcode
    }

    /// The command so far.
    #[must_use]
    pub fn sqe(&self) -> &Sqe {
        &self.0
    }

    /// The 64 bytes to send.
    ///
    /// # Panics
    /// When a keyed length does not fit 24 bits: [`crate::limits`] keeps every part below that.
    #[must_use]
    pub fn encode(&self, cid: Cid, data: DataPointer) -> [u8; Sqe::LEN] {
        let mut sqe = self.0;
        sqe.cid = cid.0.into();
        sqe.sgl = match data {
            DataPointer::None => SglDescriptor::keyed(0, 0, 0, false),
            // An offset from the end of the SQE, as ICDOFF is 0: the set-up refuses any other.
            DataPointer::InCapsule { len } => SglDescriptor::in_capsule(0, len),
            DataPointer::Transport { len } => SglDescriptor::transport(len),
            DataPointer::Keyed { address, len, key, invalidate } => {
                SglDescriptor::keyed(address, len, key, invalidate)
            }
        };
        transmute!(sqe)
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command {{ opcode: {:#04x}, nsid: {} }}", self.opcode(), self.0.nsid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cid_and_data_pointer_are_at_their_offsets() {
        let command = Command::new(Sqe::new(0x18));
        let none = command.encode(Cid(0x1234), DataPointer::None);
        assert_eq!(none[..4], [0x18, 0x40, 0x34, 0x12]);
        assert_eq!(none[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40]);
        let pointer = DataPointer::Keyed { address: 0x10, len: 0x2000, key: 0xaabb_ccdd, invalidate: true };
        let keyed = command.encode(Cid(0), pointer);
        assert_eq!(keyed[24..40], [0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0xdd, 0xcc, 0xbb, 0xaa, 0x4f]);
        let transport = command.encode(Cid(0), DataPointer::Transport { len: 0x0102_0304 });
        assert_eq!(transport[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0x5a]);
        let in_capsule = command.encode(Cid(0), DataPointer::InCapsule { len: 512 });
        assert_eq!(in_capsule[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x01]);
    }
}
