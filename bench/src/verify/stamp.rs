//! What stands in a block that is verified.
//!
//! | bytes | what, little-endian |
//! |---|---|
//! | 0 to 3 | CRC32C of all that follows |
//! | 4 to 7 | magic |
//! | 8 to 15 | the block's address: bytes from the device's beginning |
//! | 16 to 23 | the job's seed |
//! | 24 to 27 | the generation: the how-manieth write of this block it is |
//! | 28 to 31 | the block's length, bytes |
//! | from 32 | the pattern, or bytes that follow from seed, address and generation |

use crate::job::Verify;
use crate::workload::{Random, mix};
use core::fmt;

const MAGIC: u32 = 0x4e56_4d62;
const HEADER: usize = 32;

/// Marks blocks, and judges those that come back.
#[derive(Debug, Clone)]
pub struct Stamp {
    seed: u64,
    content: Verify,
    /// What should stand there: kept, so that a check allocates nothing.
    expected: Vec<u8>,
}

/// Why a block is not the one that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// It reads as zeroes: it was never written, or was lost.
    Zeroes,
    /// It is none of ours.
    Foreign,
    /// Its bytes changed; the first that did, when it is known what they were.
    Corrupt {
        /// Bytes from the block's beginning.
        at: Option<usize>,
    },
    /// It is whole, but belongs elsewhere.
    Misplaced {
        /// Where: bytes from the device's beginning.
        belongs: u64,
    },
    /// It is whole and at its place, but not the last that was written there.
    Stale {
        /// Its generation.
        found: u32,
        /// The last's.
        wanted: u32,
    },
    /// Another run or job wrote it.
    OtherSeed {
        /// With which seed.
        found: u64,
    },
    /// It was marked in blocks of another length.
    OtherLength {
        /// Which, in bytes.
        found: u32,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeroes => write!(f, "it reads as zeroes: never written, or lost"),
            Self::Foreign => write!(f, "it has no mark: nothing that verify= wrote"),
            Self::Corrupt { at: Some(at) } => write!(f, "corrupt: byte {at} of it is the first that changed"),
            Self::Corrupt { at: None } => write!(f, "corrupt: its checksum does not fit"),
            Self::Misplaced { belongs } => write!(f, "misplaced: it is the block of byte {belongs}"),
            Self::Stale { found, wanted } => {
                write!(f, "stale: its generation is {found}, the last written is {wanted}")
            }
            Self::OtherSeed { found } => {
                write!(f, "another run or job wrote it: its seed is {found} (see randseed)")
            }
            Self::OtherLength { found } => {
                write!(f, "it was written in blocks of {found} bytes: give this bs or verify_interval")
            }
        }
    }
}

impl Stamp {
    /// Marks blocks of at most `longest` bytes.
    #[must_use]
    pub fn new(seed: u64, content: Verify, longest: usize) -> Self {
        Self { seed, content, expected: vec![0; longest] }
    }

