//! A path of a simulated host to its disk: a driver of its own, with one route or several, each for an association.

use super::command::{self, Command, Done};
use super::contest;
use super::host::{REGION, SLOTS};
use super::network::Network;
use super::reservation::Host;
use crate::rng::Rng;
use crate::worker_setup::WorkerSetup;
use core::time::Duration;
use nvme_proto::{HostId, Nqn, Nsid, Status};
use nvmf_block::{BlockError, BlockOp, Completion, Tag};
use nvmf_host::Association;
use nvmf_host::NamespaceIdentity;
use nvmf_host::admin::AdminCommand;
use nvmf_host::status::block_error;
use nvmf_initiator::driver::{
    AdminReply, Driver, DriverConfig, DriverEvent, PathPolicy, QueueKind, Recipient, Route,
};
use nvmf_initiator::{ConnectionState, HostIdentity, Impacted, NamespaceState, Options};
use nvmf_memory::Memory;
use std::net::{Ipv4Addr, SocketAddr};

/// Keep Alive Timeout of every association.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The namespaces of the hosts.
const NSIDS: [Nsid; 2] = [Nsid(1), Nsid(2)];
/// Numbers of commands that are not raw, or nobody's.
const COMMAND: u32 = 0;
const SET_UP: u32 = 1;

/// For how long the commands of a controller that was never connected may be carried out: what those of ours ask for.
const UNKNOWN_QUIESCE: Duration = Duration::from_millis(7_300);
/// How many routes a path has, and how its driver uses them.
#[derive(Debug, Clone)]
pub(super) struct Routes {
    /// Their numbers in the network.
    pub(super) numbers: Vec<usize>,
    pub(super) policy: PathPolicy,
    /// After which time without a route operations fail.
    pub(super) fast_io_fail: Option<Duration>,
}

/// A path.
pub(super) struct Path<N: Network> {
    /// Its host and itself, for messages.
    name: String,
    routes: Routes,
    config: DriverConfig,
    driver: Driver<N::Host>,
    memory: Option<Memory>,
    /// The namespaces, as they were when it was connected first.
    opened: Vec<NamespaceIdentity>,
    /// What its driver has, for the next one.
    under_way: Vec<(Tag, Nsid, BlockOp)>,
    /// Its raw commands, by number.
    raw: Vec<u32>,
    /// Since when no route leads to a namespace, and when that was so for too long last, so that operations fail.
    lost_since: Option<Duration>,
    failed_at: Option<Duration>,
    /// When what was sent on its routes was damaged.
    damaged_at: Vec<Duration>,
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
    /// By route: it cannot connect before, because its network is cut.
    cut_until: Vec<Duration>,
    /// Whether it has been connected.
    pub(super) ready: bool,
    pub(super) closed: bool,
    pub(super) losses: u64,
    /// Losses of one route while there were others.
    pub(super) route_losses: u64,
}

impl<N: Network> Path<N> {
    /// A path of the host with this identifier, which begins to connect.
    pub(super) fn new(
        name: String,
        id: [u8; 16],
        network: &mut N,
        routes: Routes,
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
        let options = network.options(routes.numbers[0], options);
        let mut config =
            DriverConfig { operations: SLOTS as u32 + 1, seed: rng.next(), ..options.driver_config() };
        config.recovery.reconnect_delay_max = Duration::from_millis(200);
        config.recovery.attempt_timeout = Duration::from_secs(5);
        config.association.admin_timeout = Duration::from_secs(2);
        config.association.setup_command_timeout = config.association.admin_timeout;
        config.association.shutdown_timeout = Duration::from_secs(1);
        config.recovery.fast_io_fail_timeout = routes.fast_io_fail;
        config.policy = routes.policy;
        let driver = Driver::new(network.host(routes.numbers[0]), config.clone(), now).expect("a driver");
        let mut path = Self {
            name,
            cut_until: vec![Duration::ZERO; routes.numbers.len()],
            routes,
            config,
            driver,
            memory: None,
            opened: Vec::new(),
            under_way: Vec::new(),
            raw: Vec::new(),
            lost_since: None,
            failed_at: None,
            damaged_at: Vec::new(),
            id,
            io_queues: options.io_queues,
            sends_raw: false,
            command: None,
            protected: false,
            ended: Vec::new(),
            contest: Vec::new(),
            ready: false,
            closed: false,
            losses: 0,
            route_losses: 0,
        };
        path.add_routes(network, now);
        path
    }

