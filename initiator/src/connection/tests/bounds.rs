//! Operations that lead past the end of their device.

use super::{BLOCK, Site};
use crate::driver::tests::target::Disk;
use crate::queue::Queue;
use crate::{Buffer, Device, Effect, Error, Failed};
use nvme_proto::Nsid;
use nvmf_block::BlockError;
use std::io::{ErrorKind, IoSlice, IoSliceMut};

/// What becomes of every form of operation on these bytes.
fn all_forms(
    site: &mut Site,
    disk: &Device,
    offset: u64,
    len: usize,
) -> Vec<(&'static str, Result<(), Error>)> {
    let (mut bytes, to) = (vec![7; len], len as u64);
    let buffer = |len| disk.buffer(len).unwrap();
    let of_buffer =
        |ended: Option<Result<Buffer, Failed>>| ended.expect("it ends").map(drop).map_err(Error::from);
    let mut all = vec![
        ("write_from", site.run(disk.write_from(offset, &bytes)).expect("it ends")),
        ("write_vectored", site.run(disk.write_vectored(offset, &[IoSlice::new(&bytes)])).expect("it ends")),
        ("write_all_at", site.run(disk.write_all_at(offset, &bytes)).expect("it ends")),
        ("write_all_at_fua", site.run(disk.write_all_at_fua(offset, &bytes)).expect("it ends")),
        ("write", of_buffer(site.run(disk.write(offset, buffer(len))))),
        ("write_fua", of_buffer(site.run(disk.write_fua(offset, buffer(len))))),
        ("compare", of_buffer(site.run(disk.compare(offset, buffer(len))))),
        ("compare_and_write", of_buffer(site.run(disk.compare_and_write(offset, buffer(2 * len), false)))),
        ("write_zeroes", site.run(disk.write_zeroes(offset, to, true, false)).expect("it ends")),
        ("deallocate", site.run(disk.deallocate(offset, to)).expect("it ends")),
        ("verify", site.run(disk.verify(offset, to)).expect("it ends")),
        ("copy to", site.run(disk.copy(0, offset, to, false)).expect("it ends")),
        ("copy from", site.run(disk.copy(offset, 0, to, false)).expect("it ends")),
        ("read", of_buffer(site.run(disk.read(offset, buffer(len))))),
        ("read_to", site.run(disk.read_to(offset, &mut bytes)).expect("it ends")),
        ("read_exact_at", site.run(disk.read_exact_at(offset, &mut bytes)).expect("it ends")),
    ];
    let read = site.run(disk.read_vectored(offset, &mut [IoSliceMut::new(&mut bytes)]));
    all.push(("read_vectored", read.expect("it ends")));
    let queue = Queue::new(disk.clone()).unwrap();
    let of_queue = |submitted: Result<(), Failed>| submitted.map_err(Error::from);
    all.extend([
        ("queue: read", of_queue(queue.read(1, offset, buffer(len)))),
        ("queue: write", of_queue(queue.write(2, offset, buffer(len), false))),
        ("queue: compare", of_queue(queue.compare(3, offset, buffer(len)))),
        ("queue: compare_and_write", of_queue(queue.compare_and_write(4, offset, buffer(2 * len), false))),
        ("queue: deallocate", queue.deallocate(5, offset, to)),
        ("queue: write_zeroes", queue.write_zeroes(6, offset, to, false, false)),
        ("queue: copy", queue.copy(7, 0, offset, to, false)),
    ]);
    let submitted = all.iter().filter(|(form, ended)| form.starts_with("queue") && ended.is_ok());
    assert_eq!(queue.under_way(), submitted.count());
    all
}

/// An offset that goes round behind the last would lead to other blocks.
#[test]
fn what_leads_past_the_end_is_refused_before_anything_of_it_begins() {
    let mut site = Site::new(1);
    let disk = site.connection.open(Nsid(2)).unwrap();
    let (block, end) = (BLOCK as u64, 4096 * BLOCK as u64);
    for offset in [u64::MAX - (block - 1), u64::MAX / 2 + 1, end, end - block] {
        for len in [2 * BLOCK, 2 << 20] {
            for (form, ended) in all_forms(&mut site, &disk, offset, len) {
                let error = ended.expect_err(form);
                assert_eq!(error.block_error(), Some(BlockError::OutOfRange), "{form}: {error}");
                assert_eq!(
                    (error.effect(), error.kind()),
                    (Effect::Nothing, ErrorKind::InvalidInput),
                    "{form}"
                );
            }
        }
    }
    // Bytes that are no whole blocks.
    for (offset, len) in [(u64::MAX - 2, 8), (u64::MAX - 2, 2 << 20), (end - 3, 4), (end - 1000, 2000)] {
        let mut bytes = vec![7; len];
        let written = site.run(disk.write_all_at(offset, &bytes)).expect("it ends").unwrap_err();
        let read = site.run(disk.read_exact_at(offset, &mut bytes)).expect("it ends").unwrap_err();
        for error in [written, read] {
            assert_eq!(error.block_error(), Some(BlockError::OutOfRange), "{error}");
            assert_eq!(error.effect(), Effect::Nothing, "{error}");
        }
    }
    (0..100).for_each(|_| site.turn());
    assert!(site.target.seen.is_empty(), "nothing was sent: {:?}", site.target.seen);
    // The last blocks are not behind the end, also where a buffer has twice as much.
    for (form, ended) in all_forms(&mut site, &disk, end - block, BLOCK) {
        assert_ne!(ended.err().and_then(|error| error.block_error()), Some(BlockError::OutOfRange), "{form}");
    }
    assert!(site.run(disk.write_all_at(u64::MAX, &[])).expect("it ends").is_ok(), "there is nothing to do");
}

#[test]
fn device_that_has_grown_is_written_to_its_new_end_and_no_further() {
    let mut site = Site::new(1);
    let disk = site.connection.open(Nsid(2)).unwrap();
    site.target.disks.insert(2, Disk::new(1, BLOCK, 5000));
    site.target.announce();
    (0..100).for_each(|_| site.turn());
    let (end, blocks) = (5000 * BLOCK, vec![7; 200 * BLOCK]);
    let past = site.run(disk.write_from((end - 100 * BLOCK) as u64, &blocks)).expect("it ends").unwrap_err();
    assert_eq!((past.block_error(), past.effect()), (Some(BlockError::OutOfRange), Effect::Nothing));
    assert!(site.target.disks[&2].bytes.iter().all(|byte| *byte == 1));
    site.run(disk.write_from((end - blocks.len()) as u64, &blocks)).expect("it ends").unwrap();
    assert!(site.target.disks[&2].bytes.ends_with(&blocks));
}
