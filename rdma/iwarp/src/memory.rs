//! The STag table: what a peer may reach, and what our own work requests name.
//!
//! An STag is `index << 8 | key`. The key counts up with each use of the index, and the index freed longest ago is used
//! first.

use nvmf_memory::Memory;
use nvmf_rdma::{Access, LocalKey, MemoryRegion, QueuePairId, RegisterError, RemoteKey, RemoteMemory, Sge};
use std::collections::VecDeque;

/// Why a peer does not reach what it named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No such STag.
    Stag,
    /// Not one of this stream's.
    NotAssociated,
    /// Without that right.
    Access,
    /// Outside its bounds.
    Bounds,
    /// Offset and length overflow.
    Wrap,
    /// A region, which only we can end.
    CannotInvalidate,
    /// A READ of the peer's own is still being answered from it.
    InUse,
}

#[derive(Debug)]
struct Entry {
    key: u8,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Free,
    Region { memory: Memory, access: Access },
    Window(Window),
}

/// A per-command key: part of a region, for one queue pair. Invalid once the region is.
#[derive(Debug, Clone, Copy)]
struct Window {
    queue_pair: QueuePairId,
    region: u32,
    offset: usize,
    len: u32,
    access: Access,
}

#[derive(Debug)]
pub(crate) struct StagTable {
    entries: Vec<Entry>,
    free: VecDeque<u32>,
    limit: usize,
}

impl StagTable {
    pub(crate) fn new(limit: usize) -> Self {
        // 24 bits of index.
        Self { entries: Vec::new(), free: VecDeque::new(), limit: limit.min(1 << 24) }
    }

