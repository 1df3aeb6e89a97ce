//! What a request of a virtio block driver asks for: checked, and turned into operations. No I/O, and no memory of a guest's.

use super::abi::{self, HEADER_LEN, ID_LEN, RANGE_LEN, RANGES_MAX, SECTOR};
use nvmf_block::{BlockError, BlockOp, BlockRange};

/// The status byte of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// The status of an operation that failed.
impl From<BlockError> for Status {
    fn from(error: BlockError) -> Self {
        if error == BlockError::Unsupported { Self::Unsupported } else { Self::IoError }
    }
}

/// What requests are checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Bytes in a block.
    pub(super) block_size: u32,
    /// Bytes in the disk.
    pub(super) bytes: u64,
    /// It takes no writes.
    pub(super) read_only: bool,
    /// The driver does not flush: what it writes is durable when it completes.
    pub(super) write_through: bool,
}

/// A request that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// Device to memory: the blocks of the data from this one on.
    Read {
        start: u64,
    },
    /// Memory to device.
    Write {
        start: u64,
    },
    Flush,
    /// The name of the disk.
    GetId,
    /// Ranges, which stand in the data.
    Ranges {
        zeroes: bool,
    },
}

/// Turns a header into a request. `readable` are the bytes of the data that the device reads, `writable` those that it may
/// write, without header and status.
///
/// # Errors
/// The status with which the request ends at once.
pub(super) fn request(
    header: [u8; HEADER_LEN],
    readable: u64,
    writable: u64,
    rules: &Rules,
) -> Result<Request, Status> {
    let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
    let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
    match kind {
        abi::IN if readable == 0 => Ok(Request::Read { start: blocks(sector, writable, rules)?.start }),
        abi::OUT if writable == 0 => {
            let range = blocks(sector, readable, rules)?;
            may_write(rules)?;
            Ok(Request::Write { start: range.start })
        }
        abi::FLUSH => Ok(Request::Flush),
        abi::GET_ID if writable >= ID_LEN as u64 => Ok(Request::GetId),
        abi::DISCARD | abi::WRITE_ZEROES => {
            may_write(rules)?;
            let count = readable / RANGE_LEN as u64;
            let fits = readable.is_multiple_of(RANGE_LEN as u64) && (1..=RANGES_MAX as u64).contains(&count);
            fits.then_some(Request::Ranges { zeroes: kind == abi::WRITE_ZEROES }).ok_or(Status::IoError)
        }
        abi::IN | abi::OUT | abi::GET_ID => Err(Status::IoError),
        _ => Err(Status::Unsupported),
    }
}

/// The operation of one range of a discard or write-zeroes request.
///
/// # Errors
/// The status with which the request ends.
pub(super) fn range(bytes: [u8; RANGE_LEN], zeroes: bool, rules: &Rules) -> Result<BlockOp, Status> {
    const UNMAP: u32 = 1;
    let sector = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (sectors, flags) = (word(8), word(12));
    // A discard has no flags.
    if flags & !(if zeroes { UNMAP } else { 0 }) != 0 {
        return Err(Status::Unsupported);
    }
    let range = blocks(sector, u64::from(sectors) * SECTOR, rules)?;
    let (deallocate, fua) = (flags & UNMAP != 0, rules.write_through);
    Ok(if zeroes { BlockOp::WriteZeroes { range, deallocate, fua } } else { BlockOp::Deallocate { range } })
}

fn may_write(rules: &Rules) -> Result<(), Status> {
    if rules.read_only { Err(Status::IoError) } else { Ok(()) }
}

