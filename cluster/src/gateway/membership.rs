//! This gateway as a member of its group, and the others.
//!
//! A gateway takes its lease first, with its run as the cookie: of two with one name, one gets it. Then it writes its record
//! and gets a range of Controller IDs, in one compare-and-set. Only then it serves. When it finds that its lease or its
//! record is another's, it gives everything up.

use super::addresses::{Admission, Rival, is_run_of_record};
use super::{Gateway, Purpose};
use crate::action::Keys;
use crate::encoding::Unreadable;
use crate::group::Phase;
use crate::lease::PeerLease;
use crate::registry::{ControllerIds, LACKS_MAX, Record};
use crate::{Action, GatewayName, Listens, Locker, Object, OpId, Reply, Snapshot, Via};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Membership {
    /// Waits for its lease.
    Joining,
    /// Writes its record.
    Registering,
    /// It is a member.
    Member { since: Duration },
    /// It cannot be one, for this reason; it tries again.
    Refused(String),
    /// It waits for another client of the store.
    Reconnecting,
    /// It has left.
    Stopped,
}

impl Membership {
    pub(super) fn has_lease(&self) -> bool {
        matches!(self, Self::Registering | Self::Member { .. })
    }

    pub(super) fn is_member(&self) -> bool {
        matches!(self, Self::Member { .. })
    }
}

/// The lease was not renewed for too long: hosts are shown that nothing is accessible here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suspended {
    /// The lease is renewed again; what was read since is not older than that.
    pub(super) resume: Option<OpId>,
}

/// After the lease has lapsed: what is not served yet of what was changed meanwhile.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unapplied {
    /// It was not read yet.
    Unread,
    /// This version of the configuration.
    Version(u64),
}

/// The own record.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// As it is stored.
    pub(super) stored: Option<(Record, Vec<u8>)>,
    /// Being written.
    writing: Option<Record>,
    write_from: Duration,
    pub(super) range: Option<RangeInclusive<u16>>,
    /// The table of all ranges, as it is stored.
    pub(super) ids: Option<(ControllerIds, Vec<u8>)>,
    /// Who has had the lease, since when, while this gateway waits for it.
    pub(super) other: Option<(Locker, Duration)>,
    pub(super) trouble: Option<super::moves::Trouble>,
    /// How often its client was found blocklisted since it was a member, and when the next one is made.
    pub(super) reconnects: u32,
    pub(super) reconnect_at: Option<Duration>,
    /// What was begun before this may be refused to the client before.
    pub(super) client_from: OpId,
    /// Why it is not let in, with what it is, while it tries again; and the gateways whose addresses it has.
    pub(super) waits: Option<(&'static str, String)>,
    pub(super) rivals: BTreeMap<GatewayName, Rival>,
    /// It is not known yet whether they are there.
    awaits_polls: bool,
    /// Why the lease could not be renewed, or the record not be written, when that was tried last.
    pub(super) failure: Option<String>,
}

/// Why this gateway takes no groups while others are there, and gives away what it has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Idle {
    /// An operator wants it so.
    pub(super) drained: bool,
    /// Whether hosts can connect.
    pub(super) listens: Listens,
}

impl Idle {
    /// For the others, and for people.
    pub(super) fn reason(self) -> Option<&'static str> {
        match self {
            Self { drained: true, .. } => Some("it is drained (`ctl drain --end` there ends that)"),
            Self { listens: Listens::No, .. } => Some("none of its listeners is up"),
            Self { .. } => None,
        }
    }
}

/// Another gateway.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) lease: PeerLease,
    pub(super) record: Option<Record>,
    /// Why what it says of itself cannot be read.
    pub(super) unreadable: Option<String>,
    /// Its record as it is stored, and when one of its run was first seen.
    pub(super) stored: Vec<u8>,
    pub(super) run_seen: Duration,
}

