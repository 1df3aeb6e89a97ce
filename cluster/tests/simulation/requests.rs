//! What the store does with requests.

use super::node::{Client, Command, Input};
use super::plan::{MS, SECOND, Time};
use super::process::describe;
use super::store::{Io, osd_of};
use super::world::{Event, From, World};
use nvmf_cluster::{Action, Address, GroupId, Handle, Locker, Object, OpId, Reply};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

impl World {
    pub(crate) fn on_request(
        &mut self,
        node: usize,
        life: u32,
        action: Action,
        from: From,
    ) -> Result<(), String> {
        // What hangs comes back some time after the trouble is over, in another order.
        let (object, monitor) = match &action {
            Action::Read { object, .. }
            | Action::CompareAndSet { object, .. }
            | Action::Lock { object, .. }
            | Action::ListLockers { object, .. }
            | Action::Unlock { object, .. } => (Some(object), false),
            _ => (None, true),
        };
        let mut until = object.map_or(0, |object| self.objects.stalled(object));
        if monitor {
            until = until.max(self.monitors.down_until);
        }
        if let Some(Object::Reservations(group)) = object {
            until = until.max(self.osds[osd_of((*group, 1000), self.osds.len())].stalled_until);
        }
        if until > self.now {
            let at = until + self.rng.below(2 * SECOND);
            self.at(at, Event::Request { node, life, action, from });
            return Ok(());
        }
        if from.fenced && from.epoch.is_none() {
            if let Some(op) = op_of(&action) {
                self.reply_to(node, life, op, Reply::Blocklisted);
            }
            return Ok(());
        }
        let (mut when_done, fails_until) =
            (Reply::Done, self.objects.full_until.max(self.objects.unclear_until));
        if let Action::CompareAndSet { op, .. } = action
            && self.now < fails_until
        {
            let is_done = self.now >= self.objects.full_until && self.rng.percent(40);
            if !is_done {
                self.reply_to(node, life, op, Reply::Failed("no space".into()));
                return Ok(());
            }
            when_done = Reply::Failed("timed out".into());
        }
        match action {
            Action::Read { op, object: object @ Object::Reservations(group), unless, .. } => {
                if self.is_refused(group, &from)? {
                    self.reply_to(node, life, op, Reply::Blocklisted);
                } else {
                    if let Some(carrier) = from.carrier {
                        self.loaded.insert(group, carrier);
                    }
                    let stored = number(self.objects.keys(&object).values().next());
                    let reserved = self.reserved.entry(group).or_default();
                    reserved.on_loaded(stored).map_err(|what| format!("group {group}: {what}"))?;
                    let reply = self.objects.read(&object, unless);
                    self.reply_to(node, life, op, reply);
                }
            }
            Action::CompareAndSet {
                op, object: object @ Object::Reservations(group), compare, set, ..
            } => {
                if self.is_refused(group, &from)? {
                    self.reply_to(node, life, op, Reply::Blocklisted);
                    return Ok(());
                }
                let before = self.objects.keys(&object);
                let done = self.objects.compare_and_set(&object, &compare, &set);
                if let Some((_, value)) = set.first().filter(|_| done) {
                    let (now, before) = (number(value.as_ref()), number(before.values().next()));
                    self.outcome.undone += u64::from(now < before);
                    let reserved = self.reserved.entry(group).or_default();
                    reserved.on_stored(now).map_err(|what| format!("group {group}: {what}"))?;
                }
                if done && from.carrier.is_some() && self.loaded.get(&group) != from.carrier.as_ref() {
                    let (by, now) = (from.carrier, self.loaded.get(&group));
                    return Err(format!(
                        "a reservation of group {group} is stored for {by:?}, which is not its owner any more: {now:?} is"
                    ));
                }
                self.reply_to(node, life, op, if done { when_done } else { Reply::Conflict });
            }
            Action::Read { op, object, unless, .. } => {
                let reply = self.objects.read(&object, unless);
                self.reply_to(node, life, op, reply);
            }
            Action::CompareAndSet { op, object, compare, set, .. } => {
                let before = self.objects.keys(&object);
                let done = self.objects.compare_and_set(&object, &compare, &set);
                if object == Object::Map {
                    self.say(|| {
                        format!(
                            "store: {} of gw{node} for {:?}",
                            if done { "done" } else { "conflict" },
                            set.first().map(|(key, _)| key)
                        )
                    });
                    if done {
                        self.check_entries(from.sent, &before, &set)?;
                        self.move_on(node, &before, &set);
                    }
                }
                self.reply_to(node, life, op, if done { when_done } else { Reply::Conflict });
            }
            Action::Lock { op, object, duration, .. } => {
                let by = Locker { cookie: from.boot, address: from.address };
                let reply = self.objects.lock(self.now, &object, by, duration.as_micros() as u64, from.wall);
                self.reply_to(node, life, op, reply);
            }
            Action::ListLockers { op, object } => {
                let (reply, stamp) = self.objects.lockers(self.now, &object);
                let after = self.delay(SECOND) + self.slowness(node);
                let cut = self.nodes[node].control_cut_until;
                self.send_to(node, life, after, cut, Input::Reply(op, reply, stamp));
            }
            Action::Unlock { object, cookie } => self.objects.unlock(&object, &cookie),
            Action::Blocklist { op, address, .. } => {
                self.fence(&address);
                self.reply_to(node, life, op, Reply::Done);
            }
            Action::Connect { op, handle, group } => {
                let nonce = self.number();
                let address = Address(format!("10.0.0.{}:0/{nonce}", node + 2));
                // The map may be that of a monitor which is behind.
                let behind = if self.rng.percent(50) { self.rng.below(6 * SECOND) } else { 0 };
                let epoch = self.monitors.epoch_at(self.now.saturating_sub(behind));
                self.say(|| format!("gw{node} {handle} of group {group} is {address}, with map {epoch}"));
                if self.nodes[node].life == life {
                    let client = Client {
                        address: address.clone(),
                        epoch,
                        in_flight: BTreeMap::new(),
                        has: BTreeMap::new(),
                        trusted: Duration::ZERO,
                        drain: None,
                    };
                    self.add_client(node, handle, client);
                }
                self.reply_to(node, life, op, Reply::Connected(address));
            }
            Action::WaitForLatestOsdmap { op, handle } => {
                let epoch = self.monitors.epoch;
                if self.nodes[node].life == life
                    && let Some(running) = self.nodes[node].running.as_mut()
                    && let Some(client) = running.clients.get_mut(&handle)
                {
                    client.epoch = client.epoch.max(epoch);
                }
                self.reply_to(node, life, op, Reply::Done);
            }
            other => return Err(format!("the store was sent {}", describe(&other))),
        }
        Ok(())
    }

