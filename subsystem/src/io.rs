//! I/O commands of the NVM command set: checked against the namespace, then handed to the device.

use crate::association::Association;
use crate::data::{self, Fit};
use crate::limits::{DSM_RANGE_LEN, DSM_RANGES_MAX};
use crate::namespace::{NamespaceDefinition, NamespaceTable};
use crate::status::{self, Direction};
use crate::step::{BlockWork, Transfer, Work};
use crate::ticket::{Kind, Outcome, Reply};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use nvme_proto::nvm::{DatasetManagement, DsmRange, ReadWrite};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Nsid, Sqe, Status};
use nvmf_block::{BlockError, BlockRange, DeviceId};
use zerocopy::FromBytes;

/// After so many commands a queue adds its own counts to the subsystem's.
const TALLY_COMMANDS: u32 = 64;

/// What is left to do when an I/O command comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoKind {
    /// A read of so many bytes.
    Read { bytes: u64 },
    /// A write of so many bytes.
    Write { bytes: u64 },
    /// Nothing to count.
    Plain(Direction),
    /// The ranges of a Dataset Management command are on their way.
    Ranges { nsid: Nsid, count: u16 },
    /// The cache was flushed: now what the host wanted from the medium itself.
    AfterFlush { device: DeviceId, range: BlockRange, then: FromMedium, transfer: Transfer },
}

/// The commands whose force unit access means "not from a cache".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FromMedium {
    Read { bytes: u64 },
    Compare,
    Verify,
}

/// The I/O commands of one queue.
#[derive(Debug)]
pub(crate) struct Io {
    association: Arc<Association>,
    namespaces: Arc<NamespaceTable>,
    tally: Tally,
}

/// Counts not yet added to [`crate::Counters`].
#[derive(Debug, Default)]
struct Tally {
    commands: u32,
    reads: u64,
    writes: u64,
    bytes_read: u64,
    bytes_written: u64,
}

impl Io {
    pub(crate) fn new(association: Arc<Association>, namespaces: Arc<NamespaceTable>) -> Self {
        Self { association, namespaces, tally: Tally::default() }
    }

    /// The registry has a new table.
    pub(crate) fn on_namespaces(&mut self, namespaces: &Arc<NamespaceTable>) {
        if namespaces.replaces(&self.namespaces) {
            self.namespaces = Arc::clone(namespaces);
        }
    }

    /// A command other than Fabrics.
    pub(crate) fn on_command(&self, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        if self.association.is_closing() {
            // The host did nothing wrong: its admin queue is gone, or its keep-alive is over, and this queue follows. The same
            // command may succeed on the next association, so no "do not retry".
            return Err(Status::ABORTED_SQ_DELETION);
        }
        if !self.association.is_enabled() {
            return Err(status::COMMAND_SEQUENCE_ERROR);
        }
        let opcode = NvmOpcode(sqe.opcode);
        match opcode {
            NvmOpcode::FLUSH => self.flush(sqe),
            NvmOpcode::READ
            | NvmOpcode::WRITE
            | NvmOpcode::COMPARE
            | NvmOpcode::WRITE_ZEROES
            | NvmOpcode::VERIFY => self.on_blocks(opcode, sqe, in_capsule_len),
            NvmOpcode::DATASET_MANAGEMENT => self.dataset_management(sqe, in_capsule_len),
            _ => Err(status::INVALID_OPCODE),
        }
    }

    fn namespace(&self, nsid: Nsid) -> Result<&NamespaceDefinition, Status> {
        self.namespaces.get(nsid).ok_or(status::INVALID_NAMESPACE)
    }

    fn flush(&self, sqe: &Sqe) -> Outcome {
        // VWC says that a flush of all namespaces at once is not supported.
        let namespace = self.namespace(sqe.nsid())?;
        if !namespace.geometry.volatile_write_cache {
            return Ok(Reply::Done(0));
        }
        Ok(block(namespace.device, BlockWork::Flush, Transfer::None, IoKind::Plain(Direction::Write)))
    }

