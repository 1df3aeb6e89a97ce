//! The format of verified blocks.
//!
//! | bytes | contents, little-endian |
//! |---|---|
//! | 0 to 3 | CRC32C of the rest of the block |
//! | 4 to 7 | magic |
//! | 8 to 15 | the block's address: bytes from the start of the device |
//! | 16 to 23 | the run that wrote it: a random number, or `randseed` |
//! | 24 to 27 | the generation: the number of this write of the block |
//! | 28 to 31 | the block's length, bytes |
//! | from 32 | the pattern, or pseudo-random bytes derived from run, address and generation |
//!
//! Without a pattern, every further 512 bytes begin with run and generation as well (12 bytes), from which their bytes are
//! derived. So a block of which only a part was written is told from one that is damaged, whichever writes its parts are of.

use crate::job::Verify;
use crate::workload::{Random, mix};
use core::fmt;

/// Another format has another number.
const MAGIC: u32 = 0x4e56_4d63;
/// What a disk writes as a whole.
const SECTOR: usize = 512;
/// Run and generation at the start of a sector.
const TAG: usize = 12;
const HEADER: usize = 32;

/// Writes and checks verified blocks.
#[derive(Debug, Clone)]
pub struct Stamp {
    /// The run whose blocks these are; `None`: of the first that is checked.
    run: Option<u64>,
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
    /// The block is of two writes, each part of it intact: one of them was not written completely.
    Torn {
        /// Offset of the first byte of the other write.
        at: usize,
        /// The write that the block begins with: run and generation; `None`: zeroes.
        first: Option<(u64, u32)>,
        /// The other one.
        then: Option<(u64, u32)>,
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
    /// The block is intact and at its address, but of another run: what this run wrote is lost, or it never did.
    OtherRun {
        /// The run found.
        found: u64,
        /// The run whose blocks are checked.
        wanted: u64,
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
            Self::OtherRun { found, wanted } => {
                write!(
                    f,
                    "stale: it is of another run or job, {found}; this one's number is {wanted} (see randseed)"
                )
            }
            Self::Torn { at, first, then } => {
                let part = |part: &Option<(u64, u32)>| match part {
                    Some((run, generation)) => format!("generation {generation} of run {run}"),
                    None => "zeroes".to_owned(),
                };
                write!(f, "torn: it begins as {}, and from byte {at} on it is {}", part(first), part(then))
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
    /// A stamp for blocks of at most `longest` bytes of this run; `None`: of the run of the first block that is checked.
    #[must_use]
    pub fn new(run: Option<u64>, content: Verify, longest: usize) -> Self {
        Self { run, content, expected: vec![0; longest] }
    }

    /// The run whose blocks are checked, once it is known.
    #[must_use]
    pub fn run(&self) -> Option<u64> {
        self.run
    }

    /// Writes the block with this address and generation.
    pub fn write(&self, block: &mut [u8], address: u64, generation: u32) {
        self.write_of(block, address, (self.run.unwrap_or_default(), generation));
    }

    fn write_of(&self, block: &mut [u8], address: u64, (run, generation): (u64, u32)) {
        let len = u32::try_from(block.len()).expect("blocks are short");
        block[4..8].copy_from_slice(&MAGIC.to_le_bytes());
        block[8..16].copy_from_slice(&address.to_le_bytes());
        block[16..24].copy_from_slice(&run.to_le_bytes());
        block[24..28].copy_from_slice(&generation.to_le_bytes());
        block[28..32].copy_from_slice(&len.to_le_bytes());
        match &self.content {
            Verify::Pattern(pattern) => {
                for (byte, value) in block[HEADER..].iter_mut().zip(pattern.iter().cycle()) {
                    *byte = *value;
                }
            }
            Verify::Random => {
                for (sector, number) in block.chunks_mut(SECTOR).zip(0..) {
                    let tag = if number == 0 { HEADER } else { write_tag(sector, (run, generation)) };
                    fill(&mut sector[tag..], address + number * SECTOR as u64, (run, generation));
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
        let found = read_u32(block, 24);
        if read_u32(block, 0) != checksum(block) {
            return Err(self.corruption(block, address, generation.unwrap_or(found)));
        }
        if read_u32(block, 4) != MAGIC {
            return Err(Mismatch::Foreign);
        }
        let len = read_u32(block, 28);
        if usize::try_from(len) != Ok(block.len()) {
            return Err(Mismatch::OtherLength { found: len });
        }
        if read_u64(block, 8) != address {
            return Err(Mismatch::Misplaced { belongs: read_u64(block, 8) });
        }
        let (of, wanted) = (read_u64(block, 16), *self.run.get_or_insert_with(|| read_u64(block, 16)));
        if of != wanted {
            return Err(Mismatch::OtherRun { found: of, wanted });
        }
        match generation {
            Some(wanted) if wanted != found => Err(Mismatch::Stale { found, wanted }),
            _ => Ok(()),
        }
    }

    /// Whether the block is of two writes, each sector of it intact.
    fn torn(&mut self, block: &[u8], address: u64) -> Option<Mismatch> {
        if self.content != Verify::Random {
            // The bytes of all writes are the same.
            return None;
        }
        let mut expected = core::mem::take(&mut self.expected);
        let (mut writes, mut is_intact) = (Writes::default(), true);
        for (number, sector) in block.chunks(SECTOR).enumerate() {
            let at = number * SECTOR;
            let write = write_of(sector, at);
            if let Some(write) = write.filter(|_| writes.last != Some(write)) {
                self.write_of(&mut expected[..block.len()], address, write);
            }
            // The first bytes are the checksum of the whole block.
            let skip = if at == 0 { 4 } else { 0 };
            is_intact = write.is_none() || expected[at + skip..at + sector.len()] == sector[skip..];
            if !is_intact {
                break;
            }
            writes.add(at, write);
        }
        self.expected = expected;
        writes.torn.filter(|_| is_intact)
    }

    /// Determines the cause of a wrong checksum.
    fn corruption(&mut self, block: &[u8], address: u64, generation: u32) -> Mismatch {
        if block.iter().all(|&byte| byte == 0) {
            return Mismatch::Zeroes;
        }
        if let Some(torn) = self.torn(block, address) {
            return torn;
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

/// The writes that the sectors of a block are of.
#[derive(Default)]
struct Writes {
    first: Option<Option<(u64, u32)>>,
    last: Option<Option<(u64, u32)>>,
    torn: Option<Mismatch>,
}

impl Writes {
    /// Adds the next sector's; `None` is one of zeroes.
    fn add(&mut self, at: usize, write: Option<(u64, u32)>) {
        let first = *self.first.get_or_insert(write);
        self.last = Some(write);
        if write != first {
            self.torn.get_or_insert(Mismatch::Torn { at, first, then: write });
        }
    }
}

/// What the sector at this offset says that it is of; `None` if it is zeroes.
fn write_of(sector: &[u8], at: usize) -> Option<(u64, u32)> {
    let (run, generation) = if at == 0 { (16, 24) } else { (0, 8) };
    let is_zero = sector.iter().all(|&byte| byte == 0);
    (!is_zero).then(|| (read_u64(sector, run), read_u32(sector, generation)))
}

/// Writes run and generation at the start of a sector, and returns their length.
fn write_tag(sector: &mut [u8], (run, generation): (u64, u32)) -> usize {
    sector[..8].copy_from_slice(&run.to_le_bytes());
    sector[8..TAG].copy_from_slice(&generation.to_le_bytes());
    TAG
}

/// The pseudo-random bytes of a sector.
fn fill(bytes: &mut [u8], address: u64, (run, generation): (u64, u32)) {
    let mut random = Random::new(run ^ mix(address), generation.into());
    let (words, rest) = bytes.as_chunks_mut::<8>();
    words.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
    let last = random.next_u64().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

fn checksum(block: &[u8]) -> u32 {
    // The crate returns every checksum as 64 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block[4..]) as u32
}

fn read_u32(block: &[u8], at: usize) -> u32 {
    block[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn read_u64(block: &[u8], at: usize) -> u64 {
    u64::from(read_u32(block, at)) | u64::from(read_u32(block, at + 4)) << 32
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
            let mut stamp = Stamp::new(Some(7), content.clone(), 8192);
            let good = block(&stamp, 8192, 3);
            assert_eq!(stamp.check(&good, 8192, Some(3)), Ok(()));
            assert_eq!(stamp.check(&good, 8192, None), Ok(()));
            assert_eq!(stamp.check(&good, 4096, Some(3)), Err(Mismatch::Misplaced { belongs: 8192 }));
            assert_eq!(stamp.check(&good, 8192, Some(4)), Err(Mismatch::Stale { found: 3, wanted: 4 }));
            let other = block(&Stamp::new(Some(8), content, 8192), 8192, 3);
            let of_another_run = Err(Mismatch::OtherRun { found: 8, wanted: 7 });
            assert_eq!(stamp.check(&other, 8192, Some(3)), of_another_run);
            assert_eq!(stamp.check(&other, 8192, None), of_another_run);
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
    #[test]
    fn run_is_that_of_the_first_block_where_none_is_given() {
        let mut stamp = Stamp::new(None, Verify::Random, 4096);
        let written = |run, address| block(&Stamp::new(Some(run), Verify::Random, 4096), address, 1);
        assert_eq!(stamp.check(&[0; 4096], 0, None), Err(Mismatch::Zeroes));
        assert_eq!((stamp.check(&written(5, 4096), 4096, None), stamp.run()), (Ok(()), Some(5)));
        let stale = Err(Mismatch::OtherRun { found: 4, wanted: 5 });
        assert_eq!(stamp.check(&written(4, 8192), 8192, None), stale);
    }

    #[test]
    fn torn_block_is_told_from_a_damaged_one() {
        let mut stamp = Stamp::new(Some(7), Verify::Random, 4096);
        let (new, old) = (block(&stamp, 8192, 3), block(&stamp, 8192, 2));
        let earlier = block(&Stamp::new(Some(6), Verify::Random, 4096), 8192, 9);
        let joined = |a: &[u8], b: &[u8], at: usize| [&a[..at], &b[at..]].concat();
        for at in [512, 2048, 3584] {
            for (a, first) in [(&new, Some((7, 3))), (&old, Some((7, 2))), (&vec![0; 4096], None)] {
                for (b, then) in [(&new, Some((7, 3))), (&earlier, Some((6, 9))), (&vec![0; 4096], None)] {
                    if first != then {
                        let wrong = stamp.check(&joined(a, b, at), 8192, Some(3));
                        assert_eq!(wrong, Err(Mismatch::Torn { at, first, then }));
                    }
                }
            }
        }
        // Neither within a sector, nor where a byte changed as well, nor a part of another address.
        let mut damaged = joined(&new, &old, 2048);
        damaged[3000] ^= 1;
        for other in [joined(&new, &old, 700), damaged, joined(&new, &block(&stamp, 4096, 3), 2048)] {
            assert!(matches!(stamp.check(&other, 8192, Some(3)), Err(Mismatch::Corrupt { .. })));
        }
        let text = stamp.check(&joined(&new, &old, 2048), 8192, Some(3)).unwrap_err().to_string();
        assert_eq!(
            text,
            "torn: it begins as generation 3 of run 7, and from byte 2048 on it is generation 2 of run 7"
        );
    }
}
