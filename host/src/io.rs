//! Block operations on a namespace, split at the controller's limits.

use crate::{Command, Nsid, limits};
use nvme_proto::Sqe;
use nvme_proto::nvm::copy::{CopyCommand, SourceRange, SourceRange0};
use nvme_proto::nvm::fused::FusedOperation;
use nvme_proto::nvm::rw::flush;
use nvme_proto::nvm::{DatasetManagement, DsmRange, ReadWrite};
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::{BlockError, BlockOp, BlockRange, Geometry};
use zerocopy::IntoBytes;

/// A block operation without its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Controller to host.
    Read {
        /// The range.
        range: BlockRange,
    },
    /// Host to controller.
    Write {
        /// The range.
        range: BlockRange,
        /// Durable before it completes.
        fua: bool,
    },
    /// What completed before is durable afterwards.
    Flush,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// The range.
        range: BlockRange,
        /// The space may be given back.
        deallocate: bool,
        /// Durable before it completes.
        fua: bool,
    },
    /// The range's content is no longer needed.
    Deallocate {
        /// The range.
        range: BlockRange,
    },
    /// The range is held against the host's bytes.
    Compare {
        /// The range.
        range: BlockRange,
    },
    /// The range is written if it holds what is expected: a fused operation.
    CompareAndWrite {
        /// The range.
        range: BlockRange,
        /// Durable before it completes.
        fua: bool,
    },
    /// The range holds afterwards what other blocks of the namespace hold.
    Copy {
        /// The range.
        range: BlockRange,
        /// The first of those blocks.
        from: u64,
        /// Durable before it completes.
        fua: bool,
    },
    /// The range is read and thrown away.
    Verify {
        /// The range.
        range: BlockRange,
    },
}

impl TryFrom<BlockOp> for Operation {
    type Error = BlockError;

    /// [`BlockError::Unsupported`] for what no commands are made of. Copies are no block operations: [`Operation::Copy`].
    fn try_from(op: BlockOp) -> Result<Self, BlockError> {
        Ok(match op {
            BlockOp::Read { range, .. } => Self::Read { range },
            BlockOp::Write { range, fua, .. } => Self::Write { range, fua },
            BlockOp::Flush => Self::Flush,
            BlockOp::WriteZeroes { range, deallocate, fua } => Self::WriteZeroes { range, deallocate, fua },
            BlockOp::Deallocate { range } => Self::Deallocate { range },
            BlockOp::Compare { range, .. } => Self::Compare { range },
            BlockOp::Verify { range } => Self::Verify { range },
            BlockOp::CompareAndWrite { range, fua, .. } => Self::CompareAndWrite { range, fua },
            // There is no command that promises to share.
            BlockOp::Share { .. } => return Err(BlockError::Unsupported),
        })
    }
}

/// The data of one [`Part`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartData {
    /// None.
    None,
    /// `len` bytes into the operation's buffer at `offset`: exposed for remote write.
    FromController {
        /// Bytes from the start of the operation's buffer.
        offset: usize,
        /// Bytes.
        len: u32,
    },
    /// `len` bytes of the operation's buffer at `offset`: in the capsule, or exposed for remote read.
    ToController {
        /// Bytes from the start of the operation's buffer.
        offset: usize,
        /// Bytes.
        len: u32,
        /// Small enough for the capsule ([`crate::DataPointer::InCapsule`] is allowed, not demanded).
        in_capsule: bool,
    },
    /// These bytes (a Dataset Management range); in the capsule when `in_capsule`.
    Range {
        /// The range as on the wire.
        bytes: [u8; 16],
        /// Small enough for the capsule.
        in_capsule: bool,
    },
    /// These bytes (a source range of a Copy); in the capsule when `in_capsule`.
    Source {
        /// The range as on the wire, in format 0.
        bytes: [u8; 32],
        /// Small enough for the capsule.
        in_capsule: bool,
    },
}

/// One command of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The command.
    pub command: Command,
    /// Its data.
    pub data: PartData,
}

