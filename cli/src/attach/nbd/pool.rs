//! Memory for the data of requests, registered with the backend.

use core::time::Duration;
use nvmf_block::{Backend, Buffer, RegionId};
use nvmf_memory::Memory;

/// Bytes of a chunk: the longest slot. Data that are longer lie in several.
const CHUNK_LEN: usize = 256 << 10;
/// Bytes of the slots into which a chunk is divided, by class. Each is a multiple of every block that is no longer than
/// it.
const SLOT_LENS: [usize; 4] = [UNIT_LEN, 16 << 10, 64 << 10, CHUNK_LEN];
/// Bytes of a unit, in which the memory of a request is counted.
pub(super) const UNIT_LEN: usize = 4 << 10;
/// Bytes that are registered at once. Of those that are not used yet the system has no pages, unless it is told to lock
/// them.
const REGION_LEN: usize = 4 << 20;
/// Chunks that the requests of all clients use: 128 MiB.
const CHUNKS_MAX: usize = (128 << 20) / CHUNK_LEN;

/// How long a region is kept that nobody uses.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Units of a chunk, and chunks of a region.
const UNITS: usize = CHUNK_LEN / UNIT_LEN;
const CHUNKS: usize = REGION_LEN / CHUNK_LEN;

const _: () = assert!(UNITS == u64::BITS as usize && CHUNKS == u16::BITS as usize);

/// Memory of one request: a slot, or as many of the longest as it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain {
    /// The unit with which its first slot begins, counted over all regions.
    first: usize,
    class: usize,
}

/// A part of a chain that lies in one piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) memory: &'a Memory,
    pub(super) buffer: Buffer,
}

/// Memory in one piece, whose slots are all of one class while one of them is in use.
#[derive(Debug, Clone, Copy, Default)]
struct Chunk {
    /// The slots that are free, a bit each.
    free: u64,
    /// Its place among the chunks with free slots.
    at: usize,
    /// The first unit of the next chunk of a chain of several.
    next: Option<usize>,
}

/// Chunks in regions of memory. A region is registered when no other has a free chunk, and given back by
/// [`Pool::give_back`].
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// `None`: given back.
    regions: Vec<Option<(RegionId, Memory)>>,
    /// The chunks of each region that are free, a bit each.
    free: Vec<u16>,
    /// The chunks of all regions.
    chunks: Vec<Chunk>,
    /// Chunks that have slots in use and free ones, by class.
    partial: [Vec<usize>; SLOT_LENS.len()],
    /// Chunks with slots in use.
    used: usize,
    /// Regions without any, and the fewest there were since [`Pool::give_back`] counted them.
    idle: usize,
    idle_min: usize,
    /// When so many are given back.
    gives_back_at: Option<Duration>,
}

fn class_of(len: usize) -> usize {
    SLOT_LENS.iter().position(|slot| len <= *slot).unwrap_or(SLOT_LENS.len() - 1)
}

/// The slots of a chunk, a bit each.
fn slots(class: usize) -> u64 {
    u64::MAX >> (UNITS - CHUNK_LEN / SLOT_LENS[class])
}

/// Units that memory for so many bytes counts as.
pub(super) fn units(len: usize) -> u32 {
    let slot = SLOT_LENS[class_of(len)];
    u32::try_from(len.div_ceil(slot) * (slot / UNIT_LEN)).unwrap_or(u32::MAX)
}

