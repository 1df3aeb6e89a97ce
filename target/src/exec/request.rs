//! A command under way, and the chunks that its data travel in.
//!
//! ```text
//!             ┌──────────── on_done gives another Execute ───────────┐
//!             ▼                                                      │
//! Free ─► (AwaitLimit) ─► Executing ◄─► AwaitBuffer ─► (all chunks through) ─► Responding ─► Free
//!
//! a chunk:  Idle ─► Pulling ─► Executing ──────────────────────────────────────► Idle     from the host
//!           Idle ─► Executing ────────────────────────► AwaitPush ──► Pushing ─► Idle     to the host
//!           Idle ───────────────────────────────────────────────────► Pushing ─► Idle     to the host, borrowed
//! ```
//!
//! Chunks of one command go their ways side by side: one is on the disk while another is on the wire. A capsule that
//! waits for a request is not here yet: its queue holds it (`received`).

use super::buffers::{Buffer, slot};
use super::share::Sharing;
use super::transport::Piece;
use crate::barrier::Scope;
use crate::limits::CHUNKS_MAX;
use crate::metrics::meter::Footprint;
use nvme_proto::{Nsid, Status};
use nvmf_block::{BlockError, BlockOp, BlockRange, DeviceId};
use nvmf_subsystem::step::copy_piece;
use nvmf_subsystem::{Association, BlockWork, CopySource, Remote, Ticket, Transfer, Work};

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestState {
    /// No command has it.
    Free,
    /// Its next chunk waits for a buffer, or for a pull to use it with; chunks that have theirs go on.
    AwaitBuffer,
    /// It has not begun: a limit of its host or namespace holds it back.
    AwaitLimit,
    /// Its chunks are under way.
    Executing,
    /// The control plane has its question of this number.
    Asking(u64),
    /// Its response is posted.
    Responding,
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nowhere.
    Idle,
    /// Being fetched from the host.
    Pulling,
    /// On the storage backend.
    Executing,
    /// Waits for its turn to be pushed.
    AwaitPush,
    /// On its way to the host; its end arrives by itself.
    Pushing,
    /// On its way to the host without a signal: the response behind it stands for both.
    PushingUnsignaled,
}

/// What a command fails with that is no error of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Its data were damaged on their way from the host.
    Damaged,
    /// A barrier came behind it, and it is not let in any more.
    Refused(Status),
}

/// A piece of a command's data.
#[derive(Debug)]
pub struct Chunk {
    /// Where it is.
    pub stage: Stage,
    /// What it travels in; `None` when it needs none of ours.
    pub buffer: Option<Buffer>,
    /// Bytes from the start of the command's data.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// When it came to its stage, in microseconds.
    pub since_us: u64,
    /// Of a Copy: it is being read, and will be written.
    pub reading: bool,
}

/// A command under way.
#[derive(Debug)]
pub struct Request<C> {
    /// Where it is.
    pub state: RequestState,
    /// To be handed back to the engine.
    pub ticket: Option<Ticket>,
    /// What the engine wants.
    pub work: Option<Work>,
    /// With which data.
    pub transfer: Transfer,
    /// The capsule, while its data are in use.
    pub capsule: Option<C>,
    /// The command's identifier.
    pub cid: u16,
    /// The namespace that it names.
    pub nsid: Nsid,
    /// Which barriers it comes after.
    pub epoch: u64,
    /// What it fails with when it would go to a device: a barrier that named it came before.
    pub condemned: Option<Status>,
    /// Operations that change a device and were given to it, or wait for that.
    pub changes: u32,
    /// Bytes of data to the host that were pushed.
    pub pushed: u32,
    /// How far the chunks were handed out: bytes; ranges of a deallocation; 0 or 1 for work without data.
    pub next: u32,
    /// Where that ends.
    pub end: u32,
    /// The first error.
    pub result: Result<(), BlockError>,
    /// Why the engine is told of something else than `result`.
    pub failure: Option<Failure>,
    /// When its next chunk began to wait for a buffer, in microseconds.
    pub waits_since_us: u64,
    /// What is measured.
    pub footprint: Footprint,
    /// Of a Copy: whether what comes next is to be shared.
    pub sharing: Sharing,
    /// The chunks.
    pub chunks: [Chunk; CHUNKS_MAX],
}

impl<C> Request<C> {
    /// One that is free.
    #[must_use]
    pub fn new() -> Self {
        let chunk =
            || Chunk { stage: Stage::Idle, buffer: None, offset: 0, len: 0, since_us: 0, reading: false };
        Self {
            state: RequestState::Free,
            ticket: None,
            work: None,
            transfer: Transfer::None,
            capsule: None,
            cid: 0,
            nsid: Nsid(0),
            epoch: 0,
            condemned: None,
            changes: 0,
            pushed: 0,
            next: 0,
            end: 0,
            result: Ok(()),
            failure: None,
            waits_since_us: 0,
            footprint: Footprint::default(),
            sharing: Sharing::Never,
            chunks: std::array::from_fn(|_| chunk()),
        }
    }