    fn on_blocks(&self, opcode: NvmOpcode, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        let namespace = self.namespace(sqe.nsid())?;
        let command = ReadWrite::parse(sqe);
        let range = check_range(namespace, command.slba, command.blocks)?;
        // No namespace is formatted with protection information, and there is no directive but Identify.
        if command.prinfo != 0 {
            return Err(status::INVALID_PROTECTION_INFORMATION);
        }
        if command.storage_tag_check || command.directive != 0 {
            return Err(status::INVALID_FIELD);
        }
        let writes = matches!(opcode, NvmOpcode::WRITE | NvmOpcode::WRITE_ZEROES);
        if writes && namespace.is_read_only() {
            return Err(status::NAMESPACE_WRITE_PROTECTED);
        }
        let fua = command.fua;
        let through = fua || (namespace.geometry.volatile_write_cache && !self.association.write_cache());
        let len = || self.transfer_len(namespace, range);
        let device = namespace.device;
        Ok(match opcode {
            NvmOpcode::READ => {
                let len = len()?;
                let transfer = data::to_host(sqe, len, Fit::Exact)?;
                from_medium(namespace, fua, range, FromMedium::Read { bytes: len.into() }, transfer)
            }
            NvmOpcode::COMPARE => {
                let transfer = data::from_host(sqe, len()?, Fit::Exact, in_capsule_len)?;
                from_medium(namespace, fua, range, FromMedium::Compare, transfer)
            }
            NvmOpcode::VERIFY => from_medium(namespace, fua, range, FromMedium::Verify, Transfer::None),
            NvmOpcode::WRITE => {
                let len = len()?;
                let transfer = data::from_host(sqe, len, Fit::Exact, in_capsule_len)?;
                let kind = IoKind::Write { bytes: len.into() };
                block(device, BlockWork::Write { range, fua: through }, transfer, kind)
            }
            _ => {
                let work = BlockWork::WriteZeroes { range, deallocate: command.deallocate, fua: through };
                block(device, work, Transfer::None, IoKind::Plain(Direction::Write))
            }
        })
    }

    /// Bytes of `range`, within MDTS.
    fn transfer_len(&self, namespace: &NamespaceDefinition, range: BlockRange) -> Result<u32, Status> {
        let bytes = range.blocks.checked_mul(namespace.geometry.block_size.into());
        bytes
            .and_then(|bytes| u32::try_from(bytes).ok())
            .filter(|&bytes| bytes <= self.association.options.transfer_len_max)
            .ok_or(status::INVALID_FIELD)
    }

    fn dataset_management(&self, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        let namespace = self.namespace(sqe.nsid())?;
        let command = DatasetManagement::parse(sqe);
        if !command.deallocate {
            // Only hints about future access, which may be ignored.
            return Ok(Reply::Done(0));
        }
        if namespace.is_read_only() {
            return Err(status::NAMESPACE_WRITE_PROTECTED);
        }
        let count = command.ranges;
        let len = u32::from(count) * DSM_RANGE_LEN as u32;
        let transfer = data::from_host(sqe, len, Fit::AtLeast, in_capsule_len)?;
        let kind = Kind::Io(IoKind::Ranges { nsid: sqe.nsid(), count });
        Ok(Reply::Execute { kind, work: Work::Parameters, transfer })
    }

    /// The ranges of a Dataset Management command.
    pub(crate) fn on_parameters(&self, kind: IoKind, parameters: &[u8]) -> Outcome {
        let IoKind::Ranges { nsid, count } = kind else {
            panic!("parameters for an I/O command that asked for none: {kind:?}");
        };
        let count = usize::from(count);
        assert_eq!(parameters.len(), count * DSM_RANGE_LEN, "parameters of a Dataset Management command");
        // The namespace may have gone while its ranges were on their way.
        let namespace = self.namespace(nsid)?;
        let mut ranges = Vec::with_capacity(count.min(DSM_RANGES_MAX));
        for bytes in parameters.chunks_exact(DSM_RANGE_LEN) {
            let Ok(range) = DsmRange::read_from_bytes(bytes) else { return Err(status::INVALID_FIELD) };
            let range = check_range(namespace, range.slba.get(), range.blocks.get())?;
            if range.blocks > 0 {
                ranges.push(range);
            }
        }
        if ranges.is_empty() {
            return Ok(Reply::Done(0));
        }
        let work = BlockWork::Deallocate(ranges.into_boxed_slice());
        Ok(block(namespace.device, work, Transfer::None, IoKind::Plain(Direction::Write)))
    }

