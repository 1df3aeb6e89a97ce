//! A simulated host: random operations on its blocks, over one path or two, and the verification of their contents.
//!
//! Where a path has several routes, whose losses take seconds, a host takes its time and uses few blocks again and again.
//!
//! Its blocks lie in two namespaces. The paths of a host share them, and nobody else uses these. At most one operation of a block is in flight,
//! on whichever path, so whatever one path was told is what the other has to find: a completed write, the flush that
//! covers it, and the contents that a power cut left. The second path is another association of the same host, or of
//! another host that takes part in the first one's work as members of a cluster do.

use super::area::{ALL, AREAS, Area, SPAN};
use super::command::Done;
use super::contents::{another, content};
use super::copy::Copying;
use super::network::Network;
use super::oracle::{FlushPoint, Oracle};
use super::path::Path;
use super::reservation;
use super::rights::{self, Reach, Rights};
use crate::rng::Rng;
use core::ops::Range;
use core::time::Duration;
use nvmf_block::{BlockError, BlockOp, BlockRange, Completion, RegionId, Tag};
use nvmf_memory::Memory;

/// Bytes in a block.
pub(super) const BLOCK: usize = 512;
/// Blocks in each namespace that a host with several routes uses.
const HOT: usize = 8;
/// Most operations in flight.
pub(super) const SLOTS: usize = 8;
/// Bytes of a slot's memory: one block more than the largest operation.
pub(super) const SLOT_LEN: usize = (SPAN + 1) * BLOCK;
/// The host's memory, on each of its paths.
pub(super) const REGION: RegionId = RegionId(0);

#[derive(Debug)]
pub(super) enum Purpose {
    Read,
    /// A write of any kind, and whether it is durable on completion.
    Write {
        fua: bool,
    },
    Flush(FlushPoint),
    /// A compare with these contents, from the first block on.
    Compare(Vec<u64>),
    Copy(Copying),
    /// A read of what a Copy was to write, whose connection was lost.
    Settle(Copying),
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) purpose: Purpose,
    pub(super) path: usize,
    /// Its blocks; of a flush, all of its namespace.
    pub(super) blocks: Range<usize>,
    /// Power cuts before its start.
    pub(super) crashes: u32,
    pub(super) since: Duration,
}

/// A simulated host.
pub(super) struct Host<N: Network> {
    pub(super) number: u64,
    pub(super) paths: Vec<Path<N>>,
    pub(super) oracle: Oracle,
    pub(super) memory: Memory,
    pub(super) running: Vec<Option<Running>>,
    /// What was refused and has to be tried again, when, and in which slot.
    pub(super) settling: Vec<(Duration, usize, Running)>,
    /// Blocks with an operation in flight.
    pub(super) busy: Vec<bool>,
    /// Content last written to each block, and over which path.
    pub(super) contents: Vec<u64>,
    pub(super) written_over: Vec<usize>,
    /// Over which path each block was used last.
    used_over: Vec<usize>,
    /// It begins nothing before.
    pause: Duration,
    pub(super) now: Duration,
    pub(super) refused: u64,
    next_content: u64,
    pub(super) left: u32,
    pub(super) ended: u64,
    /// Copies that succeeded.
    pub(super) copied: u64,
    /// Blocks that were read over another path than they were written over.
    pub(super) read_across: u64,
    /// Flushes may fail that began after so many power cuts or fewer.
    pub(super) flushes_may_fail: Option<u32>,
    pub(super) rng: Rng,
    completions: Vec<Completion>,
}

impl<N: Network> Host<N> {
    pub(super) fn new(number: u64, mut paths: Vec<Path<N>>, mut rng: Rng) -> Self {
        let memory = Memory::alloc((SLOTS + paths.len()) * SLOT_LEN).expect("memory");
        paths.iter_mut().for_each(|path| path.register(&memory));
        let has_several_routes = paths.iter().any(Path::has_several);
        Self {
            number,
            paths,
            oracle: Oracle::new(ALL),
            memory,
            running: (0..SLOTS).map(|_| None).collect(),
            settling: Vec::new(),
            busy: vec![false; ALL],
            contents: vec![0; ALL],
            written_over: vec![0; ALL],
            used_over: vec![0; ALL],
            pause: Duration::ZERO,
            now: Duration::ZERO,
            refused: 0,
            next_content: 0,
            left: (24 + rng.below(36) as u32) * if has_several_routes { 2 } else { 1 },
            ended: 0,
            copied: 0,
            read_across: 0,
            flushes_may_fail: None,
            rng,
            completions: Vec::with_capacity(SLOTS + 1),
        }
    }

    pub(super) fn idle(&self) -> bool {
        self.settling.is_empty() && self.running.iter().all(Option::is_none)
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
        for path in 0..self.paths.len() {
            for (number, status) in core::mem::take(&mut self.paths[path].ended) {
                worked = true;
                self.on_copied(number, status, rights);
            }
        }
        worked |= self.settle();
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
        let settling = self.settling.iter().map(|(at, ..)| *at);
        self.paths.iter().filter_map(Path::poll_timeout).chain(pause).chain(settling).min()
    }

