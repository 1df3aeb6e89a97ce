//! One request: checked, and turned into operations.

use super::disk::DiskInfo;
use super::pool::{self, Chain, Part, Pool};
use crate::attach::errno::errno;
use nbd_proto::{self as wire, Command, Errno, Request};
use nvmf_block::{BlockError, BlockOp, BlockRange};

/// Steps that a request may have: the operations of one begin when those of the last have ended.
pub(super) const STEPS: u8 = 2;

/// A request that was received, until its reply has left.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) client: u32,
    pub(super) request: Request,
    /// How it ended, so far.
    pub(super) errno: Errno,
    /// The data, beginning with the block in which they begin.
    pub(super) data: Option<Chain>,
    /// The blocks at the ends of which only a part is written, where there are such.
    pub(super) edges: Option<Chain>,
    /// What it takes of its client's budget.
    pub(super) units: u32,
    pub(super) has_begun: bool,
    /// The next step.
    pub(super) step: u8,
    /// Operations of the last step that have not ended.
    pub(super) pending: u32,
}

/// The range of a request, in bytes. Blocks are a power of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    start: u64,
    end: u64,
    block: u64,
}

impl Extent {
    /// The range of a request that was checked.
    pub(super) fn new(request: &Request, disk: &DiskInfo) -> Self {
        let start = request.offset;
        Self { start, end: start + u64::from(request.len), block: disk.block_size.into() }
    }

    /// Where the block begins that has this byte.
    fn floor(&self, at: u64) -> u64 {
        at & !(self.block - 1)
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where the first block begins.
    fn first(&self) -> u64 {
        self.floor(self.start)
    }

    /// Where the request begins in its first block.
    pub(super) fn displacement(&self) -> usize {
        (self.start - self.first()) as usize
    }

    /// Bytes of all its blocks.
    fn blocks_len(&self) -> usize {
        if self.is_empty() { 0 } else { (self.floor(self.end - 1) + self.block - self.first()) as usize }
    }

    /// The blocks that it covers as a whole: from where to where.
    fn whole(&self) -> (u64, u64) {
        let (start, end) = (self.first(), self.floor(self.end));
        let start = if start < self.start { start + self.block } else { start };
        (start, end.max(start))
    }

    /// Where the blocks begin that it covers in part: at its begin and at its end.
    fn edges(&self) -> [Option<u64>; 2] {
        if self.is_empty() {
            return [None; 2];
        }
        let (first, last) = (self.first(), self.floor(self.end));
        let head = (first < self.start).then_some(first);
        let tail = (last < self.end && (last > first || head.is_none())).then_some(last);
        [head, tail]
    }

    /// Blocks of the request's data.
    fn data(&self, chain: Chain, start: u64, len: usize) -> Blocks {
        Blocks { start, len, chain, at: (start - self.first()) as usize }
    }

    /// The blocks that it covers in part, and where they are read to.
    fn edge_blocks(&self, chain: Chain) -> impl Iterator<Item = Blocks> + use<> {
        let len = self.block as usize;
        let place = move |(index, start): (usize, Option<u64>)| {
            Some(Blocks { start: start?, len, chain, at: index * len })
        };
        self.edges().into_iter().enumerate().filter_map(place)
    }

    fn range(&self, start: u64, len: u64) -> BlockRange {
        let shift = self.block.trailing_zeros();
        BlockRange::new(start >> shift, len >> shift)
    }
}

/// Blocks in a row and their memory, in bytes.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    start: u64,
    len: usize,
    chain: Chain,
    at: usize,
}

impl Blocks {
    /// An operation for each piece of memory.
    fn operations(
        &self,
        extent: &Extent,
        pool: &Pool,
        operation: impl Fn(BlockRange, Part<'_>) -> BlockOp,
        mut each: impl FnMut(BlockOp),
    ) {
        let mut start = self.start;
        for part in pool.parts(self.chain, self.at, self.len) {
            let len = part.buffer.len as u64;
            each(operation(extent.range(start, len), part));
            start += len;
        }
    }
}

/// Whether a request can be carried out at all.
fn check(request: &Request, disk: &DiskInfo) -> Errno {
    let inside = request.offset.checked_add(u64::from(request.len)).is_some_and(|end| end <= disk.bytes);
    let known_flags = match request.command {
        Command::WriteZeroes => wire::command_flag::FUA | wire::command_flag::NO_HOLE,
        Command::Read => wire::command_flag::FUA | wire::command_flag::DF,
        Command::BlockStatus => wire::command_flag::FUA | wire::command_flag::REQ_ONE,
        _ => wire::command_flag::FUA,
    };
    match request.command {
        _ if request.flags & !known_flags != 0 => Errno::EINVAL,
        Command::Flush => Errno::OK,
        Command::Write | Command::Trim | Command::WriteZeroes if disk.read_only => Errno::EPERM,
        Command::Write | Command::WriteZeroes if !inside => Errno::ENOSPC,
        Command::Read if request.len > wire::REQUEST_LEN_MAX => Errno::EINVAL,
        Command::Trim if !disk.trim => Errno::ENOTSUP,
        Command::WriteZeroes if !disk.write_zeroes => Errno::ENOTSUP,
        Command::BlockStatus if request.len == 0 => Errno::EINVAL,
        // Nothing is kept here: the hint to read ahead is taken, and has no effect.
        Command::Read
        | Command::Write
        | Command::Trim
        | Command::WriteZeroes
        | Command::Cache
        | Command::BlockStatus
            if inside =>
        {
            Errno::OK
        }
        _ => Errno::EINVAL,
    }
}

/// What a request needs to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// Why it is refused; it needs nothing then.
    pub(super) errno: Errno,
    /// Bytes of memory for its data, and for blocks of which it changes a part.
    pub(super) data: usize,
    pub(super) edges: usize,
    /// What it takes of its client's budget.
    pub(super) units: u32,
}

