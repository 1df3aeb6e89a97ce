//! Tests of the generator with various options.

use super::*;
use crate::job::Access;

const REGION: Region = Region { offset: 4096, len: 1000 * 4096 + 100 };

fn options(change: impl FnOnce(&mut JobOptions)) -> JobOptions {
    let mut options = JobOptions::default();
    change(&mut options);
    options
}

fn random(reads: bool, writes: bool) -> Access {
    Access { reads, writes, trims: false, random: true }
}

#[test]
fn random_blocks_are_permutation_of_seed() {
    let options = options(|o| o.rw = random(true, false));
    let draw =
        |stream| Generator::new(&options, REGION, stream).unwrap().map(|op| op.offset).collect::<Vec<_>>();
    let first = draw(0);
    assert_eq!(first, draw(0), "the same seed, the same operations");
    assert_ne!(first, draw(1));
    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert_ne!(first, sorted);
    let every: Vec<u64> = (0..1000).map(|block| 4096 + block * 4096).collect();
    assert_eq!(sorted, every);
}

#[test]
fn second_loop_visits_all_blocks_in_new_order() {
    let options = options(|o| (o.rw, o.loops) = (random(false, true), 2));
    let all: Vec<_> = Generator::new(&options, REGION, 0).unwrap().map(|op| op.offset).collect();
    let (mut first, mut second) = (all[..1000].to_vec(), all[1000..].to_vec());
    assert_ne!(first, second);
    first.sort_unstable();
    second.sort_unstable();
    assert_eq!(first, second);
}

#[test]
fn sequential_offsets_wrap_at_region_end() {
    let options = options(|o| (o.io_size, o.loops) = (Some(crate::job::Extent::Bytes(1002 * 4096)), 1));
    let offsets: Vec<_> = Generator::new(&options, REGION, 0).unwrap().map(|op| op.offset).collect();
    assert_eq!(offsets[..3], [4096, 8192, 12288]);
    assert_eq!(offsets[999..], [1000 * 4096, 4096, 8192]);
}

#[test]
fn read_write_mix_has_configured_share() {
    let options = options(|o| (o.rw, o.rwmixread, o.loops) = (random(true, true), 70, 10));
    let reads =
        Generator::new(&options, REGION, 0).unwrap().filter(|op| op.direction == Direction::Read).count();
    assert!((6700..7300).contains(&reads), "{reads} of 10000");
}

#[test]
fn mixed_block_sizes_stay_in_region() {
    for sizes in [BlockSize::Range(4096, 65536), BlockSize::Split(vec![(4096, 50), (8192, 100)])] {
        let options = options(|o| {
            o.rw = random(true, true);
            o.bs = [sizes.clone(), sizes.clone(), sizes];
        });
        let mut bytes = 0;
        for op in Generator::new(&options, REGION, 0).unwrap() {
            assert!(
                op.len.is_multiple_of(4096) && op.len > 0 && (op.offset - REGION.offset).is_multiple_of(4096)
            );
            assert!(
                op.offset >= REGION.offset && op.offset + u64::from(op.len) <= REGION.offset + REGION.len
            );
            bytes += u64::from(op.len);
        }
        assert_eq!(bytes, 1000 * 4096);
    }
}

#[test]
fn zipf_offsets_are_skewed() {
    let options = options(|o| {
        (o.rw, o.loops) = (random(true, false), 100);
        o.random_distribution = Distribution::Zipf(1.2);
    });
    let mut counts = std::collections::HashMap::new();
    Generator::new(&options, REGION, 0).unwrap().for_each(|op| *counts.entry(op.offset).or_insert(0) += 1);
    assert!(counts.values().max() > Some(&15_000), "of 100000 operations on 1000 blocks");
}

#[test]
fn trim_is_followed_by_write_of_same_blocks() {
    let options = options(|o| {
        o.rw = Access { reads: false, writes: true, trims: true, random: true };
    });
    let all: Vec<_> = Generator::new(&options, REGION, 0).unwrap().collect();
    assert_eq!(all.len(), 2000);
    for pair in all.as_chunks::<2>().0 {
        assert_eq!(
            (pair[0].direction, pair[1].direction, pair[0].offset),
            (Direction::Trim, Direction::Write, pair[1].offset)
        );
    }
}

#[test]
fn region_smaller_than_block_has_no_generator() {
    assert!(Generator::new(&JobOptions::default(), Region { offset: 0, len: 4095 }, 0).is_none());
}
