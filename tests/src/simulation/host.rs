//! A simulated host: random operations on its blocks, over one path or two, and the verification of their contents.
//!
//! The paths of a host share its blocks, and nobody else uses these. At most one operation of a block is in flight,
//! on whichever path, so whatever one path was told is what the other has to find: a completed write, the flush that
//! covers it, and the contents that a power cut left. The second path is another association of the same host, or of
//! another host that takes part in the first one's work as members of a cluster do.

use super::network::Network;
use super::oracle::{FlushPoint, Oracle};
use super::path::Path;
use super::plane::Done;
use super::reservation;
use super::rights::{self, Rights};
use super::rng::Rng;
use core::time::Duration;
use nvmf_block::{BlockError, BlockOp, BlockRange, Buffer, Completion, RegionId, Tag};
use nvmf_memory::Memory;

/// Blocks of each host.
pub(super) const BLOCKS: u64 = 48;
/// Distance between the first blocks of two hosts: one unused block follows the blocks of each host.
pub(super) const STRIDE: u64 = BLOCKS + 1;
/// Bytes in a block.
pub(super) const BLOCK: usize = 512;
/// Most operations in flight.
pub(super) const SLOTS: usize = 8;
/// Most blocks of an operation: more than fit into a capsule.
const SPAN: u64 = 24;
/// Bytes of a slot's memory: one block more than the largest operation.
const SLOT_LEN: usize = (SPAN as usize + 1) * BLOCK;
/// Byte that fills the rest of a slot after an operation's buffer.
const GUARD: u8 = 0x6b;
/// The host's memory, on each of its paths.
pub(super) const REGION: RegionId = RegionId(0);

#[derive(Debug)]
enum Purpose {
    Read,
    /// A write of any kind, and whether it is durable on completion.
    Write {
        fua: bool,
    },
    Flush(FlushPoint),
    /// A compare with these contents, from the first block on.
    Compare(Vec<u64>),
}

#[derive(Debug)]
struct Running {
    purpose: Purpose,
    path: usize,
    start: u64,
    blocks: u64,
    /// Power cuts before its start.
    crashes: u32,
    since: Duration,
}

/// A simulated host.
pub(super) struct Host<N: Network> {
    number: u64,
    pub(super) paths: Vec<Path<N>>,
    pub(super) oracle: Oracle,
    memory: Memory,
    running: Vec<Option<Running>>,
    /// Blocks with an operation in flight.
    busy: Vec<bool>,
    /// Content last written to each block, and over which path.
    contents: Vec<u64>,
    written_over: Vec<usize>,
    /// Over which path each block was used last.
    used_over: Vec<usize>,
    /// It begins nothing before.
    pause: Duration,
    now: Duration,
    pub(super) refused: u64,
    next_content: u64,
    pub(super) left: u32,
    pub(super) ended: u64,
    /// Blocks that were read over another path than they were written over.
    pub(super) read_across: u64,
    /// Flushes may fail that began after so many power cuts or fewer.
    pub(super) flushes_may_fail: Option<u32>,
    rng: Rng,
    completions: Vec<Completion>,
}

impl<N: Network> Host<N> {
    pub(super) fn new(number: u64, mut paths: Vec<Path<N>>, mut rng: Rng) -> Self {
        let memory = Memory::alloc(SLOTS * SLOT_LEN).expect("memory");
        paths.iter_mut().for_each(|path| path.register(&memory));
        Self {
            number,
            paths,
            oracle: Oracle::new(BLOCKS as usize),
            memory,
            running: (0..SLOTS).map(|_| None).collect(),
            busy: vec![false; BLOCKS as usize],
            contents: vec![0; BLOCKS as usize],
            written_over: vec![0; BLOCKS as usize],
            used_over: vec![0; BLOCKS as usize],
            pause: Duration::ZERO,
            now: Duration::ZERO,
            refused: 0,
            next_content: 0,
            left: 30 + rng.below(40) as u32,
            ended: 0,
            read_across: 0,
            flushes_may_fail: None,
            rng,
            completions: Vec::with_capacity(SLOTS),
        }
    }

    /// First block of the host on the disk.
    fn base(&self) -> u64 {
        self.number * STRIDE
    }

    pub(super) fn idle(&self) -> bool {
        self.running.iter().all(Option::is_none)
    }

    /// Runs one turn of each driver and of the host; `true` if something happened.
    pub(super) fn turn(&mut self, now: Duration, network: &mut N, rights: &Rights, done: &[Done]) -> bool {
        self.now = now;
        let mut worked = false;
        let mut completions = core::mem::take(&mut self.completions);
        for path in &mut self.paths {
            worked |= path.turn(now, network, done, &mut completions);
        }
        for completion in completions.drain(..) {
            worked = true;
            self.on_completion(&completion, rights);
        }
        self.completions = completions;
        while self.is_ready() && now >= self.pause && self.left > 0 && self.rng.percent(60) {
            if !self.start_one() {
                break;
            }
            worked = true;
        }
        self.paths.iter_mut().for_each(|path| path.flush(now));
        worked
    }