    /// Whether the OSD with the reservations of a group refuses this client.
    fn is_refused(&mut self, group: GroupId, from: &From) -> Result<bool, String> {
        let Some(epoch) = from.epoch else { return Ok(false) };
        let osd = osd_of((group, 1000), self.osds.len());
        if self.osds[osd].refuses(&self.monitors, &from.address, epoch) {
            return Ok(true);
        }
        self.oracle.on_access(osd, group, &from.address)?;
        Ok(false)
    }

    /// OSDs learn of a fence each at its own time, some only from a client.
    pub(crate) fn fence(&mut self, address: &Address) {
        self.monitors.fence(self.now, address);
        let epoch = self.monitors.epoch;
        self.say(|| format!("monitors: map {epoch} fences {address}"));
        for osd in 0..self.osds.len() {
            if self.rng.percent(60) {
                let at = self.now + self.rng.below(6 * SECOND);
                self.at(at, Event::Map { osd, epoch });
            }
        }
    }

    fn check_entries(
        &mut self,
        sent: Time,
        before: &BTreeMap<String, Vec<u8>>,
        set: &[(String, Option<Vec<u8>>)],
    ) -> Result<(), String> {
        for (key, value) in set {
            let Some(group) = key.strip_prefix("group/").and_then(|id| id.parse().ok()).map(GroupId) else {
                continue;
            };
            let json = |bytes: &Vec<u8>| serde_json::from_slice::<Value>(bytes).ok();
            let (old, new) = (before.get(key).and_then(json), value.as_ref().and_then(json));
            let new = new.ok_or_else(|| format!("{key} is no JSON"))?;
            self.oracle.on_entry(sent, group, old.as_ref(), &new)?;
            self.reserved.entry(group).or_default().is_drained |= new["state"] == "free";
        }
        Ok(())
    }

    pub(crate) fn on_io(
        &mut self,
        node: usize,
        life: u32,
        handle: Handle,
        id: u64,
        io: Io,
        command: Command,
    ) -> Result<(), String> {
        let at = osd_of(io.block, self.osds.len());
        let until = self.osds[at].stalled_until.max(self.objects.stalled_until);
        if until > self.now {
            let at = until + self.rng.below(SECOND);
            self.at(at, Event::Io { node, life, handle, id, io, command });
            return Ok(());
        }
        let result = io.carry_out(&mut self.osds, &self.monitors, &mut self.oracle)?;
        self.say(|| {
            let (group, block) = io.block;
            let what = result.map_or("refused".into(), |number| format!("is {number}"));
            format!("osd.{at}: {:?} of group {group} block {block} by {}: {what}", io.access, io.client)
        });
        // The reply brings a newer map.
        let epoch = self.osds[at].epoch;
        if self.nodes[node].life == life
            && let Some(running) = self.nodes[node].running.as_mut()
            && let Some(client) = running.clients.get_mut(&handle)
        {
            client.epoch = client.epoch.max(epoch);
        }
        let after = self.delay(300 * MS);
        let cut = self.nodes[node].data_cut_until;
        self.send_to(node, life, after, cut, Input::Io { handle, io: id, command, result });
        Ok(())
    }
}

/// The number of a reservation.
fn number(bytes: Option<&Vec<u8>>) -> u64 {
    let value: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
    value.and_then(|value| value["value"].as_u64()).unwrap_or(0)
}

fn op_of(action: &Action) -> Option<OpId> {
    match action {
        Action::Read { op, .. }
        | Action::CompareAndSet { op, .. }
        | Action::Lock { op, .. }
        | Action::ListLockers { op, .. }
        | Action::Blocklist { op, .. }
        | Action::Connect { op, .. }
        | Action::WaitForLatestOsdmap { op, .. } => Some(*op),
        _ => None,
    }
}