impl Peer {
    /// Whether it has stopped, of which nobody has to be told: who was drained before it died has not.
    pub(super) fn has_stopped(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.leaving && record.trouble.is_none())
    }

    /// Whether it is one of the group, there or not.
    pub(super) fn is_registered(&self) -> bool {
        self.record.is_some() || self.unreadable.is_some()
    }

    /// Why it is not asked to take groups.
    pub(super) fn trouble(&self) -> Option<&String> {
        self.record.as_ref().map_or(self.unreadable.as_ref(), |record| record.trouble.as_ref())
    }

    /// What it says of itself, if it is there and does not leave.
    pub(super) fn available(&self) -> Option<&Record> {
        self.lease.boot()?;
        self.record.as_ref().filter(|record| !record.leaving)
    }

    /// Whether hosts can connect to it. Who has just started has not said so yet.
    pub(super) fn listens(&self) -> Listens {
        match &self.record {
            Some(record) if self.lease.boot().is_none_or(|boot| *boot == record.process.boot) => {
                record.listens
            }
            _ => Listens::NotYet,
        }
    }

    /// Whether hosts find there what it would take.
    pub(super) fn is_reachable(&self) -> bool {
        self.available().is_some() && self.listens() == Listens::Yes
    }

    /// Whether it can take groups, and did not fail to a short time ago.
    pub(super) fn can_take(&self) -> bool {
        self.is_reachable() && self.will_take()
    }

    /// The same, or it will once it listens.
    pub(super) fn will_take(&self) -> bool {
        self.available().is_some_and(|record| record.trouble.is_none())
    }
}

impl Gateway {
    pub(super) fn renew(&mut self, now: Duration) {
        if self.membership == Membership::Reconnecting {
            return;
        }
        match self.lease.due(&self.timing) {
            Some(due) if due <= now => {
                let op = self.begin(Purpose::Lock);
                self.lease.on_sent(now, op);
                let (object, cookie) = (Object::Lease(self.me().gateway.clone()), self.me().boot.clone());
                self.actions.push_back(Action::Lock { op, object, cookie, duration: self.timing.lease });
                self.wake_at(now + self.timing.quick);
            }
            Some(due) => self.wake_at(due),
            None => {}
        }
    }

    pub(super) fn on_lock(&mut self, now: Duration, reply: Reply) {
        let is_of_client = match &reply {
            Reply::Blocklisted | Reply::Outdated(_) => true,
            Reply::Held(by) => by.cookie == self.me().boot,
            _ => false,
        };
        if is_of_client && self.stopping && self.membership.is_member() {
            // The lease stands for as long as the former client has taken it, in which the groups are given away.
            return self.lease.on_refused();
        }
        self.lease.on_reply(now, reply == Reply::Done, &self.timing);
        match reply {
            Reply::Done => {
                (self.own.other, self.own.failure) = (None, None);
                if matches!(self.membership, Membership::Joining | Membership::Refused(_)) {
                    self.membership = Membership::Registering;
                    // The next read shows all, also what was read before.
                    self.registry.on_written(self.next_op());
                    self.registry.hint();
                }
                if let Some(Suspended { resume: resume @ None }) = &mut self.suspended {
                    *resume = Some(OpId(self.last_op.0 + 1));
                    (self.map.floor, self.registry.floor) = (self.next_op(), self.next_op());
                    self.configuration_reader.floor = self.next_op();
                    self.map.hint();
                    self.registry.hint();
                    self.configuration_reader.hint();
                }
            }
            Reply::Held(by) => self.on_name_in_use(now, by),
            reply => self.own.failure = reply.failure(),
        }
    }

    /// Another process has the lease of this name. If it was a former run of this gateway, it goes by itself.
    fn on_name_in_use(&mut self, now: Duration, by: Locker) {
        let since = match &self.own.other {
            Some((other, since)) if other.cookie == by.cookie => *since,
            _ => now,
        };
        let reason = format!(
            "another gateway named {} is running (run {}, client {}): give this one another name or stop that one",
            self.me().gateway,
            by.cookie,
            by.address
        );
        self.own.other = Some((by, since));
        let lasts = now.saturating_sub(since) > self.timing.lease + self.timing.settle;
        if self.membership.has_lease() || lasts {
            self.step_down(now, Membership::Refused(reason));
        }
    }

    /// Gives up what a member has. Its entries stay: who takes them fences.
    pub(super) fn step_down(&mut self, now: Duration, to: Membership) {
        if core::mem::replace(&mut self.membership, to).is_member() {
            let ids: Vec<_> = self.groups.keys().copied().collect();
            ids.into_iter()
                .for_each(|id| self.lose(now, id, "this gateway is no member of its group any more"));
        }
        self.own.stored = None;
        self.own.writing = None;
        self.registry.on_written(self.next_op());
        self.registry.hint();
        if self.own.range.take().is_some() {
            self.actions.push_back(Action::UseControllerIds { range: None });
        }
    }