    /// Takes in what the engine wants.
    pub fn begin(&mut self, ticket: Ticket, work: Work, transfer: Transfer) {
        self.end = match (&transfer, &work) {
            (Transfer::FromHost { len, .. } | Transfer::ToHost { len, .. }, _) => *len,
            (Transfer::None, Work::Block { op: BlockWork::Deallocate(ranges), .. }) => {
                u32::try_from(ranges.len()).expect("at most 256 ranges")
            }
            (Transfer::None, Work::Block { op: BlockWork::CompareAndWrite(work), .. }) => {
                u32::try_from(work.data.len()).expect("two blocks")
            }
            (Transfer::None, Work::Block { op: BlockWork::Copy(copy), .. }) => {
                u32::try_from(copy.to.blocks * u64::from(copy.block_size)).expect("the engine bounds it")
            }
            (Transfer::None, Work::Block { .. }) => 1,
            (Transfer::None, Work::Parameters | Work::Page(_)) => 0,
        };
        if let Work::Block { device, .. } = &work {
            self.footprint.on_work(slot(*device), transfer.len());
        }
        self.sharing = match &work {
            Work::Block { op: BlockWork::Copy(_), .. } => Sharing::From(0),
            _ => Sharing::Never,
        };
        self.next = 0;
        self.pushed = 0;
        self.result = Ok(());
        self.failure = None;
        self.changes = 0;
        self.state = RequestState::Executing;
        self.ticket = Some(ticket);
        self.work = Some(work);
        self.transfer = transfer;
    }

    /// Waits for the control plane.
    pub fn ask(&mut self, ticket: Ticket, serial: u64) {
        (self.work, self.transfer) = (None, Transfer::None);
        self.ticket = Some(ticket);
        self.state = RequestState::Asking(serial);
    }

    /// The ticket, if it waits for the answer to that question.
    pub fn answered(&mut self, serial: u64) -> Option<Ticket> {
        self.ticket.take_if(|_| self.state == RequestState::Asking(serial))
    }

    /// Whether a barrier waits for it: a device has a part of it, or the control plane has its question. What is not on
    /// a device yet is checked again before it gets there, and may take its time.
    #[must_use]
    pub fn holds_barriers(&self, gone: bool) -> bool {
        let asks = matches!(self.state, RequestState::Asking(_)) && !gone;
        asks || self.chunks.iter().any(|chunk| chunk.stage == Stage::Executing)
    }

    /// Whether a barrier names it, as a command for this device: by that, or by one that it reads from.
    #[must_use]
    pub fn is_named(&self, scope: &Scope, association: &Association, device: Option<DeviceId>) -> bool {
        scope.names(association, device)
            || self.sources().any(|source| scope.names(association, Some(source)))
    }

    /// Whether it has no data to transfer, and needs a buffer all the same.
    #[must_use]
    pub fn buffers_by_itself(&self) -> bool {
        let Some(Work::Block { op, .. }) = &self.work else { return false };
        matches!(op, BlockWork::CompareAndWrite(_) | BlockWork::Copy(_))
    }

    /// The devices that a Copy reads from.
    pub fn sources(&self) -> impl Iterator<Item = DeviceId> {
        let sources = match &self.work {
            Some(Work::Block { op: BlockWork::Copy(copy), .. }) => &copy.sources[..],
            _ => &[],
        };
        sources.iter().map(|source| source.device)
    }

    /// The device and the blocks that a chunk of a Copy is read from, and the blocks that it is written to.
    #[must_use]
    pub fn copy(&self, offset: u32) -> Option<(CopySource, BlockRange)> {
        match &self.work {
            Some(Work::Block { op: BlockWork::Copy(copy), .. }) => {
                copy_piece(&copy.sources, copy.to, copy.block_size, offset)
            }
            _ => None,
        }
    }

    /// Bytes of the next chunk, which may be of up to `max`.
    #[must_use]
    pub fn next_len(&self, max: u32) -> u32 {
        let left = (self.end - self.next).min(max);
        match &self.work {
            Some(Work::Block { op: BlockWork::Copy(copy), .. }) => {
                let blocks = self.copy(self.next).map_or(0, |(_, to)| to.blocks);
                let of_range = blocks.saturating_mul(u64::from(copy.block_size));
                let until = match self.sharing {
                    Sharing::From(offset) => offset.saturating_sub(self.next),
                    Sharing::Never | Sharing::UnderWay => u32::MAX,
                };
                left.min(u32::try_from(of_range).unwrap_or(u32::MAX)).min(until)
            }
            _ => left,
        }
    }

    /// A chunk that can be handed out.
    #[must_use]
    pub fn idle_chunk(&self) -> Option<u8> {
        let at = self.chunks.iter().position(|chunk| chunk.stage == Stage::Idle)?;
        u8::try_from(at).ok()
    }

    /// A chunk.
    pub fn chunk(&mut self, chunk: u8) -> &mut Chunk {
        &mut self.chunks[usize::from(chunk)]
    }

    /// Remembers an error. What was not begun is not begun any more.
    pub fn fail(&mut self, error: BlockError) {
        self.result = self.result.and(Err(error));
        self.next = self.end;
    }

