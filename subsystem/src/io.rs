//! I/O commands of the NVM command set: checked against the namespace, then handed to the device.

pub(crate) mod copy;
pub(crate) mod fused;

use crate::access::Need;
use crate::association::Association;
use crate::data::{self, Fit};
use crate::limits::{BLOCKS_LEN_MAX, DMRL, DSM_BLOCKS_MAX, DSM_RANGE_LEN, DSM_RANGES_MAX};
use crate::namespace::{NamespaceDefinition, NamespaceTable};
use crate::reservation::{self, Pulled};
use crate::status::{self, Direction};
use crate::step::{BlockWork, CopySource, Transfer, Work};
use crate::ticket::{Kind, Outcome, Reply};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use nvme_proto::nvm::{DatasetManagement, DsmRange, ReadWrite};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Cid, Nsid, Sqe, Status};
use nvmf_block::{BlockError, BlockOp, BlockRange, DeviceId};
use zerocopy::FromBytes;

/// A queue adds its counts to the subsystem's after so many commands,
const TALLY_COMMANDS: u32 = 64;
/// or this long after the first of them.
const TALLY_TIME: Duration = Duration::from_secs(1);

/// CRD: the time in CRDT1.
const RETRY_DELAY: u8 = 1;

/// What is left to do when the transport is done with an I/O command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IoKind {
    /// A read of so many bytes.
    Read { bytes: u64 },
    /// A write of so many bytes.
    Write { bytes: u64 },
    /// Any other operation, which is not counted.
    Plain(Direction),
    /// The ranges of a Dataset Management command are being transferred. They are for this device: the NSID may have
    /// another one when they arrive. Those that are not to be deallocated are hints.
    Ranges { nsid: Nsid, device: DeviceId, count: u16, deallocate: bool },
    /// The ranges of a Copy are being transferred.
    CopyRanges(Box<copy::Copying>),
    /// The data of a reservation command are being transferred. Boxed, because they are rare and large.
    Reservation(Box<Pulled>),
    /// The cache is being flushed; the command itself follows. Boxed, because it is rare and large, and every ticket has
    /// room for a kind.
    AfterFlush(Box<AfterFlush>),
    /// The data of a command of a fused operation are being transferred.
    FusedData { cid: Cid },
    /// A fused operation.
    Fused(Box<fused::Running>),
}

