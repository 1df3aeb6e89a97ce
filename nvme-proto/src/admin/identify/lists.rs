//! Lists: of identifiers, and of a namespace's names.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A list of up to 1024 identifiers in ascending order, ended by a zero or by its end, as on the wire.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdList {
    ids: [U32; 1024],
}

const _: () = assert!(size_of::<IdList>() == super::LEN);

impl IdList {
    /// Identifiers that fit.
    pub const COUNT_MAX: usize = 1024;
    /// The only entry of a Changed Namespace List that could not name them all: read every namespace again.
    pub const TOO_MANY_CHANGED: u32 = 0xffff_ffff;

    /// The first [`IdList::COUNT_MAX`] of `ids`.
    pub fn new(ids: impl IntoIterator<Item = u32>) -> Self {
        let mut list = Self::new_zeroed();
        for (to, id) in list.ids.iter_mut().zip(ids) {
            *to = id.into();
        }
        list
    }

    /// The identifiers.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.ids.iter().map(|id| id.get()).take_while(|&id| id != 0)
    }
}

open_enum! {
    /// Namespace identifier type.
    pub struct NamespaceIdType: u8 {
        /// IEEE extended unique identifier, 8 bytes.
        EUI64 = 1,
        /// Namespace globally unique identifier, 16 bytes.
        NGUID = 2,
        /// UUID, 16 bytes.
        UUID = 3,
        /// I/O command set identifier, 1 byte.
        CSI = 4,
    }
}

/// Header of an identification descriptor, as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DescriptorHeader {
    kind: NamespaceIdType,
    len: u8,
    reserved: U16,
}

/// Writes a namespace's identification descriptors, one behind the other.
pub struct DescriptorWriter<'a> {
    rest: &'a mut [u8],
}

impl<'a> DescriptorWriter<'a> {
    /// Into this page, which it clears.
    pub fn new(page: &'a mut [u8; super::LEN]) -> Self {
        page.fill(0);
        Self { rest: page }
    }

    /// Adds a descriptor; left out when it does not fit.
    pub fn push(&mut self, kind: NamespaceIdType, id: &[u8]) {
        let Ok(len) = u8::try_from(id.len()) else { return };
        if self.rest.len() < 4 + id.len() {
            return;
        }
        let (this, rest) = core::mem::take(&mut self.rest).split_at_mut(4 + id.len());
        this[..4].copy_from_slice(DescriptorHeader { kind, len, reserved: 0.into() }.as_bytes());
        this[4..].copy_from_slice(id);
        self.rest = rest;
    }
}

/// A namespace's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Of what kind.
    pub kind: NamespaceIdType,
    /// Its bytes.
    pub id: &'a [u8],
}

/// Reads a namespace's identification descriptors; ends at the first that has no length or does not fit.
#[derive(Clone)]
pub struct Descriptors<'a> {
    rest: &'a [u8],
}

impl<'a> Descriptors<'a> {
    /// From this page.
    #[must_use]
    pub fn new(page: &'a [u8]) -> Self {
        Self { rest: page }
    }
}

impl<'a> Iterator for Descriptors<'a> {
    type Item = Descriptor<'a>;
    fn next(&mut self) -> Option<Descriptor<'a>> {
        let (header, rest) = DescriptorHeader::read_from_prefix(self.rest).ok()?;
        if header.len == 0 || rest.len() < usize::from(header.len) {
            return None;
        }
        let (id, rest) = rest.split_at(usize::from(header.len));
        self.rest = rest;
        Some(Descriptor { kind: header.kind, id })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn descriptors_are_read_as_written() {
        let mut page = [0xff; super::super::LEN];
        let mut writer = DescriptorWriter::new(&mut page);
        writer.push(NamespaceIdType::UUID, &[7; 16]);
        writer.push(NamespaceIdType::CSI, &[0]);
        assert_eq!(page[..6], [3, 16, 0, 0, 7, 7]);
        let all: Vec<_> = Descriptors::new(&page).collect();
        assert_eq!(
            all,
            [
                Descriptor { kind: NamespaceIdType::UUID, id: &[7; 16] },
                Descriptor { kind: NamespaceIdType::CSI, id: &[0] },
            ]
        );
    }

    #[test]
    fn a_full_list_has_no_end_mark() {
        assert_eq!(IdList::new(1..=2000).iter().count(), 1024);
        assert_eq!(IdList::new([3, 5]).iter().collect::<Vec<_>>(), [3, 5]);
    }

    proptest! {
        #[test]
        fn any_page_has_an_end(page in prop::collection::vec(any::<u8>(), 0..4096)) {
            prop_assert!(Descriptors::new(&page).count() <= 1024);
        }
    }
}
