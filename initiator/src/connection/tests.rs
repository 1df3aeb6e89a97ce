//! Connections and their devices against scripted targets, driven by the test alone.

use super::{Connection, ConnectionState, Shared};
use crate::buffer::BufferPool;
use crate::driver::Driver;
use crate::driver::tests::target::{Capsule, Disk, Target};
use crate::engine::{Engine, FirstResult, Observers, SharedSnapshot};
use crate::log::Log;
use crate::raw::RawCommand;
use crate::shared_driver::SharedDriver;
use crate::state::StateReceiver;
use crate::statistics::Counters;
use crate::transport::{AnyTransport, Rdma};
use crate::{Change, Device, Effect, Error, Failed, HostIdentity, Options, RemoteBackend, block_on, state};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use futures_channel::oneshot;
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nqn, Nsid, Status};
use nvmf_block::BlockError;
use nvmf_rdma::fault::{FaultOptions, Faulty};
use nvmf_rdma::loopback::Fabric;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::time::Instant;

mod bounds;
#[cfg(feature = "tokio")]
mod stream;

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
        Self::awaited(byte, faults, |_| None)
    }

    /// Somebody may wait for the first connection.
    fn awaited(
        byte: u8,
        faults: FaultOptions,
        first: impl FnOnce(&StateReceiver) -> Option<oneshot::Sender<FirstResult>>,
    ) -> Self {
        let (fabric, address) = (Fabric::new(), "192.0.2.1:4420".parse().unwrap());
        let mut target = Target::new(&fabric, address);
        target.disks.insert(1, Disk::new(byte, BLOCK, 1024));
        target.disks.insert(2, Disk::new(byte, BLOCK, 4096));
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
        driver.transport_mut(0).provider_mut().set_options(faults);
        let shared_driver = SharedDriver::new(operations, Duration::ZERO).unwrap();
        let snapshot = SharedSnapshot::default();
        let (state, its_state) = state::channel();
        let counters = Arc::<Counters>::default();
        let observers = Observers {
            snapshot: Arc::clone(&snapshot),
            state,
            counters: Arc::clone(&counters),
            first: first(&its_state),
        };
        shared_driver.start(Box::new(Engine::new(driver, operations, Log::of(nqn), observers)));
        let pool = BufferPool::new(Arc::clone(&shared_driver));
        let opened = Mutex::default();
        let shared =
            Arc::new(Shared { options, shared_driver, snapshot, pool, opened, state: its_state, counters });
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

/// What the state was when this was woken.
struct Look(StateReceiver, Mutex<Option<ConnectionState>>);

impl Wake for Look {
    fn wake(self: Arc<Self>) {
        *self.1.lock().unwrap() = Some(self.0.get());
    }
}

#[test]
fn connection_is_live_when_it_is_told_to_be_there() {
    let (sender, mut first) = oneshot::channel();
    let mut look = None;
    Site::awaited(1, FaultOptions::default(), |state| {
        let waker = Arc::new(Look(state.clone(), Mutex::default()));
        look = Some(Arc::clone(&waker));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker.into())).is_pending());
        Some(sender)
    });
    assert_eq!(*look.unwrap().1.lock().unwrap(), Some(ConnectionState::Live));
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
                Err(Failed { error: error @ Error::Memory { .. }, .. }) => {
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
        Ok(self.read(0, self.buffer(BLOCK)?).await.map(drop)?)
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
    let failed = site.run(disk.write(0, buffer)).expect("it does not wait").unwrap_err();
    assert_eq!(
        (failed.error.block_error(), failed.error.effect()),
        (Some(BlockError::Gone), Effect::Nothing)
    );
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
    let failed = site.run(disk.read(0, buffer)).expect("it does not wait").unwrap_err();
    assert_eq!(failed.error.block_error(), Some(BlockError::Gone));
    assert!(site.target.seen.is_empty());
}