/// The blocks of `len` bytes from this sector on: whole blocks of the disk, at least one.
fn blocks(sector: u64, len: u64, rules: &Rules) -> Result<BlockRange, Status> {
    let block = u64::from(rules.block_size);
    let start = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
    let end = start.checked_add(len).filter(|end| *end <= rules.bytes).ok_or(Status::IoError)?;
    if len == 0 || !start.is_multiple_of(block) || !end.is_multiple_of(block) {
        return Err(Status::IoError);
    }
    Ok(BlockRange::new(start / block, len / block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules { block_size: 4096, bytes: 1 << 20, read_only: false, write_through: false };

    fn header(kind: u32, sector: u64) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        header
    }

    fn of(kind: u32, sector: u64, readable: u64, writable: u64) -> Result<Request, Status> {
        request(header(kind, sector), readable, writable, &RULES)
    }

    fn entry(sector: u64, sectors: u32, flags: u32) -> [u8; RANGE_LEN] {
        let mut entry = [0; RANGE_LEN];
        entry[..8].copy_from_slice(&sector.to_le_bytes());
        entry[8..12].copy_from_slice(&sectors.to_le_bytes());
        entry[12..].copy_from_slice(&flags.to_le_bytes());
        entry
    }

    #[test]
    fn header_becomes_request() {
        assert_eq!(of(abi::IN, 8, 0, 4096), Ok(Request::Read { start: 1 }));
        assert_eq!(of(abi::OUT, 2040, 4096, 0), Ok(Request::Write { start: 255 }));
        assert_eq!(of(abi::FLUSH, u64::MAX, 0, 0), Ok(Request::Flush), "a flush has no range");
        assert_eq!(of(abi::GET_ID, 0, 0, 20), Ok(Request::GetId));
        assert_eq!(of(abi::DISCARD, 0, 32, 0), Ok(Request::Ranges { zeroes: false }));
    }

    #[test]
    fn request_that_is_not_whole_blocks_of_the_disk_is_refused() {
        for (sector, len) in [
            (1, 4096),
            (8, 512),
            (8, 0),
            (2040, 8192),
            (2048, 4096),
            (u64::MAX, 4096),
            (u64::MAX / 512, 4096),
            (0, u64::MAX),
            ((1 << 55) - 8, 4096),
        ] {
            assert_eq!(of(abi::IN, sector, 0, len), Err(Status::IoError), "read of {len} at {sector}");
            assert_eq!(of(abi::OUT, sector, len, 0), Err(Status::IoError), "write of {len} at {sector}");
        }
        assert_eq!(of(abi::IN, 0, 4096, 4096), Err(Status::IoError), "data of both directions");
        assert_eq!(of(abi::GET_ID, 0, 0, 19), Err(Status::IoError));
        assert_eq!(of(77, 0, 0, 4096), Err(Status::Unsupported));
        for len in [0, 15, 17, 16 * 17] {
            assert_eq!(of(abi::DISCARD, 0, len, 0), Err(Status::IoError), "ranges of {len} bytes");
        }
    }

    #[test]
    fn read_only_disk_takes_no_change() {
        let rules = Rules { read_only: true, ..RULES };
        for (kind, len) in [(abi::OUT, 4096), (abi::DISCARD, 16), (abi::WRITE_ZEROES, 16)] {
            assert_eq!(request(header(kind, 0), len, 0, &rules), Err(Status::IoError));
        }
        assert!(request(header(abi::IN, 0), 0, 4096, &rules).is_ok());
    }

    #[test]
    fn range_becomes_operation() {
        let two = BlockRange::new(1, 2);
        assert_eq!(range(entry(8, 16, 0), false, &RULES), Ok(BlockOp::Deallocate { range: two }));
        let zeroes = |deallocate, fua| BlockOp::WriteZeroes { range: two, deallocate, fua };
        assert_eq!(range(entry(8, 16, 1), true, &RULES), Ok(zeroes(true, false)));
        let rules = Rules { write_through: true, ..RULES };
        assert_eq!(range(entry(8, 16, 0), true, &rules), Ok(zeroes(false, true)));
        assert_eq!(range(entry(8, 16, 1), false, &RULES), Err(Status::Unsupported), "a discard has no flags");
        assert_eq!(range(entry(8, 16, 2), true, &RULES), Err(Status::Unsupported));
        assert_eq!(range(entry(8, u32::MAX, 0), true, &RULES), Err(Status::IoError));
        assert_eq!(range(entry(u64::MAX, 8, 0), true, &RULES), Err(Status::IoError));
    }

    proptest! {
        #[test]
        fn whatever_is_asked_stays_on_the_disk(
            kind in 0..16_u32, sector: u64, readable: u64, writable in 0..1_u64 << 22, count: u32, flags in 0..4_u32,
        ) {
            for sector in [sector, sector % 4096] {
                if let Ok(Request::Read { start }) = of(kind, sector, 0, writable) {
                    prop_assert!(start * 4096 + writable <= RULES.bytes);
                }
                let _ = of(kind, sector, readable, writable);
                for sectors in [count, count % 4096] {
                    if let Ok(op) = range(entry(sector, sectors, flags), true, &RULES) {
                        let range = op.range().unwrap();
                        prop_assert!((range.start + range.blocks) * 4096 <= RULES.bytes);
                    }
                }
            }
        }
    }
}