    fn insert(&mut self, kind: Kind) -> Result<u32, RegisterError> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.entries.len() < self.limit => {
                self.entries.push(Entry { key: 0, kind: Kind::Free });
                u32::try_from(self.entries.len() - 1).expect("indices have 24 bits")
            }
            None => return Err(RegisterError::NoKey { limit: self.limit }),
        };
        let entry = &mut self.entries[index as usize];
        entry.key = entry.key.wrapping_add(1);
        entry.kind = kind;
        Ok(index << 8 | u32::from(entry.key))
    }

    fn remove(&mut self, stag: u32) {
        self.entries[(stag >> 8) as usize].kind = Kind::Free;
        self.free.push_back(stag >> 8);
    }

    fn find(&self, stag: u32) -> Option<&Kind> {
        let entry = self.entries.get((stag >> 8) as usize)?;
        (u32::from(entry.key) == stag & 0xff && !matches!(entry.kind, Kind::Free)).then_some(&entry.kind)
    }

    fn region(&self, stag: u32) -> Option<(&Memory, Access)> {
        match self.find(stag)? {
            Kind::Region { memory, access } => Some((memory, *access)),
            _ => None,
        }
    }

    pub(crate) fn register(
        &mut self,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let stag = self.insert(Kind::Region { memory: memory.clone(), access })?;
        let remote = access.allows(Access::REMOTE_READ) || access.allows(Access::REMOTE_WRITE);
        let remote = remote.then(|| RemoteMemory {
            key: RemoteKey(stag),
            address: 0,
            len: u32::try_from(memory.len()).unwrap_or(u32::MAX),
        });
        Ok(MemoryRegion { local_key: LocalKey(stag), remote, len: memory.len() })
    }

    pub(crate) fn deregister(&mut self, key: LocalKey) {
        if self.region(key.0).is_some() {
            self.remove(key.0);
        }
    }

    pub(crate) fn expose(
        &mut self,
        queue_pair: QueuePairId,
        range: Sge,
        access: Access,
    ) -> Result<RemoteMemory, RegisterError> {
        let (memory, granted) = self.region(range.local_key.0).ok_or(RegisterError::OutOfBounds)?;
        if !memory.contains(range.offset, range.len as usize) {
            return Err(RegisterError::OutOfBounds);
        }
        // Remote rights are this key's own; but what may not be written at all may not be written from afar.
        if access.allows(Access::REMOTE_WRITE) && !granted.allows(Access::LOCAL_WRITE) {
            return Err(RegisterError::Access);
        }
        let (region, offset, len) = (range.local_key.0, range.offset, range.len);
        let stag = self.insert(Kind::Window(Window { queue_pair, region, offset, len, access }))?;
        Ok(RemoteMemory { key: RemoteKey(stag), address: 0, len })
    }

    /// The memory of an element of our own, if it lies in its region and the region has the right.
    pub(crate) fn local(&self, range: Sge, access: Access) -> Option<&Memory> {
        let (memory, granted) = self.region(range.local_key.0)?;
        (granted.allows(access) && memory.contains(range.offset, range.len as usize)).then_some(memory)
    }

    /// The memory that a peer names and the offset in it, if it may reach `len` bytes of it.
    pub(crate) fn remote(
        &self,
        queue_pair: QueuePairId,
        stag: u32,
        to: u64,
        len: u32,
        access: Access,
    ) -> Result<(&Memory, usize), Fault> {
        let (memory, granted, base, bound) = match self.find(stag).ok_or(Fault::Stag)? {
            Kind::Region { memory, access } => (memory, *access, 0, memory.len()),
            Kind::Window(window) => {
                if window.queue_pair != queue_pair {
                    return Err(Fault::NotAssociated);
                }
                let (memory, _) = self.region(window.region).ok_or(Fault::Stag)?;
                (memory, window.access, window.offset, window.len as usize)
            }
            Kind::Free => return Err(Fault::Stag),
        };
        if !granted.allows(access) {
            return Err(Fault::Access);
        }
        let end = to.checked_add(u64::from(len)).ok_or(Fault::Wrap)?;
        if end > bound as u64 {
            return Err(Fault::Bounds);
        }
        let to = usize::try_from(to).map_err(|_| Fault::Bounds)?;
        Ok((memory, base + to))
    }

    /// Whether an STag is the region's own or that of a window of it.
    pub(crate) fn is_part_of(&self, stag: u32, region: LocalKey) -> bool {
        match self.find(stag) {
            Some(Kind::Region { .. }) => stag == region.0,
            Some(Kind::Window(window)) => window.region == region.0,
            Some(Kind::Free) | None => false,
        }
    }

    /// What a SEND with invalidate does: a peer ends only keys that were made for it.
    pub(crate) fn invalidate_by_peer(&mut self, queue_pair: QueuePairId, stag: u32) -> Result<(), Fault> {
        match self.find(stag).ok_or(Fault::Stag)? {
            Kind::Window(window) if window.queue_pair == queue_pair => {
                self.remove(stag);
                Ok(())
            }
            Kind::Window(_) => Err(Fault::NotAssociated),
            _ => Err(Fault::CannotInvalidate),
        }
    }

    /// Ends a key of ours. One that the peer ended first is no error: the two race by nature.
    pub(crate) fn invalidate(&mut self, queue_pair: QueuePairId, key: RemoteKey) {
        let _ = self.invalidate_by_peer(queue_pair, key.0);
    }

    /// Ends all keys of a queue pair. Walks the table: only for its end.
    pub(crate) fn invalidate_all(&mut self, queue_pair: QueuePairId) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if matches!(&entry.kind, Kind::Window(window) if window.queue_pair == queue_pair) {
                entry.kind = Kind::Free;
                self.free.push_back(u32::try_from(index).expect("indices have 24 bits"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QP: QueuePairId = QueuePairId(1);
    const OTHER: QueuePairId = QueuePairId(2);

    fn table() -> (StagTable, LocalKey) {
        let mut table = StagTable::new(3);
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = table.register(&Memory::alloc(8192).unwrap(), all).unwrap();
        (table, region.local_key)
    }

    fn window(table: &mut StagTable, local_key: LocalKey) -> u32 {
        let range = Sge { local_key, offset: 4096, len: 100 };
        table.expose(QP, range, Access::REMOTE_READ).unwrap().key.0
    }

    fn reach(table: &StagTable, qp: QueuePairId, stag: u32, to: u64, len: u32) -> Result<usize, Fault> {
        table.remote(qp, stag, to, len, Access::REMOTE_READ).map(|(_, offset)| offset)
    }

    #[test]
    fn key_reaches_its_bytes_only() {
        let (mut table, region) = table();
        let stag = window(&mut table, region);
        assert_eq!(reach(&table, QP, stag, 0, 100), Ok(4096));
        assert_eq!(reach(&table, QP, stag, 99, 1), Ok(4195));
        assert_eq!(reach(&table, QP, stag, 99, 2), Err(Fault::Bounds));
        assert_eq!(reach(&table, QP, stag, u64::MAX, 1), Err(Fault::Wrap));
        assert_eq!(reach(&table, QP, stag, u64::MAX - 5, 1), Err(Fault::Bounds));
        assert_eq!(reach(&table, OTHER, stag, 0, 1), Err(Fault::NotAssociated));
        assert_eq!(reach(&table, QP, stag ^ 1, 0, 1), Err(Fault::Stag));
        assert_eq!(reach(&table, QP, 0xffff_ff00, 0, 1), Err(Fault::Stag));
        assert_eq!(table.remote(QP, stag, 0, 1, Access::REMOTE_WRITE).unwrap_err(), Fault::Access);
    }

    #[test]
    fn invalidated_key_is_not_reused_soon() {
        let (mut table, region) = table();
        let first = window(&mut table, region);
        assert_eq!(table.invalidate_by_peer(OTHER, first), Err(Fault::NotAssociated));
        assert_eq!(table.invalidate_by_peer(QP, region.0), Err(Fault::CannotInvalidate));
        assert_eq!(table.invalidate_by_peer(QP, first), Ok(()));
        assert_eq!(table.invalidate_by_peer(QP, first), Err(Fault::Stag));
        let second = window(&mut table, region);
        assert_ne!(first, second);
        assert_eq!(reach(&table, QP, first, 0, 1), Err(Fault::Stag));
        table.invalidate_all(QP);
        assert_eq!(reach(&table, QP, second, 0, 1), Err(Fault::Stag));
    }

    #[test]
    fn deregistration_invalidates_the_windows_of_the_region() {
        let (mut table, region) = table();
        let stag = window(&mut table, region);
        table.deregister(region);
        assert_eq!(reach(&table, QP, stag, 0, 1), Err(Fault::Stag));
        assert!(table.local(Sge { local_key: region, offset: 0, len: 1 }, Access::LOCAL_READ).is_none());
    }

    #[test]
    fn full_table_and_wrong_ranges_are_refused() {
        let (mut table, region) = table();
        window(&mut table, region);
        let range = |offset, len| Sge { local_key: region, offset, len };
        assert_eq!(table.expose(QP, range(8192, 1), Access::REMOTE_READ), Err(RegisterError::OutOfBounds));
        window(&mut table, region);
        let full = table.expose(QP, range(0, 1), Access::REMOTE_READ);
        assert_eq!(full, Err(RegisterError::NoKey { limit: 3 }));
        assert!(table.local(range(8191, 1), Access::LOCAL_WRITE).is_some());
        assert!(table.local(range(8191, 2), Access::LOCAL_WRITE).is_none());
        assert!(table.local(range(usize::MAX, 2), Access::LOCAL_READ).is_none());
    }
}
