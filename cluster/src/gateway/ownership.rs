//! Which groups this gateway takes, moves and gives up.

use super::membership::Membership;
use super::{Gateway, Purpose};
use crate::group::{Group, Phase};
use crate::map::{Entry, Move, State};
use crate::placement;
use crate::{Action, GatewayName, GroupId, Object, Via};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

/// So many attempts of one gateway fail before it leaves the group to another one.
const FAILURES_MAX: u32 = 3;

impl Gateway {
    /// Decides on each group by what is known.
    pub(super) fn decide(&mut self, now: Duration) {
        let Membership::Member { since } = self.membership else { return };
        // Before the map was read nothing is known of any group.
        if self.map.used.0 == 0 {
            return;
        }
        for id in (1..=self.configuration.ana_groups()).map(GroupId) {
            self.groups.entry(id).or_insert_with(|| Group::new(now));
        }
        let ids: Vec<GroupId> = self.groups.keys().copied().collect();
        for id in ids {
            let group = &self.groups[&id];
            match group.phase {
                Phase::Idle if group.unreadable.is_some() => {}
                Phase::Idle => self.consider(now, id, since),
                Phase::Serving if group.lapsed && self.suspended.is_some() => {}
                Phase::Serving if group.lapsed => self.affirm(now, id),
                Phase::Serving if self.stopping => {
                    let to = placement::least_loaded(&self.loads(false), id).cloned();
                    self.drain(now, id, to);
                }
                Phase::Serving => self.consider_move(now, id),
                Phase::Draining | Phase::Closing if now >= group.drain_until => self.surrender(now, id),
                Phase::Draining | Phase::Closing => self.wake_at(group.drain_until),
                _ => {}
            }
        }
        self.balance(now);
    }

    /// A group that this gateway does nothing with: whether it takes it.
    fn consider(&mut self, now: Duration, id: GroupId, member_since: Duration) {
        let group = &self.groups[&id];
        let entry = group.entry();
        let own = entry.and_then(Entry::holder).is_some_and(|by| by.gateway == self.me().gateway);
        let no_hope = group.failures >= FAILURES_MAX && self.others().next().is_some();
        if own && (self.stopping || no_hope && now >= group.not_before) {
            return self.give_up(now, id);
        }
        // Who cannot tell whether it is alone, or cannot serve, takes nothing.
        if self.stopping || self.suspended.is_some() || self.configuration.applied().is_none() {
            return;
        }
        let (since, first) = match entry.map(|entry| &entry.state) {
            // Gateways that start together wait for each other.
            None => (member_since + self.timing.rank, None),
            Some(State::Free { to: None }) => (group.seen, None),
            Some(State::Free { to } | State::Surrendered { to, .. }) => (group.seen, to.as_ref()),
            Some(State::Taking { .. } | State::Owned { .. }) if own => (group.seen, Some(&self.me().gateway)),
            Some(State::Taking { by, .. } | State::Owned { by, .. }) => {
                match self.dead_since(&by.gateway, group.seen) {
                    Some(since) => (since, None),
                    None => return,
                }
            }
        };
        let rank = placement::rank(&self.me().gateway, self.others(), id, first);
        let at = group.not_before.max(since + self.timing.rank * rank);
        if at > now { self.wake_at(at) } else { self.claim(now, id) }
    }

    /// Whether a group that is served here goes to another gateway because an operator wants it.
    fn consider_move(&mut self, now: Duration, id: GroupId) {
        let Some((Move { to }, bytes)) = self.groups[&id].wanted.clone() else { return };
        if to == self.me().gateway {
            // It is here already: what was wanted is done.
            let (compare, set) = ([(Move::key(id), Some(bytes))].into(), [(Move::key(id), None)].into());
            self.compare_and_set(Purpose::MoveDone, Via::Control, Object::Map, (compare, set));
            if let Some(group) = self.groups.get_mut(&id) {
                group.wanted = None;
            }
        } else if self.peers.get(&to).is_some_and(super::Peer::is_available) {
            self.drain(now, id, Some(to));
        }
    }

    /// Moves one group if this gateway has more than others: only while all is calm, one at a time, and never because a
    /// gateway came back.
    fn balance(&mut self, now: Duration) {
        let calm = (self.disturbed + self.timing.quiet).max(self.changed + self.timing.rebalance);
        if self.stopping || self.suspended.is_some() {
            return;
        }
        let mut known = self.groups.values();
        let settled =
            known.all(|group| group.entry().is_some_and(|entry| matches!(entry.state, State::Owned { .. })));
        // What an operator has placed elsewhere waits for that.
        let mine = |(id, group): (&GroupId, &Group)| {
            (group.phase == Phase::Serving && group.wanted.is_none()).then_some(*id)
        };
        let mine = self.groups.iter().filter_map(mine);
        let Some((id, to)) = placement::for_balance(&self.me().gateway, &self.loads(true), mine) else {
            return;
        };
        if !settled {
            return;
        }
        if calm > now { self.wake_at(calm) } else { self.drain(now, id, Some(to)) }
    }

    /// Gateways that can take groups, without this one.
    pub(super) fn others(&self) -> impl Iterator<Item = &GatewayName> {
        self.peers.iter().filter(|(_, peer)| peer.is_available()).map(|(name, _)| name)
    }

    /// How many groups those have or will have, and this one if it is wanted.
    pub(super) fn loads(&self, with_me: bool) -> BTreeMap<GatewayName, usize> {
        let me = with_me.then_some(&self.me().gateway);
        let mut loads: BTreeMap<GatewayName, usize> =
            self.others().chain(me).map(|name| (name.clone(), 0)).collect();
        for group in self.groups.values() {
            let moves_to = group.to.as_ref().filter(|_| group.phase >= Phase::Draining);
            let name = moves_to.or_else(|| group.entry()?.destination());
            if let Some(load) = name.and_then(|name| loads.get_mut(name)) {
                *load += 1;
            }
        }
        loads
    }

    /// Since when a gateway counts as dead, for an entry that was seen first at `seen`: its lease was looked at since.
    pub(super) fn dead_since(&self, name: &GatewayName, seen: Duration) -> Option<Duration> {
        self.peers.get(name)?.lease.dead_since(seen, &self.lease, &self.timing)
    }

    /// Groups that this gateway serves.
    pub(super) fn served(&self) -> usize {
        self.groups.values().filter(|group| group.phase == Phase::Serving).count()
    }

    /// Shows hosts what is so.
    pub(super) fn show(&mut self) {
        let suspended = self.suspended.is_some();
        for (&id, group) in &mut self.groups {
            let state = group.ana(suspended);
            if core::mem::replace(&mut group.ana, state) != state {
                self.actions.push_back(Action::SetAna { group: id, state });
            }
        }
    }

    /// Leaves, once nothing is owned here.
    pub(super) fn finish_stop(&mut self) {
        let own = |group: &Group| group.entry().and_then(Entry::holder) == Some(self.me());
        let idle = |group: &Group| group.phase == Phase::Idle && (!own(group) || group.unreadable.is_some());
        if !self.stopping
            || self.membership.is_member() && (!self.groups.values().all(idle) || self.ending > 0)
        {
            return;
        }
        let (object, cookie) = (Object::Lease(self.me().gateway.clone()), self.me().boot.clone());
        self.membership = Membership::Stopped;
        self.actions.push_back(Action::Unlock { object, cookie });
        self.actions.push_back(Action::Stopped);
    }
}
