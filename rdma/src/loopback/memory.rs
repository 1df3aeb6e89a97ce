//! Regions, keys, and what a key lets a peer reach.

use super::state::{MemberId, State};
use crate::{Access, LocalKey, MemoryRegion, QueuePairId, RegisterError, RemoteKey, RemoteMemory, Sge};
use nvmf_memory::Memory;

/// Bytes that a registration or a work request holds.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) memory: Memory,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// What [`crate::Provider::register`] made.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) owner: MemberId,
    memory: Memory,
    access: Access,
}

/// What a key of ours opens to peers.
#[derive(Debug)]
pub(super) struct Exposure {
    pub(super) owner: MemberId,
    /// The one queue pair whose peer may use it; `None` for a region's own key, which all may.
    pub(super) scope: Option<QueuePairId>,
    region: LocalKey,
    slice: Slice,
    address: u64,
    access: Access,
}

const REMOTE: [Access; 2] = [Access::REMOTE_READ, Access::REMOTE_WRITE];

impl State {
    pub(super) fn register(&mut self, owner: MemberId, memory: &Memory, access: Access) -> MemoryRegion {
        let local_key = LocalKey(self.fresh());
        self.regions.insert(local_key, Region { owner, memory: memory.clone(), access });
        let slice = Slice { memory: memory.clone(), offset: 0, len: memory.len() };
        let opened = REMOTE.into_iter().any(|right| access.allows(right));
        let remote = opened.then(|| self.open(owner, None, local_key, slice, access));
        MemoryRegion { local_key, remote, len: memory.len() }
    }

    pub(super) fn deregister(&mut self, owner: MemberId, key: LocalKey) {
        if self.regions.get(&key).is_some_and(|region| region.owner == owner) {
            self.regions.remove(&key);
            self.exposures.retain(|_, exposure| exposure.region != key);
        }
    }

    pub(super) fn expose(
        &mut self,
        owner: MemberId,
        queue_pair: QueuePairId,
        range: Sge,
        access: Access,
    ) -> Result<RemoteMemory, RegisterError> {
        let ours = self.queue_pairs.get(&queue_pair).is_some_and(|qp| qp.owner == owner);
        let slice = self.local(owner, range, Access::LOCAL_READ).filter(|_| ours);
        let slice = slice.ok_or(RegisterError::OutOfBounds)?;
        if access.allows(Access::REMOTE_WRITE) && self.local(owner, range, Access::LOCAL_WRITE).is_none() {
            return Err(RegisterError::Access);
        }
        Ok(self.open(owner, Some(queue_pair), range.local_key, slice, access))
    }

    fn open(
        &mut self,
        owner: MemberId,
        scope: Option<QueuePairId>,
        region: LocalKey,
        slice: Slice,
        access: Access,
    ) -> RemoteMemory {
        let key = RemoteKey(self.fresh());
        // Far from zero, from any offset and from any other key's: a mixed-up address must not work by luck.
        let address = u64::from(key.0) << 32;
        let len = u32::try_from(slice.len).unwrap_or(u32::MAX);
        self.exposures.insert(key, Exposure { owner, scope, region, slice, address, access });
        RemoteMemory { key, address, len }
    }

    /// The bytes that an element of `owner`'s names, if it may be used that way.
    pub(super) fn local(&self, owner: MemberId, sge: Sge, access: Access) -> Option<Slice> {
        let region = self.regions.get(&sge.local_key).filter(|region| region.owner == owner)?;
        let len = usize::try_from(sge.len).ok()?;
        let fits = region.memory.contains(sge.offset, len) && region.access.allows(access);
        fits.then(|| Slice { memory: region.memory.clone(), offset: sge.offset, len })
    }

    /// The bytes that the peer of `queue_pair` names, if it may use them that way.
    pub(super) fn remote(
        &self,
        queue_pair: QueuePairId,
        remote: &RemoteMemory,
        len: usize,
        access: Access,
    ) -> Option<Slice> {
        let owner = self.queue_pairs.get(&queue_pair)?.owner;
        let exposure = self.exposures.get(&remote.key).filter(|it| it.owner == owner)?;
        let in_scope = exposure.scope.is_none_or(|scope| scope == queue_pair);
        let begin = usize::try_from(remote.address.checked_sub(exposure.address)?).ok()?;
        let in_bounds = begin.checked_add(len).is_some_and(|end| end <= exposure.slice.len);
        (in_scope && in_bounds && exposure.access.allows(access)).then(|| Slice {
            memory: exposure.slice.memory.clone(),
            offset: exposure.slice.offset + begin,
            len,
        })
    }

    /// Ends a key that was exposed to the peer of `queue_pair`; false when there is no such key.
    pub(super) fn invalidate(&mut self, queue_pair: QueuePairId, key: RemoteKey) -> bool {
        let ours = self.exposures.get(&key).is_some_and(|it| it.scope == Some(queue_pair));
        if ours {
            self.exposures.remove(&key);
        }
        ours
    }
}
