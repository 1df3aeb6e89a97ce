//! A path of a simulated host to its disk: an association with a driver of its own.

use super::host::{REGION, SLOTS};
use super::network::Network;
use super::plane::Done;
use super::reservation::{self, Host};
use super::rng::Rng;
use crate::worker_setup::WorkerSetup;
use core::time::Duration;
use nvme_proto::{HostId, Nqn, Nsid};
use nvmf_block::{BlockOp, Completion, Tag};
use nvmf_initiator::driver::{AdminReply, Driver, DriverConfig, DriverEvent};
use nvmf_initiator::{HostIdentity, Options};
use nvmf_memory::Memory;
use nvmf_subsystem::ReservationCommand;
use std::net::{Ipv4Addr, SocketAddr};

/// Keep Alive Timeout of every association.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// A path.
pub(super) struct Path<N: Network> {
    /// Its host and itself, for messages.
    name: String,
    /// Its number in the network.
    number: usize,
    driver: Driver<N::Host>,
    /// Its host's identifier.
    pub(super) id: Host,
    /// The command for a reservation that is in flight, and since when.
    pub(super) command: Option<(ReservationCommand, Duration)>,
    /// It cannot connect before, because its network is cut.
    cut_until: Duration,
    /// Whether it has been connected.
    pub(super) ready: bool,
    pub(super) closed: bool,
    pub(super) losses: u64,
}

impl<N: Network> Path<N> {
    /// A path of the host with this identifier, which begins to connect.
    pub(super) fn new(
        name: String,
        id: [u8; 16],
        (network, number, transport): (&mut N, usize, N::Host),
        now: Duration,
        rng: &mut Rng,
    ) -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let identity = HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) };
        let options = Options {
            io_queues: 1 + rng.below(3) as u16,
            queue_depth: 2 + rng.below(15) as u16,
            connect_timeout: Some(Duration::from_millis(500)),
            io_timeout: Duration::from_secs(2),
            keep_alive: KEEP_ALIVE,
            reconnect_delay: Duration::from_millis(20),
            ctrl_loss_timeout: None,
            ..Options::with_host(nowhere, WorkerSetup::subsystem(), identity)
        };
        let options = network.options(number, options);
        let mut config =
            DriverConfig { operations: SLOTS as u32, seed: rng.next(), ..options.driver_config() };
        config.recovery.reconnect_delay_max = Duration::from_millis(200);
        config.recovery.attempt_timeout = Duration::from_secs(5);
        config.recovery.retries_max = u8::MAX;
        config.association.admin_timeout = Duration::from_secs(2);
        config.association.shutdown_timeout = Duration::from_secs(1);
        let driver = Driver::new(transport, config, now).expect("a driver");
        Self {
            name,
            number,
            driver,
            id,
            command: None,
            cut_until: Duration::ZERO,
            ready: false,
            closed: false,
            losses: 0,
        }
    }

    pub(super) fn register(&mut self, memory: &Memory) {
        while self.driver.register(REGION, memory).is_err() {}
    }

    /// Runs one turn of the driver; `true` if something happened.
    pub(super) fn turn(
        &mut self,
        now: Duration,
        network: &mut N,
        done: &[Done],
        completions: &mut Vec<Completion>,
    ) -> bool {
        if !self.cut_until.is_zero() && now >= self.cut_until {
            self.cut_until = Duration::ZERO;
            self.set_faulty(network, true);
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
                DriverEvent::Admin(_, reply) => self.on_reply(now, reply, done),
                DriverEvent::NamespacesChanged
                | DriverEvent::Restored(_)
                | DriverEvent::PathReady(..)
                | DriverEvent::PathLost(..)
                | DriverEvent::PathFailed(..)
                | DriverEvent::PathForeign(..)
                | DriverEvent::AuthenticatedAgain => {}
            }
        }
        self.driver.poll(completions);
        worked
    }

    /// Sends a command for the reservation, if none is in flight.
    pub(super) fn send(&mut self, now: Duration, command: ReservationCommand) {
        if self.command.is_none() {
            if super::prints_events() {
                println!("{now:?}: {} sends {command:?}", self.name);
            }
            self.command = Some((command, now));
            self.driver.submit_raw(0, reservation::encoded(&command, Nsid(1)));
        }
    }

    /// Success is told only where the target had said so.
    fn on_reply(&mut self, now: Duration, reply: Option<AdminReply>, done: &[Done]) {
        let Some((command, since)) = self.command.take() else { panic!("{}: a reply too many", self.name) };
        let Some(reply) = reply else { return };
        let status = reply.outcome.status;
        if super::prints_events() {
            println!("{now:?}: {}: {command:?}: {status}", self.name);
        }
        let said =
            |it: &&Done| it.host == self.id && it.command == command && it.at >= since && it.is_success;
        assert!(
            !status.is_success() || done.iter().rev().any(|it| said(&it)),
            "{}: {command:?} succeeded at the host alone",
            self.name
        );
    }

    /// What it waits for, for messages.
    pub(super) fn describe(&self) -> String {
        let Self { name, command, closed, .. } = self;
        let (state, sees) = (self.driver.state(), self.sees_namespace());
        format!("{name}: {state:?}, sees the namespace: {sees}, closed: {closed}, command: {command:?}")
    }

    /// Whether it sees the namespace.
    pub(super) fn sees_namespace(&self) -> bool {
        self.driver.association().is_some_and(|association| association.namespace(Nsid(1)).is_some())
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
    pub(super) fn set_faulty(&mut self, network: &mut N, faulty: bool) {
        network.set_path_faulty(self.number, self.driver.transport_mut(), faulty);
    }

    /// Lets it not connect before this time.
    pub(super) fn cut(&mut self, network: &mut N, until: Duration) {
        self.cut_until = self.cut_until.max(until);
        network.cut(self.number, self.driver.transport_mut());
    }

    /// The connections of its queues.
    pub(super) fn connections(&self, network: &N) -> Vec<N::Connection> {
        network.connections(self.number, self.driver.transport())
    }
}
