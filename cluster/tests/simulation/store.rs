//! The store in memory: objects with keys, locks that expire, monitors, and OSDs that learn of fences each at its own time.

use super::objects;
use super::oracle::Oracle;
use super::plan::Time;
use nvmf_cluster::{Address, BootId, GroupId, Locker, Object, Reply};
use std::collections::BTreeMap;

#[derive(Debug)]
struct Lock {
    by: Locker,
    until: Time,
    /// What the holder's wall clock said when it renewed, for the mistake of relying on it.
    wall: i64,
}

/// The objects of the group.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    stored: objects::Objects,
    locks: BTreeMap<Object, Lock>,
    pub(crate) stalled_until: Time,
    pub(crate) object_stalled_until: BTreeMap<Object, Time>,
    pub(crate) full_until: Time,
    pub(crate) unclear_until: Time,
}

impl Objects {
    /// Until when requests for this object wait.
    pub(crate) fn stalled(&self, object: &Object) -> Time {
        self.stalled_until.max(self.object_stalled_until.get(object).copied().unwrap_or(0))
    }

    pub(crate) fn read(&self, object: &Object, unless: Option<u64>) -> Reply {
        self.stored.read(object, unless)
    }

    pub(crate) fn keys(&self, object: &Object) -> BTreeMap<String, Vec<u8>> {
        self.stored.keys(object)
    }

    /// Gives whether it was done.
    pub(crate) fn compare_and_set(
        &mut self,
        object: &Object,
        compare: &objects::Changes,
        set: &objects::Changes,
    ) -> bool {
        self.stored.compare_and_set(object, compare, set)
    }

    pub(crate) fn lock(
        &mut self,
        now: Time,
        object: &Object,
        by: Locker,
        duration: Time,
        wall: i64,
    ) -> Reply {
        match self.locks.get(object) {
            Some(lock) if lock.until > now && lock.by != by => Reply::Held(lock.by.clone()),
            _ => {
                self.locks.insert(object.clone(), Lock { by, until: now + duration, wall });
                Reply::Done
            }
        }
    }

    /// Who has it, and what that one's wall clock said at the last renewal, if there was one.
    pub(crate) fn lockers(&self, now: Time, object: &Object) -> (Reply, Option<(i64, Locker)>) {
        let Some(lock) = self.locks.get(object) else { return (Reply::Free, None) };
        let stamp = Some((lock.wall, lock.by.clone()));
        if lock.until > now { (Reply::Held(lock.by.clone()), stamp) } else { (Reply::Free, stamp) }
    }

    pub(crate) fn unlock(&mut self, object: &Object, cookie: &BootId) {
        if self.locks.get(object).is_some_and(|lock| lock.by.cookie == *cookie) {
            self.locks.remove(object);
        }
    }
}

/// The monitors: who is fenced, and since which map.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    pub(crate) epoch: u64,
    fenced: BTreeMap<Address, u64>,
    pub(crate) down_until: Time,
    /// When each map was made.
    made: BTreeMap<Time, u64>,
}

impl Monitors {
    /// Makes the map that has the fence.
    pub(crate) fn fence(&mut self, now: Time, address: &Address) {
        if !self.fenced.contains_key(address) {
            self.epoch += 1;
            self.fenced.insert(address.clone(), self.epoch);
            self.made.insert(now, self.epoch);
        }
    }

    /// The map that there was at that time.
    pub(crate) fn epoch_at(&self, at: Time) -> u64 {
        self.made.range(..=at).next_back().map_or(0, |(_, &epoch)| epoch)
    }

    fn is_fenced(&self, address: &Address, epoch: u64) -> bool {
        self.fenced.get(address).is_some_and(|since| *since <= epoch)
    }
}

/// What is asked of a block. Hosts write numbers that only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write(u64),
}

/// A block of an ANA group's image.
pub(crate) type Block = (GroupId, u64);

/// An OSD.
#[derive(Debug, Default)]
pub(crate) struct Osd {
    /// The map that it has.
    pub(crate) epoch: u64,
    blocks: BTreeMap<Block, u64>,
    pub(crate) stalled_until: Time,
}

impl Osd {
    /// Whether it refuses this client. A request with a newer map than its own brings that.
    pub(crate) fn refuses(&mut self, monitors: &Monitors, client: &Address, epoch: u64) -> bool {
        self.epoch = self.epoch.max(epoch);
        monitors.is_fenced(client, self.epoch)
    }

    /// Carries out a request of a client that it does not refuse.
    pub(crate) fn access(&mut self, block: Block, access: Access) -> u64 {
        match access {
            Access::Read => self.blocks.get(&block).copied().unwrap_or(0),
            Access::Write(number) => {
                self.blocks.insert(block, number);
                number
            }
        }
    }
}

/// Which OSD has a block.
pub(crate) fn osd_of(block: Block, osds: usize) -> usize {
    (u64::from(block.0.0) * 7 + block.1) as usize % osds
}

/// An I/O under way to an OSD.
#[derive(Debug, Clone)]
pub(crate) struct Io {
    pub(crate) client: Address,
    pub(crate) epoch: u64,
    pub(crate) block: Block,
    pub(crate) access: Access,
}

impl Io {
    /// At its OSD: the number of the block, or `None` if the client is refused.
    pub(crate) fn carry_out(
        &self,
        osds: &mut [Osd],
        monitors: &Monitors,
        oracle: &mut Oracle,
    ) -> Result<Option<u64>, String> {
        let at = osd_of(self.block, osds.len());
        if osds[at].refuses(monitors, &self.client, self.epoch) {
            return Ok(None);
        }
        oracle.on_access(at, self.block.0, &self.client)?;
        Ok(Some(osds[at].access(self.block, self.access)))
    }
}
