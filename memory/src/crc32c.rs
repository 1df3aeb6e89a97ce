//! CRC32C (Castagnoli), which MPA and both digests of NVMe/TCP use.

use crate::Memory;
use core::fmt;
use crc_fast::{CrcAlgorithm, Digest};

/// Shared bytes that are copied at a time to be summed.
const COPY_LEN: usize = 4096;

/// A checksum under way. Protocols store it little-endian.
#[derive(Clone, Copy)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Of these bytes alone. Quicker than a checksum under way when there are few.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u32 {
        crc_fast::crc32_iscsi(bytes)
    }

    /// Of `len` bytes of `memory` at `offset`, as [`Crc32c::update_memory`] takes them.
    ///
    /// # Panics
    /// When the range is not within `memory`.
    #[must_use]
    pub fn of_memory(memory: &Memory, offset: usize, len: usize) -> u32 {
        let mut crc = Self::new();
        crc.update_memory(memory, offset, len);
        crc.finish()
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Goes on with `len` bytes of `memory` at `offset`. They go through a copy: others may write them meanwhile.
    ///
    /// # Panics
    /// When the range is not within `memory`.
    pub fn update_memory(&mut self, memory: &Memory, offset: usize, len: usize) {
        let mut copy = [0; COPY_LEN];
        for at in (0..len).step_by(COPY_LEN) {
            let part = &mut copy[..(len - at).min(COPY_LEN)];
            memory.read(offset + at, part);
            self.update(part);
        }
    }

    /// The checksum so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        // The digest is as wide as the widest algorithm; this one fills the low half.
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({:#010x})", self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        assert_eq!(Crc32c::new().finish(), 0);
        assert_eq!(Crc32c::of(b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and counting up.
        assert_eq!(Crc32c::of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(Crc32c::of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(Crc32c::of(&core::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46dd_794e);
    }

    #[test]
    fn any_split_and_shared_memory_give_the_same() {
        let bytes: [u8; 10_000] = core::array::from_fn(|i| (i * 7) as u8);
        let memory = Memory::alloc(3 * crate::PAGE).unwrap();
        memory.write(5, &bytes);
        for at in [0, 1, 15, 16, 17, 255, 4095, 4096, 4097, 8192, 9999] {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..at]);
            crc.update_memory(&memory, 5 + at, bytes.len() - at);
            assert_eq!(crc.finish(), Crc32c::of(&bytes), "split at {at}");
        }
    }
}
