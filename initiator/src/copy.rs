//! Reads and writes of memory of any kind, by way of buffers: several at once where they are long.

use crate::device::Begun;
use crate::{Device, Effect, Error};
use core::ops::Range;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

/// Bytes of one operation.
const PIECE: usize = 1 << 20;
/// Operations at once.
const DEPTH: usize = 8;

impl Device {
    /// Reads into memory of any kind, whole blocks.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn read_to(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if into.len() > PIECE {
            return self.read_vectored(offset, &mut [IoSliceMut::new(into)]).await;
        }
        self.range("a read", offset, into.len() as u64)?;
        self.read(offset, self.buffer(into.len())?).await?.copy_to(into);
        Ok(())
    }

    /// Writes memory of any kind, whole blocks. After an error any part of them may be written.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_from(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        if from.len() > PIECE {
            return self.write_vectored(offset, &[IoSlice::new(from)]).await;
        }
        self.range("a write", offset, from.len() as u64)?;
        let mut buffer = self.buffer(from.len())?;
        buffer.copy_from(from);
        self.write(offset, buffer).await?;
        Ok(())
    }

    /// Fills one slice after the other with what lies at `offset` and behind: together whole blocks, each of any length.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn read_vectored(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let len = into.iter().map(|slice| slice.len()).sum();
        self.range("a read", offset, len as u64)?;
        let mut under_way: VecDeque<Begun<'_>> = VecDeque::with_capacity(DEPTH);
        let mut pieces = pieces(offset, len);
        let mut place = Place::default();
        loop {
            while under_way.len() < DEPTH
                && let Some((at, len)) = pieces.next()
            {
                under_way.push_back(self.begin_read(at, self.buffer(len)?)?);
            }
            let Some(begun) = under_way.pop_front() else { return Ok(()) };
            let buffer = begun.end().await?.ok_or(Error::Closed { effect: Effect::Nothing })?;
            let mut done = 0;
            while done < buffer.len() {
                let slice = &mut into[place.slice];
                let part = place.step(slice.len(), buffer.len() - done);
                buffer.read_at(done, &mut slice[part.clone()]);
                done += part.len();
            }
        }
    }

    /// Writes one slice behind the other at `offset`: together whole blocks, each of any length. After an error any part of
    /// them may be written, and nothing of them is under way any more, but for what took longer than [`Device::with_timeout`] says.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_vectored(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), Error> {
        let len = from.iter().map(|slice| slice.len()).sum();
        self.range("a write", offset, len as u64)?;
        let mut under_way: VecDeque<Begun<'_>> = VecDeque::with_capacity(DEPTH);
        let mut pieces = pieces(offset, len);
        let mut place = Place::default();
        let mut write = Write::new(offset, len);
        loop {
            while !write.has_failed()
                && under_way.len() < DEPTH
                && let Some((at, len)) = pieces.next()
            {
                match self.begin_piece(at, len, from, &mut place) {
                    Ok(begun) => under_way.push_back(begun),
                    Err(error) => write.note(Err(error)),
                }
            }
            // Also after an error: nothing of this may land on what is written next.
            let Some(begun) = under_way.pop_front() else { return write.end() };
            write.note(begun.end().await.map(drop).map_err(Error::from));
        }
    }

    /// Begins to write the next bytes of the slices.
    fn begin_piece(
        &self,
        offset: u64,
        len: usize,
        from: &[IoSlice<'_>],
        place: &mut Place,
    ) -> Result<Begun<'_>, Error> {
        let mut buffer = self.buffer(len)?;
        let mut done = 0;
        while done < len {
            let slice = &from[place.slice];
            let part = place.step(slice.len(), len - done);
            buffer.write_at(done, &slice[part.clone()]);
            done += part.len();
        }
        self.begin_write(offset, buffer)
    }

    /// Reads bytes that need not be whole blocks.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if into.is_empty() {
            return Ok(());
        }
        self.check_end("a read", offset, into.len() as u64)?;
        let (head, middle) = self.split(offset, into.len());
        let (first, rest) = into.split_at_mut(head);
        let (whole, last) = rest.split_at_mut(middle);
        let after = offset + head as u64;
        if !first.is_empty() {
            self.read_in_block(offset, first).await?;
        }
        if !whole.is_empty() {
            self.read_to(after, whole).await?;
        }
        if !last.is_empty() {
            self.read_in_block(after + middle as u64, last).await?;
        }
        Ok(())
    }

    /// Writes bytes that need not be whole blocks: a block of which a part is written is read before, and written whole. Nothing
    /// holds off others meanwhile: of two that write to the same block at once, one may lose what it wrote. After an error any
    /// part may be written.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_all_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        if from.is_empty() {
            return Ok(());
        }
        self.check_end("a write", offset, from.len() as u64)?;
        let (head, middle) = self.split(offset, from.len());
        let (first, rest) = from.split_at(head);
        let (whole, last) = rest.split_at(middle);
        let after = offset + head as u64;
        let mut write = Write::new(offset, from.len());
        if !first.is_empty() {
            write.note(self.write_in_block(offset, first).await);
        }
        if !whole.is_empty() && !write.has_failed() {
            write.note(self.write_from(after, whole).await);
        }
        if !last.is_empty() && !write.has_failed() {
            write.note(self.write_in_block(after + middle as u64, last).await);
        }
        write.end()
    }

    /// The same, durable when it ends: with a flush behind it.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_all_at_fua(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let mut write = Write::new(offset, from.len());
        write.note(self.write_all_at(offset, from).await);
        if !write.has_failed() {
            write.note(self.flush().await);
        }
        write.end()
    }

    /// How many of the bytes lie in a block of which the first are not meant, and how many in whole blocks behind it.
    fn split(&self, offset: u64, len: usize) -> (usize, usize) {
        let size = self.block_size();
        let within = usize::try_from(offset % size as u64).expect("smaller than a block");
        let head = if within == 0 { 0 } else { len.min(size - within) };
        (head, (len - head) / size * size)
    }

    /// Reads bytes of one block.
    async fn read_in_block(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let (start, within) = self.block_of(offset);
        self.read(start, self.buffer(self.block_size())?).await?.read_at(within, into);
        Ok(())
    }

    /// Writes bytes of one block.
    async fn write_in_block(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let (start, within) = self.block_of(offset);
        let mut buffer = self.read(start, self.buffer(self.block_size())?).await?;
        buffer.write_at(within, from);
        self.write(start, buffer).await?;
        Ok(())
    }

    /// Where the block of a byte begins, and which of its bytes that is.
    fn block_of(&self, offset: u64) -> (u64, usize) {
        let within = offset % self.block_size() as u64;
        (offset - within, usize::try_from(within).expect("smaller than a block"))
    }
}

