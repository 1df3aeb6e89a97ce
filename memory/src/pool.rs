//! Fixed-size buffers in one allocation.

use crate::{Memory, OutOfMemory};
use alloc::vec::Vec;

/// A buffer of a [`Pool`]: its place in the pool's memory is `index * buffer_len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferIndex(u32);

/// Buffers of equal size in one [`Memory`]. The one returned last is taken first, because it is most likely in the
/// cache.
///
/// Allocates only when it is made.
#[derive(Debug)]
pub struct Pool {
    memory: Memory,
    buffer_len: usize,
    free: Vec<u32>,
    taken: Vec<bool>,
}

impl Pool {
    /// `count` buffers of `buffer_len` bytes each.
    ///
    /// # Errors
    /// [`OutOfMemory`] when they do not fit into memory, or `count` is over `u32::MAX`.
    pub fn new(count: usize, buffer_len: usize) -> Result<Self, OutOfMemory> {
        let error = OutOfMemory { len: count.saturating_mul(buffer_len) };
        let last = u32::try_from(count).map_err(|_| error)?;
        let memory = Memory::alloc(count.checked_mul(buffer_len).ok_or(error)?)?;
        Ok(Self { memory, buffer_len, free: (0..last).rev().collect(), taken: alloc::vec![false; count] })
    }

    /// The memory that holds the buffers, for registration.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Bytes in each buffer.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// Buffers that can be taken now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// The number of buffers.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.taken.len()
    }

    /// Takes a buffer; `None` when all are in use.
    pub fn take(&mut self) -> Option<BufferIndex> {
        let index = self.free.pop()?;
        self.taken[index as usize] = true;
        Some(BufferIndex(index))
    }

    /// Returns a buffer.
    ///
    /// # Panics
    /// When the buffer is not in use: it was returned twice, or belongs to another pool.
    pub fn put(&mut self, buffer: BufferIndex) {
        let taken = &mut self.taken[buffer.0 as usize];
        assert!(core::mem::replace(taken, false), "buffer {} returned twice", buffer.0);
        self.free.push(buffer.0);
    }

    /// Where a buffer begins in [`Pool::memory`], in bytes.
    #[must_use]
    pub fn offset(&self, buffer: BufferIndex) -> usize {
        buffer.0 as usize * self.buffer_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_is_taken_once() {
        let mut pool = Pool::new(3, 100).unwrap();
        let taken: Vec<_> = core::iter::from_fn(|| pool.take()).collect();
        let mut offsets: Vec<_> = taken.iter().map(|&b| pool.offset(b)).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [0, 100, 200]);
        pool.put(taken[1]);
        assert_eq!((pool.available(), pool.take()), (1, Some(taken[1])));
    }

    #[test]
    #[should_panic(expected = "returned twice")]
    fn a_buffer_returned_twice_panics() {
        let mut pool = Pool::new(1, 1).unwrap();
        let buffer = pool.take().unwrap();
        pool.put(buffer);
        pool.put(buffer);
    }
}
