//! A guest's memory: mapped, and registered with the transport.

use super::chain::Extent;
use anyhow::{Context, Result, anyhow, ensure};
use nvmf_block::{Backend, RegionId};
use nvmf_memory::{Memory, PAGE};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// A region of a guest's memory, as the frontend shares it.
#[derive(Debug)]
pub(super) struct SharedRegion {
    /// Where it is in the guest.
    pub(super) guest_address: u64,
    /// Where it is in the frontend's process.
    pub(super) user_address: u64,
    pub(super) len: u64,
    pub(super) file: File,
    pub(super) offset: u64,
}

/// A region that is mapped and registered.
struct Region {
    guest_address: u64,
    user_address: u64,
    memory: Memory,
    id: RegionId,
    /// Which bytes of which file it is: device, inode number, offset.
    source: (u64, u64, u64),
}

/// A part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) region: u16,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// A guest's memory.
pub(super) struct Guest {
    regions: Vec<Region>,
    /// The same pages once more, for the rings, whose words are read and written at once.
    pub(super) rings: GuestMemoryMmap,
}

impl Guest {
    /// Maps what a frontend shares, and has the transport register it. What was registered before keeps its registration.
    pub(super) fn new(
        shared: &[SharedRegion],
        before: Option<&Guest>,
        backend: &mut impl Backend,
    ) -> Result<Self> {
        let mut guest = Self { regions: Vec::new(), rings: GuestMemoryMmap::default() };
        match guest.map(shared, before, backend) {
            Ok(()) => Ok(guest),
            Err(error) => {
                // Whatever was wrong: a registration keeps its memory.
                guest.deregister(&before.into_iter(), backend);
                Err(error)
            }
        }
    }

    /// What is registered when it fails is in `regions`.
    fn map(
        &mut self,
        shared: &[SharedRegion],
        before: Option<&Guest>,
        backend: &mut impl Backend,
    ) -> Result<()> {
        let mut mapped = Vec::new();
        for region in shared {
            let len = usize::try_from(region.len).context("a region of memory is longer than all memory")?;
            ensure!(
                len.is_multiple_of(PAGE) && region.guest_address.checked_add(region.len).is_some(),
                "a region of memory is not whole pages"
            );
            let file = region.file.metadata()?;
            let source = (file.dev(), file.ino(), region.offset);
            let known = before.into_iter().flat_map(|guest| &guest.regions);
            let known = known.into_iter().find(|it| it.source == source && it.memory.len() == len);
            let (memory, id) = match known {
                Some(known) => (known.memory.clone(), known.id),
                None => {
                    let memory = Memory::map(&region.file, region.offset, len).context(
                        "cannot map the guest's memory (it must be shared: memory-backend-memfd,share=on)",
                    )?;
                    let id = backend
                        .register(&memory)
                        .context("cannot register the guest's memory (see ulimit -l)")?;
                    (memory, id)
                }
            };
            self.regions.push(Region {
                guest_address: region.guest_address,
                user_address: region.user_address,
                memory,
                id,
                source,
            });
            let file = FileOffset::new(region.file.try_clone()?, region.offset);
            mapped.push((GuestAddress(region.guest_address), len, Some(file)));
        }
        mapped.sort_by_key(|(address, ..)| *address);
        self.rings = GuestMemoryMmap::from_ranges_with_files(mapped)
            .map_err(|error| anyhow!("the guest's memory cannot be mapped: {error}"))?;
        Ok(())
    }

    /// Ends the registrations that the others do not have as well. Regions of the same bytes may have one together.
    pub(super) fn deregister<'a>(
        &self,
        others: &(impl Iterator<Item = &'a Guest> + Clone),
        backend: &mut impl Backend,
    ) {
        for (at, region) in self.regions.iter().enumerate() {
            let is_in = |regions: &[Region]| regions.iter().any(|it| it.id == region.id);
            if !is_in(&self.regions[..at]) && !others.clone().any(|guest| is_in(&guest.regions)) {
                backend.deregister(region.id);
            }
        }
    }

    /// The guest's address of what the frontend has at one of its own.
    pub(super) fn of_user(&self, address: u64) -> Result<GuestAddress> {
        let within = |region: &&Region| {
            address.checked_sub(region.user_address).is_some_and(|offset| offset < region.memory.len() as u64)
        };
        let region = self.regions.iter().find(within).context("a ring lies outside of memory")?;
        Ok(GuestAddress(address - region.user_address + region.guest_address))
    }