    /// Whether all its paths have been connected.
    pub(super) fn is_ready(&self) -> bool {
        self.paths.iter().all(|path| path.ready)
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let pause = (self.left > 0 && self.pause > self.now).then_some(self.pause);
        self.paths.iter().filter_map(Path::poll_timeout).chain(pause).min()
    }

    /// Checks that the bytes of a slot after an operation's buffer are unchanged.
    fn check_guard(&self, slot: usize, len: usize, what: &str) {
        let end = SLOT_LEN * (slot + 1);
        let mut guard = vec![0; SLOT_LEN - len];
        self.memory.read(end - guard.len(), &mut guard);
        assert!(guard.iter().all(|&byte| byte == GUARD), "{what}: bytes after its buffer changed");
    }

    /// Reads every block over every path, at the end.
    pub(super) fn read_all(&mut self) {
        for path in 0..self.paths.len() {
            for start in (0..BLOCKS).step_by(SPAN as usize) {
                let slot =
                    self.running.iter().position(Option::is_none).expect("an idle host has a free slot");
                self.submit(slot, path, Purpose::Read, start, SPAN.min(BLOCKS - start));
            }
        }
    }

    fn start_one(&mut self) -> bool {
        let Some(slot) = self.running.iter().position(Option::is_none) else { return false };
        let blocks = 1 + self.rng.below(SPAN);
        let start = self.rng.below(BLOCKS - blocks + 1);
        let free = !self.busy[start as usize..(start + blocks) as usize].contains(&true);
        let fua = self.rng.percent(20);
        let purpose = match self.rng.below(100) {
            0..6 => Purpose::Flush(self.oracle.flush_begins()),
            _ if !free => return false,
            6..36 => Purpose::Read,
            36..46 => Purpose::Compare(Vec::new()),
            _ => Purpose::Write { fua },
        };
        self.left -= 1;
        let path = self.rng.below(self.paths.len() as u64) as usize;
        self.submit(slot, path, purpose, start, blocks);
        true
    }

    fn submit(&mut self, slot: usize, path: usize, mut purpose: Purpose, start: u64, blocks: u64) {
        let range = BlockRange::new(self.base() + start, blocks);
        let buffer = Buffer { region: REGION, offset: slot * SLOT_LEN, len: blocks as usize * BLOCK };
        self.memory.fill(buffer.offset + buffer.len, SLOT_LEN - buffer.len, GUARD);
        let span = start as usize..(start + blocks) as usize;
        let op = match &mut purpose {
            Purpose::Flush(_) => BlockOp::Flush,
            Purpose::Read => {
                self.memory.fill(buffer.offset, buffer.len, 0xee);
                BlockOp::Read { range, into: buffer }
            }
            Purpose::Compare(with) => {
                with.extend_from_slice(&self.contents[span.clone()]);
                // Sometimes with other contents, which the compare must detect.
                if self.rng.percent(25) {
                    let other = self.rng.below(blocks) as usize;
                    with[other] = with[other].wrapping_add(1_000_000);
                }
                for (block, &content) in span.clone().zip(&*with) {
                    self.fill(buffer.offset + (block - span.start) * BLOCK, block, content);
                }
                BlockOp::Compare { range, with: buffer }
            }
            Purpose::Write { fua } => match self.rng.below(10) {
                0 => {
                    *fua = false;
                    self.write(path, span.clone(), 0, true);
                    BlockOp::Deallocate { range }
                }
                1 => {
                    self.write(path, span.clone(), 0, false);
                    BlockOp::WriteZeroes { range, deallocate: self.rng.percent(50), fua: *fua }
                }
                _ => {
                    self.next_content += 1;
                    let content = self.next_content;
                    for block in span.clone() {
                        self.fill(buffer.offset + (block - span.start) * BLOCK, block, content);
                    }
                    self.write(path, span.clone(), content, false);
                    BlockOp::Write { range, from: buffer, fua: *fua }
                }
            },
        };
        if op != BlockOp::Flush {
            self.used_over[span.clone()].fill(path);
            self.busy[span].fill(true);
        }
        let (crashes, since) = (self.oracle.crashes(), self.now);
        self.running[slot] = Some(Running { purpose, path, start, blocks, crashes, since });
        self.paths[path].submit(Tag(slot as u64), op);
    }

    fn write(&mut self, path: usize, span: core::ops::Range<usize>, content: u64, hint: bool) {
        for block in span {
            self.oracle.begin(block, content, hint);
            self.contents[block] = content;
            self.written_over[block] = path;
        }
    }

