//! A disk with a volatile cache, a virtual clock, power cuts, flushes that fail, operations that straggle and times in
//! which it hangs, for simulation.
//!
//! The fault model. A write completes when it is in the cache. FUA makes it durable, and so does a flush that was
//! submitted after it had completed; a flush makes nothing durable that it does not promise, so that a test sees
//! whoever relies on more. [`SimulatedDisk::crash`] cuts the power: what is durable stays. Of a block in the cache,
//! the medium has afterwards its durable version or any of those written since. Operations in flight never complete,
//! and each of their blocks may have been written or not, FUA or not. Blocks are never torn, as NVMe promises of a
//! single block (AWUPF 0).
//!
//! [`SimulatedDisk::fail_next_flush`]: as with the kernel's page cache, what was in the cache then is read as before,
//! but no later flush makes it durable. The disk reports the loss until it is reopened, as [`BlockError::CacheLost`]
//! describes.

use crate::rng::Rng;
use nvmf_block::{
    Backend, BlockError, BlockOp, BlockRange, BorrowedRead, Buffer, Completion, DeviceId, Full, Geometry,
    RegionId, Tag,
};
use nvmf_memory::Memory;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::rc::Rc;
use std::time::Duration;

/// The most bytes that are borrowed at once.
const BORROWS: usize = 64 << 10;

/// The properties of a simulated disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedOptions {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// The shortest latency of an operation.
    pub latency_min: Duration,
    /// The longest. Latencies are random, so operations are reordered.
    pub latency_max: Duration,
}

type Block = Rc<[u8]>;
/// Counts the blocks that were written to a disk.
type Version = u64;

/// The medium and its cache. It outlives the [`SimulatedDevices`] that use it.
pub struct SimulatedDisk {
    options: SimulatedOptions,
    /// What survives a power cut.
    durable: BTreeMap<u64, Block>,
    /// Versions written since, oldest first; reads return the last.
    cached: BTreeMap<u64, Vec<(Version, Block)>>,
    version: Version,
    /// Versions up to this one can no longer become durable: the flush that should have made them so failed.
    lost: Version,
    fails_next_flush: bool,
    cache_lost: bool,
    hangs: bool,
    /// Of how many operations in a hundred each takes up to how long.
    straggling: Option<(u64, Duration)>,
    /// Reading it fails.
    unreadable: Option<u64>,
    /// What it was given since that was asked last, if anybody asks.
    given: Option<Vec<Given>>,
    /// Blocks that it shares only together; `None`: it shares none.
    sharing_unit: Option<u32>,
    /// How many more it shares.
    shares_left: u64,
    rng: Rng,
}

/// An operation on blocks that a disk was given. It may take effect at any time from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Which blocks.
    pub range: BlockRange,
    /// Whether it changes them.
    pub writes: bool,
    /// When.
    pub at: Duration,
}

impl Given {
    fn of(op: &BlockOp, at: Duration) -> Option<Self> {
        Some(Self { range: op.range()?, writes: op.writes(), at })
    }
}

/// A disk that several [`SimulatedDevices`] use, one after the other.
pub type SharedDisk = Rc<RefCell<SimulatedDisk>>;

impl SimulatedDisk {
    /// A disk of zeroes.
    #[must_use]
    pub fn new(options: SimulatedOptions, seed: u64) -> SharedDisk {
        Rc::new(RefCell::new(Self {
            options,
            durable: BTreeMap::new(),
            cached: BTreeMap::new(),
            version: 0,
            lost: 0,
            fails_next_flush: false,
            cache_lost: false,
            hangs: false,
            straggling: None,
            unreadable: None,
            given: None,
            sharing_unit: None,
            shares_left: 0,
            rng: Rng::new(seed),
        }))
    }

    /// The operations on blocks that it was given since the last call, in order. The first call returns none.
    pub fn take_given(&mut self) -> Vec<Given> {
        self.given.replace(Vec::new()).unwrap_or_default()
    }