#[test]
fn buffer_comes_back_with_an_error() {
    let mut site = Site::new(1);
    let disk = site.disk();
    let mut buffer = disk.buffer(BLOCK).unwrap();
    buffer.copy_from(&[7; BLOCK]);
    let failed = site.run(disk.write(1, buffer)).unwrap().unwrap_err();
    assert!(matches!(failed.error, Error::Misaligned { .. }) && failed.error.effect() == Effect::Nothing);
    let failed = site.run(disk.write(1024 * BLOCK as u64, failed.buffer.unwrap())).unwrap().unwrap_err();
    assert_eq!(failed.error.block_error(), Some(BlockError::OutOfRange));
    assert_eq!((failed.error.effect(), failed.error.kind()), (Effect::Nothing, ErrorKind::InvalidInput));
    let mut bytes = [0; BLOCK];
    failed.buffer.expect("it is given back").copy_to(&mut bytes);
    assert_eq!(bytes, [7; BLOCK]);
}

#[test]
fn operation_that_takes_too_long_is_given_up_and_ends_all_the_same() {
    let mut site = Site::new(1);
    let disk = site.disk();
    let patient = disk.with_timeout(Duration::from_secs(3600));
    let hasty = disk.with_timeout(Duration::ZERO);
    site.target.hold = true;
    let mut buffer = disk.buffer(BLOCK).unwrap();
    buffer.copy_from(&[7; BLOCK]);
    let failed = site.run(hasty.write(0, buffer)).unwrap().unwrap_err();
    assert!(matches!(failed.error, Error::TimedOut { len: 512, .. }), "{failed}");
    assert_eq!((failed.error.effect(), failed.error.kind()), (Effect::Unknown, ErrorKind::TimedOut));
    assert!(failed.buffer.is_none(), "the write has it");
    site.target.hold = false;
    site.target.release();
    let buffer = disk.buffer(BLOCK).unwrap();
    assert!(site.run(patient.read(0, buffer)).unwrap().is_ok());
    assert_eq!(site.target.disks[&1].bytes[..BLOCK], [7; BLOCK]);
}

/// A connection whose only path leads to nothing for now.
fn without_access() -> Site {
    let mut site = Site::new(1);
    site.target.set_access(AnaState::INACCESSIBLE);
    while !site.connection.paths()[0].access.contains(&(Nsid(1), AnaState::INACCESSIBLE)) {
        site.turn();
    }
    site
}

/// The path is there again; what the target has been sent when a read has ended.
fn sent_with_access(site: &mut Site) -> Vec<NvmOpcode> {
    site.target.set_access(AnaState::OPTIMIZED);
    let disk = site.disk();
    let buffer = disk.buffer(BLOCK).unwrap();
    assert!(site.run(disk.read(0, buffer)).expect("it ends").is_ok());
    site.target.seen.iter().map(|(opcode, ..)| *opcode).collect()
}

#[test]
fn operation_that_was_not_sent_in_its_time_has_done_nothing_and_is_never_sent() {
    let mut site = without_access();
    let disk = site.disk();
    let mut buffer = disk.buffer(BLOCK).unwrap();
    buffer.copy_from(&[7; BLOCK]);
    let failed = site.run(disk.with_timeout(Duration::ZERO).write(0, buffer)).unwrap().unwrap_err();
    assert!(matches!(failed.error, Error::TimedOut { len: 512, .. }), "{failed}");
    assert_eq!(failed.error.effect(), Effect::Nothing);
    assert!(failed.buffer.is_some(), "it is given back");
    assert_eq!(sent_with_access(&mut site), [NvmOpcode::READ]);
    assert_eq!(site.target.disks[&1].bytes[..BLOCK], [1; BLOCK]);
}

#[test]
fn operation_of_a_dropped_future_that_was_not_sent_is_never_sent() {
    let mut site = without_access();
    let disk = site.disk();
    // The first waits in the driver, and the last for room there.
    let mut writes: Vec<_> = (0..3000).map(|_| Box::pin(disk.write_from(0, &[7; BLOCK]))).collect();
    assert!(writes.iter_mut().all(|write| poll(write.as_mut()).is_pending()));
    site.turn();
    drop(writes);
    assert_eq!(sent_with_access(&mut site), [NvmOpcode::READ]);
    assert_eq!(site.target.disks[&1].bytes[..BLOCK], [1; BLOCK]);
}

