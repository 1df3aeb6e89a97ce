//! Operations that nobody waits for any longer: they complete on memory that the connection keeps, and change no other bytes, and nothing
//! of what was asked for later.

use nvme_proto::Nsid;
use nvmf_initiator::queue::Queue;
use nvmf_initiator::{Connection, ConnectionState, Effect, Error, HostIdentity, Options, block_on};
use nvmf_tests::process::{self, Target};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const BLOCK: usize = 4096;

#[test]
fn dropped_future_changes_no_other_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let nqn = "nqn.2026-11.com.example:cancel";
    let config = folder.path().join("target.toml");
    let text = format!(
        "[[listener]]\naddress = \"{address}\"\n[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\nmemory = \"4MiB\"\nblock_size = 4096\n"
    );
    std::fs::write(&config, text).expect("a configuration");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let target = Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");
    let host = HostIdentity::generate().expect("an identity");
    let mut options = Options::with_host(address, nqn.parse().expect("an NQN"), host);
    options.io_queues = 2;
    block_on(async {
        let connection = Connection::connect(options).await.expect("a connection");
        let disk = connection.open(Nsid(1)).expect("namespace 1");
        disk.write_from(0, &[1; 64 * BLOCK]).await.expect("a write");
        let mut context = Context::from_waker(Waker::noop());
        let mut dropped_in_flight = 0;
        for round in 0..200_u64 {
            // A read is started and dropped: its buffer must not be reused before the data has arrived.
            let dropped = disk.buffer(64 * BLOCK).expect("a buffer");
            {
                let read = pin!(disk.read(0, dropped));
                match read.poll(&mut context) {
                    Poll::Pending => dropped_in_flight += 1,
                    // The read completed at the first poll.
                    Poll::Ready(read) => drop(read.expect("a read")),
                }
            }
            // A buffer of the same size, allocated at once, must keep its contents.
            let mut buffer = disk.buffer(64 * BLOCK).expect("a buffer");
            let bytes = vec![(round % 251) as u8 + 2; 64 * BLOCK];
            buffer.copy_from(&bytes);
            let buffer = disk.write(64 * BLOCK as u64, buffer).await.expect("a write");
            let mut back = vec![0; 64 * BLOCK];
            buffer.copy_to(&mut back);
            assert!(back == bytes, "round {round}: a dropped read wrote into another's buffer");
            disk.read_to(64 * BLOCK as u64, &mut back).await.expect("a read");
            assert!(back == bytes, "round {round}: the disk has other contents");
        }
        assert!(dropped_in_flight > 0, "no read was dropped in flight");
        connection.close().await;
    });
    target.stop().expect("the target stops");
}

/// Every program retries.
#[test]
fn write_that_timed_out_while_its_path_was_away_does_not_land_on_the_retry() {
    const PIECES: u64 = 24;
    const PIECE: usize = 64 << 10;
    let folder = tempfile::tempdir().expect("a folder");
    let address = ([127, 0, 0, 1], process::free_port().expect("a port")).into();
    let nqn = "nqn.2026-11.com.example:timed-out";
    let (config, disk) = (folder.path().join("target.toml"), folder.path().join("disk.img"));
    std::fs::File::create(&disk).expect("a file").set_len(16 << 20).expect("its size");
    let text = format!(
        "[[listener]]\naddress = \"{address}\"\n[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\nuuid = \"5d1ad2ab-49b8-4d0a-9c1e-2f6d0b3c7a11\"\npath = {disk:?}\n"
    );
    std::fs::write(&config, text).expect("a configuration");
    let program = process::program("nvmf-target").expect("nvmf-target");
    let serve = || Target::serve(&program, &config, address, &folder.path().join("log")).expect("a target");
    let mut target = serve();
    let host = HostIdentity::generate().expect("an identity");
    let mut options = Options::with_host(address, nqn.parse().expect("an NQN"), host);
    options.io_queues = 4;
    options.reconnect_delay = Duration::from_millis(100);
    let connection = block_on(Connection::connect(options)).expect("a connection");
    let device = connection.open(Nsid(1)).expect("namespace 1");
    let patient = Queue::new(device.clone()).expect("a queue");
    let hasty = Queue::new(device.with_timeout(Duration::from_millis(200))).expect("a queue");
    let submit = |queue: &Queue, byte: u8| {
        for piece in 0..PIECES {
            let mut buffer = device.buffer(PIECE).expect("a buffer");
            buffer.copy_from(&[byte; PIECE]);
            queue.write(piece, piece * PIECE as u64, buffer, false).expect("submitted");
        }
    };
    let ends = |queue: &Queue| {
        let next = || queue.wait(Duration::from_secs(60)).expect("it ends");
        (0..PIECES).map(|_| next().result).collect::<Vec<_>>()
    };
    for round in 0..2 {
        target.kill().expect("killed");
        process::until("the loss", || connection.state() != ConnectionState::Live).expect("it is lost");
        submit(&hasty, b'A');
        for result in ends(&hasty) {
            let error = result.expect_err("there is no path");
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            assert_eq!(error.effect(), Effect::Nothing, "it was not sent");
        }
        submit(&patient, b'B');
        target = serve();
        assert!(ends(&patient).iter().all(Result::is_ok));
        for piece in 0..PIECES {
            let mut bytes = vec![0; PIECE];
            block_on(device.read_to(piece * PIECE as u64, &mut bytes)).expect("a read");
            assert!(bytes.iter().all(|byte| *byte == b'B'), "round {round}: older data lie on piece {piece}");
        }
    }
    block_on(connection.close());
    target.stop().expect("the target stops");
}
