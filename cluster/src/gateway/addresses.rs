//! Addresses that another gateway has as well. Discovery tells hosts of each once, so they reach one of the two, and wait for
//! ever for the ANA groups of the other.

use super::Gateway;
use super::membership::Peer;
use crate::action::Keys;
use crate::registry::{Record, places};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

/// Whether this gateway may be a member, as far as its addresses are concerned.
pub(super) enum Admission {
    /// Hosts reach it, as long as these records stay as they are.
    Free(Keys),
    /// Whether another one that has them is there, and stays, is not known yet.
    Unknown(Option<String>),
    /// Each is that of another one, which was there before.
    Taken(String),
}

/// Another gateway that has such an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rival {
    /// Since when it has been seen.
    since: Duration,
    /// It is no former run of this one, which would have ended by then.
    stays: bool,
}

impl Gateway {
    /// Whether hosts reach this gateway, and not another one that was there before. A former run of this one under another name
    /// goes by itself; what has stayed for longer does not make way while it restarts.
    pub(super) fn admission(&mut self, now: Duration) -> Admission {
        let own: BTreeSet<&str> = places(&self.identity.addresses).collect();
        let is_shared = |peer: &Peer| own.iter().any(|place| has(peer, place));
        let is_there = |peer: &Peer| is_shared(peer) && is_run_of_record(peer);
        let lasts = self.timing.lease + self.timing.settle;
        let rivals = &mut self.own.rivals;
        rivals.retain(|name, rival| {
            let peer = self.peers.get(name);
            peer.is_some_and(|peer| is_there(peer) || rival.stays && is_shared(peer))
        });
        for (name, _) in self.peers.iter().filter(|(_, peer)| is_there(peer)) {
            let rival = rivals.entry(name.clone()).or_insert(Rival { since: now, stays: false });
            rival.stays |= now.saturating_sub(rival.since) > lasts;
        }
        // Who has none for disks is reached nowhere, and who has one that no other has is reached there.
        let (mut is_free, mut is_known, mut taken) = (own.is_empty(), true, None);
        for place in &own {
            let mut sharers = self.peers.iter().filter(|(_, peer)| has(peer, place));
            if let Some((name, rival)) =
                rivals.iter().find(|(name, _)| self.peers.get(*name).is_some_and(|peer| has(peer, place)))
            {
                is_known &= rival.stays;
                taken = taken.or(Some((place, name)));
            } else if sharers.all(|(_, peer)| peer.lease.was_looked_at(peer.run_seen)) {
                is_free = true;
            } else {
                is_known = false;
            }
        }
        match taken {
            _ if is_free => {
                // Who starts at the same time may be about to write that it has them.
                let starting = self.peers.iter().filter(|(_, peer)| !is_run_of_record(peer));
                let stored = |peer: &Peer| peer.is_registered().then(|| peer.stored.clone());
                Admission::Free(starting.map(|(name, peer)| (Record::key(name), stored(peer))).collect())
            }
            Some((place, name)) if is_known => {
                let runs = self.peers.get(name).is_some_and(is_there);
                let away =
                    if runs { String::new() } else { format!("{name} is away, and keeps its place; ") };
                Admission::Taken(format!(
                    "hosts reach gateway {name} at {place}, and not this one: {away}correct [cluster] addresses, or the listener, in \
                     this gateway's file or in that one's, and restart it. If {name} is gone for good: `nvmf-target ctl cluster \
                     remove {name}` at another gateway, or restart this one"
                ))
            }
            Some((place, name)) => Admission::Unknown(Some(format!(
                "hosts reach gateway {name} at {place}: waits whether it stays"
            ))),
            None => Admission::Unknown(None),
        }
    }

    /// Where hosts are to reach both this gateway and another one that is there.
    pub(super) fn shared_with(&self, peer: &Peer) -> Vec<String> {
        let is_there = peer.lease.boot().is_some();
        let both = places(&self.identity.addresses).filter(|place| is_there && has(peer, place));
        both.map(ToString::to_string).collect()
    }
}

fn has(peer: &Peer, place: &str) -> bool {
    peer.record.as_ref().is_some_and(|record| places(&record.addresses).any(|it| it == place))
}

/// Whether it has the lease that wrote the record: one that has just started has not said yet where hosts reach it.
pub(super) fn is_run_of_record(peer: &Peer) -> bool {
    let record = peer.record.as_ref();
    record.is_some_and(|record| peer.lease.boot() == Some(&record.process.boot))
}
