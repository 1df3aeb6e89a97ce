//! Memory for the data of requests, registered with the backend.

use nvmf_block::{Backend, Buffer, RegionId};
use nvmf_memory::Memory;

/// The longest slot. Data that are longer lie in several.
const SLOT_LEN_MAX: usize = 256 << 10;
/// Bytes of slots, by class. Each is a multiple of every block that is no longer than it.
const SLOT_LENS: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, SLOT_LEN_MAX];
/// Bytes that are registered at once. Of those that are not used yet the system has no pages, unless it is told to lock
/// them.
const REGION_LEN: usize = 4 << 20;
/// Bytes of a unit, in which the memory of a request is counted.
const UNIT: usize = SLOT_LENS[0];

const _: () = assert!(REGION_LEN.is_multiple_of(SLOT_LEN_MAX) && SLOT_LEN_MAX.is_multiple_of(UNIT));

/// Memory of one request: a slot, or as many of the longest as it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain {
    first: u32,
    class: usize,
}

/// A part of a chain that lies in one piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) memory: &'a Memory,
    pub(super) buffer: Buffer,
}

#[derive(Debug)]
struct Slot {
    region: u16,
    offset: usize,
    /// The next slot of its chain.
    next: Option<u32>,
}

/// Slots in regions of memory. More are made when there are none left: what may be taken is bounded by who takes it. A slot
/// that was given back last is taken first, as it is most likely in the cache.
#[derive(Debug, Default)]
pub(super) struct Pool {
    regions: Vec<(RegionId, Memory)>,
    slots: Vec<Slot>,
    free: [Vec<u32>; SLOT_LENS.len()],
}

fn class_of(len: usize) -> usize {
    SLOT_LENS.iter().position(|slot| len <= *slot).unwrap_or(SLOT_LENS.len() - 1)
}

/// Units that memory for so many bytes counts as.
pub(super) fn units(len: usize) -> u32 {
    let slot = SLOT_LENS[class_of(len)];
    u32::try_from(len.div_ceil(slot) * (slot / UNIT)).unwrap_or(u32::MAX)
}

impl Pool {
    /// Memory for so many bytes, and at least one; `None` when the system has none.
    pub(super) fn take(&mut self, len: usize, backend: &mut impl Backend) -> Option<Chain> {
        let class = class_of(len);
        let mut first = None;
        for _ in 0..len.div_ceil(SLOT_LEN_MAX).max(1) {
            let slot = self.free[class].pop().or_else(|| self.grow(class, backend));
            let Some(slot) = slot else {
                if let Some(first) = first {
                    self.put(Chain { first, class });
                }
                return None;
            };
            self.slots[slot as usize].next = first;
            first = Some(slot);
        }
        first.map(|first| Chain { first, class })
    }

    /// Gives memory back.
    pub(super) fn put(&mut self, chain: Chain) {
        let mut next = Some(chain.first);
        while let Some(slot) = next {
            self.free[chain.class].push(slot);
            next = self.slots[slot as usize].next;
        }
    }

    /// The pieces in which the bytes `at..at + len` of a chain lie.
    pub(super) fn parts(&self, chain: Chain, at: usize, len: usize) -> impl Iterator<Item = Part<'_>> {
        let mut slot = Some(chain.first);
        for _ in 0..at / SLOT_LEN_MAX {
            slot = slot.and_then(|slot| self.slots[slot as usize].next);
        }
        let (mut at, mut left) = (at % SLOT_LEN_MAX, len);
        core::iter::from_fn(move || {
            let place = slot.filter(|_| left > 0).map(|slot| &self.slots[slot as usize])?;
            let (region, memory) = &self.regions[usize::from(place.region)];
            let len = left.min(SLOT_LENS[chain.class] - at);
            let buffer = Buffer { region: *region, offset: place.offset + at, len };
            (slot, at, left) = (place.next, 0, left - len);
            Some(Part { memory, buffer })
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

    /// Registers another region, for slots of this class; one of them.
    #[cold]
    fn grow(&mut self, class: usize, backend: &mut impl Backend) -> Option<u32> {
        let memory = Memory::alloc(REGION_LEN).ok()?;
        let region = u16::try_from(self.regions.len()).ok()?;
        let id = backend.register(&memory).ok()?;
        self.regions.push((id, memory));
        for offset in (0..REGION_LEN).step_by(SLOT_LENS[class]).rev() {
            self.free[class].push(u32::try_from(self.slots.len()).ok()?);
            self.slots.push(Slot { region, offset, next: None });
        }
        self.free[class].pop()
    }
}
