//! What must hold once nothing goes wrong any more.

use super::plan::secs;
use super::world::World;
use nvmf_cluster::{AnaState, GroupId, Object};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

impl World {
    /// Two gateways that run never have Controller IDs in common.
    pub(crate) fn on_range(&mut self, node: usize, range: Option<RangeInclusive<u16>>) -> Result<(), String> {
        let name = self.nodes[node].name.clone();
        let Some((first, last)) = range.map(RangeInclusive::into_inner) else {
            self.ranges.remove(&name);
            return Ok(());
        };
        let overlaps =
            |(other, (from, to)): (&String, &(u16, u16))| *other != name && first <= *to && *from <= last;
        if self.ranges.iter().any(overlaps) {
            return Err(format!("{name} gets Controller IDs {first} to {last}: {:?}", self.ranges));
        }
        self.ranges.insert(name, (first, last));
        Ok(())
    }

    /// Each group has one owner that lives, serves, and is the only one that says so; all gateways serve the configuration
    /// that is stored; hosts get answers.
    pub(crate) fn is_settled(&self) -> Result<(), String> {
        let map = self.objects.keys(&Object::Map);
        for group in (1..=self.plan.groups).map(GroupId) {
            let entry = map
                .get(&format!("group/{group}"))
                .and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
            let entry = entry.ok_or_else(|| format!("group {group} has no entry"))?;
            let boot = entry["by"]["boot"].as_str().unwrap_or_default();
            let live = self.nodes.iter().filter_map(|node| node.running.as_ref().filter(|_| node.is_live()));
            let shows = live.filter(|running| running.shown.get(&group) == Some(&AnaState::OPTIMIZED));
            let shows: Vec<_> = shows.map(|running| running.boot.0.as_str()).collect();
            if entry["state"] != "owned" || shows != [boot] {
                return Err(format!("group {group} is {entry}, and optimized at {shows:?}"));
            }
        }
        let stored = self.objects.keys(&Object::Configuration);
        // Operators have added each on the condition that no other item has it.
        let image = |bytes: &Vec<u8>| serde_json::from_slice::<Value>(bytes).ok()?["value"]["image"].as_u64();
        let mut images: Vec<u64> = stored.values().filter_map(image).collect();
        images.sort_unstable();
        if images.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("an image is there twice: {images:?}"));
        }
        let number =
            |bytes: &Vec<u8>| serde_json::from_slice::<Value>(bytes).ok()?["value"]["number"].as_u64();
        let stored: BTreeMap<_, _> = stored
            .iter()
            .filter_map(|(key, bytes)| Some((key.strip_prefix("item/")?.to_string(), number(bytes)?)))
            .collect();
        for node in &self.nodes {
            let Some(running) = &node.running else { continue };
            let applied = running.applied.iter();
            let applied: BTreeMap<_, _> = applied
                .filter_map(|(key, item)| Some((key.clone(), item.value["number"].as_u64()?)))
                .collect();
            if applied != stored {
                return Err(format!("{} serves {applied:?}, stored is {stored:?}", node.name));
            }
            let status = running.engine.status(node.clock(self.now));
            if status.state != "member" {
                return Err(format!("{} is {}: {:?}", node.name, status.state, status.why));
            }
        }
        self.is_changed(&stored)?;
        for slot in &self.slots {
            let pending = slot.pending.filter(|pending| self.now - pending.since > Self::SLOT_WAITS);
            if let Some(pending) = pending {
                let (group, block) = slot.block;
                return Err(format!(
                    "a command of group {group}, block {block} waits since {} s",
                    secs(pending.since)
                ));
            }
        }
        Ok(())
    }

    /// No change that was acknowledged is lost: each item is as its last such change, or one without an answer, says.
    fn is_changed(&self, stored: &BTreeMap<String, u64>) -> Result<(), String> {
        let mut last = BTreeMap::new();
        for (key, value) in self.changed.values() {
            last.insert(key, *value);
        }
        for (key, value) in last {
            let now = stored.get(key).copied().unwrap_or(0);
            if now != value && !self.unknown.contains(&(key.clone(), now)) {
                return Err(format!("{key} was changed to {value}, which was acknowledged, and is {now}"));
            }
        }
        Ok(())
    }

    /// The gateways that run and show a group optimized.
    pub(crate) fn shown(&self, group: u32) -> Vec<String> {
        let shows = |node: &&super::node::Node| {
            let shown = node.running.as_ref().and_then(|running| running.shown.get(&GroupId(group)));
            node.is_live() && shown == Some(&AnaState::OPTIMIZED)
        };
        self.nodes.iter().filter(shows).map(|node| node.name.clone()).collect()
    }

    /// No gateway has two groups more than another one.
    pub(crate) fn is_balanced(&self) -> Result<(), String> {
        let live = self.nodes.iter().filter(|node| node.is_live());
        let counts = live.filter_map(|node| {
            let shown = node.running.as_ref()?.shown.values();
            Some((node.name.clone(), shown.filter(|state| **state == AnaState::OPTIMIZED).count()))
        });
        let counts: BTreeMap<_, _> = counts.collect();
        let (most, least) = (counts.values().max().unwrap_or(&0), counts.values().min().unwrap_or(&0));
        if most - least > 1 { Err(format!("groups are not balanced: {counts:?}")) } else { Ok(()) }
    }
}