    /// Adds all its routes but the first to its driver.
    fn add_routes(&mut self, network: &mut N, now: Duration) {
        for &route in &self.routes.numbers[1..] {
            let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let identity = HostIdentity { nqn: Nqn::from_uuid(self.id), id: HostId(self.id) };
            let options = Options::with_host(nowhere, WorkerSetup::subsystem(), identity);
            let to = Route {
                address: network.options(route, options).address,
                address_source: None,
                source: None,
                connect_timeout: self.config.association.connect_timeout,
            };
            let transport = network.host(route);
            self.driver.add_path(transport, to, None, now).expect("a route");
        }
    }

    /// Its process is killed. Another one takes over, with what the first one had written down: operations are given to it again,
    /// and nobody knows what became of raw commands.
    pub(super) fn take_over(&mut self, now: Duration, network: &mut N, names_controllers: bool) {
        let mut impacted = self.driver.impacted(now, UNKNOWN_QUIESCE);
        if !names_controllers || impacted.iter().any(|it| it.controller.is_none()) {
            // Nobody knows which controllers have something.
            let until = impacted.iter().map(|it| it.until).max().unwrap_or(now);
            let reads = impacted.iter().any(|it| it.reads);
            impacted = vec![Impacted { controller: None, until, reads }];
        }
        // The next one is told of the first one's raw commands: their user reads what became of them.
        impacted.iter_mut().for_each(|it| it.reads |= !self.raw.is_empty());
        let transport = network.host(self.routes.numbers[0]);
        self.driver = Driver::resume(transport, self.config.clone(), &impacted, now).expect("a driver");
        self.add_routes(network, now);
        if let Some(memory) = self.memory.clone() {
            self.register(&memory);
        }
        self.opened.iter().for_each(|identity| self.driver.open(now, identity.clone()));
        for &(tag, nsid, op) in &self.under_way {
            self.driver.submit(tag, nsid, op).expect("as many operations as before");
        }
        for number in core::mem::take(&mut self.raw) {
            self.on_raw_ended(now, number, None);
        }
        if self.command.is_some() {
            self.on_reply(now, None, &[]);
        }
        self.lost_since = Some(now);
        for route in 0..self.cut_until.len() {
            match self.cut_until[route] {
                until if until > now => self.cut(network, route, until),
                _ => self.set_route_faulty(network, route, true),
            }
        }
    }

    pub(super) fn register(&mut self, memory: &Memory) {
        while self.driver.register(REGION, memory).is_err() {}
        self.memory = Some(memory.clone());
    }

