//! One gateway of a group.
//!
//! | file | what it does |
//! |---|---|
//! | `addresses` | where hosts reach this gateway, and no other one |
//! | `client` | the control plane's client of the store: another one where it is refused |
//! | `membership` | the own lease, the own record, the range of Controller IDs; the others |
//! | `reading` | reads the objects of the group when a hint or the time asks for it |
//! | `ownership` | which groups are taken, moved and given up |
//! | `fences` | fences that are too short; what is left of clients that count no more |
//! | `moves` | planned moves: what operators and balance want, who is ready for it |
//! | `images` | images that cannot be opened: whoever can open more of a group's gets it |
//! | `takeover` | the steps of that, reply by reply |
//! | `convergence` | makes what is served what the configuration says |
//! | `requests` | what an operator asks for: changes, moves, removals |
//! | `report` | what an operator is shown |
//!
//! Everything is decided by state, in `advance`, after every event: what is stored, what is known of others, at which step
//! each group is. A reply only moves on what waited for it. So it does not matter which events were lost, or came twice.

mod addresses;
mod client;
mod convergence;
mod fences;
mod images;
mod membership;
mod moves;
mod ownership;
mod reader;
mod reading;
mod report;
mod requests;
mod takeover;

use crate::configuration::Configuration;
use crate::group::Group;
use crate::lease::OwnLease;
use crate::reservations::Reservations;
use crate::{
    Action, Address, ConnectedHosts, GroupId, Handle, Listens, Object, OpId, Process, Reply, Timing,
    Unopened, Via,
};
use crate::{GatewayName, action::Keys};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use membership::{Membership, Own, Peer, Suspended, Unapplied};
use reader::Reader;
use requests::{Edit, Request};
pub use requests::{RequestError, RequestId};

/// Who a gateway is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its name and this run.
    pub process: Process,
    /// Where hosts reach it: for the other gateways' discovery.
    pub addresses: Vec<String>,
    /// Its version.
    pub software: String,
    /// How many ANA groups a group of gateways gets that does not exist yet.
    pub ana_groups: u32,
}

/// What an operation is for.
#[derive(Debug)]
enum Purpose {
    Lock,
    Poll(GatewayName),
    Record,
    Map,
    Registry,
    Configuration,
    Create,
    Converge {
        state: (u64, u64),
    },
    Group(GroupId),
    /// Writes what is wanted of a move.
    Wish,
    /// Ends a handle that is of no group any more.
    Shutdown {
        handle: Handle,
        /// Since when it counts no more; `None`: hosts' commands never went through it.
        since: Option<Duration>,
        /// When it was asked for.
        at: Duration,
        /// Hosts have no command at an image through it any more.
        is_out: bool,
    },
    /// Fences an address again, whose fence was too short.
    Fence(Address),
    Edit,
    Request(Request),
    Reconnect,
}

/// A gateway of a group. See the crate's documentation for the contract.
#[derive(Debug)]
pub struct Gateway {
    identity: Identity,
    timing: Timing,
    actions: VecDeque<Action>,
    operations: BTreeMap<OpId, Purpose>,
    last_op: OpId,
    last_handle: Handle,
    last_request: RequestId,
    /// When `advance` has something to do that no reply brings about.
    wake: Option<Duration>,
    membership: Membership,
    lease: OwnLease,
    suspended: Option<Suspended>,
    unapplied: Option<Unapplied>,
    /// Hosts are admitted until then, as was told.
    admits_until: Duration,
    own: Own,
    peers: BTreeMap<GatewayName, Peer>,
    registry: Reader,
    map: Reader,
    groups: BTreeMap<GroupId, Group>,
    /// The last takeover, or change of who is there; the last change of any entry.
    disturbed: Duration,
    changed: Duration,
    stopping: bool,
    /// Why an operator has it so, or hosts cannot reach it.
    idle: membership::Idle,
    /// The hosts that are connected here.
    hosts: Option<ConnectedHosts>,
    /// All groups are wanted elsewhere: when that began.
    leaves: Option<Duration>,
    configuration: Configuration,
    configuration_reader: Reader,
    /// Whether a convergence is under way, and when the next may begin.
    converging: bool,
    converge_from: Duration,
    /// When items that are broken are tried again.
    broken_from: Duration,
    edits: VecDeque<Edit>,
    has_made_group: bool,
    /// When a new group's configuration, which could not be written, is tried again.
    create_again: Option<Duration>,
    /// What of the groups that are served here cannot be opened.
    unopened: BTreeMap<GroupId, Unopened>,
    /// Those of which an image does not answer.
    slow: BTreeSet<GroupId>,
    /// Fences that end too early, and when.
    short_fences: BTreeMap<Address, Duration>,
    /// When it was last asked whether something is overdue.
    turned: Duration,
}

