//! Planned moves: what an operator wants, or balance.
//!
//! Who wants one writes that into the map. The gateway that is named makes a connection for the group, looks at its images
//! and says there that it is ready, or why it refuses; only then the owner drains. So a gateway that cannot take a group
//! costs hosts nothing.

use super::{Gateway, Purpose};
use crate::group::{Group, Phase};
use crate::map::{Entry, Move, State};
use crate::placement;
use crate::{Action, GatewayName, GroupId, Listens, Object, Reply, Via};
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use core::time::Duration;

/// This gateway could not take a group.
#[derive(Debug)]
pub(super) struct Trouble {
    reason: String,
    until: Duration,
}

impl Gateway {
    /// ANA groups that are served here, of which hosts have had an operation at an image for long. None of them goes away because
    /// this gateway wants that: it would not drain, and what does not end in time ends the whole process later.
    pub fn set_slow(&mut self, now: Duration, slow: BTreeSet<GroupId>) {
        let quiet = now + self.timing.quiet;
        for id in core::mem::replace(&mut self.slow, slow) {
            self.groups.get_mut(&id).into_iter().for_each(|group| group.slow_until = quiet);
        }
        self.advance(now);
    }

    /// Whether it is, or was a short time ago: what is slow now and then is not asked for again and again.
    pub(super) fn is_slow(&self, now: Duration, id: GroupId) -> bool {
        self.slow.contains(&id) || self.groups.get(&id).is_some_and(|group| now < group.slow_until)
    }

    /// Whether a group that is served here goes to another gateway.
    pub(super) fn consider_move(&mut self, now: Duration, id: GroupId) {
        let wish = self.groups[&id].wanted.clone();
        let ends_with_owner = |wish: &Move| wish.is_of_owner() || wish.refused.is_some();
        let is_old = self.groups[&id].inherits && wish.as_ref().is_some_and(ends_with_owner);
        self.group(id).inherits = is_old;
        let Some(wish) = wish else {
            // Whoever wants something that its owner cannot read learns that by its absence.
            if self.groups[&id].wish.is_some() {
                self.set_wish(id, None);
            }
            return;
        };
        if wish.balance && self.groups[&id].asked {
            // This gateway was about to leave, and stays.
            self.set_wish(id, None);
            return;
        }
        let can_take = self.peers.get(&wish.to).is_some_and(super::Peer::can_take);
        let is_void = wish.is_of_owner() && (!can_take || wish.refused.is_some() || self.slow.contains(&id));
        if is_void && wish.refused.is_some() {
            self.spare(now, id, wish.to.clone());
        }
        let is_here = wish.to == self.me().gateway;
        self.group(id).placed |= is_here && !wish.is_of_owner();
        if is_here || is_void || is_old {
            // It is here already, which whoever asked for it waits for; or is to be had elsewhere; or the owner before
            // wanted it. What an operator has asked for since is not touched.
            self.set_wish(id, None);
        } else if can_take && wish.ready {
            if wish.rescue {
                self.group(id).unable_until = now + self.timing.unable;
            }
            self.drain(now, id, Some(wish.to));
        }
    }

