//! CRC32C (Castagnoli) as MPA uses it: over length, ULPDU and pad, stored little-endian.

use core::fmt;
use crc_fast::{CrcAlgorithm, Digest};

/// A checksum under way.
#[derive(Clone, Copy)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
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

    fn of(bytes: &[u8]) -> u32 {
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc.finish()
    }

    #[test]
    fn the_known_answers() {
        assert_eq!(of(b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and counting up.
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(of(&core::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46dd_794e);
    }

    #[test]
    fn any_split_gives_the_same() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for at in [0, 1, 15, 16, 17, 255, 256, 999] {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..at]);
            crc.update(&bytes[at..]);
            assert_eq!(crc.finish(), of(&bytes));
        }
    }
}