impl Gateway {
    /// A gateway that joins its group.
    #[must_use]
    pub fn new(identity: Identity, timing: Timing, now: Duration) -> Self {
        let mut gateway = Self {
            identity,
            timing,
            actions: VecDeque::new(),
            operations: BTreeMap::new(),
            last_op: OpId(0),
            last_handle: Handle(0),
            last_request: RequestId(0),
            wake: None,
            membership: Membership::Joining,
            lease: OwnLease::default(),
            suspended: None,
            unapplied: None,
            admits_until: Duration::ZERO,
            own: Own::default(),
            peers: BTreeMap::new(),
            registry: Reader::default(),
            map: Reader::default(),
            groups: BTreeMap::new(),
            disturbed: now,
            changed: now,
            stopping: false,
            idle: membership::Idle::default(),
            hosts: None,
            leaves: None,
            configuration: Configuration::default(),
            configuration_reader: Reader::default(),
            converging: false,
            converge_from: Duration::ZERO,
            broken_from: Duration::ZERO,
            edits: VecDeque::new(),
            has_made_group: false,
            create_again: None,
            unopened: BTreeMap::new(),
            slow: BTreeSet::new(),
            short_fences: BTreeMap::new(),
            turned: now,
        };
        gateway.advance(now);
        gateway
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Gateway::on_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.wake
    }

    /// The time has come.
    pub fn on_timeout(&mut self, now: Duration) {
        self.advance(now);
    }

    /// An action has this result.
    pub fn on_reply(&mut self, now: Duration, op: OpId, reply: Reply) {
        self.lease.check(now, &self.timing);
        let Some(purpose) = self.operations.remove(&op) else { return };
        let control = !matches!(
            purpose,
            Purpose::Group(_) | Purpose::Shutdown { .. } | Purpose::Fence(_) | Purpose::Reconnect
        );
        match reply {
            Reply::Blocklisted if control => self.on_control_blocklisted(now, op),
            Reply::Outdated(_) if control => self.on_control_outdated(now, op),
            _ => {}
        }
        match purpose {
            Purpose::Lock => self.on_lock(now, reply),
            Purpose::Poll(name) => self.on_poll(now, &name, reply),
            Purpose::Record => self.on_record(now, &reply),
            Purpose::Map => self.on_map(now, op, reply),
            Purpose::Registry => self.on_registry(now, op, reply),
            Purpose::Configuration => self.on_configuration(now, op, reply),
            Purpose::Create => self.on_created(now, &reply),
            Purpose::Converge { state } => self.on_converged(now, state, reply),
            Purpose::Group(group) => self.on_group(now, group, op, reply),
            Purpose::Wish => self.on_wish(&reply),
            Purpose::Shutdown { .. } => {}
            Purpose::Fence(address) => self.on_fence(now, address, &reply),
            Purpose::Edit => self.on_edit(reply),
            Purpose::Request(request) => self.on_request(now, request, reply),
            Purpose::Reconnect => self.on_reconnected(),
        }
        self.advance(now);
    }

    /// Somebody says that an object has changed. It is a hint: without it the change is seen a little later.
    pub fn on_notified(&mut self, now: Duration, object: &Object) {
        match object {
            Object::Map => self.map.hint(),
            Object::Configuration => self.configuration_reader.hint(),
            Object::Gateways => self.registry.hint(),
            Object::Lease(_) | Object::Reservations(_) => {}
        }
        self.advance(now);
    }

    /// I/O through a handle has found that its client is blocklisted (-108).
    pub fn on_fenced(&mut self, now: Duration, handle: Handle) {
        let owner = self.groups.iter().find(|(_, group)| group.handle == Some(handle));
        if let Some((&id, _)) = owner {
            self.lose(now, id, "its client was blocklisted");
        }
        self.advance(now);
    }

