//! Operations on memory and null disks: carried out by `poll`, long fills in pieces.

use super::Devices;
use crate::disk::{Kind, LockId};
use crate::ram;
use nvmf_block::{BlockOp, Completion, Tag};

/// Bytes that are zeroed before other operations get their turn. A multiple of all block sizes, so that blocks change
/// as a whole.
const FILL_PIECE: usize = 256 << 10;

/// An operation on a memory or null disk, whose range and buffer were checked.
pub(super) struct AtOnce {
    tag: Tag,
    slot: u32,
    op: BlockOp,
    /// The rest of the range, in bytes.
    start: u64,
    len: usize,
    /// What it has locked.
    lock: Option<LockId>,
}

impl AtOnce {
    pub(super) fn new(
        tag: Tag,
        slot: u32,
        op: BlockOp,
        start: u64,
        len: usize,
        lock: Option<LockId>,
    ) -> Self {
        Self { tag, slot, op, start, len, lock }
    }

    pub(super) fn is_on(&self, slot: u32) -> bool {
        self.slot == slot
    }

    pub(super) fn op(&self) -> BlockOp {
        self.op
    }

    /// Bytes of the next piece. Only fills are cut.
    pub(super) fn next_bytes(&self) -> usize {
        match self.op {
            BlockOp::WriteZeroes { .. } | BlockOp::Deallocate { .. } => self.len.min(FILL_PIECE),
            BlockOp::Read { .. }
            | BlockOp::Write { .. }
            | BlockOp::Compare { .. }
            | BlockOp::CompareAndWrite { .. } => self.len,
            BlockOp::Flush | BlockOp::Verify { .. } | BlockOp::Share { .. } => 0,
        }
    }
}

impl Devices {
    /// Carries out an operation or the next piece of it. `None`: it is queued again for the rest.
    pub(super) fn carry_out(&mut self, mut operation: AtOnce) -> Option<Completion> {
        let bytes = operation.next_bytes();
        let device = self.devices[operation.slot as usize].as_mut();
        let device = device.expect("a device stays until its last operation completed");
        let buffer = operation.op.buffer().map(|b| (self.ring.regions().memory(b.region), b.offset));
        let result = match &device.disk.kind {
            Kind::Ram(disk) => disk.carry_out(&operation.op, operation.start, bytes, buffer),
            _ => {
                operation.len = bytes;
                ram::carry_out_on_null(&operation.op, bytes, buffer)
            }
        };
        if operation.len > bytes && bytes > 0 {
            operation.start += bytes as u64;
            operation.len -= bytes;
            self.at_once.push_back(operation);
            return None;
        }
        self.on_over(operation.slot, operation.lock);
        Some(Completion { tag: operation.tag, result })
    }
}
