//! An operation on a file, as a sequence of commands to the kernel. It does no I/O itself.

use super::Regions;
use super::nvme::{CODE, Namespace, STATUS};
use crate::disk::{FailedOperation, Failure};
use nvme_proto::nvm::DsmRange;
use nvmf_block::{BlockError, BlockOp, Buffer};
use zerocopy::IntoBytes as _;

/// A command to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Reads from byte `at` of the file.
    Read { at: u64, into: Buffer },
    /// Writes at byte `at` of the file; with `dsync` the data are durable on completion.
    Write { at: u64, from: Buffer, dsync: bool },
    /// Zeroes or deallocates a range, by `mode`.
    Fallocate { at: u64, len: u64, mode: i32 },
    /// Writes the second half of the data at byte `at` of an image if the first half is there.
    CompareAndWrite { at: u64, data: Buffer },
    /// Gives an NVMe drive a list of one range of blocks that are no longer needed.
    Deallocate { list: Buffer },
    /// Makes completed writes durable.
    Fdatasync,
}

/// An operation in progress. It has at most one command in the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileOperation {
    /// The operation.
    op: BlockOp,
    /// The first byte of the range in the file.
    start: u64,
    /// Bytes in the range.
    len: usize,
    /// Bytes done.
    done: usize,
    /// Its writes can be durable by themselves.
    write_through: bool,
    /// Bytes that one command moves at the most.
    command_max: usize,
    /// The block size of an NVMe drive, as a power of two.
    lbads: u8,
    /// It is on an image.
    image: bool,
    /// The kind of the command in the ring.
    stage: Stage,
    /// The bounce buffer, while it has one: for Compare, Verify, zeroes that are written, and a buffer that the
    /// device cannot use.
    bounce: Option<Buffer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Read,
    Write,
    /// Both in one command.
    CompareAndWrite,
    Allocate,
    /// Not in the ring: a thread does it.
    Share,
    Sync,
}

/// The next step of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another command.
    Continue,
    /// Another command, once there is a bounce buffer.
    NeedBounce,
    /// It is complete.
    Done(Result<(), BlockError>),
}

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

impl FileOperation {
    /// `op`, whose range of `len` bytes at `start` was checked. `aligned`: the device can use its buffer.
    /// `write_through`: its writes can be durable by themselves.
    pub(crate) fn new(
        op: BlockOp,
        start: u64,
        len: usize,
        aligned: bool,
        write_through: bool,
    ) -> (Self, Next) {
        let stage = match op {
            BlockOp::Read { .. }
            | BlockOp::Compare { .. }
            | BlockOp::CompareAndWrite { .. }
            | BlockOp::Verify { .. } => Stage::Read,
            BlockOp::Write { .. } => Stage::Write,
            BlockOp::Flush => Stage::Sync,
            BlockOp::WriteZeroes { .. } | BlockOp::Deallocate { .. } => Stage::Allocate,
            BlockOp::Share { .. } => Stage::Share,
        };
        let next = match op {
            BlockOp::Flush => Next::Continue,
            _ if len == 0 => Next::Done(Ok(())),
            BlockOp::Compare { .. } | BlockOp::CompareAndWrite { .. } | BlockOp::Verify { .. } => {
                Next::NeedBounce
            }
            BlockOp::Read { .. } | BlockOp::Write { .. } if !aligned => Next::NeedBounce,
            _ => Next::Continue,
        };
        (
            Self {
                op,
                start,
                len,
                done: 0,
                write_through,
                command_max: usize::MAX,
                lbads: 0,
                image: false,
                stage,
                bounce: None,
            },
            next,
        )
    }