    /// Reads every block over every path, at the end.
    pub(super) fn read_all(&mut self) {
        for path in 0..self.paths.len() {
            for start in (0..ALL).step_by(SPAN) {
                let slot = self.free_slot().expect("an idle host has a free slot");
                self.submit(slot, path, Purpose::Read, start..start + SPAN);
            }
        }
    }

    fn free_slot(&self) -> Option<usize> {
        let is_free = |&slot: &usize| {
            self.running[slot].is_none() && self.settling.iter().all(|(_, other, _)| *other != slot)
        };
        (0..SLOTS).find(is_free)
    }

    fn start_one(&mut self) -> bool {
        let Some(slot) = self.free_slot() else { return false };
        let mut area = AREAS[usize::from(self.rng.percent(25))].blocks();
        let mut span = SPAN;
        if self.has_several_routes() && self.rng.percent(90) {
            (area.end, span) = (area.start + HOT, 4);
            self.pause = self.now + self.respite();
        }
        let len = 1 + self.rng.below(span as u64) as usize;
        let start = area.start + self.rng.below((area.len() - len + 1) as u64) as usize;
        let blocks = start..start + len;
        let free = !self.busy[blocks.clone()].contains(&true);
        let fua = self.rng.percent(20);
        let path = self.rng.below(self.paths.len() as u64) as usize;
        let purpose = match self.rng.below(100) {
            0..6 => {
                area = Area::of(area.start).blocks();
                Purpose::Flush(self.oracle.flush_begins(area.clone()))
            }
            _ if !free => return false,
            6..36 => Purpose::Read,
            36..46 => Purpose::Compare(Vec::new()),
            46..64 if self.paths[path].sends_raw => {
                let begun = self.start_copy(slot, path, blocks);
                self.left -= u32::from(begun);
                return begun;
            }
            _ => Purpose::Write { fua },
        };
        self.left -= 1;
        let blocks = if matches!(purpose, Purpose::Flush(_)) { area } else { blocks };
        self.submit(slot, path, purpose, blocks);
        true
    }

    pub(super) fn has_several_routes(&self) -> bool {
        self.paths.iter().any(Path::has_several)
    }

    /// How long it waits before it begins something more: while a route is lost, often so long that much is left for when writes go on.
    fn respite(&mut self) -> Duration {
        let is_troubled = self.paths.iter().any(Path::is_troubled);
        let magnitude = match is_troubled && self.rng.percent(60) {
            true => 15 + self.rng.below(6),
            false => self.rng.below(14),
        };
        Duration::from_micros(self.rng.below(1 << magnitude))
    }

    /// Takes note of an operation that begins.
    pub(super) fn begin(&mut self, slot: usize, purpose: Purpose, path: usize, blocks: Range<usize>) {
        let (crashes, since) = (self.oracle.crashes(), self.now);
        self.running[slot] = Some(Running { purpose, path, blocks, crashes, since });
    }

    /// An operation over this path uses blocks.
    pub(super) fn set_busy(&mut self, path: usize, blocks: Range<usize>) {
        self.used_over[blocks.clone()].fill(path);
        self.busy[blocks].fill(true);
    }

    pub(super) fn submit(&mut self, slot: usize, path: usize, mut purpose: Purpose, blocks: Range<usize>) {
        let area = Area::of(blocks.start);
        let range = BlockRange::new(area.lba(self.number, blocks.start), blocks.len() as u64);
        let op = match &mut purpose {
            Purpose::Flush(_) => BlockOp::Flush,
            Purpose::Read | Purpose::Settle(_) => {
                let into = self.buffer(slot, blocks.len());
                self.spoil(into);
                BlockOp::Read { range, into }
            }
            Purpose::Compare(with) => {
                with.extend_from_slice(&self.contents[blocks.clone()]);
                // Sometimes with other contents, which the compare must detect.
                if self.rng.percent(25) {
                    let other = self.rng.below(blocks.len() as u64) as usize;
                    with[other] = another(with[other]);
                }
                self.fill(slot, with);
                BlockOp::Compare { range, with: self.buffer(slot, blocks.len()) }
            }
            Purpose::Write { fua } => match self.rng.below(10) {
                0 => {
                    *fua = false;
                    self.write(path, blocks.clone(), 0, true);
                    BlockOp::Deallocate { range }
                }
                1 => {
                    self.write(path, blocks.clone(), 0, false);
                    BlockOp::WriteZeroes { range, deallocate: self.rng.percent(50), fua: *fua }
                }
                _ => {
                    self.next_content += 1;
                    self.write(path, blocks.clone(), self.next_content, false);
                    self.fill(slot, &self.contents[blocks.clone()]);
                    BlockOp::Write { range, from: self.buffer(slot, blocks.len()), fua: *fua }
                }
            },
            Purpose::Copy(_) => unreachable!("a Copy is a raw command"),
        };
        if op != BlockOp::Flush {
            self.set_busy(path, blocks.clone());
        }
        self.begin(slot, purpose, path, blocks);
        self.paths[path].submit(Tag(slot as u64), area.nsid(), op);
    }