    /// Fills a block for a content number: its address and the number, repeated; zeroes for content 0.
    fn fill(&self, offset: usize, block: usize, content: u64) {
        if content == 0 {
            return self.memory.fill(offset, BLOCK, 0);
        }
        let mut bytes = [0; BLOCK];
        for pair in bytes.chunks_exact_mut(16) {
            pair[..8].copy_from_slice(&(self.base() + block as u64).to_le_bytes());
            pair[8..].copy_from_slice(&content.to_le_bytes());
        }
        self.memory.write(offset, &bytes);
    }

    /// The content number of a block.
    fn content(&self, offset: usize, block: usize) -> u64 {
        let mut bytes = [0; BLOCK];
        self.memory.read(offset, &mut bytes);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let content = word(8);
        let place = if content == 0 { 0 } else { self.base() + block as u64 };
        let whole = (0..BLOCK).step_by(16).all(|at| word(at) == place && word(at + 8) == content);
        assert!(
            whole,
            "host {}: block {block} is torn or has the contents of another block: {:?}",
            self.number,
            &bytes[..32]
        );
        content
    }

    /// Whether a flush, or a write that includes one, failed. It may only where the disk failed one before.
    fn failed(&self, completion: &Completion, crashes: u32, what: &str) -> bool {
        let may_fail = self.flushes_may_fail.is_some_and(|at| crashes <= at);
        assert!(completion.result.is_ok() || may_fail, "{what}: {:?}", completion.result);
        completion.result.is_err()
    }

    /// The host whose operation on a block of this one's is under way, or was last.
    pub(super) fn owner(&self, block: u64) -> Option<reservation::Host> {
        let path = *self.used_over.get(block as usize)?;
        Some(self.paths[path].id)
    }

    /// What is counted of the operations that are under way.
    pub(super) fn under_way(&self) -> impl Iterator<Item = &'static str> {
        self.running.iter().flatten().map(|running| match running.purpose {
            Purpose::Read => "read",
            Purpose::Write { fua: false } => "write",
            Purpose::Write { fua: true } => "write with FUA",
            Purpose::Flush(_) => "flush",
            Purpose::Compare(_) => "compare",
        })
    }

    /// An operation was refused, for a reason: a write may have taken effect in part. It does not count.
    fn on_refused(&mut self, slot: Running, error: BlockError, rights: &Rights, what: &str) {
        let Running { purpose, path, start, blocks, since, .. } = slot;
        let writes = matches!(purpose, Purpose::Write { .. } | Purpose::Flush(_));
        let end = self.base() + start + blocks;
        rights.check_refusal(self.paths[path].id, (end, writes), since, error, what);
        let span = start as usize..(start + blocks) as usize;
        if matches!(purpose, Purpose::Write { .. }) {
            span.clone().for_each(|block| self.oracle.fail(block));
        }
        if !matches!(purpose, Purpose::Flush(_)) {
            self.busy[span].fill(false);
        }
        self.refused += 1;
        self.left += 1;
        self.pause = self.now + Duration::from_micros(self.rng.below(3000));
    }

    fn on_completion(&mut self, completion: &Completion, rights: &Rights) {
        let slot = completion.tag.0 as usize;
        let Some(running) = self.running[slot].take() else {
            panic!("host {}: an operation ended twice", self.number);
        };
        let Running { ref purpose, path, start, blocks, crashes, .. } = running;
        self.ended += 1;
        if super::prints_events() {
            println!("host {} ended {slot}: {:?}", self.number, completion.result);
        }
        let span = start as usize..(start + blocks) as usize;
        let what = format!("host {}, path {path}, {purpose:?} of {start}+{blocks}", self.number);
        self.check_guard(slot, blocks as usize * BLOCK, &what);
        if let Err(error) = completion.result
            && rights::is_refusal(error)
        {
            return self.on_refused(running, error, rights, &what);
        }
        match running.purpose {
            Purpose::Flush(point) => {
                if !self.failed(completion, crashes, &what) {
                    self.oracle.flushed(&point);
                }
                return;
            }
            Purpose::Write { fua } => {
                if fua && self.failed(completion, crashes, &what) {
                    span.clone().for_each(|block| self.oracle.fail(block));
                } else {
                    assert_eq!(completion.result, Ok(()), "{what}");
                    span.clone().for_each(|block| self.oracle.end(block, fua, crashes));
                }
            }
            Purpose::Read => {
                assert_eq!(completion.result, Ok(()), "{what}");
                let offset = slot * SLOT_LEN;
                for block in span.clone() {
                    let content = self.content(offset + (block - span.start) * BLOCK, block);
                    self.oracle.read(block, content, crashes, &what);
                    self.contents[block] = content;
                    self.read_across += u64::from(content != 0 && self.written_over[block] != path);
                }
            }
            Purpose::Compare(with) => {
                let equal = match completion.result {
                    Ok(()) => true,
                    Err(BlockError::CompareFailed) => false,
                    Err(error) => panic!("{what}: {error:?}"),
                };
                let with: Vec<_> = span.clone().zip(with).collect();
                self.oracle.compared(&with, equal, crashes, &what);
            }
        }
        self.busy[span].fill(false);
    }
}
