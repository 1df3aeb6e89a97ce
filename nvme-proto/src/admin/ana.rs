//! The asymmetric namespace access page as a whole (NVMe Base, "Asymmetric Namespace Access log page").

use super::log_page::{AnaGroup, AnaHeader, AnaState};
use crate::ident::Nsid;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Log specific field of Get Log Page, bit 0 (RGO): groups without their NSIDs.
pub const RETURN_GROUPS_ONLY: u8 = 1 << 0;

const HEADER: usize = size_of::<AnaHeader>();
const GROUP: usize = size_of::<AnaGroup>();

/// Bytes of so many NSIDs.
fn nsids_len(count: u32) -> Option<usize> {
    usize::try_from(count).ok()?.checked_mul(size_of::<U32>())
}

/// The page has no room for the group; nothing of it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ANA page is full: give it a larger buffer, or return groups only")]
pub struct PageFull;

/// Writes the page, one group behind the other.
pub struct AnaWriter<'a> {
    page: &'a mut [u8],
    len: usize,
    groups: u16,
}

impl<'a> AnaWriter<'a> {
    /// Into `page`, with this count of changes.
    ///
    /// # Errors
    /// [`PageFull`] when not even the header fits.
    pub fn new(page: &'a mut [u8], change_count: u64) -> Result<Self, PageFull> {
        let mut header = AnaHeader::new_zeroed();
        header.chgcnt = change_count.into();
        page.get_mut(..HEADER).ok_or(PageFull)?.copy_from_slice(header.as_bytes());
        Ok(Self { page, len: HEADER, groups: 0 })
    }

    /// Adds a group with its NSIDs (none when groups only are asked for).
    ///
    /// # Errors
    /// [`PageFull`].
    pub fn push(
        &mut self,
        group_id: u32,
        change_count: u64,
        state: AnaState,
        nsids: impl IntoIterator<Item = Nsid, IntoIter: Clone>,
    ) -> Result<(), PageFull> {
        let nsids = nsids.into_iter();
        // Counted before anything is written: a group that does not fit leaves no NSIDs behind in the buffer.
        let count = u32::try_from(nsids.clone().count()).map_err(|_| PageFull)?;
        let groups = self.groups.checked_add(1).ok_or(PageFull)?;
        let len = nsids_len(count).and_then(|len| len.checked_add(GROUP)).ok_or(PageFull)?;
        let rest = self.page.get_mut(self.len..).and_then(|rest| rest.get_mut(..len)).ok_or(PageFull)?;
        let (head, tail) = rest.split_at_mut(GROUP);
        for (place, nsid) in tail.chunks_exact_mut(4).zip(nsids) {
            place.copy_from_slice(&nsid.0.to_le_bytes());
        }
        let mut group = AnaGroup::new_zeroed();
        group.group_id = group_id.into();
        group.nnsids = count.into();
        group.chgcnt = change_count.into();
        group.state = state;
        head.copy_from_slice(group.as_bytes());
        self.len += len;
        self.groups = groups;
        self.page[8..10].copy_from_slice(&groups.to_le_bytes());
        Ok(())
    }

    /// Bytes written so far: the length of the page.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the page has no group yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups == 0
    }
}

/// Reads the page; ends after as many groups as its header names, or at the first that is cut off.
#[derive(Clone)]
pub struct AnaPage<'a> {
    change_count: u64,
    left: u16,
    rest: &'a [u8],
}

/// A group of the page.
#[derive(Clone)]
pub struct AnaGroupView<'a> {
    /// Group identifier.
    pub group_id: u32,
    /// Counts changes of this group.
    pub change_count: u64,
    /// State of its namespaces behind this controller.
    pub state: AnaState,
    nsids: &'a [u8],
}

impl<'a> AnaPage<'a> {
    /// From these bytes; `None` when they have no room for a header.
    #[must_use]
    pub fn parse(page: &'a [u8]) -> Option<Self> {
        let (header, rest) = AnaHeader::read_from_prefix(page).ok()?;
        Some(Self { change_count: header.chgcnt.get(), left: header.ngrps.get(), rest })
    }

    /// Counts changes of the page: a reader in several parts that sees it move reads again.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.change_count
    }

    /// Groups that follow, according to the header. After the iteration: those that were cut off.
    #[must_use]
    pub fn groups_left(&self) -> u16 {
        self.left
    }
}

impl<'a> Iterator for AnaPage<'a> {
    type Item = AnaGroupView<'a>;