    fn write(&mut self, path: usize, blocks: Range<usize>, number: u64, hint: bool) {
        for block in blocks {
            let content = content(number, block);
            self.oracle.begin(block, content, hint);
            self.contents[block] = content;
            self.written_over[block] = path;
        }
    }

    /// Whether a flush, or a write that includes one, failed. It may only where the disk failed one before.
    fn failed(&self, completion: &Completion, crashes: u32, what: &str) -> bool {
        let may_fail = self.flushes_may_fail.is_some_and(|at| crashes <= at);
        assert!(completion.result.is_ok() || may_fail, "{what}: {:?}", completion.result);
        completion.result.is_err()
    }

    /// The host whose operation on a block of this one's is under way, or was last.
    pub(super) fn owner(&self, block: usize) -> reservation::Host {
        self.paths[self.used_over[block]].id
    }

    /// What is counted of the operations that are under way.
    pub(super) fn under_way(&self) -> impl Iterator<Item = &'static str> {
        self.running.iter().flatten().map(|running| match &running.purpose {
            Purpose::Read | Purpose::Settle(_) => "read",
            Purpose::Write { fua: false } => "write",
            Purpose::Write { fua: true } => "write with FUA",
            Purpose::Flush(_) => "flush",
            Purpose::Compare(_) => "compare",
            Purpose::Copy(copying) if copying.is_across => "copy across",
            Purpose::Copy(_) => "copy",
        })
    }

    /// What of namespace 1 these blocks are.
    pub(super) fn reaches(&self, blocks: &Range<usize>, writes: bool) -> Vec<Reach> {
        let end = Area::Main.lba(self.number, blocks.end);
        (Area::of(blocks.start) == Area::Main).then_some(Reach { end, writes }).into_iter().collect()
    }

    /// An operation was refused, for a reason: a write may have taken effect in part. It does not count.
    fn on_refused(&mut self, slot: usize, running: Running, error: BlockError, rights: &Rights, what: &str) {
        let Running { ref purpose, path, ref blocks, since, .. } = running;
        let writes = matches!(purpose, Purpose::Write { .. } | Purpose::Flush(_));
        let reaches = match purpose {
            Purpose::Flush(_) => self.reaches(&(blocks.start..blocks.start), writes),
            _ => self.reaches(blocks, writes),
        };
        if !self.paths[path].may_fail(self.now, since, error) {
            rights.check_refusal(self.paths[path].id, &reaches, since, error, what);
        }
        match purpose {
            Purpose::Settle(_) => return self.settle_later(slot, running),
            Purpose::Write { .. } => blocks.clone().for_each(|block| self.oracle.fail(block)),
            _ => {}
        }
        if !matches!(purpose, Purpose::Flush(_)) {
            self.busy[blocks.clone()].fill(false);
        }
        self.pause_refused();
    }

    /// Something was refused: it does not count, and the host pauses.
    pub(super) fn pause_refused(&mut self) {
        self.refused += 1;
        self.left += 1;
        self.pause = self.pause.max(self.now + Duration::from_micros(self.rng.below(3000)));
    }

    fn on_completion(&mut self, completion: &Completion, rights: &Rights) {
        let slot = completion.tag.0 as usize;
        let Some(running) = self.running[slot].take() else {
            panic!("host {}: an operation ended twice", self.number);
        };
        let Running { ref purpose, path, ref blocks, crashes, .. } = running;
        self.ended += 1;
        if super::prints_events() {
            println!("host {} ended {slot}: {:?}", self.number, completion.result);
        }
        let what = format!("host {}, path {path}, {purpose:?} of {blocks:?}", self.number);
        if let Err(error) = completion.result
            && (rights::is_refusal(error) || self.paths[path].may_fail(self.now, running.since, error))
            && error != BlockError::CompareFailed
        {
            return self.on_refused(slot, running, error, rights, &what);
        }
        match purpose {
            Purpose::Flush(point) => {
                if !self.failed(completion, crashes, &what) {
                    self.oracle.flushed(point);
                }
                return;
            }
            &Purpose::Write { fua } => {
                if fua && self.failed(completion, crashes, &what) {
                    blocks.clone().for_each(|block| self.oracle.fail(block));
                } else {
                    assert_eq!(completion.result, Ok(()), "{what}");
                    blocks.clone().for_each(|block| self.oracle.end(block, fua, crashes));
                }
            }
            Purpose::Read | Purpose::Settle(_) => {
                assert_eq!(completion.result, Ok(()), "{what}");
                self.check_guard(slot, blocks.len(), &what);
                for (block, content) in blocks.clone().zip(self.contents_of(slot, blocks.clone())) {
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
                let with: Vec<_> = blocks.clone().zip(with.iter().copied()).collect();
                self.oracle.compared(&with, equal, crashes, &what);
            }
            Purpose::Copy(_) => unreachable!("a Copy is a raw command"),
        }
        match purpose {
            Purpose::Settle(copying) => self.free(copying, blocks.clone()),
            _ => self.busy[blocks.clone()].fill(false),
        }
    }
}
