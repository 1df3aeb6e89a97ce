//! A Copy whose blocks are shared instead of read and written, where the devices can: files of one file system that has
//! reflinks. Nothing is moved then, and no buffer is needed.
//!
//! One piece of a command is on its way like that at a time, as long as its range of the source, without the blocks at
//! both ends that the file system cannot share; those are read and written. If it cannot be, the rest of the command is
//! read and written, and so is that piece.

use super::queue::Queue;
use super::request::{Chunk, Request, Stage};
use super::resources::Resources;
use super::transport::Transport;
use nvmf_block::{Backend, BlockOp, BlockRange};
use nvmf_subsystem::{BlockWork, CopySource, Work};

/// Less is read and written: that is as fast, and leaves fewer fragments.
const SHARE_MIN: u64 = 64 << 10;

/// How the next bytes of a Copy are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// It is no Copy, or a device has refused: they are read and written.
    Never,
    /// Those before this offset are read and written; then it is tried.
    From(u32),
    /// A piece is being shared, and nothing else begins.
    UnderWay,
}

/// A part of a Copy that can be tried.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    source: CopySource,
    to: BlockRange,
}

/// The next that can be shared of these blocks, in units of `unit` blocks, and how many blocks lie before it.
fn aligned(source: CopySource, to: BlockRange, unit: u64, blocks_min: u64) -> Option<(u64, Piece)> {
    let (from, at) = (source.range, to);
    let skipped = (unit - from.start % unit) % unit;
    let blocks = from.blocks.checked_sub(skipped)? / unit * unit;
    let may = from.start % unit == at.start % unit && blocks >= blocks_min.max(1);
    let part = |range: BlockRange| range.split_at(skipped).1.split_at(blocks).0;
    may.then(|| (skipped, Piece { source: CopySource { range: part(from), ..source }, to: part(at) }))
}

impl<C> Request<C> {
    /// What its device is told to share with which force, if it is a Copy.
    fn copies(&self) -> Option<(u32, bool)> {
        match &self.work {
            Some(Work::Block { op: BlockWork::Copy(copy), .. }) => Some((copy.block_size, copy.fua)),
            _ => None,
        }
    }
}

impl<T: Transport> Queue<T> {
    /// Tries to share what comes next of a Copy. `false`: it is to be read and written.
    pub(super) fn share<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        chunk: u8,
    ) -> bool {
        let place = self.place(request, chunk);
        let this = self.request(request);
        let (offset, nsid) = (this.next, this.nsid);
        let next = this.copies().zip(this.copy(offset)).zip(this.device());
        let Some((((block_size, fua), (source, to)), device)) = next else { return false };
        let bytes = |blocks: u64| u32::try_from(blocks * u64::from(block_size)).unwrap_or(u32::MAX);
        let unit = resources.backend.sharing_unit(source.device, device);
        let blocks_min = SHARE_MIN / u64::from(block_size);
        let piece = unit.and_then(|unit| aligned(source, to, unit.into(), blocks_min));
        let Some((skipped, piece)) = piece.filter(|_| source.range.blocks == to.blocks) else {
            this.sharing = Sharing::From(offset.saturating_add(bytes(source.range.blocks)));
            return false;
        };
        if skipped > 0 {
            this.sharing = Sharing::From(offset + bytes(skipped));
            return false;
        }
        let len = bytes(piece.to.blocks);
        this.next += len;
        this.sharing = Sharing::UnderWay;
        *this.chunk(chunk) =
            Chunk { stage: Stage::Idle, buffer: None, offset, len, since_us: 0, reading: false };
        let Piece { source, to } = piece;
        let reads = BlockOp::Verify { range: source.range };
        if self.may_submit(resources, place, source.nsid, source.device, &reads) {
            let op = BlockOp::Share { range: to, source: source.device, from: source.range.start, fua };
            self.submit(resources, place, nsid, device, op);
        }
        true
    }

    /// Whether a chunk is a piece that was to be shared, which is over now: what comes next may be tried.
    pub(super) fn take_shared(&mut self, request: u16, chunk: u8) -> bool {
        let this = self.request(request);
        if this.sharing != Sharing::UnderWay {
            return false;
        }
        let &mut Chunk { ref buffer, offset, len, .. } = this.chunk(chunk);
        // All others have one.
        let shared = buffer.is_none();
        if shared {
            this.sharing = Sharing::From(offset + len);
        }
        shared
    }

    /// A piece could not be shared: it is read and written, and so is what comes behind it.
    pub(super) fn read_unshared(&mut self, request: u16, chunk: u8) {
        let this = self.request(request);
        this.next = this.chunk(chunk).offset;
        this.sharing = Sharing::Never;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_proto::Nsid;
    use nvmf_block::DeviceId;

    #[test]
    fn whole_units_are_shared_where_both_ranges_have_them_at_the_same_place() {
        let source = |start, blocks| CopySource {
            nsid: Nsid(1),
            device: DeviceId(1),
            range: BlockRange::new(start, blocks),
        };
        let shared = |from, at, blocks, unit, min| {
            let found = aligned(source(from, blocks), BlockRange::new(at, blocks), unit, min)?;
            assert_eq!(found.1.to.blocks, found.1.source.range.blocks);
            Some((found.0, found.1.source.range.start, found.1.to.start, found.1.to.blocks))
        };
        assert_eq!(shared(5, 13, 100, 8, 1), Some((3, 8, 16, 96)));
        assert_eq!(shared(8, 16, 16, 8, 1), Some((0, 8, 16, 16)));
        assert_eq!(shared(5, 14, 100, 8, 1), None);
        assert_eq!(shared(5, 13, 10, 8, 1), None);
        assert_eq!(shared(5, 13, 2, 8, 1), None);
        assert_eq!(shared(8, 16, 16, 8, 17), None);
        assert_eq!(shared(3, 9, 7, 1, 1), Some((0, 3, 9, 7)));
        assert_eq!(shared(u64::MAX - 2, 1, 2, 4, 1), None);
    }
}