    pub(super) fn check_lapse(&mut self, now: Duration) {
        if !self.membership.is_member() {
            self.suspended = None;
            return;
        }
        match self.lease.holds_until(&self.timing) {
            Some(until) if until > now => {
                let read = |from| {
                    let readers = [&self.map, &self.registry, &self.configuration_reader];
                    readers.iter().all(|reader| reader.used >= from)
                };
                if self.suspended.is_some_and(|suspended| suspended.resume.is_some_and(read)) {
                    self.suspended = None;
                }
                self.note_applied();
                self.wake_at(until);
                if self.suspended.is_none() {
                    self.trust(until);
                }
            }
            _ => {
                self.suspended = Some(Suspended { resume: None });
                self.unapplied = Some(Unapplied::Unread);
                self.groups.values_mut().for_each(|group| group.lapsed = group.handle.is_some());
            }
        }
    }

    /// What was read since the lease lapsed may be served by now.
    fn note_applied(&mut self) {
        let version = match self.unapplied.filter(|_| self.suspended.is_none()) {
            None => return,
            Some(Unapplied::Unread) => self.configuration.version(),
            Some(Unapplied::Version(version)) => version,
        };
        let is_served = self.configuration.applied().is_some_and(|applied| applied >= version);
        self.unapplied = (!is_served).then_some(Unapplied::Version(version));
    }

    /// Hosts are admitted for as long as the lease holds, once what was read since it lapsed is served: a gateway that wakes
    /// up lets nobody in who was removed meanwhile.
    pub(super) fn admit(&mut self) {
        let until = self.lease.holds_until(&self.timing).filter(|_| self.membership.is_member());
        if let Some(until) = until.filter(|until| self.unapplied.is_none() && self.admits_until != *until) {
            self.admits_until = until;
            self.actions.push_back(Action::Admit { until });
        }
    }

    /// Nobody takes a group of this gateway before its lease was seen expired, which it is not before `until`; unless
    /// it has lapsed before, and the group's entry was not written since.
    fn trust(&mut self, until: Duration) {
        for group in self.groups.values_mut() {
            let owns =
                (Phase::Loading..=Phase::Closing).contains(&group.phase) && group.phase != Phase::Affirming;
            if let Some(handle) = group.handle.filter(|_| owns && !group.lapsed && group.trusted != until) {
                group.trusted = until;
                self.actions.push_back(Action::Trust { handle, until });
            }
        }
    }

    pub(super) fn poll_peers(&mut self, now: Duration) {
        let due: Vec<GatewayName> = {
            let idle = self.peers.iter().filter(|(_, peer)| peer.lease.poll.is_none());
            let (due, later): (Vec<_>, Vec<_>) = idle.partition(|(_, peer)| peer.lease.due <= now);
            let next = later.iter().map(|(_, peer)| peer.lease.due).min();
            let due = due.into_iter().map(|(name, _)| name.clone()).collect();
            next.into_iter().for_each(|at| self.wake = Some(self.wake.map_or(at, |wake| wake.min(at))));
            due
        };
        for name in due {
            let op = self.begin(Purpose::Poll(name.clone()));
            self.actions.push_back(Action::ListLockers { op, object: Object::Lease(name.clone()) });
            if let Some(peer) = self.peers.get_mut(&name) {
                peer.lease.poll = Some((op, now));
            }
        }
    }

