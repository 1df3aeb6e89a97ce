//! Fixed-size buffers cut from one allocation.

use crate::{Memory, OutOfMemory};
use alloc::vec::Vec;

/// A buffer of a [`Pool`]: its place in the pool's memory is `index * buffer_len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferIndex(u32);

/// Equal buffers in one [`Memory`], last returned first handed out (it is the one that is warm in the cache).
///
/// Belongs to one thread; allocates only when made.
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

    /// The memory that they are cut from: this is what gets registered.
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

    /// Buffers in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.taken.len()
    }

    /// A buffer, or `None` when all are out: the caller waits its turn.
    pub fn take(&mut self) -> Option<BufferIndex> {
        let index = self.free.pop()?;
        self.taken[index as usize] = true;
        Some(BufferIndex(index))
    }

    /// Gives a buffer back.
    ///
    /// # Panics
    /// When it is not out: it was given back twice, or belongs to another pool.
    pub fn put(&mut self, buffer: BufferIndex) {
        let taken = &mut self.taken[buffer.0 as usize];
        assert!(core::mem::replace(taken, false), "buffer {} given back twice", buffer.0);
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
    fn every_buffer_is_handed_out_once() {
        let mut pool = Pool::new(3, 100).unwrap();
        let taken: Vec<_> = core::iter::from_fn(|| pool.take()).collect();
        let mut offsets: Vec<_> = taken.iter().map(|&b| pool.offset(b)).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [0, 100, 200]);
        pool.put(taken[1]);
        assert_eq!((pool.available(), pool.take()), (1, Some(taken[1])));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_our_bug() {
        let mut pool = Pool::new(1, 1).unwrap();
        let buffer = pool.take().unwrap();
        pool.put(buffer);
        pool.put(buffer);
    }
}