    fn note(&mut self, given: Option<Given>) {
        if let Some(all) = &mut self.given {
            all.extend(given);
        }
    }

    /// Fails the next flush or operation with FUA, and all after it until [`SimulatedDisk::reopen`].
    pub fn fail_next_flush(&mut self) {
        self.fails_next_flush = true;
    }

    /// Ends the failures of flushes. Lost data stay lost.
    pub fn reopen(&mut self) {
        self.fails_next_flush = false;
        self.cache_lost = false;
    }

    /// While a disk hangs, none of its operations completes.
    pub fn set_hanging(&mut self, hangs: bool) {
        self.hangs = hangs;
    }

    /// From now on a few operations in a hundred take up to so long each, and the others their usual time.
    pub fn set_straggling(&mut self, percent: u64, longest: Duration) {
        self.straggling = Some((percent, longest)).filter(|_| percent > 0);
    }

    /// How long an operation takes.
    fn latency(&self, rng: &mut Rng) -> Duration {
        let SimulatedOptions { latency_min, latency_max, .. } = self.options;
        let most = match self.straggling {
            Some((percent, longest)) if rng.below(100) < percent => longest,
            _ => latency_max,
        };
        latency_min + Duration::from_nanos(rng.below(most.saturating_sub(latency_min).as_nanos() as u64 + 1))
    }

    /// Fails every operation that reads this block; `None`: all can be read.
    pub fn set_unreadable(&mut self, lba: Option<u64>) {
        self.unreadable = lba;
    }

    /// Lets it share `blocks` blocks of the disks beside it, in multiples of `unit`. The [`BlockOp::Share`] that wants
    /// more fails midway.
    pub fn set_sharing(&mut self, unit: Option<u32>, blocks: u64) {
        (self.sharing_unit, self.shares_left) = (unit, blocks);
    }

    /// How many more blocks it shares.
    #[must_use]
    pub fn shares_left(&self) -> u64 {
        self.shares_left
    }

    fn is_unreadable(&self, range: BlockRange) -> bool {
        self.unreadable.is_some_and(|lba| (range.start..range.start + range.blocks).contains(&lba))
    }

    /// Whether a flush or an operation with FUA succeeds now.
    fn may_sync(&mut self) -> Result<(), BlockError> {
        if core::mem::take(&mut self.fails_next_flush) {
            self.lost = self.version;
            self.cache_lost = true;
        }
        if self.cache_lost { Err(BlockError::CacheLost) } else { Ok(()) }
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            volatile_write_cache: true,
            deallocate: true,
            zero_after_deallocate: true,
            ..Geometry::new(self.options.block_size, self.options.blocks)
        }
    }

    fn zero(&self) -> Block {
        vec![0; self.options.block_size as usize].into()
    }

    /// A block's content as a read returns it.
    #[must_use]
    pub fn block(&self, lba: u64) -> Block {
        let cached = self.cached.get(&lba).and_then(|versions| versions.last()).map(|(_, block)| block);
        cached.or_else(|| self.durable.get(&lba)).cloned().unwrap_or_else(|| self.zero())
    }

    /// Puts a block on the medium, durable, past all devices.
    pub fn preset(&mut self, lba: u64, block: Block) {
        self.durable.insert(lba, block);
    }

    fn write(&mut self, lba: u64, block: Block) {
        self.version += 1;
        self.cached.entry(lba).or_default().push((self.version, block));
    }

    /// Makes durable what was written to these blocks up to a version.
    fn sync(&mut self, blocks: impl RangeBounds<u64>, until: Version) {
        for (lba, versions) in self.cached.range_mut(blocks) {
            let covered = versions.partition_point(|(version, _)| *version <= until);
            if covered > 0
                && versions[covered - 1].0 > self.lost
                && let Some((_, last)) = versions.drain(..covered).next_back()
            {
                self.durable.insert(*lba, last);
            }
        }
        self.cached.retain(|_, versions| !versions.is_empty());
    }

    /// Cuts the power: see the module's fault model.
    pub fn crash(&mut self) {
        for (lba, mut versions) in core::mem::take(&mut self.cached) {
            let survivor = self.rng.below(versions.len() as u64 + 1) as usize;
            if survivor < versions.len() {
                self.durable.insert(lba, versions.swap_remove(survivor).1);
            }
        }
    }
}

