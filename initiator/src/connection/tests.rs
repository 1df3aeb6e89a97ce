//! Connections and their devices against scripted targets, driven by the test alone.

use super::{Connection, ConnectionState, Shared};
use crate::buffer::BufferPool;
use crate::driver::Driver;
use crate::driver::tests::target::{Disk, Target};
use crate::engine::{Engine, Observers, SharedSnapshot};
use crate::shared_driver::SharedDriver;
use crate::transport::Rdma;
use crate::{Device, Error, HostIdentity, Options};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nvme_proto::{Nsid, Status};
use nvmf_block::BlockError;
use nvmf_rdma::fault::{FaultOptions, Faulty};
use nvmf_rdma::loopback::Fabric;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::watch;

const BLOCK: usize = 512;
/// More than anything here takes.
const STEPS_MAX: u32 = 20_000;

/// A connection without a thread, and its target.
struct Site {
    target: Target,
    connection: Connection,
    start: Instant,
}

impl Site {
    /// With a disk of blocks that hold `byte` everywhere.
    fn new(byte: u8) -> Self {
        Self::with_faults(byte, FaultOptions::default())
    }

    /// The faults strike once the connection is there.
    fn with_faults(byte: u8, faults: FaultOptions) -> Self {
        let (fabric, address) = (Fabric::new(), "192.0.2.1:4420".parse().unwrap());
        let mut target = Target::new(&fabric, address);
        target.disks.insert(1, Disk::new(byte, BLOCK, 1024));
        let nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
        let options = Options::with_host(address, nqn, HostIdentity::generate().unwrap());
        let config = options.driver_config();
        let operations = config.operations as usize;
        let quiet = FaultOptions { seed: faults.seed, ..FaultOptions::default() };
        let provider = Faulty::new(fabric.provider(), quiet);
        let mut driver = Driver::new(Rdma::new(provider), config, Duration::ZERO).unwrap();
        let start = Instant::now();
        for _ in 0..STEPS_MAX {
            driver.turn(start.elapsed());
            target.turn(start.elapsed());
            if driver.state() == ConnectionState::Live {
                break;
            }
        }
        driver.transport_mut().provider_mut().set_options(faults);
        let shared_driver = SharedDriver::new(operations, Duration::ZERO).unwrap();
        let snapshot = SharedSnapshot::default();
        let (state, its_state) = watch::channel(ConnectionState::Connecting);
        let observers = Observers { snapshot: Arc::clone(&snapshot), state, first: None };
        shared_driver.start(Box::new(Engine::new(driver, operations, observers)));
        let pool = BufferPool::new(Arc::clone(&shared_driver));
        let opened = Mutex::default();
        let shared = Arc::new(Shared { options, shared_driver, snapshot, pool, opened, state: its_state });
        let mut site = Self { target, connection: Connection { shared }, start };
        site.turn();
        assert_eq!(site.connection.state(), ConnectionState::Live);
        site
    }

    fn turn(&mut self) {
        self.connection.shared.shared_driver.drive(Instant::now());
        self.target.turn(self.start.elapsed());
    }

    fn disk(&self) -> Device {
        self.connection.open(Nsid(1)).unwrap()
    }

