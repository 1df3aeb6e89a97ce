//! Streams over a connection, with calls that are dropped.

use super::{BLOCK, Site};
use crate::Stream;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use nvme_proto::Status;
use nvme_proto::opcode::NvmOpcode;
use std::io::SeekFrom;
use tokio::io::{AsyncRead as _, AsyncSeek as _, AsyncWrite as _, ReadBuf};

/// Each first call is polled once and dropped, and another handle of the device writes before the second begins.
#[test]
fn call_of_a_stream_has_no_result_of_one_that_was_dropped_before() {
    let mut site = Site::new(1);
    let disk = site.disk();
    let mut stream = Stream::new(disk.clone());
    let mut context = Context::from_waker(Waker::noop());
    let mut two = [[0; 16]; 2];
    let [one, other] = &mut two;
    assert!(Pin::new(&mut stream).poll_read(&mut context, &mut ReadBuf::new(one)).is_pending());
    site.run(disk.write_from(0, &[7; BLOCK])).expect("it ends").unwrap();
    let read = poll_fn(|context| Pin::new(&mut stream).poll_read(context, &mut ReadBuf::new(other)));
    site.run(read).expect("it ends").unwrap();
    assert_eq!(*other, [7; 16], "it was written before the read began");

    let (mut stream, two) = (Stream::new(disk.clone()), [[8; BLOCK]; 2]);
    assert!(Pin::new(&mut stream).poll_write(&mut context, &two[0]).is_pending());
    site.run(disk.write_from(0, &[9; BLOCK])).expect("it ends").unwrap();
    let write = poll_fn(|context| Pin::new(&mut stream).poll_write(context, &two[1]));
    assert_eq!(site.run(write).expect("it ends").unwrap(), BLOCK);
    assert_eq!(site.target.disks[&1].bytes[..BLOCK], [8; BLOCK], "it was written behind the other");

    let flushes =
        |site: &Site| site.target.seen.iter().filter(|(opcode, ..)| *opcode == NvmOpcode::FLUSH).count();
    assert!(Pin::new(&mut stream).poll_flush(&mut context).is_pending());
    site.run(disk.write_from(0, &[10; BLOCK])).expect("it ends").unwrap();
    assert_eq!(flushes(&site), 1);
    site.run(poll_fn(|context| Pin::new(&mut stream).poll_flush(context))).expect("it ends").unwrap();
    assert_eq!(flushes(&site), 2, "what was written after the first was not in it");
    // And no more than it needs.
    site.run(poll_fn(|context| Pin::new(&mut stream).poll_flush(context))).expect("it ends").unwrap();
    assert_eq!(flushes(&site), 3);
}

/// As `tokio::io::copy` does: while a write is under way it reads more behind what is being written.
#[test]
fn write_that_is_polled_with_more_bytes_is_done_once() {
    let mut site = Site::new(1);
    let mut stream = Stream::new(site.disk());
    let mut bytes = [7; 3 * BLOCK];
    let mut context = Context::from_waker(Waker::noop());
    // All by one task, as is asked for.
    let mut write = |site: &mut Site, bytes: &[u8]| loop {
        match Pin::new(&mut stream).poll_write(&mut context, bytes) {
            Poll::Ready(written) => break written.unwrap(),
            Poll::Pending => site.turn(),
        }
        if site.target.hold {
            break 0;
        }
    };
    let writes = |site: &Site| site.target.seen.iter().filter(|seen| seen.0 == NvmOpcode::WRITE).count();
    let begun = |site: &mut Site, write: &mut dyn FnMut(&mut Site, &[u8]) -> usize, bytes: &[u8]| {
        site.target.hold = true;
        while site.target.held.is_empty() {
            assert_eq!(write(site, bytes), 0);
        }
        site.target.hold = false;
        site.target.release();
    };
    begun(&mut site, &mut write, &bytes[..BLOCK]);
    bytes[BLOCK..].fill(8);
    assert_eq!((write(&mut site, &bytes), writes(&site)), (BLOCK, 1));
    assert_eq!((write(&mut site, &bytes[BLOCK..]), writes(&site)), (2 * BLOCK, 2));
    assert_eq!(site.target.disks[&1].bytes[..3 * BLOCK], bytes);
    // Of other bytes at the same place nothing is taken for written.
    begun(&mut site, &mut write, &bytes[..BLOCK]);
    bytes[0] = 9;
    assert_eq!((write(&mut site, &bytes), writes(&site)), (3 * BLOCK, 4));
    assert_eq!(site.target.disks[&1].bytes[3 * BLOCK..6 * BLOCK], bytes);
}

/// A device may say once that it has lost its cache.
#[test]
fn failure_of_a_flush_is_told_once_by_whatever_call_comes_next() {
    let mut context = Context::from_waker(Waker::noop());
    // Somebody else writes meanwhile; the call is dropped, and so is what the user does in between.
    for (writes, seeks) in [(false, false), (true, false), (false, true)] {
        let mut site = Site::new(1);
        let disk = site.disk();
        let mut stream = Stream::new(disk.clone());
        site.target.hold = true;
        while site.target.held.is_empty() {
            assert!(Pin::new(&mut stream).poll_flush(&mut context).is_pending());
            site.turn();
        }
        site.target.hold = false;
        if writes {
            site.run(disk.write_from(0, &[9; BLOCK])).expect("it ends").unwrap();
        }
        site.target.answer(0, Status::WRITE_FAULT.with_dnr());
        if seeks {
            Pin::new(&mut stream).start_seek(SeekFrom::Start(8)).unwrap();
            let seek = poll_fn(|context| Pin::new(&mut stream).poll_complete(context));
            assert_eq!(site.run(seek).expect("it ends").unwrap(), 8);
        }
        let [first, second] = [(); 2].map(|()| {
            let flush = poll_fn(|context| Pin::new(&mut stream).poll_flush(context));
            site.run(flush).expect("it ends")
        });
        assert!(first.is_err(), "writes: {writes}, seeks: {seeks}");
        second.unwrap();
    }
}