    /// Writes the block of this address and generation.
    pub fn write(&self, block: &mut [u8], address: u64, generation: u32) {
        let len = u32::try_from(block.len()).expect("blocks are short");
        block[4..8].copy_from_slice(&MAGIC.to_le_bytes());
        block[8..16].copy_from_slice(&address.to_le_bytes());
        block[16..24].copy_from_slice(&self.seed.to_le_bytes());
        block[24..28].copy_from_slice(&generation.to_le_bytes());
        block[28..32].copy_from_slice(&len.to_le_bytes());
        match &self.content {
            Verify::Pattern(pattern) => {
                for (byte, value) in block[HEADER..].iter_mut().zip(pattern.iter().cycle()) {
                    *byte = *value;
                }
            }
            Verify::Random => {
                let mut random = Random::new(self.seed ^ mix(address), generation.into());
                for word in block[HEADER..].as_chunks_mut::<8>().0 {
                    *word = random.next_u64().to_le_bytes();
                }
            }
        }
        let crc = checksum(block);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Judges the block that was read at this address; any generation will do when `generation` is `None`.
    ///
    /// # Errors
    /// [`Wrong`].
    pub fn check(&mut self, block: &[u8], address: u64, generation: Option<u32>) -> Result<(), Wrong> {
        let (u32_at, u64_at) = (
            |at| read_u32(block, at),
            |at| u64::from(read_u32(block, at)) | u64::from(read_u32(block, at + 4)) << 32,
        );
        let found = u32_at(24);
        if u32_at(0) != checksum(block) {
            return Err(self.corruption(block, address, generation.unwrap_or(found)));
        }
        if u32_at(4) != MAGIC {
            return Err(Wrong::Foreign);
        }
        let len = u32_at(28);
        if usize::try_from(len) != Ok(block.len()) {
            return Err(Wrong::OtherLength { found: len });
        }
        if u64_at(8) != address {
            return Err(Wrong::Misplaced { belongs: u64_at(8) });
        }
        if u64_at(16) != self.seed {
            return Err(Wrong::OtherSeed { found: u64_at(16) });
        }
        match generation {
            Some(wanted) if wanted != found => Err(Wrong::Stale { found, wanted }),
            _ => Ok(()),
        }
    }

    /// A checksum that does not fit: what is it?
    fn corruption(&mut self, block: &[u8], address: u64, generation: u32) -> Wrong {
        if block.iter().all(|&byte| byte == 0) {
            return Wrong::Zeroes;
        }
        let mut expected = core::mem::take(&mut self.expected);
        self.write(&mut expected[..block.len()], address, generation);
        let mut differs = block.iter().zip(&expected).map(|(is, should)| is != should);
        let first = differs.position(|differs| differs);
        let same = block.iter().zip(&expected).filter(|(is, should)| is == should).count();
        self.expected = expected;
        if read_u32(block, 4) != MAGIC && same < block.len() / 2 {
            // Blocks of another length, whose checksum covers another length, have the magic.
            return Wrong::Foreign;
        }
        let len = read_u32(block, 28);
        if read_u32(block, 4) == MAGIC && usize::try_from(len) != Ok(block.len()) && len.is_multiple_of(512) {
            return Wrong::OtherLength { found: len };
        }
        Wrong::Corrupt { at: first.filter(|_| same >= block.len() / 2) }
    }
}

fn checksum(block: &[u8]) -> u32 {
    // 32 bits in 64.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block[4..]) as u32
}

fn read_u32(block: &[u8], at: usize) -> u32 {
    block[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(stamp: &Stamp, address: u64, generation: u32) -> Vec<u8> {
        let mut block = vec![0; 4096];
        stamp.write(&mut block, address, generation);
        block
    }

    #[test]
    fn every_kind_of_wrong_is_told_apart() {
        for content in [Verify::Random, Verify::Pattern(vec![0xde, 0xad, 0xbe])] {
            let mut stamp = Stamp::new(7, content.clone(), 8192);
            let good = block(&stamp, 8192, 3);
            assert_eq!(stamp.check(&good, 8192, Some(3)), Ok(()));
            assert_eq!(stamp.check(&good, 8192, None), Ok(()));
            assert_eq!(stamp.check(&good, 4096, Some(3)), Err(Wrong::Misplaced { belongs: 8192 }));
            assert_eq!(stamp.check(&good, 8192, Some(4)), Err(Wrong::Stale { found: 3, wanted: 4 }));
            let other = block(&Stamp::new(8, content, 8192), 8192, 3);
            assert_eq!(stamp.check(&other, 8192, Some(3)), Err(Wrong::OtherSeed { found: 8 }));
            assert_eq!(stamp.check(&[0; 4096], 8192, Some(3)), Err(Wrong::Zeroes));
            assert_eq!(stamp.check(&[0x5a; 4096], 8192, Some(3)), Err(Wrong::Foreign));
            assert_eq!(stamp.check(&good[..2048], 8192, Some(3)), Err(Wrong::OtherLength { found: 4096 }));
            for at in [0, 5, 9, 30, 32, 1000, 4095] {
                let mut flipped = good.clone();
                flipped[at] ^= 0x10;
                let wrong = stamp.check(&flipped, 8192, Some(3)).unwrap_err();
                assert!(
                    matches!(wrong, Wrong::Corrupt { at: Some(found) } if found == at) || at == 30,
                    "{at}: {wrong}"
                );
            }
        }
    }
}