struct InFlight {
    given: Duration,
    due: Duration,
    /// Orders operations that are due at the same time, so that the seed alone decides the order.
    sequence: u64,
    tag: Tag,
    op: BlockOp,
    /// The disk's version when it was submitted, which a flush covers.
    covers: Version,
    /// The error of an operation that was refused when it was submitted; it completes later, as others do.
    refused: Option<BlockError>,
}

/// The operation without FUA: a power cut may leave part of it.
fn unforced(op: BlockOp) -> BlockOp {
    match op {
        BlockOp::Write { range, from, .. } => BlockOp::Write { range, from, fua: false },
        BlockOp::WriteZeroes { range, deallocate, .. } => {
            BlockOp::WriteZeroes { range, deallocate, fua: false }
        }
        BlockOp::CompareAndWrite { range, data, .. } => BlockOp::CompareAndWrite { range, data, fua: false },
        BlockOp::Share { range, source, from, .. } => BlockOp::Share { range, source, from, fua: false },
        other => other,
    }
}

/// Simulated devices, one disk each, under a virtual clock. Every second read that can be borrowed is;
/// [`Backend::flush`] overwrites the borrowed bytes, so that a test sees a use after that.
pub struct SimulatedDevices {
    disks: Vec<SharedDisk>,
    detached: Vec<bool>,
    regions: Vec<Memory>,
    borrows: Memory,
    /// Bytes of it that are borrowed.
    borrowed: usize,
    in_flight: Vec<(usize, InFlight)>,
    depth: usize,
    now: Duration,
    sequence: u64,
    rng: Rng,
}

impl SimulatedDevices {
    /// Device `n` is `disks[n]`; `depth` operations may be in flight.
    ///
    /// # Panics
    /// Without memory.
    #[must_use]
    pub fn new(disks: Vec<SharedDisk>, depth: usize, seed: u64) -> Self {
        let in_flight = Vec::with_capacity(depth);
        Self {
            detached: vec![false; disks.len()],
            disks,
            regions: Vec::new(),
            borrows: Memory::alloc(BORROWS).expect("memory"),
            borrowed: 0,
            in_flight,
            depth,
            now: Duration::ZERO,
            sequence: 0,
            rng: Rng::new(seed),
        }
    }

    /// Detaches a device: operations in flight complete; later ones fail with [`BlockError::Gone`].
    pub fn detach(&mut self, device: DeviceId) {
        if let Some(detached) = self.detached.get_mut(device.0 as usize) {
            *detached = true;
        }
    }