    /// Gives every group to another gateway, then the lease back. [`Action::Stopped`] says when that is done; whoever
    /// cannot wait for it may end before, and the others fence.
    pub fn stop(&mut self, now: Duration) {
        self.stopping = true;
        // A drain that went before has had its time.
        self.leaves = None;
        self.note_leaving(now);
        self.advance(now);
    }

    /// Gives every group to another gateway and takes none, as long as there is another one and until this is taken back.
    pub fn drain_all(&mut self, now: Duration, drains: bool) {
        self.idle.drained = drains;
        self.note_leaving(now);
        self.advance(now);
    }

    /// Whether hosts can connect. Where they cannot, it is as if it was drained.
    pub fn set_listens(&mut self, now: Duration, listens: Listens) {
        self.idle.listens = listens;
        self.note_leaving(now);
        self.advance(now);
    }

    /// Which hosts are connected. Balance gives no group to a gateway that some of them have no connection to: they would lose
    /// its disks. Where it is not known (`None`), it does.
    pub fn set_hosts(&mut self, now: Duration, hosts: Option<ConnectedHosts>) {
        self.hosts = hosts;
        self.advance(now);
    }

    /// The last version of the configuration that was applied here and has taken something away of which something is still under
    /// way, on a disk that does not answer: nobody may take it for done.
    pub fn set_unfinished(&mut self, now: Duration, version: Option<u64>) {
        self.configuration.unfinished = version;
        self.advance(now);
    }

    /// Hosts reach this gateway there from now on: for the other gateways' discovery.
    pub fn set_addresses(&mut self, now: Duration, addresses: Vec<String>) {
        self.identity.addresses = addresses;
        self.advance(now);
    }

    /// Where hosts reach the others, without those that have left or are dead: who is listed when he is back is news to
    /// hosts, and they connect again. While the store is slow, leases say nothing, and all are listed.
    pub fn others_addresses(&self) -> impl Iterator<Item = (&GatewayName, &[String])> {
        let there = self.peers.iter().filter(|(name, _)| self.dead_since(name, Duration::ZERO).is_none());
        there.filter_map(|(name, peer)| {
            let record = peer.record.as_ref().filter(|record| !record.leaving)?;
            Some((name, record.addresses.as_slice()))
        })
    }

    /// What should be served, and what of it is.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Whether this run has made the group's configuration: there was none.
    #[must_use]
    pub fn has_made_group(&self) -> bool {
        self.has_made_group
    }

    /// The reservations of a group that is being opened or served here.
    #[must_use]
    pub fn reservations(&self, group: GroupId) -> Option<&Reservations> {
        let group = self.groups.get(&group)?;
        (group.phase >= crate::group::Phase::Opening && group.handle.is_some()).then_some(&group.reservations)
    }

    fn me(&self) -> &Process {
        &self.identity.process
    }

    /// Does all that can be done now.
    fn advance(&mut self, now: Duration) {
        self.wake = None;
        if self.membership == Membership::Stopped {
            return;
        }
        self.lease.check(now, &self.timing);
        self.reconnect(now);
        self.renew(now);
        self.check_lapse(now);
        self.advance_edits();
        self.read(now);
        self.create_configuration(now);
        self.update_record(now);
        self.converge(now);
        self.admit();
        self.give_up_reservations(now);
        self.decide(now);
        self.fence_again(now);
        self.show();
        self.finish_stop(now);
    }

    /// `advance` is wanted then.
    fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn begin(&mut self, purpose: Purpose) -> OpId {
        self.last_op.0 += 1;
        self.operations.insert(self.last_op, purpose);
        self.last_op
    }

    fn next_op(&self) -> OpId {
        OpId(self.last_op.0 + 1)
    }

    fn compare_and_set(
        &mut self,
        purpose: Purpose,
        via: Via,
        object: Object,
        (compare, set): (Keys, Keys),
    ) -> OpId {
        let op = self.begin(purpose);
        self.actions.push_back(Action::CompareAndSet { op, via, object, compare, set });
        op
    }
}