    fn next(&mut self) -> Option<AnaGroupView<'a>> {
        let left = self.left.checked_sub(1)?;
        let (group, rest) = AnaGroup::read_from_prefix(self.rest).ok()?;
        let len = nsids_len(group.nnsids.get())?;
        let (nsids, rest) = rest.split_at_checked(len)?;
        (self.left, self.rest) = (left, rest);
        Some(AnaGroupView {
            group_id: group.group_id.get(),
            change_count: group.chgcnt.get(),
            state: AnaState(group.state.0 & 0xf),
            nsids,
        })
    }
}

impl AnaGroupView<'_> {
    /// Its namespaces.
    pub fn nsids(&self) -> impl Iterator<Item = Nsid> {
        self.nsids.chunks_exact(4).map(|b| Nsid(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn groups_stand_where_the_standard_puts_them() {
        let mut page = [0xff; 128];
        let mut writer = AnaWriter::new(&mut page, 7).unwrap();
        assert!(writer.is_empty());
        writer.push(1, 3, AnaState::OPTIMIZED, [Nsid(1), Nsid(5)]).unwrap();
        writer.push(2, 4, AnaState::CHANGE, []).unwrap();
        assert_eq!(writer.len(), 16 + 40 + 32);
        assert_eq!(page[..16], [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[16..34], [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(page[48..56], [1, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(page[72], 0xf);
    }

    #[test]
    fn page_of_two_groups_byte_for_byte() {
        let mut page = [0xff; 92];
        let mut writer = AnaWriter::new(&mut page, 7).unwrap();
        writer.push(1, 7, AnaState::OPTIMIZED, [Nsid(1), Nsid(3)]).unwrap();
        writer.push(2, 7, AnaState::INACCESSIBLE, [Nsid(2)]).unwrap();
        let zeroes = [0; 15];
        let expected = [
            &[7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1],
            &zeroes,
            &[1, 0, 0, 0, 3, 0, 0, 0],
            &[2, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3],
            &zeroes,
            &[2, 0, 0, 0],
        ];
        assert_eq!(page[..], expected.concat());
    }

    #[test]
    fn a_group_that_does_not_fit_leaves_the_page_as_it_was() {
        let mut page = [0; 16 + 32 + 4];
        let mut writer = AnaWriter::new(&mut page, 0).unwrap();
        assert_eq!(writer.push(1, 0, AnaState::OPTIMIZED, [Nsid(1), Nsid(2)]), Err(PageFull));
        assert_eq!((writer.len(), writer.is_empty()), (16, true));
        assert_eq!(page, [0; 16 + 32 + 4]);
        let mut writer = AnaWriter::new(&mut page, 0).unwrap();
        writer.push(1, 0, AnaState::OPTIMIZED, [Nsid(3)]).unwrap();
        assert_eq!(writer.push(2, 0, AnaState::OPTIMIZED, []), Err(PageFull));
        assert_eq!(AnaPage::parse(&page).unwrap().count(), 1);
        assert!(AnaWriter::new(&mut [0; 15], 0).is_err() && AnaPage::parse(&[0; 15]).is_none());
    }

    #[test]
    fn a_page_that_was_cut_says_how_many_groups_are_missing() {
        let mut page = [0; 128];
        let mut writer = AnaWriter::new(&mut page, 0).unwrap();
        writer.push(1, 0, AnaState::OPTIMIZED, [Nsid(1)]).unwrap();
        writer.push(2, 0, AnaState::INACCESSIBLE, [Nsid(2)]).unwrap();
        let mut cut = AnaPage::parse(&page[..60]).unwrap();
        assert_eq!(cut.by_ref().count(), 1);
        assert_eq!(cut.groups_left(), 1);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            change_count: u64,
            groups in prop::collection::vec(
                (any::<u32>(), any::<u64>(), 0u8..16, prop::collection::vec(any::<u32>(), 0..8)), 0..8),
        ) {
            let mut page = [0; 1024];
            let mut writer = AnaWriter::new(&mut page, change_count).unwrap();
            for (id, changes, state, nsids) in &groups {
                writer.push(*id, *changes, AnaState(*state), nsids.iter().copied().map(Nsid)).unwrap();
            }
            let read = AnaPage::parse(&page).unwrap();
            prop_assert_eq!(read.change_count(), change_count);
            let read: Vec<_> = read
                .map(|g| (g.group_id, g.change_count, g.state.0, g.nsids().map(|n| n.0).collect::<Vec<_>>()))
                .collect();
            prop_assert_eq!(read, groups);
        }

        #[test]
        fn any_bytes_have_an_end(page in prop::collection::vec(any::<u8>(), 0..512)) {
            if let Some(groups) = AnaPage::parse(&page) {
                prop_assert!(groups.map(|g| 32 + 4 * g.nsids().count()).sum::<usize>() <= page.len());
            }
        }
    }
}