    /// `op` on an NVMe drive.
    pub(crate) fn on_nvme(
        op: BlockOp,
        start: u64,
        len: usize,
        aligned: bool,
        drive: Namespace,
    ) -> (Self, Next) {
        let (mut operation, mut next) = Self::new(op, start, len, aligned, true);
        (operation.command_max, operation.lbads) = (drive.transfer_max, drive.lbads);
        match op {
            // It is only a hint.
            BlockOp::Deallocate { .. } if len as u64 > drive.deallocate_max => next = Next::Done(Ok(())),
            BlockOp::Deallocate { .. } if next == Next::Continue => next = Next::NeedBounce,
            BlockOp::WriteZeroes { .. } if len > drive.zeroes_max => {
                operation.stage = Stage::Write;
                next = Next::NeedBounce;
            }
            _ => {}
        }
        (operation, next)
    }

    /// `op` on an image. `native`: it is a compare-and-write that the image does in one step. `write_through`: what is
    /// written is durable.
    pub(crate) fn on_image(
        op: BlockOp,
        start: u64,
        len: usize,
        native: bool,
        write_through: bool,
    ) -> (Self, Next) {
        let (mut operation, mut next) = Self::new(op, start, len, true, write_through);
        operation.image = true;
        if native && next == Next::NeedBounce {
            operation.stage = Stage::CompareAndWrite;
            next = Next::Continue;
        }
        (operation, next)
    }

    /// What it is.
    pub(crate) fn op(&self) -> BlockOp {
        self.op
    }

    /// Gives it a bounce buffer, and fills that with the data to be written next.
    pub(crate) fn give_bounce(&mut self, bounce: Buffer, regions: &Regions) {
        self.bounce = Some(bounce);
        match self.op {
            BlockOp::WriteZeroes { .. } => regions.memory(bounce.region).fill(bounce.offset, bounce.len, 0),
            BlockOp::Deallocate { .. } => {
                let range = DsmRange::new(self.start >> self.lbads, (self.len >> self.lbads) as u32);
                regions.memory(bounce.region).write(bounce.offset, range.as_bytes());
            }
            _ => self.fill_bounce(regions),
        }
    }

    /// Takes the bounce buffer away. It needs another one for its next command.
    pub(crate) fn take_bounce(&mut self) {
        self.bounce = None;
    }

    /// Copies the data to be written next into the bounce buffer.
    fn fill_bounce(&self, regions: &Regions) {
        let (from, skipped) = match self.op {
            BlockOp::Write { from, .. } => (from, 0),
            // Behind the expected bytes.
            BlockOp::CompareAndWrite { data, .. } if self.stage == Stage::Write => (data, self.len),
            _ => return,
        };
        if self.bounce.is_some() {
            let to = self.window();
            let memory = regions.memory(from.region);
            memory.copy_to(from.offset + skipped + self.done, regions.memory(to.region), to.offset, to.len);
        }
    }

    /// The part of the buffer or bounce buffer that the next command uses.
    fn window(&self) -> Buffer {
        let left = (self.len - self.done).min(self.command_max);
        match (self.bounce, self.op.buffer()) {
            (Some(bounce), _) => Buffer { len: bounce.len.min(left), ..bounce },
            (None, Some(buffer)) => Buffer { offset: buffer.offset + self.done, len: left, ..buffer },
            (None, None) => unreachable!("an operation that moves data has a buffer"),
        }
    }

    /// The next command.
    pub(crate) fn command(&self) -> Command {
        let at = self.start + self.done as u64;
        match self.stage {
            Stage::Sync => Command::Fdatasync,
            Stage::Share => unreachable!("a thread does it"),
            Stage::Allocate => {
                let mode = match (self.op, self.bounce) {
                    (BlockOp::Deallocate { .. }, Some(bounce)) => {
                        // As long as a list may be: some drives fetch that much whatever the command says.
                        let len = bounce.len.min(256 * DsmRange::LEN);
                        return Command::Deallocate { list: Buffer { len, ..bounce } };
                    }
                    (BlockOp::WriteZeroes { deallocate: false, .. }, _) => ZERO_RANGE,
                    _ => PUNCH_HOLE,
                };
                Command::Fallocate { at: self.start, len: self.len as u64, mode }
            }
            Stage::Read => Command::Read { at, into: self.window() },
            Stage::Write => Command::Write { at, from: self.window(), dsync: self.dsync() },
            Stage::CompareAndWrite => {
                let data = self.op.buffer().expect("a compare-and-write has a buffer");
                Command::CompareAndWrite { at: self.start, data }
            }
        }
    }