    /// Advances the clock to `now`; it never goes back.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// When the next operation completes.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        let answering = self.in_flight.iter().filter(|(device, operation)| self.answers(*device, operation));
        answering.map(|(_, operation)| operation.due).min()
    }

    /// Operations of a device that are in flight.
    #[must_use]
    pub fn in_flight(&self, device: DeviceId) -> usize {
        self.in_flight.iter().filter(|(of, _)| *of == device.0 as usize).count()
    }

    /// The operations on blocks of a device that are in flight, and may yet take effect.
    pub fn pending(&self, device: DeviceId) -> impl Iterator<Item = Given> {
        let of = device.0 as usize;
        let taken =
            self.in_flight.iter().filter(move |(on, operation)| *on == of && operation.refused.is_none());
        taken.filter_map(|(_, operation)| Given::of(&operation.op, operation.given))
    }

    /// Whether the operation completes. One that is refused does not reach the disk.
    fn answers(&self, device: usize, operation: &InFlight) -> bool {
        operation.refused.is_some() || !self.disks.get(device).is_some_and(|disk| disk.borrow().hangs)
    }

    /// Cuts the power: some of the operations in flight reach the cache, none completes. Then calls each disk's
    /// [`SimulatedDisk::crash`].
    pub fn crash(self) {
        let disks = self.disks.clone();
        self.kill();
        for disk in disks {
            disk.borrow_mut().crash();
        }
    }

    /// Ends the process that uses it: some of the operations in flight reach the cache, none completes.
    pub fn kill(mut self) {
        for (device, operation) in core::mem::take(&mut self.in_flight) {
            if operation.op.writes() && operation.refused.is_none() && self.rng.below(2) == 0 {
                let _ = self.carry_out(device, &unforced(operation.op), operation.covers);
            }
        }
    }

    fn check(&self, device: DeviceId, op: &BlockOp) -> Result<(), BlockError> {
        let geometry = self.geometry(device).ok_or(BlockError::Gone)?;
        let Some(range) = op.range() else { return Ok(()) };
        let len = geometry.bytes_in(range).ok_or(BlockError::OutOfRange)?;
        match op.buffer() {
            Some(buffer) if !op.fits(len) || self.memory(&buffer).is_none() => Err(BlockError::BadBuffer),
            _ => Ok(()),
        }
    }

    fn memory(&self, buffer: &Buffer) -> Option<&Memory> {
        self.regions
            .get(usize::from(buffer.region.0))
            .filter(|memory| memory.contains(buffer.offset, buffer.len))
    }

    /// The blocks of another disk that a [`BlockOp::Share`] wants.
    fn shared(&self, op: &BlockOp) -> Result<Vec<Block>, BlockError> {
        let &BlockOp::Share { range, source, from, .. } = op else { return Ok(Vec::new()) };
        let range = BlockRange::new(from, range.blocks);
        let geometry = self.geometry(source).filter(|geometry| geometry.contains(range));
        let source =
            geometry.and_then(|_| self.disks.get(source.0 as usize)).ok_or(BlockError::Unsupported)?;
        let source = source.borrow();
        let readable = !source.is_unreadable(range);
        let blocks = || (from..from + range.blocks).map(|lba| source.block(lba)).collect();
        readable.then(blocks).ok_or(BlockError::Unsupported)
    }

    fn carry_out(&self, device: usize, op: &BlockOp, covers: Version) -> Result<(), BlockError> {
        let shared = self.shared(op)?;
        let mut disk = self.disks[device].borrow_mut();
        if op.makes_durable() {
            disk.may_sync()?;
        }
        let size = disk.options.block_size as usize;
        let Some(range) = op.range() else {
            disk.sync(.., covers);
            return Ok(());
        };
        if !op.writes() && disk.is_unreadable(range) {
            return Err(BlockError::Medium);
        }
        let buffer = op.buffer().and_then(|buffer| Some((self.memory(&buffer)?, buffer.offset)));
        let mut block = vec![0; size];
        // Operations are carried out one by one, so nothing changes the range in between.
        if let (BlockOp::CompareAndWrite { .. }, Some((memory, offset))) = (op, buffer) {
            if disk.is_unreadable(range) {
                return Err(BlockError::NotCompared);
            }
            for (at, lba) in (range.start..range.start + range.blocks).enumerate() {
                memory.read(offset + at * size, &mut block);
                if block != *disk.block(lba) {
                    return Err(BlockError::CompareFailed);
                }
            }
        }
        for (at, lba) in (range.start..range.start + range.blocks).enumerate() {
            match (op, buffer) {
                (BlockOp::Read { .. }, Some((memory, offset))) => {
                    memory.write(offset + at * size, &disk.block(lba));
                }
                (BlockOp::Write { .. }, Some((memory, offset))) => {
                    memory.read(offset + at * size, &mut block);
                    disk.write(lba, block.as_slice().into());
                }
                (BlockOp::CompareAndWrite { .. }, Some((memory, offset))) => {
                    memory.read(offset + (range.blocks as usize + at) * size, &mut block);
                    disk.write(lba, block.as_slice().into());
                }
                (BlockOp::Compare { .. }, Some((memory, offset))) => {
                    memory.read(offset + at * size, &mut block);
                    if block != *disk.block(lba) {
                        return Err(BlockError::CompareFailed);
                    }
                }
                (BlockOp::Share { .. }, _) => {
                    disk.shares_left = disk.shares_left.checked_sub(1).ok_or(BlockError::Unsupported)?;
                    disk.write(lba, Rc::clone(&shared[at]));
                }
                (BlockOp::WriteZeroes { .. } | BlockOp::Deallocate { .. }, _) => {
                    let zero = disk.zero();
                    disk.write(lba, zero);
                }
                _ => {}
            }
        }
        if op.makes_durable() {
            disk.sync(range.start..range.start + range.blocks, Version::MAX);
        }
        Ok(())
    }
}

