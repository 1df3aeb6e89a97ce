//! What an operator is shown.

use super::membership::{Membership, Peer};
use super::{Gateway, RequestError};
use crate::group::{Group, Phase};
use crate::map::{Move, State};
use crate::status::{ConfigurationStatus, GroupStatus, OtherStatus, Status};
use crate::{GatewayName, GroupId, Listens};
use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

impl Gateway {
    /// The group as this gateway sees it.
    #[must_use]
    pub fn status(&self, now: Duration) -> Status {
        let (state, why) = self.state();
        let configuration = ConfigurationStatus {
            version: self.configuration.version(),
            applied: self.configuration.applied(),
            broken: self.configuration.broken().cloned().collect(),
            refused: self.refused().map(ToString::to_string),
            waiting: self.edits.len(),
        };
        let until = self.lease.holds_until(&self.timing);
        let others = self.peers.iter().map(|(name, peer)| (name.clone(), self.other(now, name, peer)));
        Status {
            gateway: self.me().gateway.clone(),
            boot: self.me().boot.clone(),
            state,
            why,
            listens: self.idle.listens,
            controller_ids: self.own.range.as_ref().map(|range| (*range.start(), *range.end())),
            lease_ms: until
                .map(|until| u64::try_from(until.saturating_sub(now).as_millis()).unwrap_or(u64::MAX)),
            others: others.collect(),
            as_of_s: self.suspended.and(self.lease.renewed()).map(|at| now.saturating_sub(at).as_secs()),
            groups: self.groups.iter().map(|(&id, group)| (id, self.group_status(now, id, group))).collect(),
            configuration,
        }
    }

    /// The groups that this gateway was to take and could not, each with the reason, until somebody serves it.
    pub fn untaken(&self) -> impl Iterator<Item = (GroupId, &str)> {
        self.groups.iter().filter_map(|(id, group)| {
            let is_served = matches!(group.entry().map(|entry| &entry.state), Some(State::Owned { by, .. }) if by != self.me());
            group.unable.as_deref().filter(|_| !is_served).map(|reason| (*id, reason))
        })
    }

    /// What it is in its group, and why, if it is no plain member.
    #[must_use]
    pub fn state(&self) -> (&'static str, Option<String>) {
        let no_answer = "the storage cluster does not answer, or answers too late";
        let failure = self.own.failure.as_deref();
        let held = self.own.other.as_ref().map(|(by, _)| {
            format!(
                "{} has it, a former run of this gateway, which ends, or another gateway of this name",
                by.address
            )
        });
        let waits = || self.lease.waits().then(|| no_answer.to_string());
        let reason = failure.map(str::to_string).or(held).or_else(waits);
        let because = |text: &str| {
            Some(reason.as_ref().map_or_else(|| text.to_string(), |reason| format!("{text}: {reason}")))
        };
        let lapse = || format!("its lease was not renewed in time: {}", failure.unwrap_or(no_answer));
        match &self.membership {
            Membership::Joining | Membership::Reconnecting if self.own.reconnects == 0 => {
                ("joining", because("waits for its lease"))
            }
            Membership::Registering => match &self.own.waits {
                Some((word, why)) => (word, Some(why.clone())),
                None => ("joining", because("writes its record")),
            },
            Membership::Joining | Membership::Reconnecting => {
                let why = "its client of the store was blocklisted: a new one is made (ceph osd blocklist ls shows what is fenced)";
                ("joining", Some(why.to_string()))
            }
            Membership::Refused(reason) => ("refused", Some(reason.clone())),
            Membership::Stopped => ("stopped", None),
            Membership::Member { .. } if self.suspended.is_some() => ("suspended", Some(lapse())),
            Membership::Member { .. } if self.stopping => {
                ("stopping", Some("gives its groups away".to_string()))
            }
            Membership::Member { .. } if self.idle.drained => {
                ("drained", Some(self.what_it_takes().to_string()))
            }
            Membership::Member { .. } if self.idle.listens == Listens::No => {
                ("unreachable", Some(format!("none of its listeners is up: {}", self.what_it_takes())))
            }
            Membership::Member { .. } => ("member", None),
        }
    }