#[test]
fn what_is_in_flight_of_a_dropped_future_holds_its_blocks_until_it_ends() {
    let mut site = Site::new(1);
    let disk = site.disk();
    site.target.hold = true;
    let mut first = Box::pin(disk.write_from(0, &[7; BLOCK]));
    while site.target.held.is_empty() {
        assert!(poll(first.as_mut()).is_pending());
        site.turn();
    }
    drop(first);
    site.target.hold = false;
    let mut second = pin!(disk.write_from(0, &[8; BLOCK]));
    let mut read = pin!(disk.read_one_block());
    for _ in 0..100 {
        assert!(poll(second.as_mut()).is_pending() && poll(read.as_mut()).is_pending());
        site.turn();
    }
    assert_eq!(site.target.seen.len(), 1, "nothing overtakes it");
    site.target.release();
    assert!(site.run(second).expect("it ends").is_ok() && site.run(read).expect("it ends").is_ok());
    assert_eq!(site.target.disks[&1].bytes[..BLOCK], [8; BLOCK]);
}

#[test]
fn operations_that_found_no_room_are_given_up_in_time() {
    let mut site = Site::new(1);
    let disk = site.disk().with_timeout(Duration::ZERO);
    site.target.hold = true;
    let mut reads: Vec<_> = (0..3000).map(|_| Box::pin(disk.read_one_block())).collect();
    for read in &mut reads {
        // Some of them are given up before they are looked at again.
        let _ = poll(read.as_mut()).is_ready();
    }
    let mut reads = reads.into_iter();
    let last = reads.next_back().expect("the last");
    assert!(matches!(site.run(last), Some(Err(Error::TimedOut { .. }))));
}

#[test]
fn long_copies_go_in_pieces_and_land_in_order() {
    let mut site = Site::new(0);
    let disk = site.disk();
    let bytes: Vec<u8> = (0..64 * BLOCK).map(|at| (at / 100) as u8).collect();
    let (one, rest) = bytes.split_at(700);
    let (two, three) = rest.split_at(30_000);
    let slices = [one, &[], two, three].map(IoSlice::new);
    site.run(disk.write_vectored(0, &slices)).unwrap().unwrap();
    assert_eq!(site.target.disks[&1].bytes[..bytes.len()], bytes[..]);
    let (mut one, mut two) = (vec![0; 20_000], vec![0; 64 * BLOCK - 20_000]);
    let mut slices = [&mut one[..], &mut two[..]].map(IoSliceMut::new);
    site.run(disk.read_vectored(0, &mut slices)).unwrap().unwrap();
    assert!([one, two].concat() == bytes);
}

/// A piece fails while others are under way: they are over before the caller may write something else there.
#[test]
fn long_write_that_fails_leaves_nothing_under_way() {
    let mut site = Site::new(0);
    let disk = site.connection.open(Nsid(2)).unwrap();
    site.target.hold = true;
    let bytes = vec![7; 2 << 20];
    let mut write = pin!(disk.write_from(0, &bytes));
    for _ in 0..STEPS_MAX {
        assert!(poll(write.as_mut()).is_pending());
        site.turn();
        if site.target.held.len() > 1 {
            break;
        }
    }
    site.target.answer(0, Status::WRITE_FAULT.with_dnr());
    for _ in 0..100 {
        site.turn();
        assert!(poll(write.as_mut()).is_pending(), "the rest is under way");
    }
    site.target.hold = false;
    while !site.target.held.is_empty() {
        site.target.release();
    }
    let error = site.run(write).expect("it ends").unwrap_err();
    assert_eq!(error.block_error(), Some(BlockError::Medium));
    assert_eq!(site.connection.statistics().writes, 2, "both pieces");
}

#[test]
fn bytes_that_are_no_whole_blocks_leave_those_around_them() {
    let mut site = Site::new(1);
    let disk = site.disk();
    for (offset, len) in [(5, 3), (500, 24), (512, 512), (1000, 2000), (100, 412), (1024, 700)] {
        let before = site.target.disks[&1].bytes.clone();
        let bytes: Vec<u8> = (0..len).map(|at| (at + offset) as u8).collect();
        site.run(disk.write_all_at(offset as u64, &bytes)).unwrap().unwrap();
        let mut expected = before;
        expected[offset..offset + len].copy_from_slice(&bytes);
        assert!(site.target.disks[&1].bytes == expected, "{len} bytes at {offset}");
        let mut read = vec![0; len];
        site.run(disk.read_exact_at(offset as u64, &mut read)).unwrap().unwrap();
        assert!(read == bytes, "{len} bytes at {offset}");
    }
}

