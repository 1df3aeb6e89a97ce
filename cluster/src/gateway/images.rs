//! Images that cannot be opened: whoever can open more of a group's images gets the group.
//!
//! A gateway that is to get a group looks at its images before it says that it is ready, and refuses the group if it can open
//! fewer than the owner, or would find another disk, or none, where the owner has the right one open: an image that was
//! renamed, or whose name another one has, is served by its owner only, until the name is as it was. An owner that cannot
//! open all asks the others by such a move: hosts notice nothing where they cannot either.

use super::Gateway;
use crate::group::Phase;
use crate::map::{Entry, Move};
use crate::registry::LACKS_MAX;
use crate::{Action, GatewayName, GroupId, Unopened, placement};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

impl Gateway {
    /// What of the groups that are served here is not open now: also what is gone from the pool, so that a gateway which looks
    /// at the same images is not taken for a worse one.
    pub fn set_unopened(&mut self, now: Duration, unopened: BTreeMap<GroupId, Unopened>) {
        self.unopened = unopened;
        self.advance(now);
    }

    /// How many of each group that is served here, if any.
    pub(super) fn unopened_here(&self) -> Vec<(GroupId, usize)> {
        let served = |id: &GroupId| self.groups.get(id).is_some_and(|group| group.phase == Phase::Serving);
        let of_served = self.unopened.iter().filter(|(id, unopened)| !unopened.is_empty() && served(id));
        of_served.map(|(id, unopened)| (*id, unopened.len())).collect()
    }

    /// How many of a group its owner cannot open, by what is known of it.
    pub(super) fn unopened_of(&self, id: GroupId) -> usize {
        let owner = self.groups.get(&id).and_then(|group| Some(&group.entry()?.holder()?.gateway));
        let of = |counts: &[(GroupId, usize)]| {
            counts.iter().find(|(of, _)| *of == id).map_or(0, |(_, count)| *count)
        };
        match owner {
            Some(name) if *name == self.me().gateway => of(&self.unopened_here()),
            Some(name) => {
                let record = self.peers.get(name).and_then(|peer| peer.record.as_ref());
                record.map_or(0, |record| of(&record.unopened))
            }
            None => 0,
        }
    }

    /// Images of a group that its owner has named as not open.
    pub(super) fn lacks_of(&self, id: GroupId) -> Vec<String> {
        let owner = self.groups.get(&id).and_then(|group| Some(&group.entry()?.holder()?.gateway));
        match owner {
            Some(name) if *name == self.me().gateway => {
                let unopened = self.unopened.get(&id).into_iter().flatten();
                unopened.map(|lack| lack.namespace.clone()).collect()
            }
            Some(name) => {
                let record = self.peers.get(name).and_then(|peer| peer.record.as_ref());
                record.map(|record| record.lacks.clone()).unwrap_or_default()
            }
            None => Vec::new(),
        }
    }

    pub(super) fn look_at_images(&mut self, now: Duration, id: GroupId) {
        let (op, handle) = (self.begin_step(now, id, Phase::Looking), self.last_handle_of(id));
        self.actions.push_back(Action::LookAtImages { op, handle, group: id });
    }

    /// These cannot be opened here. The owner may have it no better.
    pub(super) fn on_looked(&mut self, now: Duration, id: GroupId, unopened: &Unopened) {
        let (here, there) = (unopened.len(), self.unopened_of(id));
        let group = self.group(id);
        let is_rescue = group.wanted.as_ref().is_some_and(|wish| wish.rescue);
        let was_unable = now < group.unable_until;
        let is_enough = here == 0 && !was_unable || here < there || here == there && !is_rescue;
        let lost = unopened.iter().find(|lack| lack.is_gone && self.is_open_at_owner(id, &lack.namespace));
        if is_enough && lost.is_none() {
            self.group(id).phase = Phase::Prepared;
            return;
        }
        let open_there = || unopened.iter().find(|lack| self.is_open_at_owner(id, &lack.namespace));
        let loses = lost.is_some();
        let reason = match lost.or_else(open_there).or(unopened.first()) {
            Some(lack) => format!("{} cannot be opened there: {}", lack.namespace, lack.reason),
            None => "images of it could not be opened there a short time ago".to_string(),
        };
        self.refuse(now, id, reason);
        self.group(id).loses = loses;
    }

    /// Whether the owner of a group serves a namespace, by what is known of it. Of many that it lacks it does not name all.
    fn is_open_at_owner(&self, id: GroupId, namespace: &str) -> bool {
        let lacks = self.lacks_of(id);
        lacks.len() < LACKS_MAX && !lacks.iter().any(|it| it == namespace)
    }

    /// The group does not move here.
    pub(super) fn refuse(&mut self, now: Duration, id: GroupId, reason: String) {
        self.lose(now, id, &reason);
        let group = self.group(id);
        (group.refusal, group.loses) = (Some(reason), false);
    }

    /// Whether that gateway is not to be asked yet to take a group.
    pub(super) fn is_spared(&self, now: Duration, id: GroupId, to: &GatewayName) -> bool {
        let until = self.groups.get(&id).and_then(|group| group.spared.get(to));
        until.is_some_and(|until| now < *until)
    }

    pub(super) fn spare(&mut self, now: Duration, id: GroupId, to: GatewayName) {
        let until = now + self.timing.unable;
        self.group(id).spared.insert(to, until);
    }

    /// Asks others to take a group of which this gateway cannot open all images: one at a time, and each not again soon,
    /// whatever came of it. So a group does not go back and forth where a look promises more than can be opened. What is gone
    /// from the pool nobody can open.
    pub(super) fn rescue(&mut self, now: Duration) {
        let known =
            self.own.stored.as_ref().map(|(record, _)| record.unopened.as_slice()).unwrap_or_default();
        if self.leaves.is_some() || self.suspended.is_some() || known != self.unopened_here() {
            return;
        }
        let is_free = |id: &GroupId| {
            let wanted = self.groups.get(id).and_then(|group| group.wanted.as_ref());
            wanted.is_none_or(|wish| !wish.is_of_owner() && wish.refused.is_some())
        };
        let loads = self.loads(false);
        let to = |id: GroupId| {
            let may = loads.iter().filter(|(name, _)| !self.is_spared(now, id, name));
            let may = may.map(|(name, load)| (name.clone(), *load)).collect();
            placement::least_loaded(&may, id).cloned().map(|to| (id, to))
        };
        let is_of_use = |id: &GroupId| {
            let mut lacks = self.unopened.get(id).into_iter().flatten();
            !self.slow.contains(id) && lacks.any(|lack| !lack.is_gone)
        };
        let wish = known.iter().map(|(id, _)| *id).filter(is_of_use).filter(is_free).find_map(to);
        if let Some((id, to)) = wish
            && self.set_wish(id, Some(Move { rescue: true, ..Move::new(to.clone()) }))
        {
            self.spare(now, id, to);
        }
    }

    /// What an operator is told of a group that is served without some of its images.
    pub(super) fn why_not_whole(&self, id: GroupId) -> Option<String> {
        let count = self.unopened_of(id);
        let owner = self.groups.get(&id).and_then(|group| group.entry()).and_then(Entry::holder)?;
        let which = match self.unopened.get(&id).and_then(|unopened| unopened.first()) {
            Some(lack) if owner.gateway == self.me().gateway => {
                format!("{}: {}", lack.namespace, lack.reason)
            }
            _ => format!("`ctl status` at {} says which", owner.gateway),
        };
        (count > 0).then(|| format!("{count} of its images cannot be opened; {which}"))
    }
}
