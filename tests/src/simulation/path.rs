//! A path of a simulated host to its disk: an association with a driver of its own.

use super::command::{self, Command, Done};
use super::contest;
use super::host::{REGION, SLOTS};
use super::network::Network;
use super::reservation::Host;
use super::rng::Rng;
use crate::worker_setup::WorkerSetup;
use core::time::Duration;
use nvme_proto::{HostId, Nqn, Nsid, Status};
use nvmf_block::{BlockOp, Completion, Tag};
use nvmf_host::Association;
use nvmf_host::admin::AdminCommand;
use nvmf_initiator::driver::{AdminReply, Driver, DriverConfig, DriverEvent};
use nvmf_initiator::{HostIdentity, Options};
use nvmf_memory::Memory;
use std::net::{Ipv4Addr, SocketAddr};

/// Keep Alive Timeout of every association.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The namespaces of the hosts.
const NSIDS: [Nsid; 2] = [Nsid(1), Nsid(2)];
/// Numbers of commands that are not raw, or nobody's.
const COMMAND: u32 = 0;
const SET_UP: u32 = 1;

/// A path.
pub(super) struct Path<N: Network> {
    /// Its host and itself, for messages.
    name: String,
    /// Its number in the network.
    number: usize,
    driver: Driver<N::Host>,
    /// Its host's identifier.
    pub(super) id: Host,
    pub(super) io_queues: u16,
    /// It may send raw commands, which would reach another disk too.
    pub(super) sends_raw: bool,
    /// The command that is in flight, and since when.
    pub(super) command: Option<(Command, Duration)>,
    /// A write protection that it has sent has succeeded.
    pub(super) protected: bool,
    /// Raw commands that ended, by number; without a status, if their connection was lost.
    pub(super) ended: Vec<(u32, Option<Status>)>,
    /// What is for the contest.
    pub(super) contest: Vec<contest::Event>,
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
        let mut options = Options::with_host(nowhere, WorkerSetup::subsystem(), identity);
        options.io_queues = 1 + rng.below(3) as u16;
        options.queue_depth = 2 + rng.below(15) as u16;
        options.connect_timeout = Some(Duration::from_millis(500));
        options.io_timeout = Duration::from_secs(2);
        options.keep_alive = KEEP_ALIVE;
        options.reconnect_delay = Duration::from_millis(20);
        options.ctrl_loss_timeout = None;
        let options = network.options(number, options);
        let mut config =
            DriverConfig { operations: SLOTS as u32 + 1, seed: rng.next(), ..options.driver_config() };
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
            io_queues: options.io_queues,
            sends_raw: false,
            command: None,
            protected: false,
            ended: Vec::new(),
            contest: Vec::new(),
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
                DriverEvent::Ready { .. } => {
                    self.ready = true;
                    if self.sends_raw {
                        self.driver.submit_admin(SET_UP, command::allow_copies_across());
                    }
                }
                DriverEvent::Foreign(nsid, mismatch) => {
                    if super::prints_events() {
                        println!("{now:?}: {}: namespace {nsid} is another disk: {mismatch}", self.name);
                    }
                }
                DriverEvent::Admin(SET_UP, _) => {}
                DriverEvent::Admin(COMMAND, reply) => self.on_reply(now, reply, done),
                DriverEvent::Admin(number, reply) => {
                    let status = reply.map(|reply| reply.outcome.status);
                    if super::prints_events() {
                        println!("{now:?}: {}: raw command {number} ended: {status:?}", self.name);
                    }
                    match contest::is_of_pair(number) {
                        true => self.contest.push(contest::Event::Ended(number, status)),
                        false => self.ended.push((number, status)),
                    }
                }
                DriverEvent::NamespacesChanged
                | DriverEvent::Restored(_)
                | DriverEvent::PathReady(..)
                | DriverEvent::PathLost(..)
                | DriverEvent::PathFailed(..)
                | DriverEvent::PathWaits(_)
                | DriverEvent::PathForeign(..)
                | DriverEvent::AuthenticatedAgain => {}
            }
        }
        self.driver.poll(completions);
        let of_contest = completions.extract_if(.., |completion| completion.tag.0 == SLOTS as u64);
        self.contest.extend(of_contest.map(|completion| contest::Event::Read(completion.result)));
        worked
    }

    /// Sends a raw command. It is sent once.
    pub(super) fn send_raw(&mut self, number: u32, command: AdminCommand) {
        if super::prints_events() {
            println!("{} sends raw command {number}: {:?}", self.name, command.command);
        }
        self.driver.submit_raw(number, command);
    }

    /// Sends a command, if none is in flight.
    pub(super) fn send(&mut self, now: Duration, command: Command) {
        if self.command.is_none() {
            if super::prints_events() {
                println!("{now:?}: {} sends {command:?}", self.name);
            }
            self.command = Some((command, now));
            command.submit(&mut self.driver, COMMAND);
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
        self.protected |= status.is_success() && command.protects();
    }

    /// What it waits for, for messages.
    pub(super) fn describe(&self) -> String {
        let Self { name, command, closed, .. } = self;
        let (state, sees) = (self.driver.state(), self.sees_namespace());
        format!("{name}: {state:?}, sees the namespace: {sees}, closed: {closed}, command: {command:?}")
    }

    /// Whether it sees the namespaces.
    pub(super) fn sees_namespace(&self) -> bool {
        let sees =
            |association: &Association| NSIDS.iter().all(|&nsid| association.namespace(nsid).is_some());
        self.driver.association().is_some_and(sees)
    }

    pub(super) fn submit(&mut self, tag: Tag, nsid: Nsid, op: BlockOp) {
        if super::prints_events() {
            println!("{} submits {} for namespace {nsid}: {op:?}", self.name, tag.0);
        }
        self.driver.submit(tag, nsid, op).expect("as many operations as slots");
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