    /// Drives until the future ends; `None` when it does not.
    fn run<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        for _ in 0..STEPS_MAX {
            if let Poll::Ready(output) = poll(future.as_mut()) {
                return Some(output);
            }
            self.turn();
        }
        None
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn buffer_of_another_connection_is_copied() {
    let (mut a, mut b) = (Site::new(1), Site::new(2));
    let (from, to) = (a.disk(), b.disk());
    // The same numbers on both sides, with other bytes behind them.
    let mut bystander = to.buffer(BLOCK).unwrap();
    bystander.copy_from(&[0xbb; BLOCK]);
    let buffer = from.buffer(BLOCK).unwrap();
    let buffer = a.run(from.read(0, buffer)).unwrap().unwrap();
    let buffer = b.run(to.write(0, buffer)).unwrap().unwrap();
    assert_eq!(b.target.disks[&1].bytes[..BLOCK], [1; BLOCK]);
    let compared = b.run(to.compare(0, buffer)).unwrap().unwrap();
    let buffer = b.run(to.read(BLOCK as u64, compared)).unwrap().unwrap();
    let mut bytes = [0; BLOCK];
    buffer.copy_to(&mut bytes);
    assert_eq!(bytes, [2; BLOCK]);
    bystander.copy_to(&mut bytes);
    assert_eq!(bytes, [0xbb; BLOCK], "nobody's business");
    // It is still the first connection's.
    assert!(a.run(from.write(0, buffer)).unwrap().is_ok());
    assert_eq!(a.target.disks[&1].bytes[..BLOCK], [2; BLOCK]);
}

#[test]
fn buffer_that_cannot_be_registered_says_so_and_is_not_used_again() {
    let mut refused = 0;
    for seed in 0..8 {
        let faults = FaultOptions { refuse_register: 500_000, seed, ..FaultOptions::default() };
        let mut site = Site::with_faults(1, faults);
        let disk = site.disk();
        for round in 0..40 {
            let buffer = disk.buffer(BLOCK).unwrap();
            match site.run(disk.read(0, buffer)).unwrap() {
                Ok(_) => {}
                Err(error @ Error::Memory { .. }) => {
                    assert_eq!(error.block_error(), Some(BlockError::Os(12)), "{error}");
                    // One is registered in the end, and used from then on.
                    assert!(round < 30, "round {round} of seed {seed}");
                    refused += 1;
                }
                Err(error) => panic!("round {round} of seed {seed}: {error}"),
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn close_and_admin_commands_do_not_wait_behind_operations() {
    let mut site = Site::new(1);
    let disk = site.disk();
    site.target.hold = true;
    let mut reads: Vec<_> = (0..3000).map(|_| Box::pin(disk.read_one_block())).collect();
    assert!(reads.iter_mut().all(|read| poll(read.as_mut()).is_pending()));
    let connection = site.connection.clone();
    let reply = site.run(connection.admin(nvmf_host::admin::identify_controller()));
    assert_eq!(reply.expect("it is answered").unwrap().outcome.status, Status::SUCCESS);
    site.run(connection.close()).expect("it ends");
    for read in &mut reads {
        let Poll::Ready(result) = poll(read.as_mut()) else { panic!("a read waits for what does not come") };
        assert!(result.is_err());
    }
}

impl Device {
    /// A read whose buffer is its own.
    async fn read_one_block(&self) -> Result<(), Error> {
        self.read(0, self.buffer(BLOCK)?).await.map(drop)
    }
}

#[test]
fn opened_disk_that_is_replaced_is_foreign_to_its_connection() {
    let mut site = Site::new(1);
    let disk = site.disk();
    assert_eq!(disk.geometry().blocks, 1024);
    site.target.disks.insert(1, Disk::new(1, BLOCK, 2048));
    site.target.announce();
    (0..100).for_each(|_| site.turn());
    assert_eq!((site.connection.state(), disk.geometry().blocks), (ConnectionState::Live, 2048), "it grew");
    site.target.disks.insert(1, Disk::new(2, 4096, 2048));
    site.target.announce();
    (0..100).for_each(|_| site.turn());
    assert_eq!(site.connection.state(), ConnectionState::Foreign);
    assert_eq!((site.connection.foreign()[0].0, disk.geometry().block_size), (Nsid(1), 512));
    assert!(matches!(site.connection.open(Nsid(1)), Err(Error::Foreign { nsid: Nsid(1), .. })));
    let buffer = disk.buffer(BLOCK).unwrap();
    assert!(site.run(disk.write(0, buffer)).is_none(), "it waits");
    assert!(site.target.seen.is_empty());
}

#[test]
fn disk_replaced_while_it_is_opened_is_foreign() {
    let mut site = Site::new(1);
    site.target.disks.insert(1, Disk::new(2, BLOCK, 1024));
    site.target.announce();
    // Opened as the connection knows it, while the change is on its way.
    let disk = site.disk();
    (0..100).for_each(|_| site.turn());
    assert_eq!(site.connection.state(), ConnectionState::Foreign);
    let buffer = disk.buffer(BLOCK).unwrap();
    assert!(site.run(disk.read(0, buffer)).is_none());
    assert!(site.target.seen.is_empty());
}