/// A write that takes several operations: what became of those that have ended.
struct Write {
    offset: u64,
    len: u64,
    /// What all of them may have done.
    effect: Effect,
    /// Why the first failed that did.
    error: Option<Error>,
}

impl Write {
    fn new(offset: u64, len: usize) -> Self {
        Self { offset, len: len as u64, effect: Effect::Nothing, error: None }
    }

    fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// One of its operations has ended, or could not be begun.
    fn note(&mut self, ended: Result<(), Error>) {
        let effect = ended.as_ref().map_or_else(Error::effect, |()| Effect::Unknown);
        if effect != Effect::Nothing {
            self.effect = effect;
        }
        if let Err(error) = ended {
            self.error.get_or_insert(error);
        }
    }

    /// All of them have ended.
    fn end(self) -> Result<(), Error> {
        let Self { offset, len, effect, error } = self;
        error.map_or(Ok(()), |error| Err(error.of_whole("a write", offset, len, effect)))
    }
}

/// Places and lengths of the operations that a long range takes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    (0..len).step_by(PIECE).map(move |at| (offset + at as u64, PIECE.min(len - at)))
}

/// A place in a list of slices.
#[derive(Default)]
struct Place {
    slice: usize,
    within: usize,
}

impl Place {
    /// Goes on by up to `left` bytes, within the slice that it is in, of this length: through which of its bytes.
    fn step(&mut self, slice_len: usize, left: usize) -> Range<usize> {
        let start = self.within;
        let end = slice_len.min(start + left);
        (self.slice, self.within) = if end == slice_len { (self.slice + 1, 0) } else { (self.slice, end) };
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range() {
        let all: Vec<_> = pieces(4096, 2 * PIECE + 512).collect();
        let next = 4096 + PIECE as u64;
        assert_eq!(all, [(4096, PIECE), (next, PIECE), (next + PIECE as u64, 512)]);
        assert_eq!(pieces(0, 0).count(), 0);
    }

    #[test]
    fn steps_go_on_where_the_last_ended() {
        let (lens, mut place, mut parts) = ([3, 0, 5], Place::default(), Vec::new());
        for mut left in [2, 4, 2] {
            while left > 0 {
                let slice = place.slice;
                let part = place.step(lens[slice], left);
                left -= part.len();
                parts.push((slice, part));
            }
        }
        assert_eq!(parts, [(0, 0..2), (0, 2..3), (1, 0..0), (2, 0..3), (2, 3..5)]);
    }
}