/// A command for whose sake the cache is being flushed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AfterFlush {
    device: DeviceId,
    range: BlockRange,
    then: FromMedium,
    transfer: Transfer,
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
    /// When it is to be published; `None` while it is empty.
    due: Option<Duration>,
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

    /// Takes over a newer table.
    pub(crate) fn on_namespaces(&mut self, namespaces: &Arc<NamespaceTable>) {
        if namespaces.replaces(&self.namespaces) {
            self.namespaces = Arc::clone(namespaces);
        }
    }

    /// A command other than Fabrics.
    pub(crate) fn on_command(&self, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        self.check_live()?;
        let opcode = NvmOpcode(sqe.opcode);
        match opcode {
            NvmOpcode::FLUSH => self.flush(sqe),
            NvmOpcode::READ
            | NvmOpcode::WRITE
            | NvmOpcode::COMPARE
            | NvmOpcode::WRITE_ZEROES
            | NvmOpcode::VERIFY => self.on_blocks(opcode, sqe, in_capsule_len),
            NvmOpcode::COPY => self.copy(sqe, in_capsule_len),
            NvmOpcode::DATASET_MANAGEMENT => self.dataset_management(sqe, in_capsule_len),
            NvmOpcode::RESERVATION_REPORT => {
                self.namespace(sqe.nsid(), Need::Reservation)?;
                let reservation = self.namespaces.reservation(sqe.nsid()).ok_or(status::INVALID_NAMESPACE)?;
                reservation::report(sqe, reservation, self.association.options.transfer_len_max)
            }
            NvmOpcode::RESERVATION_REGISTER
            | NvmOpcode::RESERVATION_ACQUIRE
            | NvmOpcode::RESERVATION_RELEASE => {
                let uuid = self.namespace(sqe.nsid(), Need::Reservation)?.uuid;
                let [cdw10, ..] = sqe.dwords();
                reservation::pull(sqe, Pulled { nsid: sqe.nsid(), uuid, opcode, cdw10 }, in_capsule_len)
            }
            _ => Err(status::INVALID_OPCODE),
        }
    }

    fn check_live(&self) -> Result<(), Status> {
        if self.association.is_closing() {
            // The Admin queue is gone or the Keep Alive timer expired, and this queue is about to close. The same
            // command may succeed on the next association, so no "do not retry".
            return Err(Status::ABORTED_SQ_DELETION);
        }
        if self.association.is_enabled() { Ok(()) } else { Err(status::COMMAND_SEQUENCE_ERROR) }
    }

    fn namespace(&self, nsid: Nsid, need: Need) -> Result<&NamespaceDefinition, Status> {
        let namespace = &self.namespaces.access(nsid, need, &self.association)?.definition;
        if self.association.orphans.any_on(namespace.device) {
            return Err(self.not_ready());
        }
        Ok(namespace)
    }

    /// The status of a command for a device on which operations of the host's last connection are still in flight.
    fn not_ready(&self) -> Status {
        let delay = if self.association.retry_delays() { RETRY_DELAY } else { 0 };
        Status::NAMESPACE_NOT_READY.with_crd(delay)
    }

    /// See [`crate::Queue::check_again`].
    pub(crate) fn check_again(&self, nsid: Nsid, device: DeviceId, op: &BlockOp) -> Result<(), Status> {
        let (need, range) = match *op {
            // It changes nothing that another host sees.
            BlockOp::Flush => return Ok(()),
            BlockOp::Read { range, .. } | BlockOp::Compare { range, .. } | BlockOp::Verify { range } => {
                (Need::Read, range)
            }
            BlockOp::Write { range, .. }
            | BlockOp::WriteZeroes { range, .. }
            | BlockOp::Deallocate { range }
            | BlockOp::CompareAndWrite { range, .. }
            | BlockOp::Share { range, .. } => (Need::Write, range),
        };
        self.check_live()?;
        self.check_place(nsid, device, need, &[range])
    }

    /// See [`crate::Queue::check_under_way`].
    pub(crate) fn check_under_way(&self, kind: &IoKind, nsid: Nsid, work: &Work) -> Result<(), Status> {
        let need = match kind.direction() {
            Direction::Read => Need::Read,
            Direction::Write => Need::Write,
        };
        let Work::Block { device, op } = work else {
            let device = self.device_of(nsid).ok_or(status::INVALID_NAMESPACE)?;
            return self.check_place(nsid, device, need, &[]);
        };
        let ranges = match op {
            BlockWork::Flush => &[][..],
            BlockWork::Deallocate(ranges) => ranges,
            BlockWork::Read { range }
            | BlockWork::Write { range, .. }
            | BlockWork::WriteZeroes { range, .. }
            | BlockWork::Compare { range }
            | BlockWork::Verify { range } => core::slice::from_ref(range),
            BlockWork::CompareAndWrite(work) => core::slice::from_ref(&work.range),
            BlockWork::Copy(copy) => {
                for &CopySource { nsid, device, range } in &copy.sources {
                    self.check_place(nsid, device, Need::Read, &[range])?;
                }
                core::slice::from_ref(&copy.to)
            }
        };
        self.check_place(nsid, *device, need, ranges)
    }

    /// Whether the namespace of that NSID is on this device still, with these blocks, and may be used in this way.
    fn check_place(
        &self,
        nsid: Nsid,
        device: DeviceId,
        need: Need,
        ranges: &[BlockRange],
    ) -> Result<(), Status> {
        let namespace = &self.namespaces.access(nsid, need, &self.association)?.definition;
        if namespace.device != device {
            return Err(status::INVALID_NAMESPACE);
        }
        if need == Need::Write && namespace.is_read_only() {
            return Err(status::NAMESPACE_WRITE_PROTECTED);
        }
        match ranges.iter().all(|range| namespace.geometry.contains(*range)) {
            true => Ok(()),
            false => Err(status::LBA_OUT_OF_RANGE),
        }
    }

    /// See [`crate::Queue::device_of`].
    pub(crate) fn device_of(&self, nsid: Nsid) -> Option<DeviceId> {
        self.namespaces.get(nsid).map(|namespace| namespace.device)
    }

    fn flush(&self, sqe: &Sqe) -> Outcome {
        // VWC says that a flush of all namespaces at once is not supported.
        let namespace = self.namespace(sqe.nsid(), Need::Write)?;
        if !namespace.geometry.volatile_write_cache {
            return Ok(Reply::Done(0));
        }
        Ok(block(namespace.device, BlockWork::Flush, Transfer::None, IoKind::Plain(Direction::Write)))
    }

    fn on_blocks(&self, opcode: NvmOpcode, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        let namespace = self.namespace(sqe.nsid(), Need::of(opcode))?;
        let command = ReadWrite::parse(sqe);
        let range = check_range(namespace, command.slba, command.blocks)?;
        // No namespace is formatted with protection information, so PRINFO and STC are ignored; and there is no
        // directive but Identify.
        if command.directive != 0 {
            return Err(status::INVALID_FIELD);
        }
        let writes = matches!(opcode, NvmOpcode::WRITE | NvmOpcode::WRITE_ZEROES);
        if writes && namespace.is_read_only() {
            return Err(status::NAMESPACE_WRITE_PROTECTED);
        }
        let fua = command.fua;
        let through = fua || (namespace.geometry.volatile_write_cache && !self.association.write_cache());
        let len = || check_len(namespace, range, self.association.options.transfer_len_max);
        let len_without_data = || check_len(namespace, range, BLOCKS_LEN_MAX);
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
            NvmOpcode::VERIFY => {
                len_without_data()?;
                from_medium(namespace, fua, range, FromMedium::Verify, Transfer::None)
            }
            NvmOpcode::WRITE => {
                let len = len()?;
                let transfer = data::from_host(sqe, len, Fit::Exact, in_capsule_len)?;
                let kind = IoKind::Write { bytes: len.into() };
                block(device, BlockWork::Write { range, fua: through }, transfer, kind)
            }
            _ => {
                len_without_data()?;
                let work = BlockWork::WriteZeroes { range, deallocate: command.deallocate, fua: through };
                block(device, work, Transfer::None, IoKind::Plain(Direction::Write))
            }
        })
    }

    fn dataset_management(&self, sqe: &Sqe, in_capsule_len: usize) -> Outcome {
        let namespace = self.namespace(sqe.nsid(), Need::Write)?;
        // Without "deallocate" the ranges are hints about future access. They are taken and checked all the same: hosts
        // take a success before their data were fetched for a fault of the target.
        let DatasetManagement { ranges: count, deallocate, .. } = DatasetManagement::parse(sqe);
        if deallocate && namespace.is_read_only() {
            return Err(status::NAMESPACE_WRITE_PROTECTED);
        }
        let len = u32::from(count) * DSM_RANGE_LEN as u32;
        let transfer = data::from_host(sqe, len, Fit::AtLeast, in_capsule_len)?;
        let kind = Kind::Io(IoKind::Ranges { nsid: sqe.nsid(), device: namespace.device, count, deallocate });
        Ok(Reply::Execute { kind, work: Work::Parameters, transfer })
    }

    /// The data that a command asked for.
    pub(crate) fn on_parameters(&self, kind: &IoKind, parameters: &[u8]) -> Outcome {
        match kind {
            IoKind::Reservation(pulled) => pulled.ask(&self.association, parameters),
            IoKind::CopyRanges(copying) => self.copy_ranges(copying, parameters),
            kind => self.on_ranges(kind, parameters),
        }
    }

    /// The ranges of a Dataset Management command.
    fn on_ranges(&self, kind: &IoKind, parameters: &[u8]) -> Outcome {
        let &IoKind::Ranges { nsid, device, count, deallocate } = kind else {
            panic!("parameters for an I/O command that asked for none: {kind:?}");
        };
        let count = usize::from(count);
        assert_eq!(parameters.len(), count * DSM_RANGE_LEN, "parameters of a Dataset Management command");
        // The namespace may have been removed or replaced during the transfer.
        let namespace = self.namespace(nsid, Need::Write)?;
        if namespace.device != device {
            return Err(status::INVALID_NAMESPACE);
        }
        let mut ranges = Vec::with_capacity(count.min(DSM_RANGES_MAX));
        let mut blocks_left = u64::from(DSM_BLOCKS_MAX);
        for (bytes, at) in parameters.chunks_exact(DSM_RANGE_LEN).zip(0usize..) {
            let Ok(range) = DsmRange::read_from_bytes(bytes) else { return Err(status::INVALID_FIELD) };
            let range = check_range(namespace, range.slba.get(), range.blocks.get())?;
            // What is beyond DMRL, DMRSL and DMSL is not processed, which is no error.
            let (range, _) = range.split_at(if at < usize::from(DMRL) { blocks_left } else { 0 });
            if range.blocks > 0 {
                blocks_left -= range.blocks;
                ranges.push(range);
            }
        }
        if ranges.is_empty() || !deallocate {
            return Ok(Reply::Done(0));
        }
        let work = BlockWork::Deallocate(ranges.into_boxed_slice());
        Ok(block(namespace.device, work, Transfer::None, IoKind::Plain(Direction::Write)))
    }

    /// An operation of the device completed.
    pub(crate) fn on_done(&mut self, now: Duration, kind: IoKind, result: Result<(), BlockError>) -> Outcome {
        if let Err(error) = result {
            self.count_error(error);
            return Err(status::of_block_error(error, kind.direction()));
        }
        match kind {
            IoKind::AfterFlush(flushed) => {
                let AfterFlush { device, range, then, transfer } = *flushed;
                return Ok(block(device, then.work(range), transfer, then.kind()));
            }
            IoKind::Read { bytes } => self.tally.on_read(now, bytes),
            IoKind::Write { bytes } => self.tally.on_write(now, bytes),
            IoKind::Plain(_) => {}
            IoKind::Ranges { .. }
            | IoKind::CopyRanges(_)
            | IoKind::Reservation(_)
            | IoKind::FusedData { .. } => {
                panic!("parameters were reported as done")
            }
            IoKind::Fused(_) => panic!("a fused operation was reported as a command"),
        }
        if self.tally.commands >= TALLY_COMMANDS {
            self.publish_tally();
        }
        Ok(Reply::Done(0))
    }

    fn count_error(&self, error: BlockError) {
        let is_medium = match error {
            BlockError::Device(status) => status >> 8 & 7 == Status::UNRECOVERED_READ_ERROR.sct().into(),
            other => matches!(other, BlockError::Medium | BlockError::NotCompared),
        };
        if is_medium {
            self.association.counters.media_errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// When [`Io::on_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        self.tally.due
    }

    pub(crate) fn on_timeout(&mut self, now: Duration) {
        if self.tally.due.is_some_and(|due| due <= now) {
            self.publish_tally();
        }
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
    fn on_command(&mut self, now: Duration) {
        self.commands += 1;
        self.due.get_or_insert(now.saturating_add(TALLY_TIME));
    }

    fn on_read(&mut self, now: Duration, bytes: u64) {
        self.on_command(now);
        self.reads += 1;
        self.bytes_read += bytes;
    }

    fn on_write(&mut self, now: Duration, bytes: u64) {
        self.on_command(now);
        self.writes += 1;
        self.bytes_written += bytes;
    }
}

impl IoKind {
    fn direction(&self) -> Direction {
        match self {
            // Only commands that read flush first; and hints change nothing.
            Self::Read { .. } | Self::AfterFlush(_) | Self::Ranges { deallocate: false, .. } => {
                Direction::Read
            }
            Self::Write { .. }
            | Self::Ranges { .. }
            | Self::CopyRanges(_)
            | Self::FusedData { .. }
            | Self::Reservation(_)
            | Self::Fused(_) => Direction::Write,
            Self::Plain(direction) => *direction,
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

/// A command that reads. With force unit access it returns what is on the medium, so the volatile cache is flushed
/// first.
fn from_medium(
    namespace: &NamespaceDefinition,
    fua: bool,
    range: BlockRange,
    then: FromMedium,
    transfer: Transfer,
) -> Reply {
    let device = namespace.device;
    if fua && namespace.geometry.volatile_write_cache {
        let kind = IoKind::AfterFlush(Box::new(AfterFlush { device, range, then, transfer }));
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

/// Bytes of `range`, at most `max`.
fn check_len(namespace: &NamespaceDefinition, range: BlockRange, max: u32) -> Result<u32, Status> {
    let bytes = range.blocks.checked_mul(namespace.geometry.block_size.into());
    let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok());
    bytes.filter(|&bytes| bytes <= max).ok_or(status::INVALID_FIELD)
}
