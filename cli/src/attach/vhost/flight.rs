//! A request under way: where its parts are, what is left to be asked of the disk, and how it ended so far.

use super::abi::{CHAIN_LEN, HEADER_LEN, QUEUE_SIZE_MAX, RANGE_LEN, RANGES_MAX};
use super::chain::{Broken, Chain, Extent};
use super::guest::{Guest, Piece};
use super::request::{Request, Rules, Status, range, request};
use super::transfer::{Cursor, Part};
use arrayvec::ArrayVec;
use nvmf_block::{BlockOp, BlockRange, Buffer, RegionId};
use std::sync::Arc;

/// The most pieces of a request's data: one for each descriptor of the longest chain. Each may lie in several regions of memory.
const PIECES_MAX: usize = QUEUE_SIZE_MAX as usize;
/// Room for pieces that is kept for the next request: what a driver needs that keeps to the segments it is told.
const PIECES_KEPT: usize = CHAIN_LEN as usize;

/// A request under way; one for each descriptor of a ring, used again and again.
#[derive(Default)]
pub(super) struct Flight {
    pub(super) guest: Option<Arc<Guest>>,
    /// The data, without header and status.
    pub(super) data: Vec<Piece>,
    status: Option<Piece>,
    work: Work,
    /// Operations that have not ended.
    pub(super) pending: u32,
    pub(super) failed: Option<Status>,
    /// Bytes that it writes to the guest's memory if it ends well, without the status.
    writes: u32,
}

/// What is left to be asked of the disk.
#[derive(Default)]
#[expect(clippy::large_enum_variant, reason = "every place for a request is made once, with room for either")]
enum Work {
    #[default]
    Nothing,
    /// Data from this block on.
    Data { block: u64, cursor: Cursor, write: bool },
    /// Operations without data.
    Operations(ArrayVec<BlockOp, RANGES_MAX>),
}

/// What to do next for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// This operation; its data lie where they are to be.
    Submit(BlockOp),
    /// A buffer is needed, for data from the disk or to it: so many bytes, of these blocks.
    Gather { range: BlockRange, len: usize, write: bool },
    /// All was asked for.
    Done,
}

impl Flight {
    /// Takes up the request of a chain. It has ended already if nothing is asked of the disk.
    ///
    /// # Errors
    /// It cannot even be answered.
    pub(super) fn take_up(
        &mut self,
        guest: &Arc<Guest>,
        chain: &Chain,
        rules: &Rules,
        id: &[u8],
    ) -> Result<(), Broken> {
        self.data.clear();
        (self.work, self.pending, self.failed, self.writes) = (Work::Nothing, 0, None, 0);
        self.guest = Some(Arc::clone(guest));
        self.status = Some(status(guest, chain)?);
        if let Err(status) = self.read(guest, chain, rules, id) {
            (self.failed, self.work) = (Some(status), Work::Nothing);
        }
        Ok(())
    }