    /// Adds the pieces of an extent, which go on with the last one where they can; `false` when it is not all in memory.
    #[must_use]
    pub(super) fn resolve(&self, extent: Extent, pieces: &mut Vec<Piece>) -> bool {
        let (mut at, mut left) = (extent.address, extent.len as usize);
        while left > 0 {
            let found = self.regions.iter().enumerate().find_map(|(index, region)| {
                let offset = usize::try_from(at.checked_sub(region.guest_address)?).ok()?;
                let rest = region.memory.len().checked_sub(offset).filter(|rest| *rest > 0)?;
                Some(Piece { region: index as u16, offset, len: rest.min(left) })
            });
            let Some(piece) = found else { return false };
            (at, left) = (at.wrapping_add(piece.len as u64), left - piece.len);
            match pieces.last_mut() {
                Some(last) if last.region == piece.region && last.offset + last.len == piece.offset => {
                    last.len += piece.len;
                }
                _ => pieces.push(piece),
            }
        }
        true
    }

    pub(super) fn memory(&self, piece: Piece) -> &Memory {
        &self.regions[usize::from(piece.region)].memory
    }

    pub(super) fn region(&self, piece: Piece) -> RegionId {
        self.regions[usize::from(piece.region)].id
    }

    /// Copies from the beginning of pieces.
    pub(super) fn read(&self, pieces: &[Piece], mut into: &mut [u8]) {
        for piece in pieces {
            let len = piece.len.min(into.len());
            let (now, rest) = into.split_at_mut(len);
            self.memory(*piece).read(piece.offset, now);
            into = rest;
        }
    }

    /// Copies to the beginning of pieces.
    pub(super) fn write(&self, pieces: &[Piece], mut from: &[u8]) {
        for piece in pieces {
            let (now, rest) = from.split_at(piece.len.min(from.len()));
            self.memory(*piece).write(piece.offset, now);
            from = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_block::{BlockError, BlockOp, Completion, DeviceId, Full, Geometry, Tag};

    /// A transport: what is registered with it.
    #[derive(Default)]
    struct Registered {
        ids: Vec<RegionId>,
        next: u16,
    }

    impl Backend for Registered {
        fn register(&mut self, _: &Memory) -> Result<RegionId, BlockError> {
            let id = RegionId(self.next);
            self.next += 1;
            self.ids.push(id);
            Ok(id)
        }

        fn deregister(&mut self, region: RegionId) {
            let at = self.ids.iter().position(|id| *id == region).expect("it is registered");
            self.ids.remove(at);
        }

        fn geometry(&self, _: DeviceId) -> Option<Geometry> {
            None
        }

        fn submit(&mut self, _: Tag, _: DeviceId, _: BlockOp) -> Result<(), Full> {
            Err(Full)
        }

        fn flush(&mut self) {}

        fn poll(&mut self, _: &mut Vec<Completion>) {}
    }

    fn file(len: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        file
    }

    /// Bytes of a file as a guest's memory, at their place in the file.
    fn shared(file: &File, start: usize, len: usize) -> SharedRegion {
        let (start, len) = (start as u64, len as u64);
        let file = file.try_clone().unwrap();
        SharedRegion { guest_address: start, user_address: start, len, file, offset: start }
    }

    impl Guest {
        /// A guest with so many regions of so many bytes, one behind the other, all of them zeroes.
        pub(in super::super) fn of_pages(regions: usize, len: usize) -> Self {
            let file = file(regions * len);
            let shared: Vec<_> = (0..regions).map(|at| shared(&file, at * len, len)).collect();
            Self::new(&shared, None, &mut Registered::default()).unwrap()
        }
    }

    #[test]
    fn memory_that_is_refused_leaves_nothing_registered() {
        let file = file(8 * PAGE);
        let mut transport = Registered::default();
        let before = Guest::new(&[shared(&file, 0, 4 * PAGE)], None, &mut transport).unwrap();
        let kept = transport.ids.clone();
        for (what, bad) in [
            ("it leads past the end of its file", shared(&file, 6 * PAGE, 4 * PAGE)),
            ("it is no whole pages", shared(&file, 6 * PAGE, 100)),
            ("it is where another is", shared(&file, 5 * PAGE, 2 * PAGE)),
        ] {
            let all = [shared(&file, 0, 4 * PAGE), shared(&file, 4 * PAGE, 2 * PAGE), bad];
            assert!(Guest::new(&all, Some(&before), &mut transport).is_err(), "{what}");
            assert_eq!(transport.ids, kept, "{what}");
        }
    }

    #[test]
    fn registration_of_the_same_bytes_twice_ends_once() {
        let file = file(4 * PAGE);
        let twice = || {
            let again = SharedRegion { guest_address: 1 << 20, ..shared(&file, 0, 4 * PAGE) };
            [shared(&file, 0, 4 * PAGE), again]
        };
        let mut transport = Registered::default();
        let first = Guest::new(&twice(), None, &mut transport).unwrap();
        let second = Guest::new(&twice(), Some(&first), &mut transport).unwrap();
        first.deregister(&[&second].into_iter(), &mut transport);
        assert_eq!(transport.ids.len(), 1);
        second.deregister(&None.into_iter(), &mut transport);
        assert_eq!(transport.ids, []);
    }
}
