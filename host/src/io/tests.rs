use super::*;
use crate::{Cid, DataPointer};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn namespace() -> Namespace {
    Namespace {
        nsid: Nsid(1),
        geometry: Geometry { volatile_write_cache: true, ..Geometry::new(512, 1 << 40) },
        nguid: [0; 16],
        eui64: [0; 8],
        uuid: [0; 16],
        ana_group: 0,
        limits: CommandLimits {
            transfer_blocks: 256,
            write_zeroes_blocks: limits::COMMAND_BLOCKS_MAX,
            write_zeroes_deallocate: true,
            verify_blocks: limits::COMMAND_BLOCKS_MAX,
            deallocate_blocks: u32::MAX,
            deallocate_command_blocks: 1 << 20,
            deallocate_ranges: 256,
            compare: true,
            compare_and_write_blocks: 1,
            copy_blocks: 100,
            in_capsule_bytes: 4096,
        },
    }
}

#[test]
fn small_write_is_in_capsule_and_large_write_is_split() {
    let small = Operation::Write { range: BlockRange::new(7, 8), fua: true };
    let parts: Vec<Part> = namespace().split(small).unwrap().collect();
    assert_eq!(parts[0].data, PartData::ToController { offset: 0, len: 4096, in_capsule: true });
    let sqe = parts[0].command.encode(Cid(0), DataPointer::InCapsule { len: 4096 });
    assert_eq!(sqe[40..52], [7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0x40], "SLBA, NLB 0's based, FUA");

    let large = Operation::Write { range: BlockRange::new(0, 600), fua: false };
    let parts = namespace().split(large).unwrap();
    assert_eq!(parts.remaining(), 3);
    let data: Vec<PartData> = parts.map(|part| part.data).collect();
    assert_eq!(data[2], PartData::ToController { offset: 262_144, len: 45056, in_capsule: false });
}

#[test]
fn impossible_operations_are_refused() {
    let mut namespace = namespace();
    let range = BlockRange::new(1 << 40, 1);
    assert_eq!(namespace.split(Operation::Read { range }).err(), Some(BlockError::OutOfRange));
    let range = BlockRange::new(0, 1);
    namespace.geometry.read_only = true;
    assert_eq!(namespace.split(Operation::Deallocate { range }).err(), Some(BlockError::ReadOnly));
    assert!(namespace.split(Operation::Read { range }).is_ok());
    namespace.limits.compare = false;
    namespace.limits.verify_blocks = 0;
    assert_eq!(namespace.split(Operation::Compare { range }).err(), Some(BlockError::Unsupported));
    assert_eq!(namespace.split(Operation::Verify { range }).err(), Some(BlockError::Unsupported));
}

#[test]
fn zeroes_deallocate_only_where_the_namespace_can() {
    let mut namespace = namespace();
    let zeroes = Operation::WriteZeroes { range: BlockRange::new(0, 1 << 17), deallocate: true, fua: false };
    let deallocates = |namespace: &Namespace| {
        let parts: Vec<Part> = namespace.split(zeroes).unwrap().collect();
        assert_eq!((parts.len(), parts[1].data), (2, PartData::None));
        let sqe = parts[1].command.encode(Cid(0), DataPointer::None);
        assert_eq!(sqe[40..50], [0, 0, 1, 0, 0, 0, 0, 0, 0xff, 0xff]);
        sqe[51] == 0x02
    };
    assert!(deallocates(&namespace));
    namespace.limits.write_zeroes_deallocate = false;
    assert!(!deallocates(&namespace));
}

#[test]
fn flush_is_sent_only_with_a_write_cache() {
    let mut namespace = namespace();
    assert_eq!(namespace.split(Operation::Flush).unwrap().count(), 1);
    namespace.geometry.volatile_write_cache = false;
    assert_eq!(namespace.split(Operation::Flush).unwrap().count(), 0);
}

#[test]
fn many_ranges_take_several_commands() {
    let ranges = vec![BlockRange::new(8, 8); 300];
    let mut rest = ranges.as_slice();
    let mut out = [0; 4096];
    let (command, len) = namespace().deallocate(&mut rest, &mut out).unwrap().unwrap();
    assert_eq!((len, rest.len()), (4096, 44));
    assert_eq!(command.encode(Cid(0), DataPointer::None)[40..45], [255, 0, 0, 0, 4]);
    assert_eq!(out[..16], [0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(namespace().deallocate(&mut rest, &mut out).unwrap().unwrap().1, 44 * 16);
    assert!(namespace().deallocate(&mut rest, &mut out).unwrap().is_none());
}

#[test]
fn deallocation_takes_no_more_blocks_than_one_command_may() {
    let mut namespace = namespace();
    namespace.limits.deallocate_command_blocks = 20;
    let ranges = [BlockRange::new(0, 8), BlockRange::new(8, 12), BlockRange::new(20, 1)];
    let mut rest = &ranges[..];
    let mut out = [0; 4096];
    assert_eq!(namespace.deallocate(&mut rest, &mut out).unwrap().unwrap().1, 2 * 16);
    assert_eq!(namespace.deallocate(&mut rest, &mut out).unwrap().unwrap().1, 16);
}

#[test]
fn fua_is_in_every_part_of_writes_and_zeroes() {
    let range = BlockRange::new(0, 1 << 17);
    for fua in [false, true] {
        for operation in
            [Operation::Write { range, fua }, Operation::WriteZeroes { range, deallocate: false, fua }]
        {
            let parts: Vec<Part> = namespace().split(operation).unwrap().collect();
            assert!(parts.len() > 1);
            for part in parts {
                let sqe = part.command.encode(Cid(0), DataPointer::None);
                assert_eq!(sqe[51] & 0x40 != 0, fua, "{operation:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn parts_of_a_read_cover_it_exactly(start in 0u64..1 << 41, blocks in 0u64..5000, step in 1u32..=2048) {
        let mut namespace = namespace();
        namespace.limits.transfer_blocks = step;
        let Ok(parts) = namespace.split(Operation::Read { range: BlockRange::new(start, blocks) }) else {
            prop_assert!(start + blocks > 1 << 40);
            return Ok(());
        };
        let mut expected = 0;
        for part in parts {
            let PartData::FromController { offset, len } = part.data else { panic!("{part:?}") };
            prop_assert_eq!(offset, expected);
            prop_assert!(len <= step * 512 && len > 0);
            expected += len as usize;
        }
        prop_assert_eq!(expected, blocks as usize * 512);
    }
}
