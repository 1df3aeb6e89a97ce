//! Which hash functions and groups are taken.

use crate::{Group, Hash};
use alloc::vec::Vec;
use nvme_proto::fabrics::auth::{DhGroup, HashId, ProtocolDescriptor};

/// Which hash functions and groups one side takes: at least one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// A bit for each number on the wire.
    hashes: u8,
    groups: u8,
}

impl Default for Terms {
    /// All.
    fn default() -> Self {
        Self::new(&Hash::ALL, &Group::ALL).expect("there are some")
    }
}

impl Terms {
    /// These; `None` if there is no hash, or no group.
    #[must_use]
    pub fn new(hashes: &[Hash], groups: &[Group]) -> Option<Self> {
        let hashes = hashes.iter().fold(0, |bits, hash| bits | 1 << hash.id().0);
        let groups = groups.iter().fold(0, |bits, group| bits | 1 << group.id().0);
        (hashes != 0 && groups != 0).then_some(Self { hashes, groups })
    }

    /// Whether this hash is taken.
    #[must_use]
    pub fn takes_hash(self, hash: Hash) -> bool {
        self.hashes >> hash.id().0 & 1 == 1
    }

    /// Whether this group is taken.
    #[must_use]
    pub fn takes_group(self, group: Group) -> bool {
        self.groups >> group.id().0 & 1 == 1
    }

    /// The strongest hash that is taken and offered.
    #[must_use]
    pub fn choose_hash(self, offered: &[HashId]) -> Option<Hash> {
        let mut taken = Hash::ALL.into_iter().rev().filter(|&hash| self.takes_hash(hash));
        taken.find(|hash| offered.contains(&hash.id()))
    }

    /// The strongest group that is taken and offered.
    #[must_use]
    pub fn choose_group(self, offered: &[DhGroup]) -> Option<Group> {
        let mut taken = Group::ALL.into_iter().rev().filter(|&group| self.takes_group(group));
        taken.find(|group| offered.contains(&group.id()))
    }

    /// These without what makes no key for TLS: SHA-512, and [`Group::Null`]. `None` if no hash or no group is left.
    #[must_use]
    pub fn for_concatenation(self) -> Option<Self> {
        let left = self.that_make_keys();
        (left.hashes != 0 && left.groups != 0).then_some(left)
    }

    /// The same, whatever is left.
    pub(crate) fn that_make_keys(self) -> Self {
        let hashes = self.hashes & !(1 << Hash::Sha512.id().0);
        let groups = self.groups & !(1 << Group::Null.id().0);
        Self { hashes, groups }
    }

    /// What a host offers. The weakest first, as Linux has it: some controllers take the first.
    #[must_use]
    pub fn descriptor(self) -> ProtocolDescriptor {
        let hashes: Vec<HashId> =
            Hash::ALL.into_iter().filter(|&hash| self.takes_hash(hash)).map(Hash::id).collect();
        let groups: Vec<DhGroup> =
            Group::ALL.into_iter().filter(|&group| self.takes_group(group)).map(Group::id).collect();
        ProtocolDescriptor::dh_hmac_chap(&hashes, &groups).expect("there is room for all that there are")
    }
}