/// What a namespace is, and what its controller lets one command do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Namespace {
    /// NSID.
    pub nsid: Nsid,
    /// Block size and so on.
    pub geometry: Geometry,
    /// NGUID; all zeroes when it has none.
    pub nguid: [u8; 16],
    /// EUI-64; all zeroes when it has none.
    pub eui64: [u8; 8],
    /// UUID; all zeroes when it has none.
    pub uuid: [u8; 16],
    /// ANAGRPID; 0 when there are no groups.
    pub ana_group: u32,
    /// What one command may do.
    pub limits: CommandLimits,
}

impl Namespace {
    /// A namespace without identifiers, in no ANA group.
    #[must_use]
    pub fn new(nsid: Nsid, geometry: Geometry, limits: CommandLimits) -> Self {
        Self { nsid, geometry, nguid: [0; 16], eui64: [0; 8], uuid: [0; 16], ana_group: 0, limits }
    }
}

/// What one command may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandLimits {
    /// Blocks in a read, write or compare (MDTS).
    pub transfer_blocks: u32,
    /// Blocks in a Write Zeroes; 0 when it is not supported.
    pub write_zeroes_blocks: u32,
    /// Write Zeroes can deallocate (DLFEAT bit 3).
    pub write_zeroes_deallocate: bool,
    /// Blocks in a Verify; 0 when it is not supported.
    pub verify_blocks: u32,
    /// Blocks in one range of a deallocation; 0 when it is not supported.
    pub deallocate_blocks: u32,
    /// Blocks in all ranges of one deallocation together.
    pub deallocate_command_blocks: u64,
    /// Ranges in one deallocation.
    pub deallocate_ranges: u16,
    /// Compare is supported.
    pub compare: bool,
    /// Blocks in a Compare and Write; 0 when it is not supported.
    pub compare_and_write_blocks: u32,
    /// Blocks in a Copy of one range; 0 when it is not supported.
    pub copy_blocks: u32,
    /// Data bytes that a capsule carries.
    pub in_capsule_bytes: u32,
}

impl Namespace {
    /// The commands that `operation` takes.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`], [`BlockError::Unsupported`], [`BlockError::ReadOnly`]: found here, before anything is sent.
    pub fn split(&self, operation: Operation) -> Result<Parts, BlockError> {
        let (range, step) = match operation {
            Operation::Read { range } | Operation::Write { range, .. } => {
                (range, self.limits.transfer_blocks)
            }
            Operation::Compare { range } if self.limits.compare => (range, self.limits.transfer_blocks),
            Operation::WriteZeroes { range, .. } => (range, self.limits.write_zeroes_blocks),
            Operation::Verify { range } => (range, self.limits.verify_blocks),
            Operation::Deallocate { range } => (range, self.limits.deallocate_blocks),
            Operation::Compare { .. } => return Err(BlockError::Unsupported),
            // Two commands, one for each half of the buffer, or none.
            Operation::CompareAndWrite { range, .. } => {
                let halves = BlockRange::new(0, if range.blocks == 0 { 0 } else { 2 });
                (halves, u32::from(range.blocks.max(1) <= self.limits.compare_and_write_blocks.into()))
            }
            Operation::Copy { range, .. } => (range, self.limits.copy_blocks),
            // Without a volatile write cache, what completed is durable already.
            Operation::Flush => (BlockRange::new(0, u64::from(self.geometry.volatile_write_cache)), 1),
        };
        if !operation.ranges().into_iter().flatten().all(|range| self.geometry.contains(range)) {
            return Err(BlockError::OutOfRange);
        }
        if operation.writes() && self.geometry.read_only {
            return Err(BlockError::ReadOnly);
        }
        if step == 0 {
            return Err(BlockError::Unsupported);
        }
        Ok(Parts {
            operation,
            nsid: self.nsid,
            start: range.start,
            rest: range,
            step,
            block_size: self.geometry.block_size,
            in_capsule_bytes: self.limits.in_capsule_bytes,
            write_zeroes_deallocate: self.limits.write_zeroes_deallocate,
        })
    }