    /// A group that is served here, by a gateway that leaves: goes as by a planned move, in which the pause begins when the other
    /// gateway is ready, as long as there is time for that. What was refused before it began to leave is asked again.
    pub(super) fn move_away(&mut self, now: Duration, id: GroupId) {
        let Some(since) = self.leaves else { return };
        let (wish, asked) = (self.groups[&id].wanted.clone(), self.groups[&id].asked);
        if let Some(wish) = wish.as_ref().filter(|wish| asked && wish.refused.is_some()) {
            self.spare(now, id, wish.to.clone());
            self.group(id).is_held |= wish.loses;
        }
        let can_take = |name: &GatewayName| self.peers.get(name).is_some_and(super::Peer::can_take);
        let wish = wish.filter(|wish| wish.refused.is_none() && can_take(&wish.to));
        let mut loads = self.loads(false);
        let least = placement::least_loaded(&loads, id).cloned();
        let any = wish.as_ref().map(|wish| wish.to.clone()).or(least);
        // Who cannot be reached is no use, whatever trouble the others have.
        let reachable = || self.reachable().next().filter(|_| self.idle.listens == Listens::No).cloned();
        let any = any.or_else(reachable);
        loads.retain(|name, _| !self.is_spared(now, id, name));
        let mut known = loads.clone();
        known.retain(|name, _| self.hosts_follow(&self.me().gateway, name));
        let willing =
            placement::least_loaded(&known, id).or_else(|| placement::least_loaded(&loads, id)).cloned();
        // Who serves on meanwhile has more time.
        let serves = !self.stopping && self.idle.listens == Listens::Yes;
        let until = since + self.timing.leave * if serves { 3 } else { 1 };
        match (wish, willing) {
            (Some(wish), _) if wish.ready => self.drain(now, id, Some(wish.to)),
            (None, Some(to)) if now < until => {
                let is_sent = self.set_wish(id, Some(Move { balance: true, ..Move::new(to) }));
                self.group(id).asked |= is_sent;
                self.wake_at(until);
            }
            (Some(_), _) if now < until => self.wake_at(until),
            // Hosts would lose what only this gateway has open: whoever drains it is told. Who has to go goes.
            _ if serves && self.groups[&id].is_held => {}
            // There is nobody, which matters to who has to go all the same.
            _ if any.is_some() || self.stopping => self.drain(now, id, any),
            _ => {}
        }
    }

    /// Gets ready for a group that is to move here, or does not need that any more.
    pub(super) fn prepare(&mut self, now: Duration, id: GroupId) {
        let (me, group) = (&self.me().gateway, &self.groups[&id]);
        let wish = group.wanted.as_ref().filter(|wish| wish.to == *me);
        let of_other = group.entry().and_then(Entry::holder).is_some_and(|by| by.gateway != *me);
        if group.refusal.is_some() && wish.is_none_or(|wish| wish.refused.is_some()) {
            return self.group(id).refusal = None;
        }
        match (group.phase, wish.filter(|_| self.leaves.is_none())) {
            (Phase::Idle, Some(wish)) if group.refusal.is_some() => {
                let (refused, loses) = (group.refusal.clone(), group.loses);
                let wish = Move { refused, loses, ready: false, ..wish.clone() };
                self.set_wish(id, Some(wish));
            }
            (Phase::Idle, Some(wish)) if wish.refused.is_some() => {}
            (Phase::Idle, Some(_)) if self.configuration.applied().is_none() => {}
            (Phase::Idle, Some(_)) if of_other && now >= group.not_before => {
                self.connect(now, id, Phase::Preparing);
            }
            (Phase::Idle, Some(_)) if of_other => self.wake_at(group.not_before),
            (Phase::Prepared, Some(wish)) if !wish.ready => {
                let wish = Move { ready: true, ..wish.clone() };
                self.set_wish(id, Some(wish));
            }
            (Phase::Preparing, Some(_)) => self.wake_at(group.step_until),
            (Phase::Preparing | Phase::Looking | Phase::Prepared, None) => {
                self.lose(now, id, "it is not to move here any more")
            }
            _ => {}
        }
    }

    /// How many hosts that are connected to `from` are not connected to `to`. Where that is not known, they are taken to be.
    pub(super) fn hosts_lacking(&self, from: &GatewayName, to: &GatewayName) -> usize {
        let of = |name: &GatewayName| match self.peers.get(name) {
            Some(peer) => peer.record.as_ref()?.hosts.as_ref(),
            None => self.hosts.as_ref(),
        };
        of(from).zip(of(to)).map_or(0, |(hosts, there)| hosts.lacking(there))
    }

    /// Whether hosts of `from` find at `to` what moves there.
    fn hosts_follow(&self, from: &GatewayName, to: &GatewayName) -> bool {
        self.hosts_lacking(from, to) == 0
    }

