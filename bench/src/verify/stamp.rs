//! The format of verified blocks.
//!
//! | bytes | contents, little-endian |
//! |---|---|
//! | 0 to 3 | CRC32C of the rest of the block |
//! | 4 to 7 | magic |
//! | 8 to 15 | the block's address: bytes from the start of the device |
//! | 16 to 23 | the job's seed |
//! | 24 to 27 | the generation: the number of this write of the block |
//! | 28 to 31 | the block's length, bytes |
//! | from 32 | the pattern, or pseudo-random bytes derived from seed, address and generation |

use crate::job::Verify;
use crate::workload::{Random, mix};
use core::fmt;

const MAGIC: u32 = 0x4e56_4d62;
const HEADER: usize = 32;

/// Writes and checks verified blocks.
#[derive(Debug, Clone)]
pub struct Stamp {
    seed: u64,
    content: Verify,
    /// Buffer for the expected block, kept so that a check does not allocate.
    expected: Vec<u8>,
}

/// Why a block failed verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// The block reads as zeroes: it was never written, or the write was lost.
    Zeroes,
    /// The block has no verification header.
    Foreign,
    /// The block's bytes changed.
    Corrupt {
        /// Offset of the first changed byte, if the original contents are known.
        at: Option<usize>,
    },
    /// The block is intact, but belongs to another address.
    Misplaced {
        /// That address: bytes from the start of the device.
        belongs: u64,
    },
    /// The block is intact and at its address, but an older generation.
    Stale {
        /// The generation found.
        found: u32,
        /// The generation last written.
        wanted: u32,
    },
    /// The block was written by another run or job.
    OtherSeed {
        /// The seed found.
        found: u64,
    },
    /// The block was written with another block length.
    OtherLength {
        /// The length found, in bytes.
        found: u32,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeroes => write!(f, "it reads as zeroes: never written, or lost"),
            Self::Foreign => write!(f, "it has no verification header: it was not written with verify="),
            Self::Corrupt { at: Some(at) } => write!(f, "corrupt: byte {at} of it is the first that changed"),
            Self::Corrupt { at: None } => write!(f, "corrupt: its checksum is wrong"),
            Self::Misplaced { belongs } => write!(f, "misplaced: it is the block of byte {belongs}"),
            Self::Stale { found, wanted } => {
                write!(f, "stale: its generation is {found}, the last written is {wanted}")
            }
            Self::OtherSeed { found } => {
                write!(f, "another run or job wrote it: its seed is {found} (see randseed)")
            }
            Self::OtherLength { found } => {
                write!(
                    f,
                    "it was written in blocks of {found} bytes: use this value for bs or verify_interval"
                )
            }
        }
    }
}

impl Stamp {
    /// A stamp for blocks of at most `longest` bytes.
    #[must_use]
    pub fn new(seed: u64, content: Verify, longest: usize) -> Self {
        Self { seed, content, expected: vec![0; longest] }
    }

    /// Writes the block with this address and generation.
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

    /// Checks the block that was read at this address; `None` accepts any generation.
    ///
    /// # Errors
    /// [`Mismatch`].
    pub fn check(&mut self, block: &[u8], address: u64, generation: Option<u32>) -> Result<(), Mismatch> {
        let (u32_at, u64_at) = (
            |at| read_u32(block, at),
            |at| u64::from(read_u32(block, at)) | u64::from(read_u32(block, at + 4)) << 32,
        );
        let found = u32_at(24);
        if u32_at(0) != checksum(block) {
            return Err(self.corruption(block, address, generation.unwrap_or(found)));
        }
        if u32_at(4) != MAGIC {
            return Err(Mismatch::Foreign);
        }
        let len = u32_at(28);
        if usize::try_from(len) != Ok(block.len()) {
            return Err(Mismatch::OtherLength { found: len });
        }
        if u64_at(8) != address {
            return Err(Mismatch::Misplaced { belongs: u64_at(8) });
        }
        if u64_at(16) != self.seed {
            return Err(Mismatch::OtherSeed { found: u64_at(16) });
        }
        match generation {
            Some(wanted) if wanted != found => Err(Mismatch::Stale { found, wanted }),
            _ => Ok(()),
        }
    }

    /// Determines the cause of a wrong checksum.
    fn corruption(&mut self, block: &[u8], address: u64, generation: u32) -> Mismatch {
        if block.iter().all(|&byte| byte == 0) {
            return Mismatch::Zeroes;
        }
        let mut expected = core::mem::take(&mut self.expected);
        self.write(&mut expected[..block.len()], address, generation);
        let mut differs = block.iter().zip(&expected).map(|(is, should)| is != should);
        let first = differs.position(|differs| differs);
        let same = block.iter().zip(&expected).filter(|(is, should)| is == should).count();
        self.expected = expected;
        if read_u32(block, 4) != MAGIC && same < block.len() / 2 {
            // A block of another length also has a wrong checksum, but has the magic number.
            return Mismatch::Foreign;
        }
        let len = read_u32(block, 28);
        if read_u32(block, 4) == MAGIC && usize::try_from(len) != Ok(block.len()) && len.is_multiple_of(512) {
            return Mismatch::OtherLength { found: len };
        }
        Mismatch::Corrupt { at: first.filter(|_| same >= block.len() / 2) }
    }
}

fn checksum(block: &[u8]) -> u32 {
    // The crate returns every checksum as 64 bits.
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
    fn mismatch_kinds_are_distinguished() {
        for content in [Verify::Random, Verify::Pattern(vec![0xde, 0xad, 0xbe])] {
            let mut stamp = Stamp::new(7, content.clone(), 8192);
            let good = block(&stamp, 8192, 3);
            assert_eq!(stamp.check(&good, 8192, Some(3)), Ok(()));
            assert_eq!(stamp.check(&good, 8192, None), Ok(()));
            assert_eq!(stamp.check(&good, 4096, Some(3)), Err(Mismatch::Misplaced { belongs: 8192 }));
            assert_eq!(stamp.check(&good, 8192, Some(4)), Err(Mismatch::Stale { found: 3, wanted: 4 }));
            let other = block(&Stamp::new(8, content, 8192), 8192, 3);
            assert_eq!(stamp.check(&other, 8192, Some(3)), Err(Mismatch::OtherSeed { found: 8 }));
            assert_eq!(stamp.check(&[0; 4096], 8192, Some(3)), Err(Mismatch::Zeroes));
            assert_eq!(stamp.check(&[0x5a; 4096], 8192, Some(3)), Err(Mismatch::Foreign));
            assert_eq!(stamp.check(&good[..2048], 8192, Some(3)), Err(Mismatch::OtherLength { found: 4096 }));
            for at in [0, 5, 9, 30, 32, 1000, 4095] {
                let mut flipped = good.clone();
                flipped[at] ^= 0x10;
                let wrong = stamp.check(&flipped, 8192, Some(3)).unwrap_err();
                assert!(
                    matches!(wrong, Mismatch::Corrupt { at: Some(found) } if found == at) || at == 30,
                    "{at}: {wrong}"
                );
            }
        }
    }
}