    /// Takes as many of `ranges` (off the front) as fit one deallocation, writes them into `out` and gives the command and the bytes
    /// used, at most 4096. `None` when none is left, or `out` has no room for even one.
    ///
    /// # Errors
    /// As [`Namespace::split`]; then nothing is taken. A range longer than one descriptor may name is [`BlockError::Unsupported`]
    /// here: split it.
    pub fn deallocate(
        &self,
        ranges: &mut &[BlockRange],
        out: &mut [u8],
    ) -> Result<Option<(Command, usize)>, BlockError> {
        if self.limits.deallocate_blocks == 0 && !ranges.is_empty() {
            return Err(BlockError::Unsupported);
        }
        let at_once = usize::from(self.limits.deallocate_ranges).min(limits::DSM_RANGES_MAX);
        let mut left = self.limits.deallocate_command_blocks;
        let fitting = ranges.iter().take_while(|range| {
            let fits = range.blocks <= left;
            left = left.saturating_sub(range.blocks);
            fits
        });
        // A range that does not fit alone is refused below.
        let fitting = fitting.count().max(1);
        let count = at_once.min(ranges.len()).min(out.len() / DsmRange::LEN).min(fitting);
        let (now, later) = ranges.split_at(count);
        for (range, out) in now.iter().zip(out.chunks_exact_mut(DsmRange::LEN)) {
            self.split(Operation::Deallocate { range: *range })?;
            let blocks =
                u32::try_from(range.blocks).ok().filter(|&blocks| blocks <= self.limits.deallocate_blocks);
            let blocks = blocks.ok_or(BlockError::Unsupported)?;
            out.copy_from_slice(DsmRange::new(range.start, blocks).as_bytes());
        }
        *ranges = later;
        Ok((count > 0).then(|| (dataset_management(self.nsid, count), count * DsmRange::LEN)))
    }
}

impl Operation {
    /// Whether it changes blocks.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Self::Write { .. }
            | Self::WriteZeroes { .. }
            | Self::Deallocate { .. }
            | Self::CompareAndWrite { .. }
            | Self::Copy { .. } => true,
            Self::Read { .. } | Self::Flush | Self::Compare { .. } | Self::Verify { .. } => false,
        }
    }

    /// The blocks that it touches.
    fn ranges(self) -> [Option<BlockRange>; 2] {
        match self {
            Self::Flush => [None; 2],
            Self::Read { range }
            | Self::Write { range, .. }
            | Self::WriteZeroes { range, .. }
            | Self::Deallocate { range }
            | Self::Compare { range }
            | Self::CompareAndWrite { range, .. }
            | Self::Verify { range } => [Some(range), None],
            Self::Copy { range, from, .. } => [Some(range), Some(BlockRange::new(from, range.blocks))],
        }
    }
}

/// The commands of one operation: an iterator without memory of its own. They may be in flight together and complete in any order;
/// the operation is done when all are, and has failed if one has. Each is atomic for itself at best, the whole is not.
#[derive(Debug, Clone)]
pub struct Parts {
    operation: Operation,
    nsid: Nsid,
    start: u64,
    rest: BlockRange,
    /// Blocks in one command.
    step: u32,
    block_size: u32,
    in_capsule_bytes: u32,
    write_zeroes_deallocate: bool,
}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.rest.blocks == 0 {
            return None;
        }
        let (range, rest) = self.rest.split_at(u64::from(self.step));
        self.rest = rest;
        Some(self.part(range))
    }
}

