//! Which groups this gateway takes, moves and gives up.

use super::Gateway;
use super::membership::Membership;
use crate::group::{Group, Phase};
use crate::map::{Entry, State};
use crate::placement;
use crate::registry::Record;
use crate::{Action, GatewayName, GroupId, Listens, Object};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

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
        self.wait_for_others(now);
        let ids: Vec<GroupId> = self.groups.keys().copied().collect();
        for id in ids {
            let group = &self.groups[&id];
            match group.phase {
                Phase::Idle if group.unreadable.is_some() => {}
                // Also while a look at its images is not over: what is free now goes before what they are like here.
                Phase::Idle | Phase::Looking | Phase::Prepared => {
                    self.consider(now, id, since);
                    self.prepare(now, id);
                }
                phase if phase.is_bounded() && now >= group.step_until => {
                    let step = format!("{phase:?}").to_lowercase();
                    let reason = format!("{step} took longer than {} s", self.timing.step.as_secs());
                    self.fail(now, id, &reason);
                }
                Phase::Preparing => self.prepare(now, id),
                Phase::Serving if group.lapsed && self.suspended.is_some() => {}
                // Somebody may have taken it meanwhile, of which the damage left nothing.
                Phase::Serving if group.lapsed && group.damage.is_some() => {
                    self.lose(now, id, "its lease had lapsed, and its entry is damaged");
                }
                Phase::Serving if group.lapsed || group.gone => self.affirm(now, id),
                Phase::Serving if self.leaves.is_some() => self.move_away(now, id),
                Phase::Serving => self.consider_move(now, id),
                Phase::Draining | Phase::Closing if now >= group.drain_until => self.surrender(now, id),
                Phase::Draining if group.op.is_none() && !group.reservations.is_busy() => self.close(now, id),
                Phase::Draining | Phase::Closing => self.wake_at(group.drain_until),
                phase if phase.is_bounded() => self.wake_at(group.step_until),
                _ => {}
            }
        }
        self.rescue(now);
        self.balance(now);
    }

    /// A group that this gateway does nothing with: whether it takes it.
    fn consider(&mut self, now: Duration, id: GroupId, member_since: Duration) {
        let group = &self.groups[&id];
        let entry = group.entry();
        let own = entry.and_then(Entry::holder).is_some_and(|by| by.gateway == self.me().gateway);
        // Who could not take a group a short time ago leaves it to those who can.
        let others = u32::try_from(self.others().count()).unwrap_or(u32::MAX);
        let yields = others > 0 && (self.trouble(now).is_some() || now < group.unable_until);
        // That hosts reach it is worth more than that it takes groups without trouble.
        let follows = others > 0 || self.idle.reason().is_some() && self.reachable().next().is_some();
        let leaves = self.stopping || self.leaves.is_some() && follows;
        // Hosts do not wait for a long rest where another one can serve them.
        let rests = others > 0 && group.not_before > now + self.timing.retry * 2;
        if own && (leaves || rests || yields && now >= group.not_before) {
            let at = group.kept_until;
            if at > now {
                self.wake_at(at);
            } else if !self.is_reconnecting() {
                self.give_up(now, id);
            }
            return;
        }
        // Who cannot tell whether it is alone, or cannot serve, takes nothing.
        if leaves || self.suspended.is_some() || self.configuration.applied().is_none() {
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
        let (me, starts) = (&self.me().gateway, self.idle.listens == Listens::NotYet);
        // Nobody waits for what is new: it is spread over all that start together.
        let is_new = self.groups[&id].entry().is_none();
        let rank = if yields || starts && others > 0 && !own && !is_new {
            others
        } else if is_new || starts {
            let all = self.peers.iter().filter_map(|(name, peer)| peer.will_take().then_some(name));
            placement::rank(me, all, id, first)
        } else {
            placement::rank(me, self.others(), id, first)
        };
        let at = group.not_before.max(since + self.timing.rank * rank);
        if at > now { self.wake_at(at) } else { self.claim(now, id) }
    }

    /// Other gateways that can take groups.
    pub(super) fn others(&self) -> impl Iterator<Item = &GatewayName> {
        self.peers.iter().filter(|(_, peer)| peer.can_take()).map(|(name, _)| name)
    }

    /// Other gateways that hosts can connect to.
    pub(super) fn reachable(&self) -> impl Iterator<Item = &GatewayName> {
        self.peers.iter().filter(|(_, peer)| peer.is_reachable()).map(|(name, _)| name)
    }

    /// How many groups those have or will have, and this one if it is wanted.
    pub(super) fn loads(&self, with_me: bool) -> BTreeMap<GatewayName, usize> {
        let me = with_me.then_some(&self.me().gateway);
        let mut loads: BTreeMap<GatewayName, usize> =
            self.others().chain(me).map(|name| (name.clone(), 0)).collect();
        for group in self.groups.values() {
            let moves_to = group.to.as_ref().filter(|_| group.phase >= Phase::Draining);
            // Of one that leaves, each of its groups counts where it is wanted.
            let wanted =
                group.wanted.as_ref().filter(|_| self.leaves.is_some() && group.phase == Phase::Serving);
            let moves_to = moves_to.or_else(|| wanted.map(|wish| &wish.to));
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

    /// Groups that this gateway owns, has lost, and does not take again yet.
    pub(super) fn resting(&self) -> Vec<GroupId> {
        let rests = self.groups.iter().filter(|(_, group)| group.phase == Phase::Idle && self.holds(group));
        rests.map(|(id, _)| *id).collect()
    }

    /// Whether this run has a group, or takes it.
    pub(super) fn holds(&self, group: &Group) -> bool {
        group.entry().and_then(Entry::holder) == Some(self.me())
    }

    /// Groups that this gateway serves.
    pub(super) fn served(&self) -> usize {
        self.groups.values().filter(|group| group.phase == Phase::Serving).count()
    }

    /// Whether hosts are shown none of the groups that this gateway has.
    pub(super) fn shows_nothing(&self) -> bool {
        // Nor what somebody has taken away meanwhile: before that is so here, nobody reads or writes it.
        self.suspended.is_some() || self.unapplied.is_some()
    }

    /// Shows hosts what is so.
    pub(super) fn show(&mut self) {
        let suspended = self.shows_nothing();
        for (&id, group) in &mut self.groups {
            let state = group.ana(suspended);
            if core::mem::replace(&mut group.ana, state) != state {
                self.actions.push_back(Action::SetAna { group: id, state });
            }
        }
    }

    /// The others do not know that this gateway stops: they would take it for dead. Who cannot tell them does not wait long.
    fn is_untold(&mut self, now: Duration) -> bool {
        let is_told = |record: &Record| record.leaving && record.trouble.is_none();
        let until = self.leaves.map_or(now, |since| since + self.timing.quick * 2);
        let is_told = self.own.stored.as_ref().is_some_and(|(record, _)| is_told(record));
        if !is_told && now < until {
            self.wake_at(until);
        }
        !is_told && now < until
    }

    /// Leaves, once nothing is owned here. Handles that are still being ended are of nothing that others do not have: what was
    /// released was closed before, and what was surrendered is fenced.
    pub(super) fn finish_stop(&mut self, now: Duration) {
        let idle =
            |group: &Group| group.phase == Phase::Idle && (!self.holds(group) || group.unreadable.is_some());
        if !self.stopping || self.membership.is_member() && !self.groups.values().all(idle) {
            return;
        }
        if self.membership.is_member() && self.is_untold(now) {
            return;
        }
        let (object, cookie) = (Object::Lease(self.me().gateway.clone()), self.me().boot.clone());
        self.membership = Membership::Stopped;
        self.actions.push_back(Action::Unlock { object, cookie });
        self.actions.push_back(Action::Stopped);
    }
}
