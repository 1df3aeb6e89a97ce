//! Faults, and what operators do.

use super::node::{Input, Node};
use super::plan::{Fault, MS, SECOND, Time};
use super::world::{Event, World};
use nvmf_cluster::action::Keys;
use nvmf_cluster::configuration::{Change, Condition, Item};
use nvmf_cluster::{GatewayName, GroupId, Object};
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl World {
    pub(crate) fn on_fault(&mut self, index: usize) {
        let planned = self.plan.faults[index];
        let until = planned.at + planned.lasts;
        self.say(|| format!("*** {planned}"));
        self.count(planned.fault.name());
        if let Some(victim) = planned.fault.victim(self.plan.nodes) {
            let forever = matches!(planned.fault, Fault::Crash { again: false, .. });
            let name = self.nodes[victim].name.clone();
            self.oracle.on_trouble(&name, if forever { Time::MAX / 2 } else { until });
        }
        match planned.fault {
            Fault::Stop { node } => {
                if let Some(running) = &mut self.nodes[node].running {
                    running.stopped = true;
                }
            }
            Fault::Crash { node, again } => {
                self.nodes[node].gone |= !again;
                self.kill(node);
            }
            Fault::Cut { node, control, data, hosts } => {
                let node = &mut self.nodes[node];
                let cut = |now: &mut Time, is: bool| longest(now, if is { until } else { 0 });
                cut(&mut node.control_cut_until, control);
                cut(&mut node.data_cut_until, data);
                cut(&mut node.hosts_cut_until, hosts);
            }
            Fault::Unable { node, how } => self.nodes[node].unable = Some((how, until)),
            Fault::Slow { node } => longest(&mut self.nodes[node].slow_until, until),
            Fault::Stall => longest(&mut self.objects.stalled_until, until),
            Fault::StallObject { object } => {
                let object = match object {
                    0 => Object::Map,
                    1 => Object::Configuration,
                    2 => Object::Gateways,
                    node => Object::Lease(self.name(node - 3)),
                };
                longest(self.objects.object_stalled_until.entry(object).or_default(), until);
            }
            Fault::StallOsd { osd } => longest(&mut self.osds[osd].stalled_until, until),
            Fault::Full => longest(&mut self.objects.full_until, until),
            Fault::Unclear => longest(&mut self.objects.unclear_until, until),
            Fault::Monitor => longest(&mut self.monitors.down_until, until),
            Fault::Leave { node } => self.leave(node),
            Fault::Twin { node } => {
                let name = self.nodes[node].name.clone();
                self.nodes.push(Node::new(name, 0, 0));
                self.start(self.nodes.len() - 1);
            }
            Fault::Fence { node } => {
                let clients = self.nodes[node].running.iter().flat_map(|running| running.clients.values());
                let addresses: Vec<_> = clients.map(|client| client.address.clone()).collect();
                addresses.iter().for_each(|address| self.fence(address));
            }
            Fault::FenceControl { node } => {
                if let Some(running) = &mut self.nodes[node].running {
                    running.control_fenced = true;
                }
            }
            Fault::Edit { node, key } => self.edit(node, key),
            Fault::Move { node, group, to } => {
                let (clock, to) = (self.nodes[node].clock(self.now), self.name(to));
                if let Some(running) = self.nodes[node].running.as_mut().filter(|running| !running.stopped) {
                    running.engine.move_group(clock, GroupId(group), &to);
                    self.pump(node);
                }
            }
        }
    }

    /// An operator moves a group on that was just taken over. Its owner gives it away before any host has used it, so
    /// most OSDs have heard nothing from that owner.
    pub(crate) fn move_on(&mut self, node: usize, before: &BTreeMap<String, Vec<u8>>, set: &Keys) {
        if self.calm || !self.plan.moves_on {
            return;
        }
        let json = |bytes: &Vec<u8>| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
        for (key, value) in set {
            let (old, new) = (before.get(key).map(json), value.as_ref().map(json));
            let was_fenced = old.is_some_and(|old| old["fence"].is_string());
            let id = key.strip_prefix("group/").and_then(|id| id.parse().ok()).map(GroupId);
            let Some(id) = id.filter(|_| was_fenced && new.is_some_and(|new| new["state"] == "owned")) else {
                continue;
            };
            let to = (0..self.plan.nodes).find(|&to| to != node && self.nodes[to].is_live());
            let (clock, to) = (self.nodes[node].clock(self.now), to.map(|to| self.name(to)));
            if let (Some(running), Some(to)) = (self.nodes[node].running.as_mut(), to) {
                running.engine.move_group(clock, id, &to);
                self.pump(node);
            }
        }
    }

    pub(crate) fn on_fault_end(&mut self, index: usize) {
        match self.plan.faults[index].fault {
            Fault::Stop { node } => self.wake(node),
            Fault::Crash { node, .. } => self.start_again(node),
            Fault::Leave { node } => {
                self.kill(node);
                self.start_again(node);
            }
            Fault::Unable { node, .. } => self.opens_all(node),
            Fault::Twin { .. } => (self.plan.nodes..self.nodes.len()).for_each(|twin| self.kill(twin)),
            _ => {}
        }
    }

    /// No fault goes on.
    pub(crate) fn heal(&mut self) {
        self.say(|| "*** no more faults".into());
        self.calm = true;
        for node in 0..self.nodes.len() {
            if node >= self.plan.nodes {
                self.kill(node);
            } else {
                self.wake(node);
                self.opens_all(node);
                self.start_again(node);
            }
        }
    }

    /// It can open again what it could not.
    fn opens_all(&mut self, node: usize) {
        let life = self.nodes[node].life;
        if let Some(running) = self.nodes[node].running.as_mut() {
            running.lacks.clear();
        }
        self.send_to(node, life, MS, 0, Input::Unopened);
    }

    fn name(&self, node: usize) -> GatewayName {
        GatewayName::new(&self.nodes[node].name).expect("a name")
    }

    fn kill(&mut self, node: usize) {
        if self.nodes[node].running.take().is_some() {
            self.say(|| format!("gw{node} dies"));
            self.nodes[node].life += 1;
            let name = self.nodes[node].name.clone();
            self.ranges.remove(&name);
        }
    }

    fn start_again(&mut self, node: usize) {
        if self.nodes[node].running.is_none() && !self.nodes[node].gone {
            self.start(node);
        }
    }

    /// It finds all that has come meanwhile.
    fn wake(&mut self, node: usize) {
        let life = self.nodes[node].life;
        let Some(running) = self.nodes[node].running.as_mut() else { return };
        if !core::mem::take(&mut running.stopped) {
            return;
        }
        let inbox: Vec<Input> = running.inbox.drain(..).collect();
        self.say(|| format!("gw{node} goes on, finds {} messages", inbox.len()));
        // Workers and the engine have threads of their own: either may be the first to go on.
        let engine_after = if self.rng.percent(50) { self.rng.below(5 * MS) } else { 0 };
        for (after, input) in inbox.into_iter().enumerate() {
            let of_worker = matches!(input, Input::Command(_) | Input::Io { .. });
            let after = 10 * after as u64 + if of_worker { 0 } else { engine_after };
            self.at(self.now + after, Event::Process { node, life, input });
        }
    }

    fn leave(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        if let Some(running) = self.nodes[node].running.as_mut().filter(|running| !running.stopped) {
            running.engine.stop(clock);
            self.pump(node);
        }
    }

    /// An operator changes an item, and sometimes several do at once, at different gateways.
    fn edit(&mut self, node: usize, key: u8) {
        let nodes = if self.rng.percent(60) { 0..self.plan.nodes } else { node..node + 1 };
        for node in nodes {
            let (value, broken, versioned) = (self.number(), self.rng.percent(15), self.rng.percent(30));
            let key = format!("item{}", if self.rng.percent(50) { u64::from(key) } else { value % 4 });
            let clock = self.nodes[node].clock(self.now);
            let Some(running) = self.nodes[node].running.as_mut().filter(|running| !running.stopped) else {
                continue;
            };
            let known = running.engine.configuration().items().get(&key).map_or(0, |item| item.version);
            // Some have an image, which no other is to have.
            let image = (value % 2 == 0).then_some(value / 2 % 4);
            let change = Change {
                key: key.clone(),
                value: Some(json!({ "number": value, "broken": broken, "image": image })),
                expect: versioned.then_some(known),
            };
            let own = key.clone();
            let is_free = move |items: &BTreeMap<String, Item>| {
                let mut others = items.iter().filter(|(key, _)| **key != own);
                let is_taken = image.is_some() && others.any(|(_, item)| item.value["image"] == json!(image));
                if is_taken { Err("it is taken".to_owned()) } else { Ok(()) }
            };
            let condition = image.map(|_| Condition::new(is_free));
            let request = running.engine.edit_if(clock, vec![change], condition);
            running.requests.insert(request, (key.clone(), value));
            self.unknown.push((key, value));
            self.pump(node);
        }
    }

    /// A change has an answer: the version that it came with.
    pub(crate) fn on_changed(&mut self, key: String, value: u64, version: Option<u64>) -> Result<(), String> {
        let Some(version) = version else { return Ok(()) };
        self.outcome.changes += 1;
        self.unknown.retain(|change| *change != (key.clone(), value));
        match self.changed.insert(version, (key.clone(), value)) {
            Some(other) => {
                Err(format!("two changes have version {version}: {other:?} and {:?}", (key, value)))
            }
            None => Ok(()),
        }
    }

    /// Which steps this fault meets.
    fn count(&mut self, fault: &'static str) {
        for node in &self.nodes {
            let Some(running) = &node.running else { continue };
            for group in running.engine.status(node.clock(self.now)).groups.into_values() {
                *self.outcome.coverage.entry((fault, group.here)).or_default() += 1;
            }
        }
    }

    /// What waits longest for its next command.
    pub(crate) const SLOT_WAITS: Time = 6 * SECOND;
}

/// Of two troubles of one thing, the later end counts.
fn longest(known: &mut Time, until: Time) {
    *known = until.max(*known);
}