#[test]
fn what_was_done_is_counted() {
    let mut site = Site::new(1);
    let disk = site.disk();
    site.run(disk.read_to(0, &mut [0; 4 * BLOCK])).unwrap().unwrap();
    site.run(disk.write_from(0, &[0; 2 * BLOCK])).unwrap().unwrap();
    site.run(disk.flush()).unwrap().unwrap();
    site.target.refuse = no_reads;
    assert!(site.run(disk.read_to(0, &mut [0; BLOCK])).unwrap().is_err());
    let statistics = site.connection.statistics();
    assert_eq!((statistics.reads, statistics.writes, statistics.others), (2, 1, 1));
    assert_eq!((statistics.bytes_read, statistics.bytes_written), (4 * BLOCK as u64, 2 * BLOCK as u64));
    assert_eq!((statistics.failed, statistics.reconnects), (1, 0));
}

#[test]
fn end_of_a_connection_is_a_change() {
    let mut site = Site::new(1);
    let mut changes = site.connection.changes();
    let connection = site.connection.clone();
    site.run(connection.close()).expect("it ends");
    let change = site.run(changes.next()).expect("it changes");
    assert_eq!(change, Change::State(ConnectionState::Lost));
}

/// What is made for a connection has room for each command that its queues may hold.
#[test]
fn queues_that_cannot_be_are_refused_before_anything_is_made_for_them() {
    let nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
    let host = HostIdentity::generate().unwrap();
    let with = |(io, write, depth)| {
        let mut options = Options::with_host("192.0.2.1:4420".parse().unwrap(), nqn, host);
        (options.io_queues, options.write_queues, options.queue_depth) = (io, write, depth);
        options
    };
    let queues =
        [(u16::MAX, u16::MAX), (u16::MAX, 1), (0, 0), (129, 0), (1, 128)].map(|(io, write)| (io, write, 128));
    for queues in queues.into_iter().chain([
        (1, 0, u16::MAX),
        (1, 0, 0),
        (1, 0, 1),
        (1, 0, 1025),
        (u16::MAX, u16::MAX, u16::MAX),
    ]) {
        let options = with(queues);
        let refused = |error: Error| {
            assert!(
                matches!(&error, Error::Association { .. }) && error.effect() == Effect::Nothing,
                "{queues:?}: {error}"
            );
            let reason = std::error::Error::source(&error).expect("a reason").to_string();
            assert!(reason.contains("1 to 128") || reason.contains("2 to 1024"), "{queues:?}: {reason}");
        };
        refused(block_on(Connection::connect(options.clone())).unwrap_err());
        let made = || -> Result<AnyTransport, String> { panic!("a transport is made") };
        refused(block_on(Connection::connect_over(options.clone(), made)).unwrap_err());
        refused(RemoteBackend::connect(&options).map(drop).unwrap_err());
        let over = || Rdma::new(Fabric::new().provider());
        refused(RemoteBackend::connect_over(over(), &options).map(drop).unwrap_err());
    }
    // A discovery service has no I/O queues, whatever is said of them.
    let options = Options { nqn: Nqn::DISCOVERY, ..with((u16::MAX, u16::MAX, 128)) };
    assert!(options.driver_config().operations < 2000);
}

/// Refuses every write of a block behind the first mebibyte.
fn first_mebibyte_alone(capsule: &Capsule, io: bool) -> Option<Status> {
    let opcode = NvmOpcode(capsule.sqe.opcode);
    let is_behind = ReadWrite::parse(&capsule.sqe).slba >= 2048;
    (io && opcode == NvmOpcode::WRITE && is_behind).then_some(Status::NAMESPACE_WRITE_PROTECTED.with_dnr())
}

/// Refuses every write.
fn no_writes(capsule: &Capsule, io: bool) -> Option<Status> {
    let writes = io && NvmOpcode(capsule.sqe.opcode) == NvmOpcode::WRITE;
    writes.then_some(Status::NAMESPACE_WRITE_PROTECTED.with_dnr())
}

