//! Streams over a connection, with calls that are dropped.

use super::{BLOCK, Site};
use crate::Stream;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Waker};
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
