//! Lists of controllers, and the I/O command set combinations.

use crate::ident::Cntlid;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A controller list (CNS 12h and 13h), as on the wire: a count, then identifiers in ascending order.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ControllerList {
    count: U16,
    ids: [U16; 2047],
}

/// A secondary controller, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SecondaryController {
    /// Secondary controller identifier.
    pub scid: U16,
    /// Primary controller identifier.
    pub pcid: U16,
    /// State: bit 0 is "online".
    pub scs: u8,
    reserved0: [u8; 3],
    /// Virtual function number.
    pub vfn: U16,
    /// VQ resources.
    pub nvq: U16,
    /// VI resources.
    pub nvi: U16,
    reserved1: [u8; 18],
}

/// The secondary controllers of a primary one (CNS 15h), as on the wire.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SecondaryControllerList {
    count: u8,
    reserved: [u8; 31],
    entries: [SecondaryController; 127],
}

/// I/O command set combinations (CNS 1Ch), as on the wire: bit n of a combination is the command set with CSI n.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandSets {
    /// The combinations; the I/O Command Set Profile feature chooses one by its index.
    pub combinations: [U64; 512],
}

const _: () = {
    assert!(size_of::<ControllerList>() == super::LEN);
    assert!(size_of::<SecondaryController>() == 32);
    assert!(size_of::<SecondaryControllerList>() == super::LEN);
    assert!(size_of::<CommandSets>() == super::LEN);
};

impl ControllerList {
    /// Identifiers that fit.
    pub const COUNT_MAX: usize = 2047;

    /// The first [`ControllerList::COUNT_MAX`] of `ids`.
    pub fn new(ids: impl IntoIterator<Item = Cntlid>) -> Self {
        let mut list = Self::new_zeroed();
        let mut count = 0_u16;
        for (to, id) in list.ids.iter_mut().zip(ids) {
            *to = id.0.into();
            count += 1;
        }
        list.count = count.into();
        list
    }

    /// The identifiers; no more than fit, whatever the count says.
    pub fn iter(&self) -> impl Iterator<Item = Cntlid> {
        self.ids.iter().take(usize::from(self.count.get())).map(|id| Cntlid(id.get()))
    }
}

impl SecondaryControllerList {
    /// The controllers; no more than fit, whatever the count says. A controller without virtualization has none: all
    /// zeroes.
    #[must_use]
    pub fn entries(&self) -> &[SecondaryController] {
        &self.entries[..usize::from(self.count).min(self.entries.len())]
    }
}

impl CommandSets {
    /// One combination: the NVM command set alone.
    #[must_use]
    pub fn nvm_only() -> Self {
        let mut sets = Self::new_zeroed();
        sets.combinations[0] = (1 << super::CSI_NVM).into();
        sets
    }

    /// Index of the first combination that has the NVM command set.
    #[must_use]
    pub fn nvm_index(&self) -> Option<usize> {
        self.combinations.iter().position(|c| c.get() >> super::CSI_NVM & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn a_list_has_its_count_first() {
        let list = ControllerList::new([Cntlid(1), Cntlid(0x0203)]);
        assert_eq!(list.as_bytes()[..8], [2, 0, 1, 0, 3, 2, 0, 0]);
        assert_eq!(ControllerList::new((1..=3000).map(Cntlid)).iter().count(), ControllerList::COUNT_MAX);
    }

    #[test]
    fn the_nvm_command_set_is_the_first_combination() {
        let sets = CommandSets::nvm_only();
        assert_eq!(sets.as_bytes()[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sets.nvm_index(), Some(0));
        assert_eq!(CommandSets::new_zeroed().nvm_index(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_lists(page in prop::collection::vec(any::<u8>(), super::super::LEN)) {
            let list = ControllerList::read_from_bytes(&page).unwrap();
            let ids: Vec<_> = list.iter().collect();
            prop_assert_eq!(ControllerList::new(ids.iter().copied()).iter().collect::<Vec<_>>(), ids);
            prop_assert!(SecondaryControllerList::read_from_bytes(&page).unwrap().entries().len() <= 127);
            let _ = CommandSets::read_from_bytes(&page).unwrap().nvm_index();
        }
    }
}