/// Refuses every read.
fn no_reads(capsule: &Capsule, io: bool) -> Option<Status> {
    let reads = io && NvmOpcode(capsule.sqe.opcode) == NvmOpcode::READ;
    reads.then_some(Status::UNRECOVERED_READ_ERROR.with_dnr())
}

/// Refuses every flush as if the namespace were protected.
fn no_flushes(capsule: &Capsule, io: bool) -> Option<Status> {
    let flushes = io && NvmOpcode(capsule.sqe.opcode) == NvmOpcode::FLUSH;
    flushes.then_some(Status::NAMESPACE_WRITE_PROTECTED.with_dnr())
}

/// The error of a write to a disk that this is refused of; it is of the whole write. And the disk's first byte
/// afterwards.
fn failed_write(
    refuse: fn(&Capsule, bool) -> Option<Status>,
    len: usize,
    write: impl AsyncFnOnce(&Device, &[u8]) -> Result<(), Error>,
) -> (Error, u8) {
    let mut site = Site::new(0);
    let disk = site.connection.open(Nsid(2)).unwrap();
    site.target.refuse = refuse;
    let bytes = vec![7; len];
    let error = site.run(write(&disk, &bytes)).expect("it ends").unwrap_err();
    assert!(error.to_string().starts_with(&format!("a write of {len} bytes at byte ")), "{error}");
    (error, site.target.disks[&2].bytes[0])
}

#[test]
fn write_of_which_a_part_was_done_may_have_taken_effect() {
    let may_have = |(error, first): (Error, u8)| {
        assert_eq!((error.effect(), first), (Effect::Unknown, 7), "{error}");
        error.block_error()
    };
    let read_only = Some(BlockError::ReadOnly);
    let long = 2 << 20;
    let error = failed_write(first_mebibyte_alone, long, async |disk, bytes| disk.write_from(0, bytes).await);
    assert_eq!(may_have(error), read_only);
    let error = failed_write(first_mebibyte_alone, long, async |disk, bytes| {
        let (first, second) = bytes.split_at(1000);
        disk.write_vectored(0, &[IoSlice::new(first), IoSlice::new(second)]).await
    });
    assert_eq!(may_have(error), read_only);
    let error =
        failed_write(first_mebibyte_alone, long, async |disk, bytes| disk.write_all_at(0, bytes).await);
    assert_eq!(may_have(error), read_only);
    // The block of which the last bytes are a part cannot be read.
    let error =
        failed_write(no_reads, 8 * BLOCK + 100, async |disk, bytes| disk.write_all_at(0, bytes).await);
    assert_eq!(may_have(error), Some(BlockError::Medium));
    let error = failed_write(no_flushes, BLOCK, async |disk, bytes| disk.write_all_at_fua(0, bytes).await);
    assert_eq!(may_have(error), read_only);
}

#[test]
fn write_of_which_every_part_was_refused_did_nothing() {
    let nothing = |(error, first): (Error, u8)| {
        assert_eq!((error.effect(), first), (Effect::Nothing, 0), "{error}");
    };
    nothing(failed_write(no_writes, 2 << 20, async |disk, bytes| disk.write_from(0, bytes).await));
    nothing(failed_write(no_writes, 2 << 20, async |disk, bytes| disk.write_all_at_fua(0, bytes).await));
    nothing(failed_write(no_reads, 8 * BLOCK, async |disk, bytes| disk.write_all_at(100, bytes).await));
}

#[test]
fn reservation_commands_and_identify_that_take_too_long_are_given_up() {
    let mut site = Site::new(1);
    let disk = site.disk();
    let hasty = disk.with_timeout(Duration::ZERO);
    (site.target.hold, site.target.hold_admin) = (true, Some(AdminOpcode::IDENTIFY));
    let errors = [
        (Effect::Unknown, site.run(hasty.register(7, false)).map(Result::unwrap_err)),
        // They change nothing.
        (Effect::Nothing, site.run(hasty.reservation_report()).map(Result::unwrap_err)),
        (Effect::Nothing, site.run(hasty.identify()).and_then(Result::err)),
    ];
    for (effect, error) in errors {
        let error = error.expect("it ends");
        assert!(matches!(error, Error::TimedOut { .. }) && error.effect() == effect, "{error}");
    }
    (site.target.hold, site.target.hold_admin) = (false, None);
    while !site.target.held.is_empty() {
        site.target.release();
    }
    assert!(site.run(disk.identify()).unwrap().is_ok(), "what comes late is nobody's");
}