    pub(super) fn on_poll(&mut self, now: Duration, name: &GatewayName, reply: Reply) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        let changed = match reply {
            Reply::Held(locker) => peer.lease.on_reply(now, Some(locker), &self.lease, &self.timing),
            Reply::Free => peer.lease.on_reply(now, None, &self.lease, &self.timing),
            _ => {
                peer.lease.on_failure(now, &self.timing);
                false
            }
        };
        if changed {
            self.disturbed = now;
        }
        if core::mem::take(&mut self.own.awaits_polls) && self.membership == Membership::Registering {
            self.registry.on_written(self.next_op());
            self.registry.hint();
        }
    }

    pub(super) fn on_registry(&mut self, now: Duration, op: OpId, reply: Reply) {
        let again_at = now + self.timing.look;
        match reply {
            Reply::Snapshot(snapshot) if self.registry.on_reply(op, again_at) => {
                self.registry.version = Some(snapshot.version);
                self.take_records(now, &snapshot);
                self.take_own_record(now, &snapshot);
            }
            Reply::Unchanged => drop(self.registry.on_reply(op, again_at)),
            Reply::Snapshot(_) => {}
            _ => self.registry.on_failure(now + self.timing.retry),
        }
    }

    fn take_records(&mut self, now: Duration, snapshot: &Snapshot) {
        let mut seen = BTreeSet::new();
        for (key, bytes) in &snapshot.keys {
            let Some(name) = Record::name(key).filter(|name| *name != self.me().gateway) else { continue };
            seen.insert(name.clone());
            let record = Record::decode(&name, bytes);
            let peer = self.peers.entry(name).or_default();
            peer.unreadable = record.as_ref().err().map(ToString::to_string);
            let run = |record: &Option<Record>| record.as_ref().map(|record| record.process.boot.clone());
            let before = core::mem::replace(&mut peer.record, record.ok());
            if run(&before) != run(&peer.record) {
                peer.run_seen = now;
            }
            peer.stored.clone_from(bytes);
        }
        for (name, peer) in &mut self.peers {
            if !seen.contains(name) && peer.is_registered() {
                (peer.record, peer.unreadable) = (None, None);
                self.disturbed = now;
            }
        }
        self.update_peers();
    }

    /// Others are those that have a record, and whoever the map names.
    pub(super) fn update_peers(&mut self) {
        let holders = self.groups.values().filter_map(|group| Some(&group.entry()?.holder()?.gateway));
        let named: BTreeSet<_> =
            holders.filter(|name| **name != self.identity.process.gateway).cloned().collect();
        self.peers.retain(|name, peer| peer.is_registered() || named.contains(name));
        for name in named {
            self.peers.entry(name).or_default();
        }
    }

    fn take_own_record(&mut self, now: Duration, snapshot: &Snapshot) {
        let key = Record::key(&self.me().gateway);
        let bytes = snapshot.keys.get(&key);
        let record = bytes.and_then(|bytes| Record::decode(&self.me().gateway, bytes).ok());
        let table = snapshot.keys.get(ControllerIds::KEY);
        let is_mine = record.as_ref().is_some_and(|record| record.process == *self.me());
        // Members have it in memory. Without it all would begin anew, each with any range.
        let is_gone = table.is_none() && is_mine && self.own.ids.is_some();
        let ids = ControllerIds::decode(table);
        let is_lost = is_gone || matches!(ids, Err(Unreadable::Damaged { .. }));
        if is_lost && self.membership.is_member() {
            if self.own.writing.is_none() {
                self.own.stored = record.filter(|_| is_mine).zip(bytes.cloned());
            }
            return self.restore_controller_ids(now, snapshot);
        }
        let ids = match ids {
            Ok(ids) => ids,
            Err(_) if self.membership.is_member() => return,
            Err(newer @ Unreadable::Newer { .. }) => {
                return self.be_refused(now, newer.to_string());
            }
            Err(damaged) => {
                let reason = format!(
                    "{damaged}, and no other gateway is there that has it in memory: remove the key {} of the object \
                     of gateways (rados rmomapkey), and it is made anew",
                    ControllerIds::KEY
                );
                return self.be_refused(now, reason);
            }
        };
        // One that is gone is not forgotten: who was a member writes it again.
        if let Some(bytes) = table {
            self.own.ids = Some((ids.clone(), bytes.clone()));
        }
        if self.membership.is_member() && self.own.writing.is_none() {
            if !is_mine || ids.range(&self.me().gateway) != self.own.range {
                self.step_down(now, Membership::Registering);
            } else {
                self.own.stored = record.zip(bytes.cloned());
            }
        } else if self.membership == Membership::Registering && self.own.writing.is_none() {
            let ids = match &self.own.ids {
                Some((known, _)) if table.is_none() => known.clone(),
                _ => ids,
            };
            if table.is_none() && self.own.ids.is_none() && self.may_have_members() {
                let why = "the table of Controller IDs is gone: waits until a member has written it again";
                self.own.waits = Some(("joining", why.to_string()));
                self.own.awaits_polls = true;
                return;
            }
            let Some(with) = ids.with(&self.me().gateway) else {
                let reason = "no range of Controller IDs is left: remove gateways that are gone for good";
                return self.be_refused(now, reason.to_string());
            };
            let records = match self.admission(now) {
                Admission::Free(records) => records,
                Admission::Unknown(why) => {
                    let refused = self.own.waits.take().filter(|(word, _)| *word == "refused");
                    self.own.waits = refused.or(why.map(|why| ("joining", why)));
                    self.own.awaits_polls = true;
                    return;
                }
                Admission::Taken(reason) => return self.be_refused(now, reason),
            };
            let new = self.record(now);
            let table = ControllerIds::KEY.to_string();
            let own = [(key.clone(), bytes.cloned()), (table.clone(), snapshot.keys.get(&table).cloned())];
            let compare: Keys = own.into_iter().chain(records).collect();
            let set = [(key, Some(new.encode())), (table, Some(with.encode()))];
            self.own.range = with.range(&self.me().gateway);
            self.write_record(now, new, (compare, set.into()));
        }
    }

    /// Whether others may be members, each with a range of Controller IDs: those who run, and those whose lease was not looked at
    /// yet.
    fn may_have_members(&self) -> bool {
        self.peers.values().any(|peer| is_run_of_record(peer) || !peer.lease.was_looked_at(peer.run_seen))
    }

    /// It is tried again with each renewal of the lease, and it is this until then.
    fn be_refused(&mut self, now: Duration, reason: String) {
        self.own.waits = Some(("refused", reason.clone()));
        self.step_down(now, Membership::Refused(reason));
    }

    /// The table is damaged, or gone, and this gateway has read it before.
    fn restore_controller_ids(&mut self, now: Duration, snapshot: &Snapshot) {
        let (Some((ids, _)), Some((_, stored)), None) = (&self.own.ids, &self.own.stored, &self.own.writing)
        else {
            return;
        };
        let record = self.record(now);
        let (key, table) = (Record::key(&self.me().gateway), ControllerIds::KEY.to_string());
        let damage = snapshot.keys.get(&table).cloned();
        let compare = [(key.clone(), Some(stored.clone())), (table.clone(), damage)];
        let set = [(key, Some(record.encode())), (table, Some(ids.encode()))];
        self.write_record(now, record, (compare.into(), set.into()));
    }

    fn record(&self, now: Duration) -> Record {
        let process = self.me().clone();
        let Self { identity: super::Identity { addresses, software, .. }, leaves, .. } = self;
        let (addresses, software) = (addresses.clone(), software.clone());
        // Who stops is no trouble to anybody.
        let trouble = self.trouble(now).filter(|_| !self.stopping);
        let leaving = leaves.is_some();
        let (groups, unopened) = (self.served(), self.unopened_here());
        let lacks = unopened.iter().flat_map(|(id, _)| self.lacks_of(*id)).take(LACKS_MAX).collect();
        let (listens, applied) = (self.idle.listens, self.configuration.applied());
        let (resting, unfinished) = (self.resting(), self.configuration.unfinished);
        let hosts = self.hosts.clone();
        Record {
            process,
            addresses,
            software,
            groups,
            leaving,
            listens,
            trouble,
            unopened,
            lacks,
            resting,
            hosts,
            applied,
            unfinished,
        }
    }

    fn write_record(&mut self, now: Duration, record: Record, keys: (Keys, Keys)) {
        self.own.writing = Some(record);
        self.own.write_from = now + self.timing.look;
        self.compare_and_set(Purpose::Record, Via::Control, Object::Gateways, keys);
    }

    /// Writes the own record if it says something else than what is so.
    pub(super) fn update_record(&mut self, now: Duration) {
        if let Some(until) = self.trouble_ends(now) {
            self.wake_at(until);
        }
        let Some((stored, bytes)) = self.own.stored.as_ref().filter(|_| self.own.writing.is_none()) else {
            return;
        };
        let record = self.record(now);
        if record == *stored {
            return;
        }
        // What it takes and serves is news for the others at once; how many groups it has, is not.
        if now < self.own.write_from && record.acts_as(stored) {
            return self.wake_at(self.own.write_from);
        }
        let key = Record::key(&self.me().gateway);
        let (compare, set) = ((key.clone(), Some(bytes.clone())), (key, Some(record.encode())));
        self.write_record(now, record, ([compare].into(), [set].into()));
    }

    pub(super) fn on_record(&mut self, now: Duration, reply: &Reply) {
        let Some(record) = self.own.writing.take() else { return };
        self.registry.on_written(self.next_op());
        // A store that writes nothing, as its pool is full, is not asked again and again. But who stops has little time in which
        // to tell the others.
        match reply {
            Reply::Failed(_) => self.registry.hint_at(now + self.timing.retry),
            _ => self.registry.hint(),
        }
        if *reply != Reply::Done {
            // What is stored is read before it is tried again, at once where somebody else was first.
            self.own.failure = if *reply == Reply::Conflict { None } else { reply.clone().failure() };
            self.own.stored = None;
            return;
        }
        let bytes = record.encode();
        if self.own.stored.as_ref().is_some_and(|(stored, _)| !record.acts_as(stored)) {
            self.actions.push_back(Action::Notify { object: Object::Gateways });
        }
        self.own.stored = Some((record, bytes));
        if self.membership == Membership::Registering {
            self.membership = Membership::Member { since: now };
            self.own.reconnects = 0;
            self.own.waits = None;
            self.own.rivals.clear();
            let range = self.own.range.clone();
            self.actions.push_back(Action::UseControllerIds { range });
            self.actions.push_back(Action::Notify { object: Object::Gateways });
        }
    }
}