    /// Runs one turn of the driver; `true` if something happened.
    pub(super) fn turn(
        &mut self,
        now: Duration,
        network: &mut N,
        done: &[Done],
        completions: &mut Vec<Completion>,
    ) -> bool {
        for route in 0..self.cut_until.len() {
            if !self.cut_until[route].is_zero() && now >= self.cut_until[route] {
                self.cut_until[route] = Duration::ZERO;
                self.set_route_faulty(network, route, true);
            }
        }
        let damages: u32 = self.routes.numbers.iter().map(|route| network.damages(*route)).sum();
        self.damaged_at.resize(damages as usize, now);
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
                DriverEvent::Ready { .. } | DriverEvent::PathReady(..) => {
                    self.ready = true;
                    self.note_identities();
                    if self.sends_raw {
                        let command = command::allow_copies_across();
                        self.driver.submit_command(SET_UP, QueueKind::Admin, Recipient::Controller, command);
                    }
                }
                DriverEvent::Foreign(nsid, mismatch) => {
                    if super::prints_events() {
                        println!("{now:?}: {}: namespace {nsid} is another disk: {mismatch}", self.name);
                    }
                }
                DriverEvent::Admin(SET_UP, _) => {}
                DriverEvent::Admin(COMMAND, reply) => self.on_reply(now, reply.ok(), done),
                DriverEvent::Admin(number, reply) => {
                    self.raw.retain(|raw| *raw != number);
                    self.on_raw_ended(now, number, reply.ok().map(|reply| reply.outcome.status));
                }
                DriverEvent::PathLost(route, error) => {
                    self.route_losses += 1;
                    if super::prints_events() {
                        println!("{now:?}: {} lost route {route}: {error}", self.name);
                    }
                }
                DriverEvent::NamespacesChanged
                | DriverEvent::Restored(_)
                | DriverEvent::NoAccess(_)
                | DriverEvent::AccessAgain(_)
                | DriverEvent::PathFailed(..)
                | DriverEvent::PathWaits(_)
                | DriverEvent::PathForeign(..)
                | DriverEvent::AuthenticatedAgain => {}
            }
        }
        self.note_losses(now);
        let before = completions.len();
        self.driver.poll(completions);
        for completion in &completions[before..] {
            self.under_way.retain(|(tag, ..)| *tag != completion.tag);
        }
        let of_contest = completions.extract_if(.., |completion| completion.tag.0 == SLOTS as u64);
        self.contest.extend(of_contest.map(|completion| contest::Event::Read(completion.result)));
        worked
    }

    /// Sends a raw command. It is sent once.
    pub(super) fn send_raw(&mut self, number: u32, command: AdminCommand) {
        if super::prints_events() {
            println!("{} sends raw command {number}: {:?}", self.name, command.command);
        }
        self.raw.push(number);
        self.driver.submit_command(number, QueueKind::Io, Recipient::Controller, command);
    }

    /// A raw command ended; `None`: nobody knows how.
    fn on_raw_ended(&mut self, now: Duration, number: u32, status: Option<Status>) {
        if super::prints_events() {
            println!("{now:?}: {}: raw command {number} ended: {status:?}", self.name);
        }
        match contest::is_of_pair(number) {
            true => self.contest.push(contest::Event::Ended(number, status)),
            false => self.ended.push((number, status)),
        }
    }

    /// Takes note of the namespaces when they are seen first.
    fn note_identities(&mut self) {
        let Some(association) = self.driver.association() else { return };
        if self.opened.is_empty() {
            let identity =
                |nsid| Some(NamespaceIdentity::new(association.controller(), association.namespace(nsid)?));
            self.opened = NSIDS.into_iter().filter_map(identity).collect();
        }
    }

    /// Takes note of how long no route leads to a namespace.
    fn note_losses(&mut self, now: Duration) {
        let Some(most) = self.routes.fast_io_fail else { return };
        let leads = |nsid| self.driver.namespace_state(nsid) == Some(NamespaceState::Live);
        if self.driver.state() == ConnectionState::Live && NSIDS.into_iter().all(leads) {
            self.lost_since = None;
        } else if now >= self.lost_since.get_or_insert(now).saturating_add(most) {
            self.failed_at = Some(now);
        }
    }

    /// Whether an operation that was begun then may have failed so by now because it waited too long: for a route, for however
    /// long it was under way itself; or for its namespace, which was not ready. Or because each of its tries was damaged under way.
    pub(super) fn may_fail(&self, now: Duration, since: Duration, error: BlockError) -> bool {
        let waited = |most: Duration| now >= since.saturating_add(most);
        let of_status = error == block_error(Status::NAMESPACE_NOT_READY);
        let damages = self.damaged_at.iter().filter(|at| **at >= since).count();
        let each_was_damaged = error == block_error(Status::TRANSIENT_TRANSPORT_ERROR)
            && damages > self.config.recovery.retries_max.into();
        self.failed_at.is_some_and(|at| at >= since)
            || each_was_damaged
            || of_status && self.routes.fast_io_fail.is_some_and(waited)
    }

    /// Whether a route is lost, or something may still be carried out by a controller that was.
    pub(super) fn is_troubled(&self) -> bool {
        self.driver.is_fenced() || self.driver.paths().iter().any(|path| path.state != ConnectionState::Live)
    }

    /// Whether it has several routes.
    pub(super) fn has_several(&self) -> bool {
        self.routes.numbers.len() > 1
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
        self.under_way.push((tag, nsid, op));
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
        (0..self.routes.numbers.len()).for_each(|route| self.set_route_faulty(network, route, faulty));
    }

    fn set_route_faulty(&mut self, network: &mut N, route: usize, faulty: bool) {
        network.set_route_faulty(self.routes.numbers[route], self.driver.transport_mut(route), faulty);
    }

    /// Lets a route not connect before this time.
    pub(super) fn cut(&mut self, network: &mut N, route: usize, until: Duration) {
        self.cut_until[route] = self.cut_until[route].max(until);
        network.cut(self.routes.numbers[route], self.driver.transport_mut(route));
    }

    /// How many routes it has.
    pub(super) fn route_count(&self) -> usize {
        self.routes.numbers.len()
    }

    /// The connections of the queues of a route.
    pub(super) fn connections(&self, network: &N, route: usize) -> Vec<N::Connection> {
        network.connections(self.routes.numbers[route], self.driver.transport(route))
    }
}