#[test]
fn reservation_command_that_was_not_sent_in_its_time_has_done_nothing() {
    let mut site = without_access();
    let hasty = site.disk().with_timeout(Duration::ZERO);
    let error = site.run(hasty.register(7, false)).expect("it ends").unwrap_err();
    assert!(matches!(error, Error::TimedOut { effect: Effect::Nothing, .. }), "{error}");
    assert_eq!(sent_with_access(&mut site), [NvmOpcode::READ]);
}

#[test]
fn what_is_asked_of_a_connection_that_is_over_has_done_nothing() {
    let mut site = Site::new(1);
    let disk = site.disk();
    let buffers = [(); 2].map(|()| disk.buffer(BLOCK).unwrap());
    site.run(site.connection.clone().close()).expect("it ends");
    site.connection.shared.shared_driver.end();
    let [read, written] = buffers;
    let errors = [
        site.run(disk.read(0, read)).expect("it ends").unwrap_err().error,
        site.run(disk.write(0, written)).expect("it ends").unwrap_err().error,
        site.run(disk.flush()).expect("it ends").unwrap_err(),
        site.run(disk.register(7, false)).expect("it ends").unwrap_err(),
        site.run(site.connection.clone().admin(nvmf_host::admin::identify_controller()))
            .unwrap()
            .unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Closed { effect: Effect::Nothing }), "{error}");
    }
    assert!(site.target.seen.is_empty());
}

#[test]
fn what_was_sent_may_have_been_done_when_its_connection_ends_without_a_word() {
    let mut site = Site::new(1);
    let disk = site.disk();
    site.target.hold = true;
    let (write, read) = (disk.write_from(0, &[7; BLOCK]), disk.read_one_block());
    let (mut write, mut read, mut register) = (pin!(write), pin!(read), pin!(disk.register(7, false)));
    while site.target.held.len() < 3 {
        assert!(poll(write.as_mut()).is_pending() && poll(read.as_mut()).is_pending());
        assert!(poll(register.as_mut()).is_pending());
        site.turn();
    }
    // As when a thread that drives it panics.
    site.connection.shared.shared_driver.end();
    let ends = [site.run(write).expect("it ends"), site.run(register).expect("it ends")];
    for error in ends.map(Result::unwrap_err) {
        assert!(matches!(error, Error::Closed { effect: Effect::Unknown }), "{error}");
    }
    let error = site.run(read).expect("it ends").unwrap_err();
    assert!(matches!(error, Error::Closed { effect: Effect::Nothing }), "{error}");
}

#[test]
fn connection_that_is_refused_has_done_nothing() {
    let nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
    let options = Options::with_host("127.0.0.1:1".parse().unwrap(), nqn, HostIdentity::generate().unwrap());
    let error = crate::block_on(Connection::connect(options)).unwrap_err();
    assert!(matches!(error, Error::Association { effect: Effect::Nothing, .. }), "{error}");
}

#[test]
fn raw_command_that_is_sent_again_has_one_time_for_all_its_tries() {
    let (most, before_refusal) = (Duration::from_secs(2), Duration::from_millis(1500));
    let mut site = Site::new(1);
    let disk = site.disk().with_timeout(most);
    site.target.hold = true;
    let mut asked =
        pin!(disk.raw_io(RawCommand::new(NvmOpcode::RESERVATION_REPORT.0, Nsid(1)).receiving(64)));
    let mut refused = None;
    let start = Instant::now();
    let result = loop {
        if let Poll::Ready(result) = poll(asked.as_mut()) {
            break result;
        }
        site.turn();
        if refused.is_none() && start.elapsed() >= before_refusal && !site.target.held.is_empty() {
            site.target.answer(0, Status::ANA_INACCESSIBLE);
            refused = Some(Instant::now());
        }
    };
    assert!(matches!(result, Err(Error::TimedOut { .. })), "{result:?}");
    // Had it had the whole time again, that would be more.
    assert!(refused.expect("it was refused").elapsed() < most);
    site.target.hold = false;
    site.target.held.clear();
}