    /// Whether what it tried last failed, to have its lease or to write its record.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.own.failure.is_some()
    }

    /// Of one that is not to have groups.
    fn what_it_takes(&self) -> &'static str {
        match self.others().next() {
            Some(_) => "gives its groups away, and takes none",
            None => "keeps its groups, and takes those of who dies, as no other gateway can take any",
        }
    }

    fn other(&self, now: Duration, name: &GatewayName, peer: &Peer) -> OtherStatus {
        let dead_since = self.dead_since(name, Duration::ZERO);
        let lease = match (peer.lease.boot(), dead_since) {
            // What was seen before this gateway was cut off says nothing.
            _ if self.suspended.is_some() => "unknown",
            (Some(_), _) => "held",
            (None, Some(_)) => "dead",
            (None, None) if peer.lease.due == Duration::ZERO => "unknown",
            (None, None) => "expired",
        };
        let record = peer.record.as_ref();
        let owns = |group: &&Group| entry_of_other(self, group) == Some(name);
        let owned = self.groups.values().filter(owns).count();
        OtherStatus {
            lease,
            dead_s: dead_since.filter(|_| lease == "dead").map(|since| now.saturating_sub(since).as_secs()),
            stopped: lease == "dead" && peer.has_stopped() && owned == 0,
            boot: peer.lease.boot().cloned(),
            listens: peer.listens(),
            addresses: record.map_or_else(Default::default, |record| record.addresses.clone()),
            shares: self.shared_with(peer),
            software: record.map(|record| record.software.clone()),
            // Of who is dead, others have taken some by now.
            groups: record.map(|record| if lease == "dead" { owned } else { record.groups }),
            lacks_hosts: self.hosts_lacking(&self.me().gateway, name),
            leaving: record.is_some_and(|record| record.leaving),
            trouble: peer.trouble().cloned(),
            applied: record.and_then(|record| record.applied),
            unfinished: record.and_then(|record| record.unfinished),
        }
    }

    fn group_status(&self, now: Duration, id: GroupId, group: &Group) -> GroupStatus {
        let entry = group.entry();
        let (state, address) = match entry.map(|entry| &entry.state) {
            _ if group.unreadable.is_some() => ("unreadable", None),
            None => ("new", None),
            Some(State::Free { .. }) => ("free", None),
            Some(State::Taking { fence, .. }) => ("taking", fence.as_ref()),
            Some(State::Owned { address, .. }) => ("owned", Some(address)),
            Some(State::Surrendered { address, .. }) => ("surrendered", Some(address)),
        };
        GroupStatus {
            state,
            gateway: entry.and_then(|entry| entry.destination()).cloned(),
            address: address.cloned(),
            generation: group.generation(),
            here: format!("{:?}", group.phase).to_lowercase(),
            ana: group.ana.0,
            wanted: group.wanted.as_ref().map(|wanted| wanted.to.clone()),
            refused: group.wanted.as_ref().and_then(|wanted| wanted.refused.clone()),
            unopened: self.unopened_of(id),
            lacks: self.lacks_of(id),
            served: self.is_served(id, group),
            why: self.why(now, id, group),
        }
    }

    /// Whether it has an owner that is not known to be away, that serves it, and that hosts can connect to.
    fn is_served(&self, id: GroupId, group: &Group) -> bool {
        let Some(State::Owned { by, .. }) = group.entry().map(|entry| &entry.state) else { return false };
        if group.unreadable.is_some() {
            return false;
        }
        if by.gateway == self.me().gateway {
            let shows = !self.shows_nothing();
            return shows && group.phase >= Phase::Affirming && self.idle.listens == Listens::Yes;
        }
        let Some(peer) = self.peers.get(&by.gateway) else { return false };
        let is_away =
            self.suspended.is_none() && peer.lease.boot().is_none() && peer.lease.due > Duration::ZERO;
        !is_away && !self.rests_at(&by.gateway, id) && peer.listens() == Listens::Yes
    }

    /// Whether its owner has lost it, and says so.
    fn rests_at(&self, owner: &GatewayName, id: GroupId) -> bool {
        let record = self.peers.get(owner).and_then(|peer| peer.record.as_ref());
        record.is_some_and(|record| record.resting.contains(&id))
    }

    fn why(&self, now: Duration, id: GroupId, group: &Group) -> Option<String> {
        if group.unreadable.is_some() {
            return group.unreadable.clone();
        }
        // What the owner wants for its own reasons is told by these.
        let is_told = |wanted: &Move| {
            let is_of_other = wanted.to != self.me().gateway || wanted.refused.is_some();
            is_of_other && (!wanted.rescue || wanted.ready)
        };
        if let Some(wanted) = group.wanted.as_ref().filter(|wanted| is_told(wanted)) {
            let to = &wanted.to;
            if let Some(reason) = &wanted.refused {
                return Some(format!("{to} does not take it: {reason}"));
            }
            let ready = wanted.ready;
            return Some(match self.cannot_take(to).filter(|_| *to != self.me().gateway) {
                Some(RequestError::CannotTake(_, trouble)) => {
                    format!("it is to move to {to}, which cannot take it: {trouble}")
                }
                Some(_) => format!("it is to move to {to}, which is not available"),
                None if !ready => format!("it is to move to {to}, which is not ready yet"),
                None => format!("moves to {to} once its I/O has ended"),
            });
        }
        if group.phase >= Phase::Serving && self.shows_nothing() {
            let text = "hosts are shown that it is inaccessible, until the lease of this gateway is renewed and what was changed \
                        meanwhile is in force";
            return Some(text.to_string());
        }
        match (group.phase, entry_of_other(self, group)) {
            (Phase::Idle, Some(name)) if self.dead_since(name, group.seen).is_some() => {
                let first = self.others().filter(|other| {
                    crate::placement::weight(other, id) > crate::placement::weight(&self.me().gateway, id)
                });
                let first: alloc::vec::Vec<&str> = first.map(|other| other.as_str()).collect();
                Some(takers(name, &first))
            }
            (Phase::Idle, Some(name))
                if self.peers.get(name).is_some_and(|peer| peer.lease.boot().is_none()) =>
            {
                Some(format!(
                    "the lease of {name} has expired: it counts as dead in some seconds, unless it is renewed"
                ))
            }
            (Phase::Idle, Some(name)) if self.rests_at(name, id) => Some(format!(
                "{name} has lost it, and takes it again soon: `nvmf-target ctl cluster status` there says why it was lost"
            )),
            (Phase::Idle, Some(_)) if group.wanted.is_some() => group.trouble.clone(),
            (Phase::Idle, Some(_)) => self.why_not_whole(id),
            (Phase::Serving, _) if self.slow.contains(&id) => {
                let text =
                    "an image of it does not answer: neither balance nor what cannot be opened moves it";
                let lacks = self.why_not_whole(id).map(|why| format!("{why}; {text}"));
                lacks.or_else(|| Some(text.to_string()))
            }
            (Phase::Serving, _) => self.why_not_whole(id).or_else(|| {
                let text = "an operator has moved it here: balance leaves it";
                group.placed.then(|| text.to_string())
            }),
            (Phase::Idle, None) => {
                let rest = group.not_before.saturating_sub(now).as_secs();
                let trouble = group.trouble.as_ref()?;
                Some(if rest > 0 {
                    format!("{trouble}; it is tried again in {rest} s")
                } else {
                    trouble.clone()
                })
            }
            (Phase::Affirming, _) => {
                Some("its lease had lapsed: says that it is the owner still".to_string())
            }
            (Phase::Looking, _) => Some("sees whether its images can be opened here".to_string()),
            (Phase::Fencing, _) => Some("waits for the monitors to fence the owner before".to_string()),
            (Phase::Draining | Phase::Closing, _) => {
                let to = group.to.as_ref().map_or("nobody", GatewayName::as_str);
                Some(format!("moves to {to} once its I/O has ended"))
            }
            _ => group.trouble.clone(),
        }
    }
}

/// Who takes what a dead gateway had.
fn takers(dead: &GatewayName, first: &[&str]) -> String {
    match first {
        [] => format!("{dead} is dead; this gateway takes it"),
        [one] => format!("{dead} is dead; {one} takes it before this one"),
        more => format!("{dead} is dead; {} take it before this one", more.join(", ")),
    }
}

/// The holder of a group, if that is another gateway.
fn entry_of_other<'a>(gateway: &Gateway, group: &'a Group) -> Option<&'a GatewayName> {
    let name = &group.entry()?.holder()?.gateway;
    (*name != gateway.me().gateway).then_some(name)
}