    /// Wants one group elsewhere if this gateway has more than others: only while all is calm, one at a time, none that an
    /// operator has placed here, to none that hosts of this one are not connected to, and never because a gateway came back.
    pub(super) fn balance(&mut self, now: Duration) {
        if self.leaves.is_some() || self.suspended.is_some() {
            return;
        }
        let settled = self.groups.values().all(|group| {
            let is_owned = group.entry().is_some_and(|entry| matches!(entry.state, State::Owned { .. }));
            is_owned && !group.wanted.as_ref().is_some_and(|wish| wish.balance)
        });
        // What an operator has placed elsewhere waits for that.
        let mine = |(id, group): (&GroupId, &Group)| {
            let stays = group.placed || self.is_slow(now, *id);
            (group.phase == Phase::Serving && group.wanted.is_none() && !stays).then_some(*id)
        };
        let mine = self.groups.iter().filter_map(mine);
        let may = |id: GroupId, to: &GatewayName| !self.is_spared(now, id, to);
        let follow = |from: &GatewayName, to: &GatewayName| self.hosts_follow(from, to);
        let found = placement::for_balance(&self.me().gateway, &self.loads(true), mine, may, follow);
        let Some((id, to)) = found else { return };
        if !settled {
            return;
        }
        let calm = (self.disturbed + self.timing.quiet).max(self.changed + self.timing.rebalance);
        if calm > now {
            return self.wake_at(calm);
        }
        if self.set_wish(id, Some(Move { balance: true, ..Move::new(to) })) {
            self.group(id).asked = false;
        }
    }

    /// Changes what is wanted of a group, unless somebody else has done that: one change at a time, and only by what
    /// was read after the one before. Says whether it is asked for now.
    pub(super) fn set_wish(&mut self, id: GroupId, wish: Option<Move>) -> bool {
        let is_under_way = self.operations.values().any(|purpose| matches!(purpose, Purpose::Wish));
        if is_under_way || self.map.used < self.map.floor {
            return false;
        }
        let known = self.groups[&id].wish.clone();
        let key = Move::key(id);
        let keys = ([(key.clone(), known)].into(), [(key, wish.map(|wish| wish.encode()))].into());
        self.compare_and_set(Purpose::Wish, Via::Control, Object::Map, keys);
        true
    }

    /// What has come of it, the next read shows. Where nothing was written that is not at once, or it would be asked for again
    /// and again.
    pub(super) fn on_wish(&mut self, reply: &Reply) {
        self.map.on_written(self.next_op());
        if !matches!(reply, Reply::Done | Reply::Conflict) {
            return;
        }
        self.map.hint();
        self.actions.push_back(Action::Notify { object: Object::Map });
    }

    /// This gateway could not take a group. The others leave it alone for a while.
    pub(super) fn note_trouble(&mut self, now: Duration, reason: String) {
        self.own.trouble = Some(Trouble { reason, until: now + self.timing.unable });
    }

    /// All groups are wanted elsewhere from now on, or no longer.
    pub(super) fn note_leaving(&mut self, now: Duration) {
        let leaves = self.stopping || self.idle.reason().is_some();
        if leaves && self.leaves.is_none() {
            for group in self.groups.values_mut() {
                (group.asked, group.is_held) = (false, false);
                group.spared.clear();
            }
        }
        self.leaves = leaves.then(|| self.leaves.unwrap_or(now));
    }

    /// The time in which others are to get ready begins when there is one.
    pub(super) fn wait_for_others(&mut self, now: Duration) {
        let is_there = self.others().next().is_some()
            || self.idle.listens == Listens::No && self.reachable().next().is_some();
        if let Some(since) = self.leaves.as_mut().filter(|_| !self.stopping && !is_there) {
            *since = now;
        }
    }

    /// Why this gateway should take no group while another one can.
    pub(super) fn trouble(&self, now: Duration) -> Option<String> {
        if let Some(reason) = self.idle.reason() {
            return Some(reason.to_string());
        }
        if self.configuration.is_missing() && self.membership.is_member() {
            return self.refused().map(ToString::to_string);
        }
        self.own.trouble.as_ref().filter(|trouble| now < trouble.until).map(|trouble| trouble.reason.clone())
    }

    /// When that is over.
    pub(super) fn trouble_ends(&self, now: Duration) -> Option<Duration> {
        self.own.trouble.as_ref().map(|trouble| trouble.until).filter(|until| *until > now)
    }
}
