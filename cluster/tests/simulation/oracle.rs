//! What must hold, whatever happens.

use super::plan::Time;
use super::plan::{SECOND, secs};
use nvmf_cluster::{Address, GroupId};
use serde_json::Value;
use std::collections::BTreeMap;

/// After its trouble a gateway may be found dead for so long.
const TROUBLED: Time = 25 * SECOND;

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// The generation with which each address became a group's owner.
    owners: BTreeMap<(GroupId, Address), u64>,
    /// The newest of these that an OSD had a request from.
    newest: BTreeMap<(usize, GroupId), u64>,
    /// Until when each gateway has trouble of its own.
    trouble: BTreeMap<String, Time>,
    pub(crate) takeovers: u64,
    pub(crate) moves: u64,
}

fn text<'a>(entry: &'a Value, path: &str) -> &'a str {
    entry.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

impl Oracle {
    pub(crate) fn on_trouble(&mut self, gateway: &str, until: Time) {
        let known = self.trouble.entry(gateway.to_string()).or_default();
        *known = until.max(*known);
    }

    /// An OSD carries out a request. One writer per group: after the first request of an owner there is none of an
    /// earlier one, and none of an address that never was an owner's.
    pub(crate) fn on_access(&mut self, osd: usize, group: GroupId, client: &Address) -> Result<(), String> {
        let Some(&generation) = self.owners.get(&(group, client.clone())) else {
            return Err(format!("I/O of group {group} by {client}, which does not stand in the map"));
        };
        let newest = self.newest.entry((osd, group)).or_default();
        if generation < *newest {
            return Err(format!(
                "two writers of group {group}: osd.{osd} carries out I/O of {client} (generation {generation}) after \
                 I/O of the owner with generation {newest}"
            ));
        }
        *newest = generation;
        Ok(())
    }

    /// An entry of the map is replaced, by a request that was sent then.
    pub(crate) fn on_entry(
        &mut self,
        sent: Time,
        group: GroupId,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), String> {
        let state = text(new, "/state");
        if state == "owned" {
            let generation = new["generation"].as_u64().unwrap_or_default();
            self.owners.insert((group, Address(text(new, "/address").to_string())), generation);
        }
        let Some(old) = old.filter(|old| text(old, "/state") == "owned") else { return Ok(()) };
        let (from, by) = (text(old, "/by/gateway"), text(new, "/by/gateway"));
        match state {
            "taking" if text(new, "/fence") != text(old, "/address") => {
                Err(format!("the address of group {group}'s owner is forgotten: {old} becomes {new}"))
            }
            "taking" => {
                self.takeovers += 1;
                let trouble = self.trouble.get(from).copied().unwrap_or(0) + TROUBLED;
                if from != by && trouble < sent {
                    let last = secs(trouble.saturating_sub(TROUBLED));
                    return Err(format!(
                        "{by} fences {from} for group {group}, which had no trouble of its own since {last} s"
                    ));
                }
                Ok(())
            }
            "free" => {
                self.moves += 1;
                Ok(())
            }
            "owned" if new["by"] == old["by"] && new["address"] == old["address"] => Ok(()),
            "owned" => Err(format!("group {group} has two owners: {old} becomes {new}")),
            _ => Ok(()),
        }
    }
}

/// What hosts and the owner know of a group's reservation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reserved {
    /// The newest that a host was told of.
    acknowledged: u64,
    /// What the owner has read, or told a host of since.
    known: u64,
    /// It was given away since, drained.
    pub(crate) is_drained: bool,
}

impl Reserved {
    /// A former owner may be late with it.
    pub(crate) fn on_told(&mut self, number: u64) {
        (self.acknowledged, self.known) = (self.acknowledged.max(number), self.known.max(number));
    }

    /// An owner stores this. What was not acknowledged in time is undone.
    pub(crate) fn on_stored(&self, number: u64) -> Result<(), String> {
        match self.acknowledged {
            newer if number < newer => Err(format!("{number} replaces the newer reservation {newer}")),
            _ => Ok(()),
        }
    }

    /// The next owner reads this.
    pub(crate) fn on_loaded(&mut self, number: u64) -> Result<(), String> {
        if core::mem::take(&mut self.is_drained) && number != self.known {
            return Err(format!("a planned move has put {number} into effect: {} was so before", self.known));
        }
        self.known = number;
        Ok(())
    }
}

/// What a host knows of a block of its own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known {
    /// The newest number that was acknowledged, or read.
    pub(crate) seen: u64,
    /// The newest number that was sent.
    pub(crate) sent: u64,
}

impl Known {
    /// A read that was sent when `seen` was so has this result.
    pub(crate) fn on_read(&mut self, seen: u64, number: u64) -> Result<(), String> {
        if number < seen || number > self.sent {
            return Err(format!(
                "a read gives {number}: {seen} was acknowledged or read before it was sent, {} sent last",
                self.sent
            ));
        }
        self.seen = self.seen.max(number);
        Ok(())
    }
}
