//! A path of a simulated host to its disk: an association with a driver of its own.

use super::host::{REGION, SLOTS};
use super::rng::Rng;
use core::time::Duration;
use nvme_proto::{HostId, Nqn, Nsid};
use nvmf_block::{BlockOp, Completion, Tag};
use nvmf_initiator::driver::{Driver, DriverConfig, DriverEvent};
use nvmf_initiator::transport::Rdma;
use nvmf_initiator::{HostIdentity, Options};
use nvmf_memory::Memory;
use nvmf_rdma::QueuePairId;
use nvmf_rdma::fault::{FaultOptions, Faulty};
use nvmf_rdma::loopback::Loopback;
use std::net::SocketAddr;

/// Keep Alive Timeout of every association.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// A path.
pub(super) struct Path {
    /// Its host and itself, for messages.
    name: String,
    driver: Driver<Rdma<Faulty<Loopback>>>,
    /// The faults of its provider, after its first connect.
    faults: FaultOptions,
    /// It cannot connect before, because its network is cut.
    cut_until: Duration,
    /// Whether it has been connected.
    pub(super) ready: bool,
    pub(super) closed: bool,
    pub(super) losses: u64,
}

impl Path {
    /// A path of the host with this identifier, which begins to connect.
    pub(super) fn new(
        name: String,
        id: [u8; 16],
        (address, subsystem): (SocketAddr, Nqn),
        (provider, faults): (Faulty<Loopback>, FaultOptions),
        now: Duration,
        rng: &mut Rng,
    ) -> Self {
        let identity = HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) };
        let options = Options {
            io_queues: 1 + rng.below(3) as u16,
            queue_depth: 2 + rng.below(15) as u16,
            connect_timeout: Some(Duration::from_millis(500)),
            io_timeout: Duration::from_secs(2),
            keep_alive: KEEP_ALIVE,
            reconnect_delay: Duration::from_millis(20),
            ctrl_loss_timeout: None,
            ..Options::with_host(address, subsystem, identity)
        };
        let mut config =
            DriverConfig { operations: SLOTS as u32, seed: rng.next(), ..options.driver_config() };
        config.recovery.reconnect_delay_max = Duration::from_millis(200);
        config.recovery.attempt_timeout = Duration::from_secs(5);
        config.recovery.retries_max = u8::MAX;
        config.association.admin_timeout = Duration::from_secs(2);
        config.association.shutdown_timeout = Duration::from_secs(1);
        let driver = Driver::new(Rdma::new(provider), config, now).expect("a driver");
        Self { name, driver, faults, cut_until: Duration::ZERO, ready: false, closed: false, losses: 0 }
    }

    pub(super) fn register(&mut self, memory: &Memory) {
        while self.driver.register(REGION, memory).is_err() {}
    }

    /// Runs one turn of the driver; `true` if something happened.
    pub(super) fn turn(&mut self, now: Duration, completions: &mut Vec<Completion>) -> bool {
        if !self.cut_until.is_zero() && now >= self.cut_until {
            self.cut_until = Duration::ZERO;
            self.set_faulty(true);
        }
        let worked = self.driver.turn(now);
        while let Some(event) = self.driver.poll_event() {
            match event {
                DriverEvent::Lost(error) | DriverEvent::AttemptFailed(error) => {
                    self.losses += 1;
                    if super::prints_events() {
                        println!("{now:?}: {} lost its association: {error}", self.name);
                    }
                }
                DriverEvent::Closed => self.closed = true,
                DriverEvent::GaveUp if self.closed => {}
                DriverEvent::GaveUp => panic!("{} gave up, although its timeout is infinite", self.name),
                DriverEvent::Ready { .. } => self.ready = true,
                DriverEvent::Foreign(nsid, mismatch) => {
                    if super::prints_events() {
                        println!("{now:?}: {}: namespace {nsid} is another disk: {mismatch}", self.name);
                    }
                }
                DriverEvent::NamespacesChanged | DriverEvent::Restored(_) | DriverEvent::Admin(..) => {}
            }
        }
        self.driver.poll(completions);
        worked
    }

    pub(super) fn submit(&mut self, tag: Tag, op: BlockOp) {
        if super::prints_events() {
            println!("{} submits {}: {op:?}", self.name, tag.0);
        }
        self.driver.submit(tag, Nsid(1), op).expect("as many operations as slots");
    }

    pub(super) fn flush(&mut self, now: Duration) {
        self.driver.flush(now);
    }

    pub(super) fn shutdown(&mut self, now: Duration) {
        self.driver.shutdown(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.driver.poll_timeout()
    }

    /// Injects its faults from now on, or no more.
    pub(super) fn set_faulty(&mut self, faulty: bool) {
        let faults = if faulty { self.faults } else { FaultOptions::default() };
        self.driver.transport_mut().provider_mut().set_options(faults);
    }

    /// Lets it not connect before this time.
    pub(super) fn cut(&mut self, until: Duration) {
        self.cut_until = self.cut_until.max(until);
        let refuse_connect = 1_000_000;
        self.driver
            .transport_mut()
            .provider_mut()
            .set_options(FaultOptions { refuse_connect, ..self.faults });
    }

    /// The connections of its queues.
    pub(super) fn queue_pairs(&self) -> Vec<QueuePairId> {
        self.driver.transport().provider().established().collect()
    }
}
