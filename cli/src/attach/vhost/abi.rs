//! What a virtio block device tells its driver: features and configuration (Virtual I/O Device, section 5.2).

use crate::attach::nbd::DiskInfo;

/// Bytes in a sector, which the driver counts in whatever the block size is.
pub(super) const SECTOR: u64 = 512;
/// The most virtqueues, and entries in each.
pub(super) const QUEUES_MAX: u16 = 16;
pub(super) const QUEUE_SIZE_MAX: u16 = 1024;
/// The most ranges of a discard or write-zeroes request.
pub(super) const RANGES_MAX: usize = 16;
/// Bytes of such a range.
pub(super) const RANGE_LEN: usize = 16;
/// Bytes of a request's header, and of the answer to [`GET_ID`].
pub(super) const HEADER_LEN: usize = 16;
pub(super) const ID_LEN: usize = 20;
/// Data segments of a request: what fits a queue of 128 entries beside the header and the status.
const SEGMENTS_MAX: u32 = 126;
/// Descriptors of a request with so many segments: its header and status as well.
pub(super) const CHAIN_LEN: u16 = SEGMENTS_MAX as u16 + 2;
/// Sectors of a range that is discarded or zeroed: 1 GiB.
const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// Types of requests.
pub(super) const IN: u32 = 0;
pub(super) const OUT: u32 = 1;
pub(super) const FLUSH: u32 = 4;
pub(super) const GET_ID: u32 = 8;
pub(super) const DISCARD: u32 = 11;
pub(super) const WRITE_ZEROES: u32 = 13;

const F_SEG_MAX: u64 = 1 << 2;
const F_RO: u64 = 1 << 5;
const F_BLK_SIZE: u64 = 1 << 6;
/// The driver flushes: a write need not be durable when it completes.
pub(super) const F_FLUSH: u64 = 1 << 9;
const F_TOPOLOGY: u64 = 1 << 10;
const F_MQ: u64 = 1 << 12;
const F_DISCARD: u64 = 1 << 13;
const F_WRITE_ZEROES: u64 = 1 << 14;
const F_RING_INDIRECT_DESC: u64 = 1 << 28;
pub(super) const F_RING_EVENT_IDX: u64 = 1 << 29;
const F_VERSION_1: u64 = 1 << 32;
/// Of vhost-user: the two sides agree on features of their protocol.
pub(super) const F_PROTOCOL_FEATURES: u64 = 1 << 30;

/// What the device offers. A flush always: a cache may appear later. No switch for the cache (CONFIG_WCE): it would be the
/// target's, for all its hosts.
pub(super) fn features(disk: &DiskInfo) -> u64 {
    let optional = |is_there, feature| if is_there { feature } else { 0 };
    F_SEG_MAX
        | F_BLK_SIZE
        | F_FLUSH
        | F_TOPOLOGY
        | F_MQ
        | F_RING_INDIRECT_DESC
        | F_RING_EVENT_IDX
        | F_PROTOCOL_FEATURES
        | F_VERSION_1
        | optional(disk.read_only, F_RO)
        | optional(disk.trim && !disk.read_only, F_DISCARD)
        | optional(disk.write_zeroes && !disk.read_only, F_WRITE_ZEROES)
}

/// What a driver may have agreed to: also with a server before this one, when the disk was read-only, or was not.
pub(super) fn features_ever(disk: &DiskInfo) -> u64 {
    let of = |read_only| features(&DiskInfo { read_only, ..*disk });
    of(false) | of(true)
}

/// The configuration space, `struct virtio_blk_config`; what lies behind its end reads as zeroes.
pub(super) fn configuration(disk: &DiskInfo) -> [u8; 64] {
    let mut space = [0; 64];
    let mut put = |at: usize, value: &[u8]| space[at..at + value.len()].copy_from_slice(value);
    let optimal = disk.preferred / disk.block_size.max(1);
    let of = |is_there: bool, value: u32| if is_there { value.to_le_bytes() } else { [0; 4] };
    put(0, &(disk.bytes / SECTOR).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &disk.block_size.to_le_bytes());
    // The topology: the physical block is the logical one, and this is the optimal size in blocks.
    put(26, &1_u16.to_le_bytes());
    put(28, &optimal.to_le_bytes());
    put(34, &QUEUES_MAX.to_le_bytes());
    put(36, &of(disk.trim, RANGE_SECTORS_MAX));
    put(40, &of(disk.trim, RANGES_MAX as u32));
    put(44, &of(disk.trim, disk.block_size / SECTOR as u32));
    put(48, &of(disk.write_zeroes, RANGE_SECTORS_MAX));
    put(52, &of(disk.write_zeroes, RANGES_MAX as u32));
    put(56, &[disk.write_zeroes.into()]);
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_is_described_as_it_is() {
        let disk = DiskInfo {
            bytes: 1 << 30,
            block_size: 4096,
            preferred: 65536,
            read_only: false,
            trim: true,
            write_zeroes: false,
            block_status: false,
        };
        let space = configuration(&disk);
        assert_eq!(space[..8], (1_u64 << 21).to_le_bytes());
        assert_eq!(space[20..24], 4096_u32.to_le_bytes());
        assert_eq!((space[28], space[44], space[48]), (16, 8, 0));
        let offered = features(&disk);
        assert!(offered & F_DISCARD != 0 && offered & (F_WRITE_ZEROES | F_RO | 1 << 11) == 0, "{offered:x}");
        let offered = features(&DiskInfo { read_only: true, ..disk });
        assert!(offered & F_RO != 0 && offered & F_DISCARD == 0, "{offered:x}");
        // A driver of before the disk turned read-only, and one of before it did not, go on with another server.
        let ever = features_ever(&DiskInfo { read_only: true, ..disk });
        assert_eq!(ever, features(&disk) | offered);
        assert!(ever & F_FLUSH != 0, "whatever it has, it can be flushed");
    }
}