    fn read(&mut self, guest: &Guest, chain: &Chain, rules: &Rules, id: &[u8]) -> Result<(), Status> {
        let len = |extents: &[Extent]| extents.iter().map(|it| u64::from(it.len)).sum::<u64>();
        // The status has one byte at least.
        let (readable, writable) = (len(&chain.readable), len(&chain.writable) - 1);
        let readable = readable.checked_sub(HEADER_LEN as u64).ok_or(Status::IoError)?;
        let all = |extents: &[Extent], pieces: &mut Vec<Piece>| {
            let mut each = extents.iter();
            let is_there = each.all(|it| guest.resolve(*it, pieces) && pieces.len() <= PIECES_MAX);
            is_there.then_some(()).ok_or(Status::IoError)
        };
        all(&chain.readable, &mut self.data)?;
        let mut header = [0; HEADER_LEN];
        guest.read(&self.data, &mut header);
        let request = request(header, readable, writable, rules)?;
        match request {
            Request::Read { .. } | Request::GetId => {
                self.data.clear();
                all(&chain.writable, &mut self.data)?;
                drop_last(&mut self.data, 1);
            }
            _ => drop_first(&mut self.data, HEADER_LEN),
        }
        self.work = match request {
            Request::Read { start } => {
                self.writes = u32::try_from(writable).map_err(|_| Status::IoError)?;
                Work::Data { block: start, cursor: Cursor::default(), write: false }
            }
            Request::Write { start } => Work::Data { block: start, cursor: Cursor::default(), write: true },
            Request::Flush => Work::Operations([BlockOp::Flush].into_iter().collect()),
            Request::GetId => {
                guest.write(&self.data, id);
                self.writes = id.len() as u32;
                Work::Nothing
            }
            Request::Ranges { zeroes } => {
                let mut bytes = [0; RANGES_MAX * RANGE_LEN];
                let bytes = &mut bytes[..readable as usize];
                guest.read(&self.data, bytes);
                let (entries, _) = bytes.as_chunks::<RANGE_LEN>();
                let operations = entries.iter().rev().map(|entry| range(*entry, zeroes, rules));
                Work::Operations(operations.collect::<Result<_, _>>()?)
            }
        };
        Ok(())
    }

    /// The next thing to do, which stays the next one until [`Flight::on_submitted`].
    pub(super) fn next(&self, rules: &Rules) -> Next {
        match &self.work {
            Work::Nothing => Next::Done,
            Work::Operations(operations) => operations.last().map_or(Next::Done, |op| Next::Submit(*op)),
            Work::Data { block, cursor, write } => {
                let Some(part) = cursor.part(&self.data, rules.block_size as usize) else {
                    return Next::Done;
                };
                let blocks = part.len() as u64 / u64::from(rules.block_size);
                let (range, write) = (BlockRange::new(*block, blocks), *write);
                match part {
                    Part::Gathered(len) => Next::Gather { range, len, write },
                    Part::Straight(piece) => {
                        let region = self.guest.as_ref().expect("a request under way").region(piece);
                        let buffer = Buffer { region, offset: piece.offset, len: piece.len };
                        Next::Submit(data(range, buffer, write, rules))
                    }
                }
            }
        }
    }

    /// Where the data are that come next.
    pub(super) fn cursor(&self) -> Cursor {
        if let Work::Data { cursor, .. } = &self.work { *cursor } else { Cursor::default() }
    }

    /// What came next was given to the disk.
    pub(super) fn on_submitted(&mut self, range: Option<BlockRange>, block_size: u32) {
        self.pending += 1;
        match &mut self.work {
            Work::Nothing => {}
            Work::Operations(operations) => drop(operations.pop()),
            Work::Data { block, cursor, .. } => {
                let blocks = range.map_or(0, |range| range.blocks);
                cursor.advance(&self.data, (blocks * u64::from(block_size)) as usize, |_| ());
                *block += blocks;
            }
        }
    }

    /// An operation has failed: nothing more is begun.
    pub(super) fn fail(&mut self, status: Status) {
        self.failed.get_or_insert(status);
        self.work = Work::Nothing;
    }

    /// Writes the status down: how many bytes of the guest's memory were written.
    pub(super) fn end(&mut self) -> u32 {
        // Otherwise a guest could have all of its requests keep the most.
        if self.data.capacity() > PIECES_KEPT {
            self.data = Vec::new();
        }
        let status = self.failed.unwrap_or(Status::Ok);
        if let (Some(guest), Some(place)) = (self.guest.take(), self.status) {
            guest.write(&[place], &[status as u8]);
        }
        if status == Status::Ok { self.writes + 1 } else { 1 }
    }
}

/// A read or write of data.
fn data(range: BlockRange, buffer: Buffer, write: bool, rules: &Rules) -> BlockOp {
    match write {
        true => BlockOp::Write { range, from: buffer, fua: rules.write_through },
        false => BlockOp::Read { range, into: buffer },
    }
}

/// The same through a buffer of ours.
pub(super) fn gathered(
    range: BlockRange,
    region: RegionId,
    offset: usize,
    len: usize,
    write: bool,
    rules: &Rules,
) -> BlockOp {
    data(range, Buffer { region, offset, len }, write, rules)
}

