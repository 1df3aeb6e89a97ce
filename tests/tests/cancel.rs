//! Dropped futures: their operations complete on memory that the connection keeps, and no other bytes change.

use nvme_proto::Nsid;
use nvmf_initiator::{Connection, HostIdentity, Options, block_on};
use nvmf_tests::process::{self, Target};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

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