impl Backend for SimulatedDevices {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        let region = u16::try_from(self.regions.len()).map_err(|_| BlockError::Unsupported)?;
        self.regions.push(memory.clone());
        Ok(RegionId(region))
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        let attached = !self.detached.get(device.0 as usize)?;
        attached.then(|| self.disks[device.0 as usize].borrow().geometry())
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        // As `Devices` shares its depth out.
        let room = self.depth - self.in_flight.len();
        let of_its_own = self.in_flight(device);
        let shared = self.disks.len() > 1 && self.detached.get(device.0 as usize) == Some(&false);
        if room == 0 || shared && of_its_own >= room {
            return Err(Full);
        }
        let refused = self.check(device, &op).err();
        let disk = self.disks.get(device.0 as usize);
        let covers = disk.map_or(0, |disk| disk.borrow().version);
        let latency = disk.map_or(Duration::ZERO, |disk| disk.borrow().latency(&mut self.rng));
        if refused.is_none()
            && let Some(disk) = disk
        {
            disk.borrow_mut().note(Given::of(&op, self.now));
        }
        self.sequence += 1;
        let operation = InFlight {
            given: self.now,
            due: self.now + latency,
            sequence: self.sequence,
            tag,
            op,
            covers,
            refused,
        };
        self.in_flight.push((device.0 as usize, operation));
        Ok(())
    }

    fn sharing_unit(&self, source: DeviceId, to: DeviceId) -> Option<u32> {
        self.geometry(source)?;
        self.disks.get(to.0 as usize)?.borrow().sharing_unit
    }

    fn borrow_read(&mut self, device: DeviceId, range: BlockRange) -> Option<BorrowedRead<'_>> {
        let len = self.geometry(device)?.bytes_in(range)?;
        let offset = self.borrowed;
        if len > BORROWS - offset || self.rng.below(2) == 0 {
            return None;
        }
        let mut disk = self.disks[device.0 as usize].borrow_mut();
        if disk.is_unreadable(range) {
            return None;
        }
        disk.note(Some(Given { range, writes: false, at: self.now }));
        for (at, lba) in (range.start..range.start + range.blocks).enumerate() {
            self.borrows.write(offset + at * disk.options.block_size as usize, &disk.block(lba));
        }
        self.borrowed += len;
        Some(BorrowedRead { memory: &self.borrows, offset })
    }

    /// Ends borrowed reads. Operations need no flush: they complete by the clock.
    fn flush(&mut self) {
        self.borrows.fill(0, core::mem::take(&mut self.borrowed), 0xa5);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        while completions.len() < completions.capacity() {
            let due = self.in_flight.iter().enumerate().filter(|(_, (device, operation))| {
                operation.due <= self.now && self.answers(*device, operation)
            });
            let Some((at, _)) = due.min_by_key(|(_, (_, operation))| (operation.due, operation.sequence))
            else {
                return;
            };
            let (device, operation) = self.in_flight.swap_remove(at);
            let result = operation
                .refused
                .map_or_else(|| self.carry_out(device, &operation.op, operation.covers), Err);
            completions.push(Completion { tag: operation.tag, result });
        }
    }
}