impl Need {
    pub(super) fn of(request: &Request, disk: &DiskInfo) -> Self {
        let errno = check(request, disk);
        let (mut data, mut edges) = (0, 0);
        if errno == Errno::OK
            && matches!(
                request.command,
                Command::Read | Command::Write | Command::WriteZeroes | Command::BlockStatus
            )
        {
            let extent = Extent::new(request, disk);
            if request.command != Command::WriteZeroes {
                data = extent.blocks_len();
            }
            if matches!(request.command, Command::Write | Command::WriteZeroes) && extent.edges() != [None; 2]
            {
                edges = 2 * disk.block_size as usize;
            }
        }
        let units = [data, edges].into_iter().filter(|len| *len > 0).map(pool::units).sum::<u32>();
        Self { errno, data, edges, units: units.max(1) }
    }
}

impl UnderWay {
    /// The operations of its next step, if it has any. What they write is made ready before.
    pub(super) fn operations(&self, disk: &DiskInfo, pool: &Pool, mut each: impl FnMut(BlockOp)) {
        let request = &self.request;
        let fua = request.fua();
        // A flush has no range: what stands there means nothing.
        if request.command == Command::Flush {
            if self.step == 0 {
                each(BlockOp::Flush);
            }
            return;
        }
        let extent = Extent::new(request, disk);
        let (start, end) = extent.whole();
        let read = |range, part: Part<'_>| BlockOp::Read { range, into: part.buffer };
        let write = |range, part: Part<'_>| BlockOp::Write { range, from: part.buffer, fua };
        match (request.command, self.edges, self.step) {
            (Command::Read | Command::BlockStatus, _, 0) => {
                if let Some(data) = self.data {
                    let all = extent.data(data, extent.first(), extent.blocks_len());
                    all.operations(&extent, pool, read, &mut each);
                }
            }
            (Command::Write | Command::WriteZeroes, Some(edges), 0) => {
                extent.edge_blocks(edges).for_each(|edge| edge.operations(&extent, pool, read, &mut each));
            }
            (Command::Write | Command::WriteZeroes, edges, step) if step == u8::from(edges.is_some()) => {
                for edge in edges.into_iter().flat_map(|edges| extent.edge_blocks(edges)) {
                    self.change(&extent, pool, &edge);
                    edge.operations(&extent, pool, write, &mut each);
                }
                match self.data {
                    Some(data) => {
                        let whole = extent.data(data, start, (end - start) as usize);
                        whole.operations(&extent, pool, write, &mut each);
                    }
                    None if start < end => {
                        let range = extent.range(start, end - start);
                        each(BlockOp::WriteZeroes { range, deallocate: !request.no_hole(), fua });
                    }
                    None => {}
                }
            }
            // What was trimmed may be anything afterwards, so the parts of blocks at its ends may as well stay.
            (Command::Trim, _, 0) if start < end => {
                each(BlockOp::Deallocate { range: extent.range(start, end - start) });
            }
            (Command::Trim, _, 1) if fua => each(BlockOp::Flush),
            _ => {}
        }
    }

    /// Changes the part of a block that is the request's. The block was read to its memory.
    fn change(&self, extent: &Extent, pool: &Pool, block: &Blocks) {
        let from = extent.start.max(block.start);
        let len = (extent.end.min(block.start + extent.block) - from) as usize;
        let at = block.at + (from - block.start) as usize;
        // Neither a block nor a part of it lies in two slots.
        let Some(to) = pool.parts(block.chain, at, len).next() else { return };
        match self.data.and_then(|data| pool.parts(data, (from - extent.first()) as usize, len).next()) {
            Some(part) => part.memory.copy_to(part.buffer.offset, to.memory, to.buffer.offset, len),
            None => to.memory.fill(to.buffer.offset, len, 0),
        }
    }

    /// Where the data of its reply lie.
    pub(super) fn reply_data<'a>(&self, disk: &DiskInfo, pool: &'a Pool) -> impl Iterator<Item = Part<'a>> {
        let reads = matches!(self.request.command, Command::Read | Command::BlockStatus);
        let data = self.data.filter(|_| self.errno == Errno::OK && reads);
        let displacement = data.map_or(0, |_| Extent::new(&self.request, disk).displacement());
        let len = self.request.len as usize;
        data.into_iter().flat_map(move |data| pool.parts(data, displacement, len))
    }

    /// The first piece of its data's memory, from its begin and as far as it certainly goes.
    pub(super) fn memory<'a>(&self, pool: &'a Pool) -> Option<Part<'a>> {
        self.data.and_then(|data| pool.parts(data, 0, pool::UNIT_LEN).next())
    }

    /// An operation of it has ended.
    pub(super) fn on_result(&mut self, result: Result<(), BlockError>) {
        self.pending -= 1;
        if let (Err(error), Errno::OK) = (result, self.errno) {
            self.errno = reply_errno(error);
        }
    }
}

/// Why an operation failed, in the protocol's few numbers.
fn reply_errno(error: BlockError) -> Errno {
    match errno(error) {
        nix::errno::Errno::EINVAL => Errno::EINVAL,
        nix::errno::Errno::EROFS => Errno::EPERM,
        nix::errno::Errno::ENOSPC => Errno::ENOSPC,
        nix::errno::Errno::ENOMEM => Errno::ENOMEM,
        nix::errno::Errno::EOPNOTSUPP => Errno::ENOTSUP,
        nix::errno::Errno::ENOLINK => Errno::ESHUTDOWN,
        _ => Errno::EIO,
    }
}
