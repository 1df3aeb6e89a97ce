//! A guest's memory: mapped, and registered with the transport.

use super::chain::Extent;
use anyhow::{Context, Result, bail, ensure};
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
                    match backend.register(&memory) {
                        Ok(id) => (memory, id),
                        Err(error) => {
                            guest.deregister(&before.into_iter(), backend);
                            return Err(error).context("cannot register the guest's memory (see ulimit -l)");
                        }
                    }
                }
            };
            guest.regions.push(Region {
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
        match GuestMemoryMmap::from_ranges_with_files(mapped) {
            Ok(rings) => guest.rings = rings,
            Err(error) => {
                guest.deregister(&before.into_iter(), backend);
                bail!("the guest's memory cannot be mapped: {error}");
            }
        }
        Ok(guest)
    }

    /// Ends the registrations that the others do not have as well.
    pub(super) fn deregister<'a>(
        &self,
        others: &(impl Iterator<Item = &'a Guest> + Clone),
        backend: &mut impl Backend,
    ) {
        for region in &self.regions {
            let has = |guest: &Guest| guest.regions.iter().any(|it| it.id == region.id);
            if !others.clone().any(has) {
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
