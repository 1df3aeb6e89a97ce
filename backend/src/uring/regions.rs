//! The registered memory of a ring, and its fixed buffers.

use nvmf_block::{Buffer, RegionId};
use nvmf_memory::Memory;

/// The largest fixed buffer that the kernel accepts, in bytes.
pub(super) const FIXED_LEN_MAX: usize = 1 << 30;

/// Registered memory. Regions are never removed.
#[derive(Default)]
pub(crate) struct Regions(Vec<Region>);

struct Region {
    memory: Memory,
    /// The index of the fixed buffer of each [`FIXED_LEN_MAX`] bytes, where they could be pinned.
    fixed: Vec<Option<u16>>,
}

impl Regions {
    pub(crate) fn add(&mut self, memory: &Memory) -> RegionId {
        let id = RegionId(u16::try_from(self.0.len()).expect("few"));
        let fixed = vec![None; memory.len().div_ceil(FIXED_LEN_MAX)];
        self.0.push(Region { memory: memory.clone(), fixed });
        id
    }

    /// The number of regions.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Bytes in all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|region| region.memory.len() as u64).sum()
    }

    /// The memory of a buffer, if the buffer is within a region.
    pub(crate) fn resolve(&self, buffer: &Buffer) -> Option<&Memory> {
        let memory = &self.0.get(usize::from(buffer.region.0))?.memory;
        memory.contains(buffer.offset, buffer.len).then_some(memory)
    }

    /// The memory of a region.
    pub(crate) fn memory(&self, region: RegionId) -> &Memory {
        &self.0[usize::from(region.0)].memory
    }

    /// Records that `buffer`, at a multiple of [`FIXED_LEN_MAX`], is fixed buffer `index`.
    pub(super) fn pinned(&mut self, buffer: Buffer, index: u16) {
        self.0[usize::from(buffer.region.0)].fixed[buffer.offset / FIXED_LEN_MAX] = Some(index);
    }

    /// The fixed buffer that contains a buffer. `None` for one that crosses from one fixed buffer into the next.
    pub(super) fn fixed(&self, Buffer { region, offset, len }: Buffer) -> Option<u16> {
        let (first, last) = (offset / FIXED_LEN_MAX, (offset + len.max(1) - 1) / FIXED_LEN_MAX);
        let fixed = &self.0[usize::from(region.0)].fixed;
        if first == last { fixed.get(first).copied().flatten() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_region_is_pinned_in_parts() {
        const GIB: usize = FIXED_LEN_MAX;
        let fixed = vec![Some(4), None, Some(5)];
        let regions = Regions(vec![Region { memory: Memory::alloc(1).unwrap(), fixed }]);
        let at = |offset, len| regions.fixed(Buffer { region: RegionId(0), offset, len });
        assert_eq!(at(0, GIB), Some(4));
        assert_eq!(at(GIB - 512, 1024), None, "from one into the next");
        assert_eq!(at(GIB, 512), None, "not pinned");
        assert_eq!(at(2 * GIB, 0), Some(5));
        assert_eq!(at(3 * GIB, 512), None, "outside");
    }
}