    /// The device is done.
    pub(crate) fn on_done(&mut self, kind: IoKind, result: Result<(), BlockError>) -> Outcome {
        if let Err(error) = result {
            if error == BlockError::Medium {
                self.association.counters.media_errors.fetch_add(1, Ordering::Relaxed);
            }
            return Err(status::of_block_error(error, kind.direction()));
        }
        match kind {
            IoKind::AfterFlush { device, range, then, transfer } => {
                return Ok(block(device, then.work(range), transfer, then.kind()));
            }
            IoKind::Read { bytes } => self.tally.on_read(bytes),
            IoKind::Write { bytes } => self.tally.on_write(bytes),
            IoKind::Plain(_) => {}
            IoKind::Ranges { .. } => panic!("parameters were reported as done"),
        }
        if self.tally.commands >= TALLY_COMMANDS {
            self.publish_tally();
        }
        Ok(Reply::Done(0))
    }

    fn publish_tally(&mut self) {
        let tally = core::mem::take(&mut self.tally);
        let counters = &self.association.counters;
        counters.reads.fetch_add(tally.reads, Ordering::Relaxed);
        counters.writes.fetch_add(tally.writes, Ordering::Relaxed);
        counters.bytes_read.fetch_add(tally.bytes_read, Ordering::Relaxed);
        counters.bytes_written.fetch_add(tally.bytes_written, Ordering::Relaxed);
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        self.publish_tally();
    }
}

impl Tally {
    fn on_read(&mut self, bytes: u64) {
        self.commands += 1;
        self.reads += 1;
        self.bytes_read += bytes;
    }

    fn on_write(&mut self, bytes: u64) {
        self.commands += 1;
        self.writes += 1;
        self.bytes_written += bytes;
    }
}

impl IoKind {
    fn direction(self) -> Direction {
        match self {
            Self::Read { .. } => Direction::Read,
            Self::Write { .. } | Self::Ranges { .. } | Self::AfterFlush { .. } => Direction::Write,
            Self::Plain(direction) => direction,
        }
    }
}

impl FromMedium {
    fn work(self, range: BlockRange) -> BlockWork {
        match self {
            Self::Read { .. } => BlockWork::Read { range },
            Self::Compare => BlockWork::Compare { range },
            Self::Verify => BlockWork::Verify { range },
        }
    }

    fn kind(self) -> IoKind {
        match self {
            Self::Read { bytes } => IoKind::Read { bytes },
            Self::Compare | Self::Verify => IoKind::Plain(Direction::Read),
        }
    }
}

/// A read of some sort. With force unit access the medium itself is asked: what a volatile cache holds is flushed first.
fn from_medium(
    namespace: &NamespaceDefinition,
    fua: bool,
    range: BlockRange,
    then: FromMedium,
    transfer: Transfer,
) -> Reply {
    let device = namespace.device;
    if fua && namespace.geometry.volatile_write_cache {
        let kind = IoKind::AfterFlush { device, range, then, transfer };
        block(device, BlockWork::Flush, Transfer::None, kind)
    } else {
        block(device, then.work(range), transfer, then.kind())
    }
}

fn block(device: DeviceId, op: BlockWork, transfer: Transfer, kind: IoKind) -> Reply {
    Reply::Execute { kind: Kind::Io(kind), work: Work::Block { device, op }, transfer }
}

fn check_range(namespace: &NamespaceDefinition, slba: u64, blocks: u32) -> Result<BlockRange, Status> {
    let range = BlockRange::new(slba, blocks.into());
    if namespace.geometry.contains(range) { Ok(range) } else { Err(status::LBA_OUT_OF_RANGE) }
}
