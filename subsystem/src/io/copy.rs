//! Copy: ranges of this namespace, or of others of the subsystem, to one place of this one.

use super::{Io, IoKind, block, check_range};
use crate::access::Need;
use crate::data::{self, Fit};
use crate::limits::{COPY_LEN_MAX, COPY_RANGES_MAX};
use crate::namespace::NamespaceDefinition;
use crate::status::{self, Direction};
use crate::step::{BlockWork, CopySource, CopyWork, Transfer, Work};
use crate::ticket::{Kind, Outcome, Reply};
use alloc::boxed::Box;
use alloc::vec::Vec;
use nvme_proto::nvm::CopyCommand;
use nvme_proto::nvm::copy::{DescriptorFormat, SourceRange};
use nvme_proto::{Nsid, Sqe, Status};
use nvmf_block::DeviceId;

/// The formats of source ranges (CDFS): 0, and 2 where the host has enabled it (Host Behavior Support). The others are
/// for protection information.
pub(crate) const FORMATS: u16 = 1 << 0 | 1 << 2;

/// A Copy whose ranges are being transferred.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Copying {
    nsid: Nsid,
    /// The device of the namespace: the NSID may have another one when the ranges arrive.
    device: DeviceId,
    command: CopyCommand,
}

/// MCL of a namespace: blocks that one Copy writes.
pub(crate) fn blocks_max(namespace: &NamespaceDefinition) -> u32 {
    COPY_LEN_MAX / namespace.geometry.block_size
}

/// MSSRL of a namespace: blocks of one range.
pub(crate) fn range_blocks_max(namespace: &NamespaceDefinition) -> u16 {
    u16::try_from(blocks_max(namespace)).unwrap_or(u16::MAX)
}

impl Io {
    pub(super) fn copy(&self, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        let namespace = self.namespace(sqe.nsid(), Need::Write)?;
        let [cdw10, cdw11, cdw12, ..] = sqe.dwords();
        let command = CopyCommand::parse(cdw10, cdw11, cdw12);
        let format = 1_u16.checked_shl(command.format.0.into()).unwrap_or(0);
        let enabled =
            command.format == DescriptorFormat::FORMAT_0 || self.association.copy_formats() & format != 0;
        let (Some(len), true, 0) = (command.data_len(), FORMATS & format != 0 && enabled, command.directive)
        else {
            return Err(status::INVALID_FIELD);
        };
        if namespace.is_read_only() {
            return Err(status::NAMESPACE_WRITE_PROTECTED);
        }
        if usize::from(command.ranges) > COPY_RANGES_MAX {
            return Err(status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        let transfer = data::from_host(sqe, len as u32, Fit::Exact, in_capsule_len)?;
        let kind =
            IoKind::CopyRanges(Box::new(Copying { nsid: sqe.nsid(), device: namespace.device, command }));
        Ok(Reply::Execute { kind: Kind::Io(kind), work: Work::Parameters, transfer })
    }

    /// The ranges of a Copy.
    pub(super) fn copy_ranges(&self, copying: &Copying, parameters: &[u8]) -> Outcome {
        let &Copying { nsid, device, command } = copying;
        // The namespace may have been removed, replaced or protected during the transfer.
        let namespace = self.namespace(nsid, Need::Write)?;
        if namespace.device != device {
            return Err(status::INVALID_NAMESPACE);
        }
        if namespace.is_read_only() {
            return Err(status::NAMESPACE_WRITE_PROTECTED);
        }
        let ranges = command.source_ranges(parameters).ok_or(status::INVALID_FIELD)?;
        let (mut sources, mut total) = (Vec::with_capacity(usize::from(command.ranges)), 0_u32);
        for range in ranges {
            let source = self.copy_source(nsid, namespace, &range)?;
            total = total.saturating_add(range.blocks);
            sources.push(source);
        }
        if total > blocks_max(namespace) {
            return Err(status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        let to = check_range(namespace, command.sdlba, total)?;
        if sources.iter().any(|source| source.device == device && source.range.overlaps(to)) {
            return Err(status::OVERLAPPING_IO_RANGE);
        }
        let through = namespace.geometry.volatile_write_cache && !self.association.write_cache();
        let op = BlockWork::Copy(Box::new(CopyWork {
            sources: sources.into_boxed_slice(),
            to,
            block_size: namespace.geometry.block_size,
            fua: command.fua || through,
        }));
        Ok(block(device, op, Transfer::None, IoKind::Plain(Direction::Write)))
    }

    fn copy_source(
        &self,
        command_nsid: Nsid,
        to: &NamespaceDefinition,
        range: &SourceRange,
    ) -> Result<CopySource, Status> {
        let nsid = range.nsid.unwrap_or(command_nsid);
        let from = self.namespace(nsid, Need::Read)?;
        if from.geometry.block_size != to.geometry.block_size {
            return Err(status::INCOMPATIBLE_NAMESPACE_OR_FORMAT);
        }
        if range.fast_copy_only {
            // Whether a file system shares the blocks is known only afterwards.
            return Err(status::FAST_COPY_NOT_POSSIBLE);
        }
        if range.blocks > range_blocks_max(from).into() {
            return Err(status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        Ok(CopySource { nsid, device: from.device, range: check_range(from, range.slba, range.blocks)? })
    }
}