/// The last byte that the device may write.
fn status(guest: &Guest, chain: &Chain) -> Result<Piece, Broken> {
    let last = chain.writable.iter().rfind(|extent| extent.len > 0);
    let last = last.ok_or(Broken("a request has no place for its status"))?;
    let address = last.address.checked_add(u64::from(last.len - 1));
    let mut place = Vec::with_capacity(1);
    let is_there = address.is_some_and(|address| guest.resolve(Extent { address, len: 1 }, &mut place));
    place.pop().filter(|_| is_there).ok_or(Broken("the place for a request's status lies outside of memory"))
}

fn drop_first(pieces: &mut Vec<Piece>, mut len: usize) {
    let whole = pieces.iter().take_while(|piece| {
        let is_whole = piece.len <= len;
        len -= if is_whole { piece.len } else { 0 };
        is_whole
    });
    let whole = whole.count();
    pieces.drain(..whole);
    if let Some(first) = pieces.first_mut() {
        (first.offset, first.len) = (first.offset + len, first.len - len);
    }
}

fn drop_last(pieces: &mut Vec<Piece>, mut len: usize) {
    while let Some(last) = pieces.last_mut().filter(|_| len > 0) {
        let now = last.len.min(len);
        last.len -= now;
        len -= now;
        if last.len == 0 {
            pieces.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_memory::PAGE;

    const LEN: usize = 16 * PAGE;
    const RULES: Rules = Rules { block_size: 512, bytes: 1 << 30, read_only: false, write_through: false };

    /// A read of the first block on: so many extents of so many bytes, each from there on, and the status.
    fn taken_up(guest: &Arc<Guest>, count: usize, address: usize, len: u32) -> Flight {
        let extent = |address: usize, len| Extent { address: address as u64, len };
        let mut chain = Chain::default();
        chain.readable.push(extent(0, HEADER_LEN as u32));
        chain.writable.extend(std::iter::repeat_n(extent(address, len), count));
        chain.writable.push(extent(LEN - 1, 1));
        let mut flight = Flight::default();
        flight.take_up(guest, &chain, &RULES, &[]).unwrap();
        flight
    }

    #[test]
    fn request_keeps_no_more_room_than_segments_need() {
        let guest = Arc::new(Guest::of_pages(2, LEN / 2));
        for (count, keeps) in [(126, true), (PIECES_MAX - 2, false)] {
            let mut flight = taken_up(&guest, count, PAGE, 512);
            assert_eq!((flight.failed, flight.data.len()), (None, count));
            flight.end();
            assert_eq!(flight.data.capacity() > 0, keeps, "{count}");
        }
    }

    #[test]
    fn request_in_too_many_pieces_is_refused() {
        let guest = Arc::new(Guest::of_pages(2, LEN / 2));
        let of = |count| taken_up(&guest, count, LEN / 2 - 256, 512);
        assert_eq!(of(PIECES_MAX / 2 - 1).failed, None, "two pieces of each, and the status");
        assert_eq!(of(PIECES_MAX / 2).failed, Some(Status::IoError));
    }

    #[test]
    fn header_and_status_are_cut_off_wherever_they_end() {
        let piece = |offset, len| Piece { region: 0, offset, len };
        let mut pieces = vec![piece(0, 10), piece(100, 6), piece(200, 512)];
        drop_first(&mut pieces, 16);
        assert_eq!(pieces, [piece(200, 512)]);
        drop_first(&mut pieces, 16);
        assert_eq!(pieces, [piece(216, 496)]);
        pieces.push(piece(900, 1));
        drop_last(&mut pieces, 1);
        assert_eq!(pieces, [piece(216, 496)]);
        drop_last(&mut pieces, 1);
        assert_eq!(pieces, [piece(216, 495)]);
        drop_first(&mut pieces, 495);
        drop_last(&mut pieces, 1);
        assert_eq!(pieces, []);
    }
}
