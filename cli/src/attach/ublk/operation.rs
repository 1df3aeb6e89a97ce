//! The operation that a request of the kernel asks for.

use super::abi::{self, IoDescriptor};
use nix::errno::Errno;
use nvmf_block::{BlockOp, BlockRange, Buffer};

const SECTOR: u64 = 512;

/// The operation, and what the request reports when it ends well: the bytes that a read or write moves. `slot` is the
/// buffer of its slot.
///
/// # Errors
/// What the request reports at once.
pub(super) fn operation(
    descriptor: &IoDescriptor,
    block_size: u32,
    slot: Buffer,
) -> Result<(BlockOp, i32), Errno> {
    let op = descriptor.op_flags & abi::OP_MASK;
    // A flush has no range: what stands there is no number of a sector.
    if op == abi::OP_FLUSH {
        return Ok((BlockOp::Flush, 0));
    }
    let block_size = u64::from(block_size);
    let start = descriptor.start_sector.checked_mul(SECTOR).ok_or(Errno::EINVAL)?;
    let len = u64::from(descriptor.sectors) * SECTOR;
    if !start.is_multiple_of(block_size) || !len.is_multiple_of(block_size) {
        return Err(Errno::EINVAL);
    }
    let range = BlockRange::new(start / block_size, len / block_size);
    let has = |flag| descriptor.op_flags & flag != 0;
    let (fua, deallocate) = (has(abi::FUA), !has(abi::NO_UNMAP));
    // The driver holds to what it was told, but a slot's bounds are ours to keep.
    let data = || {
        let len = usize::try_from(len).ok().filter(|&len| len <= slot.len).ok_or(Errno::EINVAL)?;
        Ok((Buffer { len, ..slot }, i32::try_from(len).map_err(|_| Errno::EINVAL)?))
    };
    match op {
        abi::OP_READ => data().map(|(into, moves)| (BlockOp::Read { range, into }, moves)),
        abi::OP_WRITE => data().map(|(from, moves)| (BlockOp::Write { range, from, fua }, moves)),
        abi::OP_DISCARD => Ok((BlockOp::Deallocate { range }, 0)),
        abi::OP_WRITE_ZEROES => Ok((BlockOp::WriteZeroes { range, deallocate, fua }, 0)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_block::RegionId;

    const SLOT: Buffer = Buffer { region: RegionId(3), offset: 8192, len: 8192 };

    fn of(op_flags: u32, start_sector: u64, sectors: u32) -> Result<(BlockOp, i32), Errno> {
        operation(&IoDescriptor { op_flags, sectors, start_sector, address: 0 }, 4096, SLOT)
    }

    #[test]
    fn request_becomes_operation_on_its_slot() {
        let (range, one) = (BlockRange::new(2, 1), Buffer { len: 4096, ..SLOT });
        assert_eq!(of(abi::OP_READ, 16, 8), Ok((BlockOp::Read { range, into: one }, 4096)));
        let write = |fua| BlockOp::Write { range, from: one, fua };
        assert_eq!(of(abi::OP_WRITE, 16, 8), Ok((write(false), 4096)));
        assert_eq!(of(abi::OP_WRITE | abi::FUA, 16, 8), Ok((write(true), 4096)));
        assert_eq!(of(abi::OP_DISCARD, 16, 8), Ok((BlockOp::Deallocate { range }, 0)));
        let zeroes = |deallocate| BlockOp::WriteZeroes { range, deallocate, fua: false };
        assert_eq!(of(abi::OP_WRITE_ZEROES, 16, 8), Ok((zeroes(true), 0)));
        assert_eq!(of(abi::OP_WRITE_ZEROES | abi::NO_UNMAP, 16, 8), Ok((zeroes(false), 0)));
    }

    #[test]
    fn flush_has_no_range() {
        assert_eq!(of(abi::OP_FLUSH, u64::MAX, 0), Ok((BlockOp::Flush, 0)));
    }

    #[test]
    fn misaligned_request_is_refused() {
        for (op, start, sectors) in [
            (abi::OP_READ, 1, 8),
            (abi::OP_WRITE, 8, 7),
            (abi::OP_READ, 0, 24),
            (abi::OP_DISCARD, u64::MAX, 8),
        ] {
            assert_eq!(of(op, start, sectors), Err(Errno::EINVAL), "{op} at {start}+{sectors}");
        }
        assert_eq!(of(4, 0, 8), Err(Errno::EOPNOTSUPP));
    }
}
