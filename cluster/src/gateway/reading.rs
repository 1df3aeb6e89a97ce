//! Reads of the map, the records of gateways and the configuration.

use super::reader::Reader;
use super::{Gateway, Purpose};
use crate::configuration::{ANA_GROUPS_MAX, Configuration};
use crate::encoding::Unreadable;
use crate::group::{Group, Phase};
use crate::map::{Entry, Move, State};
use crate::{Action, GroupId, Object, OpId, Reply, Snapshot, Via};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

impl Gateway {
    /// Sends the reads that are due.
    pub(super) fn read(&mut self, now: Duration) {
        if !self.membership.has_lease() {
            return;
        }
        self.poll_peers(now);
        self.read_object(now, |gateway| &mut gateway.map, Purpose::Map, Object::Map);
        self.read_object(now, |gateway| &mut gateway.registry, Purpose::Registry, Object::Gateways);
        self.read_object(
            now,
            |gateway| &mut gateway.configuration_reader,
            Purpose::Configuration,
            Object::Configuration,
        );
    }

    fn read_object(
        &mut self,
        now: Duration,
        reader: fn(&mut Self) -> &mut Reader,
        purpose: Purpose,
        object: Object,
    ) {
        let Reader { op, due, version, .. } = *reader(self);
        if op.is_some() {
            return;
        }
        if due > now {
            return self.wake_at(due);
        }
        let op = self.begin(purpose);
        let reader = reader(self);
        reader.op = Some(op);
        reader.due = Duration::MAX;
        self.actions.push_back(Action::Read { op, via: Via::Control, object, unless: version });
    }

    pub(super) fn on_map(&mut self, now: Duration, op: OpId, reply: Reply) {
        match reply {
            Reply::Snapshot(snapshot) if self.map.on_reply(op, now + self.timing.poll) => {
                self.map.version = Some(snapshot.version);
                self.take_map(now, &snapshot);
            }
            Reply::Unchanged => drop(self.map.on_reply(op, now + self.timing.poll)),
            Reply::Snapshot(_) => {}
            _ => self.map.on_failure(now + self.timing.poll),
        }
    }

    fn take_map(&mut self, now: Duration, snapshot: &Snapshot) {
        for (key, bytes) in &snapshot.keys {
            let id = |prefix| key.strip_prefix(prefix).and_then(|id| id.parse().ok()).map(GroupId);
            if let Some(id) = id("group/").filter(|id| (1..=ANA_GROUPS_MAX).contains(&id.0)) {
                self.take_entry(now, id, bytes);
            }
        }
        self.update_peers();
        let me = self.me().clone();
        let ids: Vec<GroupId> = self.groups.keys().copied().collect();
        for id in ids {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let is_stored = snapshot.keys.contains_key(&Entry::key(id));
            group.damage = group.damage.take().filter(|_| is_stored);
            group.wish = snapshot.keys.get(&Move::key(id)).cloned();
            group.wanted = group.wish.as_ref().and_then(|bytes| Move::decode(id, bytes).ok());
            if !is_stored && group.entry.is_none() && group.unreadable.is_some() {
                // Somebody has removed what was damaged. Whether he knew that nobody uses its images, he says by the restart.
                group.unreadable =
                    Some("its entry is gone: restart one gateway, which takes the group".to_string());
            }
            group.gone = group.entry.is_some() && (!is_stored || group.damage.is_some());
            if group.gone && matches!(group.phase, Phase::Serving | Phase::Affirming) {
                // Its owner writes it again.
                continue;
            }
            if group.gone {
                group.unreadable = Some(gone(id, group));
            }
            if group.handle.is_some() && group.unreadable.is_some() {
                self.lose(now, id, "its entry cannot be read");
            } else if group.is_lost(&me) {
                self.lose(now, id, "somebody else has taken it");
            }
        }
    }