    /// The chunk that is to be pushed next, if the device is done with it.
    #[must_use]
    pub fn next_push(&self) -> Option<u8> {
        let next = |chunk: &Chunk| chunk.stage == Stage::AwaitPush && chunk.offset == self.pushed;
        u8::try_from(self.chunks.iter().position(next)?).ok()
    }

    /// Data were damaged on their way from the host. What was not begun is not begun any more.
    pub fn damage(&mut self) {
        self.failure = self.failure.or(Some(Failure::Damaged));
        self.fail(BlockError::Aborted);
    }

    /// A part of it may not go to the device any more. What was not begun is not begun any more.
    pub fn refuse(&mut self, status: Status) {
        if self.result.is_ok() {
            self.failure = Some(Failure::Refused(self.refusal(status)));
        }
        self.fail(BlockError::Aborted);
    }

    /// The status of a command that is refused now. One that says that nothing was done is wrong where a device has been given a part:
    /// the host sends the command again then, and is told why it is refused. That of a preempted host says enough.
    fn refusal(&self, status: Status) -> Status {
        let says_so = status.is(Status::ABORTED_PREEMPT);
        if self.changes > 0 && !says_so { Status::COMMAND_INTERRUPTED } else { status }
    }

    /// Whether all that can still fail is through: what is left are pushes under way, behind which the response can
    /// leave.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == RequestState::Executing
            && self.next >= self.end
            && self
                .chunks
                .iter()
                .all(|chunk| matches!(chunk.stage, Stage::Idle | Stage::Pushing | Stage::PushingUnsignaled))
    }

    /// Whether the response will leave right behind the push of this chunk, which then needs no signal of its own.
    #[must_use]
    pub fn is_last(&self, chunk: u8) -> bool {
        self.state == RequestState::Executing
            && self.next >= self.end
            && self.chunks.iter().enumerate().all(|(at, other)| {
                at == usize::from(chunk)
                    || matches!(other.stage, Stage::Idle | Stage::Pushing | Stage::PushingUnsignaled)
            })
    }

    /// What a chunk is to the transport.
    #[must_use]
    pub fn piece(&self, chunk: u8, remote: Remote) -> Piece {
        let chunk = &self.chunks[usize::from(chunk)];
        let last = chunk.offset + chunk.len == self.end;
        Piece { cid: self.cid, remote, offset: chunk.offset, len: chunk.len, last }
    }

    /// The device that the work is for.
    #[must_use]
    pub fn device(&self) -> Option<DeviceId> {
        match &self.work {
            Some(Work::Block { device, .. }) => Some(*device),
            _ => None,
        }
    }

    /// What a chunk of a read reads: the device, and the blocks.
    #[must_use]
    pub fn block_read(&self, chunk: u8) -> Option<(DeviceId, BlockRange)> {
        let Some(Work::Block { device, op: BlockWork::Read { range } }) = &self.work else { return None };
        let chunk = &self.chunks[usize::from(chunk)];
        Some((*device, self.part(*range, chunk.offset, chunk.len)?))
    }

    /// The operation on the device for `len` units from `offset` on, with `buffer`; `None` when the work is none for
    /// a device.
    #[must_use]
    pub fn block_op(&self, offset: u32, len: u32, buffer: Option<nvmf_block::Buffer>) -> Option<BlockOp> {
        let Some(Work::Block { op, .. }) = &self.work else { return None };
        Some(match op {
            BlockWork::Read { range } => {
                BlockOp::Read { range: self.part(*range, offset, len)?, into: buffer? }
            }
            BlockWork::Write { range, fua } => {
                BlockOp::Write { range: self.part(*range, offset, len)?, from: buffer?, fua: *fua }
            }
            BlockWork::Compare { range } => {
                BlockOp::Compare { range: self.part(*range, offset, len)?, with: buffer? }
            }
            BlockWork::CompareAndWrite(work) => {
                BlockOp::CompareAndWrite { range: work.range, data: buffer?, fua: work.fua }
            }
            // What was read is written.
            BlockWork::Copy(copy) => {
                let range = self.copy(offset)?.1.split_at(u64::from(len / copy.block_size)).0;
                BlockOp::Write { range, from: buffer?, fua: copy.fua }
            }
            BlockWork::Flush => BlockOp::Flush,
            &BlockWork::WriteZeroes { range, deallocate, fua } => {
                BlockOp::WriteZeroes { range, deallocate, fua }
            }
            BlockWork::Deallocate(ranges) => BlockOp::Deallocate { range: *ranges.get(offset as usize)? },
            &BlockWork::Verify { range } => BlockOp::Verify { range },
        })
    }

    /// The blocks of `len` bytes at `offset` of a command that moves `range`.
    fn part(&self, range: BlockRange, offset: u32, len: u32) -> Option<BlockRange> {
        let block = u64::from(self.end).checked_div(range.blocks).filter(|&block| block > 0)?;
        Some(range.split_at(u64::from(offset) / block).1.split_at(u64::from(len) / block).0)
    }
}

impl<C> Default for Request<C> {
    fn default() -> Self {
        Self::new()
    }
}