#[test]
fn raw_command_waits_for_a_path_until_the_time_that_its_tries_have_together() {
    let mut site = Site::new(1);
    let disk = site.disk();
    let command = RawCommand::new(NvmOpcode::RESERVATION_REPORT.0, Nsid(1)).receiving(64);
    let command = command.to_be_sent_by(Instant::now());
    let reply = site.run(disk.raw_io(command.clone())).expect("it ends").expect("a path is there");
    assert_eq!((reply.outcome.status, site.target.seen.len()), (Status::SUCCESS, 1));
    site.target.set_access(AnaState::INACCESSIBLE);
    let is_known =
        |site: &Site| site.connection.paths()[0].access.contains(&(Nsid(1), AnaState::INACCESSIBLE));
    while !is_known(&site) {
        site.turn();
    }
    let error = site.run(disk.raw_io(command)).expect("it ends").expect_err("none is");
    let is_gone = matches!(error, Error::Io { source: BlockError::Gone, effect: Effect::Nothing, .. });
    assert!(is_gone && site.target.seen.len() == 1, "{error}");
}

/// A host's operations on a disk are not over when it comes back: its namespace answers Not Ready for a while.
#[test]
fn reservation_command_waits_for_a_namespace_that_is_not_ready() {
    let mut site = Site::new(1);
    let disk = site.disk();
    let not_ready = |_: &Capsule, io: bool| io.then_some(Status::NAMESPACE_NOT_READY);
    site.target.refuse = not_ready;
    let mut registered = pin!(disk.register(7, false));
    let deadline = Instant::now() + Duration::from_secs(30);
    let result = loop {
        if let Poll::Ready(result) = poll(registered.as_mut()) {
            break result;
        }
        assert!(Instant::now() < deadline, "it waits on");
        site.turn();
        if site.target.seen.len() == 2 {
            site.target.refuse = |_, _| None;
        }
    };
    result.expect("registered");
    assert_eq!(site.target.seen.len(), 3);
}

#[test]
fn reservation_command_that_was_refused_before_it_began_has_done_nothing() {
    let mut site = Site::new(1);
    let disk = site.disk();
    site.target.refuse = |_, io| io.then_some(Status::NAMESPACE_NOT_READY.with_dnr());
    let error = site.run(disk.register(7, false)).expect("it ends").expect_err("refused");
    assert_eq!(error.effect(), Effect::Nothing, "{error}");
    site.target.refuse = |_, io| io.then_some(Status::COMMAND_INTERRUPTED);
    let error = site.run(disk.register(7, false)).expect("it ends").expect_err("interrupted");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
}

/// The target is started again, with a write cache or without: that is told at a connect.
fn start_again(site: &mut Site, write_cache: bool) {
    site.target.write_cache = write_cache;
    site.target.disconnect();
    let deadline = Instant::now() + Duration::from_secs(30);
    let is_so = |site: &Site| {
        let is_cached = site.connection.controller().volatile_write_cache;
        is_cached == write_cache && site.connection.loss().is_none()
    };
    while !is_so(site) {
        assert!(Instant::now() < deadline, "{:?}: {:?}", site.connection, site.connection.loss());
        site.turn();
    }
}

#[test]
fn device_that_gains_a_write_cache_is_the_same_and_is_flushed() {
    let mut site = Site::new(1);
    start_again(&mut site, false);
    let disk = site.disk();
    assert!(!disk.geometry().volatile_write_cache);
    start_again(&mut site, true);
    assert_eq!((site.connection.state(), site.connection.foreign()), (ConnectionState::Live, vec![]));
    assert!(disk.geometry().volatile_write_cache);
    site.target.seen.clear();
    site.run(disk.write_from(0, &[7; BLOCK])).expect("it ends").expect("written");
    site.run(disk.flush()).expect("it ends").expect("flushed");
    let opcodes: Vec<_> = site.target.seen.iter().map(|seen| seen.0).collect();
    assert_eq!(opcodes, [NvmOpcode::WRITE, NvmOpcode::FLUSH]);
    site.connection.open(Nsid(1)).expect("the same disk");
}