    fn take_entry(&mut self, now: Duration, id: GroupId, bytes: &[u8]) {
        let group = self.groups.entry(id).or_insert_with(|| Group::new(now));
        group.damage = None;
        if group.entry.as_ref().is_some_and(|(_, known)| known == bytes) {
            group.unreadable = None;
            return;
        }
        match Entry::decode(id, bytes) {
            Ok(entry) => {
                group.unreadable = None;
                group.seen = now;
                self.changed = now;
                if matches!(entry.state, State::Taking { fence: Some(_), .. }) {
                    self.disturbed = now;
                }
                group.entry = Some((entry, bytes.to_vec()));
            }
            Err(Unreadable::Damaged { .. }) if group.entry.is_some() => group.damage = Some(bytes.to_vec()),
            Err(damaged @ Unreadable::Damaged { .. }) => {
                group.unreadable = Some(format!(
                    "{damaged}. No gateway has it in memory that serves it: when no client uses its images, remove the key {} \
                     from the group's map (rados rmomapkey), and restart one gateway",
                    Entry::key(id)
                ));
            }
            Err(unreadable) => group.unreadable = Some(unreadable.to_string()),
        }
    }

    /// Makes the configuration if there was never one: no ANA group was ever taken; or if nobody is there who serves
    /// it.
    pub(super) fn create_configuration(&mut self, now: Duration) {
        if !self.configuration.is_missing() || !self.membership.has_lease() || !self.is_group_known() {
            return;
        }
        let is_new = self.groups.values().all(|group| group.entry.is_none() && group.unreadable.is_none());
        let is_alone = self.peers.values().all(|peer| peer.lease.is_free());
        if !is_new && !is_alone {
            self.create_again = None;
        } else if let Some(at) = self.create_again.filter(|at| *at > now) {
            self.wake_at(at);
        } else if !self.is_creating() {
            let keys = Configuration::creation(self.identity.ana_groups.clamp(1, ANA_GROUPS_MAX));
            self.compare_and_set(Purpose::Create, Via::Control, Object::Configuration, keys);
        }
    }

    fn is_group_known(&self) -> bool {
        self.map.used.0 > 0 && self.registry.used.0 > 0
    }

    fn is_creating(&self) -> bool {
        self.operations.values().any(|purpose| matches!(purpose, Purpose::Create))
    }

    /// Why the stored configuration is not used. One that is missing is no matter while this gateway may be about to make it.
    #[must_use]
    pub fn refused(&self) -> Option<&Unreadable> {
        let is_made = self.configuration.is_missing()
            && (!self.is_group_known() || self.is_creating() || self.create_again.is_some());
        self.configuration.refused().filter(|_| !is_made)
    }

    /// It is there now, whoever has made it; unless the store writes nothing, which is asked again after a pause.
    pub(super) fn on_created(&mut self, now: Duration, reply: &Reply) {
        self.has_made_group |= *reply == Reply::Done;
        self.configuration_reader.on_written(self.next_op());
        let again = now + self.timing.retry;
        self.create_again = (!matches!(reply, Reply::Done | Reply::Conflict)).then_some(again);
        match self.create_again {
            Some(at) => self.configuration_reader.hint_at(at),
            None => self.configuration_reader.hint(),
        }
    }

    pub(super) fn on_configuration(&mut self, now: Duration, op: OpId, reply: Reply) {
        let again_at = now + self.timing.look;
        match reply {
            Reply::Snapshot(snapshot) if self.configuration_reader.on_reply(op, again_at) => {
                self.configuration_reader.version = Some(snapshot.version);
                self.configuration.on_snapshot(&snapshot);
            }
            Reply::Unchanged => drop(self.configuration_reader.on_reply(op, again_at)),
            Reply::Snapshot(_) => {}
            _ => self.configuration_reader.on_failure(again_at),
        }
    }
}

/// What an operator is told of a group whose entry is gone or damaged. Only its owner knows that nobody else does its I/O.
fn gone(id: GroupId, group: &Group) -> String {
    let (what, remedy) = match group.damage {
        None => ("gone", "restart one gateway, which takes the group".to_string()),
        Some(_) => {
            let key = Entry::key(id);
            let remedy = format!(
                "remove the key {key} from the group's map (rados rmomapkey), and restart one gateway, which takes the group"
            );
            ("damaged", remedy)
        }
    };
    match group.entry().map(|entry| &entry.state) {
        Some(State::Owned { by, address }) => format!(
            "its entry is {what}, and its owner, {}, has not written it again: if that one is dead, fence its client \
             (ceph osd blocklist add {address} 86400), then {remedy}",
            by.gateway
        ),
        _ => format!("its entry is {what}, and it had no owner: {remedy}"),
    }
}