    fn fua(&self) -> bool {
        self.op.makes_durable() && self.op.writes()
    }

    /// Whether its writes are durable by themselves. Otherwise a sync follows them.
    fn dsync(&self) -> bool {
        self.fua() && self.write_through
    }

    /// Whether its command in the ring, or its next, is a sync.
    pub(crate) fn is_syncing(&self) -> bool {
        self.stage == Stage::Sync
    }

    /// Whether a thread makes it share blocks now, or is to.
    pub(crate) fn is_sharing(&self) -> bool {
        self.stage == Stage::Share
    }

    /// As [`BlockOp::makes_durable`].
    pub(crate) fn makes_durable(&self) -> bool {
        self.op.makes_durable()
    }

    pub(crate) fn has_bounce(&self) -> bool {
        self.bounce.is_some()
    }

    /// The failure to record if the command in the ring has this result.
    pub(crate) fn failure(&self, result: i32) -> Failure {
        let operation = match self.stage {
            Stage::Read => FailedOperation::Read,
            Stage::Write | Stage::CompareAndWrite | Stage::Share => FailedOperation::Write,
            Stage::Allocate => FailedOperation::Allocate,
            Stage::Sync => FailedOperation::Flush,
        };
        Failure { operation, byte: self.start + self.done as u64, errno: -result.min(0) }
    }

    /// Whether acknowledged writes may be lost when the last command failed with `error`. After a failed `fdatasync`
    /// they may be. A durable write of a device contains one, and does not tell which part failed; but errors like "no
    /// space" come from the write itself.
    pub(crate) fn may_lose_cache(&self, error: BlockError) -> bool {
        match self.stage {
            // All that was acknowledged is with the cluster.
            _ if self.image && self.write_through => false,
            Stage::Sync => error != BlockError::Aborted,
            Stage::Write => self.dsync() && matches!(error, BlockError::Medium | BlockError::Os(_)),
            Stage::Read | Stage::Allocate | Stage::CompareAndWrite | Stage::Share => false,
        }
    }

    /// Processes the result of the command.
    pub(crate) fn on_result(&mut self, result: i32, regions: &Regions) -> Next {
        if is_interrupted(result) {
            return Next::Continue;
        }
        match self.stage {
            Stage::Sync if result < 0 => Next::Done(Err(self.error(-result))),
            Stage::Sync => Next::Done(Ok(())),
            Stage::Allocate => self.on_allocated(result),
            // Whatever it is: reading and writing shows whether that stays so.
            Stage::Share if result < 0 => Next::Done(Err(BlockError::Unsupported)),
            Stage::Share if self.fua() => {
                self.stage = Stage::Sync;
                Next::Continue
            }
            Stage::CompareAndWrite if result == -libc::EILSEQ => Next::Done(Err(BlockError::CompareFailed)),
            Stage::CompareAndWrite if result < 0 => Next::Done(Err(self.error(-result))),
            Stage::CompareAndWrite if self.fua() && !self.dsync() => {
                self.stage = Stage::Sync;
                Next::Continue
            }
            Stage::Share | Stage::CompareAndWrite => Next::Done(Ok(())),
            Stage::Read | Stage::Write => self.on_moved(result, regions),
        }
    }

    /// Translates the errno of the command.
    fn error(&self, errno: i32) -> BlockError {
        match errno {
            // Fenced; or the lock of the image is another client's.
            libc::ESHUTDOWN | libc::ENOTCONN | libc::EROFS if self.image => BlockError::Path,
            libc::ENOENT if self.image => BlockError::Gone,
            errno => block_error(errno),
        }
    }