impl Parts {
    /// How many commands are left.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.rest.blocks.div_ceil(u64::from(self.step))
    }

    /// `range` is one command's: at most `step` blocks.
    fn part(&self, range: BlockRange) -> Part {
        let blocks = range.blocks as u32;
        let plain = |opcode, rw: ReadWrite| Command::new(rw.emit(opcode, self.nsid));
        let rw = ReadWrite::new;
        let (command, data) = match self.operation {
            Operation::Read { .. } => {
                let (offset, len) = self.bytes(range);
                (plain(NvmOpcode::READ, rw(range.start, blocks)), PartData::FromController { offset, len })
            }
            Operation::Write { fua, .. } => {
                let rw = ReadWrite { fua, ..rw(range.start, blocks) };
                (plain(NvmOpcode::WRITE, rw), self.to_controller(range))
            }
            Operation::Compare { .. } => {
                (plain(NvmOpcode::COMPARE, rw(range.start, blocks)), self.to_controller(range))
            }
            Operation::WriteZeroes { deallocate, fua, .. } => {
                let deallocate = deallocate && self.write_zeroes_deallocate;
                let rw = ReadWrite { fua, deallocate, ..rw(range.start, blocks) };
                (plain(NvmOpcode::WRITE_ZEROES, rw), PartData::None)
            }
            Operation::CompareAndWrite { range: pair, fua } => return self.half(range.start == 1, pair, fua),
            Operation::Copy { from, fua, .. } => {
                let copy = CopyCommand { fua, ..CopyCommand::new(range.start, 1) };
                let source = SourceRange::new(from + (range.start - self.start), blocks);
                let bytes: [u8; SourceRange0::LEN] = zerocopy::transmute!(source.emit_format_0());
                let in_capsule = self.in_capsule_bytes as usize >= bytes.len();
                let dwords = [copy.cdw10(), copy.cdw11(), copy.cdw12(), 0, 0, 0];
                let sqe = Sqe::new(NvmOpcode::COPY.0).with_nsid(self.nsid).with_dwords(dwords);
                (Command::new(sqe), PartData::Source { bytes, in_capsule })
            }
            Operation::Verify { .. } => (plain(NvmOpcode::VERIFY, rw(range.start, blocks)), PartData::None),
            Operation::Deallocate { .. } => {
                let bytes = zerocopy::transmute!(DsmRange::new(range.start, blocks));
                let in_capsule = self.in_capsule_bytes as usize >= DsmRange::LEN;
                (dataset_management(self.nsid, 1), PartData::Range { bytes, in_capsule })
            }
            Operation::Flush => (Command::new(flush(self.nsid)), PartData::None),
        };
        Part { command, data }
    }

    /// One command of a Compare and Write: the Compare, with the first half of the buffer, or the Write, with the second.
    fn half(&self, is_write: bool, pair: BlockRange, fua: bool) -> Part {
        let (blocks, len) = (pair.blocks as u32, pair.blocks as u32 * self.block_size);
        let (opcode, fuse, offset) = match is_write {
            false => (NvmOpcode::COMPARE, FusedOperation::FIRST, 0),
            true => (NvmOpcode::WRITE, FusedOperation::SECOND, len as usize),
        };
        let rw = ReadWrite { fua: fua && is_write, ..ReadWrite::new(pair.start, blocks) };
        let mut sqe = rw.emit(opcode, self.nsid);
        sqe.flags = fuse.emit(sqe.flags);
        let data = PartData::ToController { offset, len, in_capsule: len <= self.in_capsule_bytes };
        Part { command: Command::new(sqe), data }
    }

    fn to_controller(&self, range: BlockRange) -> PartData {
        let (offset, len) = self.bytes(range);
        PartData::ToController { offset, len, in_capsule: len <= self.in_capsule_bytes }
    }

    /// Offset in the operation's buffer, and length. A transfer's step is bounded by [`limits::TRANSFER_BYTES_MAX`].
    fn bytes(&self, range: BlockRange) -> (usize, u32) {
        let block_size = self.block_size as usize;
        let offset = ((range.start - self.start) as usize).saturating_mul(block_size);
        (offset, range.blocks as u32 * self.block_size)
    }
}

fn dataset_management(nsid: Nsid, ranges: usize) -> Command {
    let command = DatasetManagement { ranges: ranges as u16, deallocate: true, hints: 0 };
    Command::new(command.emit(nsid))
}

#[cfg(test)]
mod tests;
