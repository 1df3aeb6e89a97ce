//! One operation on a file: which entries it takes, one after the other, and what their results mean.

use super::Ring;
use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use nvmf_block::{BlockError, BlockOp, Buffer};

/// An operation on a file under way. It has at most one entry in the ring at any moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileOperation {
    /// What is to be done.
    op: BlockOp,
    /// The file's place in the ring's table.
    slot: u32,
    /// Where in the file the range begins, in bytes.
    start: u64,
    /// Bytes in the range.
    len: usize,
    /// Bytes done.
    done: usize,
    /// What the entry in the ring does.
    stage: Stage,
    /// Memory of ours for what compares, verifies or writes zeroes by hand.
    bounce: Option<Buffer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Read,
    Write,
    Allocate,
    Sync,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another entry.
    Continue,
    /// Another entry, once there is a bounce buffer (filled with zeroes if `true`).
    NeedBounce(bool),
    /// It is over.
    Done(Result<(), BlockError>),
}

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

impl FileOperation {
    /// `op`, whose range was checked: `len` bytes from `start` on.
    pub(crate) fn new(op: BlockOp, slot: u32, start: u64, len: usize) -> (Self, Next) {
        let stage = match op {
            BlockOp::Read { .. } | BlockOp::Compare { .. } | BlockOp::Verify { .. } => Stage::Read,
            BlockOp::Write { .. } => Stage::Write,
            BlockOp::Flush => Stage::Sync,
            BlockOp::WriteZeroes { .. } | BlockOp::Deallocate { .. } => Stage::Allocate,
        };
        let next = match op {
            BlockOp::Flush => Next::Continue,
            _ if len == 0 => Next::Done(Ok(())),
            BlockOp::Compare { .. } | BlockOp::Verify { .. } => Next::NeedBounce(false),
            _ => Next::Continue,
        };
        (Self { op, slot, start, len, done: 0, stage, bounce: None }, next)
    }

    pub(crate) fn give_bounce(&mut self, bounce: Buffer) {
        self.bounce = Some(bounce);
    }

    pub(crate) fn bounce(&self) -> Option<Buffer> {
        self.bounce
    }

    /// The part of the buffer, or of the bounce buffer, that the next entry moves.
    fn window(&self) -> Buffer {
        let left = self.len - self.done;
        match (self.bounce, self.op.buffer()) {
            (Some(bounce), _) => Buffer { len: bounce.len.min(left), ..bounce },
            (None, Some(buffer)) => Buffer { offset: buffer.offset + self.done, len: left, ..buffer },
            (None, None) => unreachable!("an operation that moves data has a buffer"),
        }
    }

    /// The next entry.
    pub(crate) fn entry(&self, ring: &Ring) -> Entry {
        let file = types::Fixed(self.slot);
        let at = self.start + self.done as u64;
        match self.stage {
            Stage::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Stage::Allocate => {
                let mode = match self.op {
                    BlockOp::WriteZeroes { deallocate: false, .. } => ZERO_RANGE,
                    _ => PUNCH_HOLE,
                };
                opcode::Fallocate::new(file, self.len as u64).offset(self.start).mode(mode).build()
            }
            Stage::Read | Stage::Write => {
                let Buffer { region, offset, len } = self.window();
                let transfer = ring.transfer(region, offset, len);
                match self.stage {
                    Stage::Read => transfer.read(file, at),
                    _ => transfer.write(file, at, if self.fua() { libc::RWF_DSYNC } else { 0 }),
                }
            }
        }
    }

    fn fua(&self) -> bool {
        matches!(self.op, BlockOp::Write { fua: true, .. } | BlockOp::WriteZeroes { fua: true, .. })
    }

    /// Takes the result of the entry.
    pub(crate) fn on_result(&mut self, result: i32, ring: &Ring) -> Next {
        if matches!(-result, libc::EAGAIN | libc::EINTR) {
            return Next::Continue;
        }
        match self.stage {
            Stage::Sync if result < 0 => Next::Done(Err(block_error(-result))),
            Stage::Sync => Next::Done(Ok(())),
            Stage::Allocate => self.on_allocated(result),
            Stage::Read | Stage::Write => self.on_moved(result, ring),
        }
    }

    fn on_allocated(&mut self, result: i32) -> Next {
        let refused = matches!(-result, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENODEV);
        match self.op {
            // A hint that cannot be followed is followed.
            BlockOp::Deallocate { .. } if refused => Next::Done(Ok(())),
            // The file system cannot zero a range: write the zeroes.
            BlockOp::WriteZeroes { .. } if refused => {
                self.stage = Stage::Write;
                Next::NeedBounce(true)
            }
            _ if result < 0 => Next::Done(Err(block_error(-result))),
            BlockOp::WriteZeroes { fua: true, .. } => {
                self.stage = Stage::Sync;
                Next::Continue
            }
            _ => Next::Done(Ok(())),
        }
    }

    fn on_moved(&mut self, result: i32, ring: &Ring) -> Next {
        let Ok(moved) = usize::try_from(result) else { return Next::Done(Err(block_error(-result))) };
        // Nothing moved, and no error: the file is shorter than it was when it was opened.
        if moved == 0 {
            return Next::Done(Err(BlockError::Medium));
        }
        let moved = moved.min(self.len - self.done);
        if let (BlockOp::Compare { with, .. }, Some(bounce)) = (self.op, self.bounce) {
            let (ours, theirs) = (
                ring.transfer(bounce.region, bounce.offset, moved),
                ring.transfer(with.region, with.offset, with.len),
            );
            if !ours.memory.equals(ours.offset, theirs.memory, theirs.offset + self.done, moved) {
                return Next::Done(Err(BlockError::CompareFailed));
            }
        }
        self.done += moved;
        if self.done == self.len { Next::Done(Ok(())) } else { Next::Continue }
    }
}

/// What an errno of a file operation means for a disk.
fn block_error(errno: i32) -> BlockError {
    match errno {
        libc::EIO | libc::EUCLEAN | libc::ENODATA | libc::EILSEQ => BlockError::Medium,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => BlockError::NoSpace,
        libc::EROFS | libc::EPERM | libc::EBADF => BlockError::ReadOnly,
        libc::EOPNOTSUPP => BlockError::Unsupported,
        libc::ENODEV | libc::ENXIO => BlockError::Gone,
        libc::ECANCELED => BlockError::Aborted,
        other => BlockError::Os(other),
    }
}