    fn on_allocated(&mut self, result: i32) -> Next {
        let status = (-result >= STATUS).then(|| (-result - STATUS) & CODE);
        let refused = matches!(status, Some(INVALID_OPCODE | INVALID_FIELD))
            || matches!(-result, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENODEV);
        match self.op {
            // It is only a hint.
            BlockOp::Deallocate { .. } if refused => Next::Done(Ok(())),
            // The file system cannot zero a range, so zeroes are written.
            BlockOp::WriteZeroes { .. } if refused => {
                self.stage = Stage::Write;
                Next::NeedBounce
            }
            _ if result < 0 => Next::Done(Err(self.error(-result))),
            BlockOp::WriteZeroes { fua: true, .. } => {
                self.stage = Stage::Sync;
                Next::Continue
            }
            _ => Next::Done(Ok(())),
        }
    }

    fn on_moved(&mut self, result: i32, regions: &Regions) -> Next {
        let failed = |error| {
            let compares = matches!(self.op, BlockOp::CompareAndWrite { .. }) && self.stage == Stage::Read;
            let error = if compares && error != BlockError::Path { BlockError::NotCompared } else { error };
            Next::Done(Err(error))
        };
        let Ok(moved) = usize::try_from(result) else { return failed(self.error(-result)) };
        // No data and no error: the file is shorter than it was when it was opened.
        if moved == 0 {
            return failed(BlockError::Medium);
        }
        let moved = moved.min(self.len - self.done);
        if let Some(bounce) = self.bounce {
            let ours = regions.memory(bounce.region);
            let theirs = |buffer: Buffer| (regions.memory(buffer.region), buffer.offset + self.done);
            match self.op {
                BlockOp::Compare { with, .. } | BlockOp::CompareAndWrite { data: with, .. }
                    if self.stage == Stage::Read =>
                {
                    let (memory, offset) = theirs(with);
                    if !ours.equals(bounce.offset, memory, offset, moved) {
                        return Next::Done(Err(BlockError::CompareFailed));
                    }
                }
                BlockOp::Read { into, .. } => {
                    let (memory, offset) = theirs(into);
                    ours.copy_to(bounce.offset, memory, offset, moved);
                }
                _ => {}
            }
        }
        self.done += moved;
        if self.done == self.len && self.stage == Stage::Read && self.op.writes() {
            (self.stage, self.done) = (Stage::Write, 0);
            self.fill_bounce(regions);
            return Next::Continue;
        }
        if self.done == self.len && self.fua() && !self.dsync() {
            self.stage = Stage::Sync;
            return Next::Continue;
        }
        if self.done == self.len {
            return Next::Done(Ok(()));
        }
        self.fill_bounce(regions);
        Next::Continue
    }
}

/// Of a drive's status: it is not to be tried again.
const DNR: i32 = 1 << 14;
const INVALID_OPCODE: i32 = 1;
const INVALID_FIELD: i32 = 2;

/// Whether the command is to be issued again.
pub(crate) fn is_interrupted(result: i32) -> bool {
    matches!(-result, libc::EAGAIN | libc::EINTR)
}

/// Translates the errno of a file operation.
fn block_error(errno: i32) -> BlockError {
    match errno {
        libc::EIO | libc::EUCLEAN | libc::ENODATA | libc::EILSEQ => BlockError::Medium,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => BlockError::NoSpace,
        libc::EROFS | libc::EPERM | libc::EBADF => BlockError::ReadOnly,
        libc::EOPNOTSUPP => BlockError::Unsupported,
        libc::ENODEV | libc::ENXIO => BlockError::Gone,
        libc::ECANCELED => BlockError::Aborted,
        // Of a reservation that another machine has of the device.
        libc::EBADE => BlockError::ReservationConflict,
        // What is more about it than this is the drive's: its retry delays, its error log.
        STATUS.. => BlockError::Device(((errno - STATUS) & (CODE | DNR)) as u16),
        other => BlockError::Os(other),
    }
}

#[cfg(test)]
mod tests;