impl Pool {
    /// Whether there is room for so many bytes beside what is used. Who may not wait takes them all the same.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.used + len.div_ceil(CHUNK_LEN) <= CHUNKS_MAX
    }

    /// Memory for so many bytes, and at least one; `None` when the system has none.
    pub(super) fn take(&mut self, len: usize, backend: &mut impl Backend) -> Option<Chain> {
        let class = class_of(len);
        let mut first = None;
        for _ in 0..len.div_ceil(CHUNK_LEN).max(1) {
            let Some(unit) = self.take_slot(class, backend) else {
                if let Some(first) = first {
                    self.put(Chain { first, class });
                }
                return None;
            };
            self.chunks[unit / UNITS].next = first;
            first = Some(unit);
        }
        first.map(|first| Chain { first, class })
    }

    /// Gives memory back.
    pub(super) fn put(&mut self, chain: Chain) {
        // Only chunks as a whole have a next one.
        let mut next = Some(chain.first);
        while let Some(unit) = next {
            next = self.chunks[unit / UNITS].next;
            self.put_slot(unit, chain.class);
        }
    }

    /// The pieces in which the bytes `at..at + len` of a chain lie.
    pub(super) fn parts(&self, chain: Chain, at: usize, len: usize) -> impl Iterator<Item = Part<'_>> {
        let mut unit = Some(chain.first);
        for _ in 0..at / CHUNK_LEN {
            unit = unit.and_then(|unit| self.chunks[unit / UNITS].next);
        }
        let (mut at, mut left) = (at % CHUNK_LEN, len);
        core::iter::from_fn(move || {
            let start = unit.filter(|_| left > 0)?;
            let (region, memory) = self.regions[start / (UNITS * CHUNKS)].as_ref()?;
            let offset = start % (UNITS * CHUNKS) * UNIT_LEN + at;
            let len = left.min(SLOT_LENS[chain.class] - at);
            (unit, at, left) = (self.chunks[start / UNITS].next, 0, left - len);
            Some(Part { memory, buffer: Buffer { region: *region, offset, len } })
        })
    }

    /// Copies bytes to `at` of a chain.
    pub(super) fn write(&self, chain: Chain, at: usize, bytes: &[u8]) {
        let mut rest = bytes;
        for Part { memory, buffer } in self.parts(chain, at, bytes.len()) {
            let (now, behind) = rest.split_at(buffer.len);
            memory.write(buffer.offset, now);
            rest = behind;
        }
    }

    /// When there is something to be done in [`Pool::give_back`].
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.gives_back_at
    }

    /// Gives the system as many regions as nobody has used for a while.
    pub(super) fn give_back(&mut self, now: Duration, backend: &mut impl Backend) {
        if self.gives_back_at.is_some_and(|at| at > now) {
            return;
        }
        if self.gives_back_at.is_some() {
            let unused = core::mem::take(&mut self.idle_min);
            self.idle -= unused;
            let idle = self.regions.iter_mut().zip(&mut self.free).filter(|(_, free)| **free == u16::MAX);
            // Those that are taken from last.
            for (region, free) in idle.rev().take(unused) {
                *free = 0;
                if let Some((id, _memory)) = region.take() {
                    backend.deregister(id);
                }
            }
        }
        self.idle_min = self.idle;
        self.gives_back_at = (self.idle > 0).then(|| now + IDLE_TIME);
    }

    /// The first unit of a free slot.
    fn take_slot(&mut self, class: usize, backend: &mut impl Backend) -> Option<usize> {
        let index = match self.partial[class].last() {
            Some(index) => *index,
            None => self.take_chunk(class, backend)?,
        };
        let chunk = &mut self.chunks[index];
        let slot = chunk.free.trailing_zeros() as usize;
        chunk.free &= chunk.free - 1;
        chunk.next = None;
        if chunk.free == 0 {
            self.partial[class].pop();
        }
        Some(index * UNITS + slot * (SLOT_LENS[class] / UNIT_LEN))
    }

    fn put_slot(&mut self, unit: usize, class: usize) {
        let (index, partial) = (unit / UNITS, &mut self.partial[class]);
        let chunk = &mut self.chunks[index];
        if chunk.free == 0 {
            chunk.at = partial.len();
            partial.push(index);
        }
        chunk.free |= 1 << (unit % UNITS / (SLOT_LENS[class] / UNIT_LEN));
        if chunk.free != slots(class) {
            return;
        }
        let at = chunk.at;
        partial.swap_remove(at);
        if let Some(moved) = partial.get(at) {
            self.chunks[*moved].at = at;
        }
        self.used -= 1;
        let free = &mut self.free[index / CHUNKS];
        *free |= 1 << (index % CHUNKS);
        self.idle += usize::from(*free == u16::MAX);
    }

    /// A free chunk, divided into slots, as the last of those that have free ones. Those of the first regions are taken
    /// first, so that the others can be given back.
    fn take_chunk(&mut self, class: usize, backend: &mut impl Backend) -> Option<usize> {
        let region = match self.free.iter().position(|free| *free != 0) {
            Some(region) => region,
            None => self.grow(backend)?,
        };
        let free = &mut self.free[region];
        if *free == u16::MAX {
            self.idle -= 1;
            self.idle_min = self.idle_min.min(self.idle);
        }
        let index = region * CHUNKS + free.trailing_zeros() as usize;
        *free &= *free - 1;
        self.used += 1;
        let at = self.partial[class].len();
        self.chunks[index] = Chunk { free: slots(class), at, next: None };
        self.partial[class].push(index);
        Some(index)
    }

    /// Registers another region.
    #[cold]
    fn grow(&mut self, backend: &mut impl Backend) -> Option<usize> {
        let memory = Memory::alloc(REGION_LEN).ok()?;
        let id = backend.register(&memory).ok()?;
        let given_back = self.regions.iter().position(Option::is_none);
        let region = given_back.unwrap_or(self.regions.len());
        if given_back.is_none() {
            self.regions.push(None);
            self.free.push(0);
            self.chunks.resize(self.chunks.len() + CHUNKS, Chunk::default());
        }
        self.regions[region] = Some((id, memory));
        self.free[region] = u16::MAX;
        self.idle += 1;
        Some(region)
    }
}
