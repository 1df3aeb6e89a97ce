//! What a gateway's process does with what reaches it: what the daemon does around the engine.

use super::mistakes::Mistake;
use super::node::{Client, Command, Input, Node};
use super::plan::{MS, SECOND, Time, Unable};
use super::store::{Access, Io};
use super::world::{Event, From, World};
use nvmf_cluster::{Action, AnaState, Handle, Lack, Object, Reply, Unopened, Via};
use serde_json::json;

impl World {
    pub(crate) fn start(&mut self, node: usize) {
        let (nonce, mistake, groups, now) = (self.number(), self.mistake, self.plan.groups, self.now);
        self.nodes[node].start(now, nonce, groups, mistake);
        self.say(|| format!("gw{node} starts: boot {nonce}"));
        self.pump(node);
    }

    /// Something reaches a process. A stopped one finds it when it goes on.
    pub(crate) fn on_input(&mut self, node: usize, life: u32, input: Input) -> Result<(), String> {
        if self.nodes[node].life != life {
            return Ok(());
        }
        let clock = self.nodes[node].clock(self.now);
        let wall = self.nodes[node].wall(self.now);
        let Some(running) = self.nodes[node].running.as_mut() else { return Ok(()) };
        if running.stopped {
            running.inbox.push_back(input);
            return Ok(());
        }
        match input {
            Input::Act(action) => return self.act(node, action),
            Input::Reply(op, reply, stamp) => {
                let reply = running.decorator.on_reply(reply, wall, stamp);
                running.engine.on_reply(clock, op, reply);
            }
            Input::Notified(object) => {
                running.decorator.on_notified(&object);
                running.engine.on_notified(clock, &object);
            }
            Input::Unopened => running.engine.set_unopened(clock, running.lacks.clone()),
            Input::Timer(timer) if timer == running.timer => {
                running.timeout = None;
                running.engine.on_timeout(clock);
            }
            Input::Timer(_) => return Ok(()),
            Input::Command(command) => self.on_command(node, command),
            Input::Io { handle, io, command, result } => self.on_io_done(node, handle, io, command, result),
        }
        self.pump(node);
        Ok(())
    }

    /// Takes the engine's actions. The process carries each out a moment later, unless it is stopped or dies in between.
    pub(crate) fn pump(&mut self, node: usize) {
        let life = self.nodes[node].life;
        let Some(running) = self.nodes[node].running.as_mut() else { return };
        let actions: Vec<Action> = std::iter::from_fn(|| running.engine.poll_action()).collect();
        // A timer that is set already is enough.
        let timeout = running.engine.poll_timeout().filter(|timeout| running.timeout != Some(*timeout));
        if timeout.is_some() {
            (running.timer, running.timeout) = (running.timer + 1, timeout);
        }
        let timer = running.timer;
        let mut at = self.now;
        for action in actions {
            at += 1 + self.rng.below(20);
            self.at(at, Event::Process { node, life, input: Input::Act(action) });
        }
        if let Some(timeout) = timeout {
            let at = self.nodes[node].when(timeout).max(self.now + 1) + self.rng.below(2 * MS);
            self.at(at, Event::Process { node, life, input: Input::Timer(timer) });
        }
    }

    fn act(&mut self, node: usize, action: Action) -> Result<(), String> {
        let life = self.nodes[node].life;
        let Some(running) = self.nodes[node].running.as_mut() else { return Ok(()) };
        let outcome = running.decorator.on_action(action);
        for (after, op, reply) in outcome.replies {
            self.send_to(node, life, after, 0, Input::Reply(op, reply, None));
        }
        match outcome.carried_out {
            Some((after, action)) => self.carry_out(node, after, action),
            None => Ok(()),
        }
    }

    fn carry_out(&mut self, node: usize, after: Time, action: Action) -> Result<(), String> {
        let life = self.nodes[node].life;
        let text = matches!(
            action,
            Action::CompareAndSet { object: Object::Map, .. }
                | Action::Blocklist { .. }
                | Action::Connect { .. }
                | Action::WaitForLatestOsdmap { .. }
                | Action::LookAtImages { .. }
                | Action::OpenImages { .. }
                | Action::SetAna { .. }
                | Action::Drain { .. }
                | Action::Shutdown { .. }
                | Action::UseControllerIds { .. }
                | Action::Stopped
        );
        if text {
            self.say(|| format!("gw{node} {}", describe(&action)));
        }
        let local = 50 + self.rng.below(MS);
        let unable = self.nodes[node].unable.filter(|(_, until)| *until > self.now).map(|(how, _)| how);
        let Some(running) = self.nodes[node].running.as_mut() else { return Ok(()) };
        match action {
            Action::Trust { handle, until } => {
                if let Some(client) = running.clients.get_mut(&handle) {
                    client.trusted = until;
                }
            }
            Action::Admit { until } => running.admits_until = until,
            Action::SetAna { group, state } => {
                running.shown.insert(group, state);
            }
            Action::OpenImages { op, handle, group } if unable == Some(Unable::Open) => {
                running.unopened.insert(group, handle);
                running.lacks.insert(group, lacks(unable));
                self.send_to(node, life, 5 * MS, 0, Input::Unopened);
                let reply = Reply::Failed("none of its images can be opened".into());
                self.send_to(node, life, 5 * MS, 0, Input::Reply(op, reply, None));
            }
            Action::LookAtImages { op, .. } if unable == Some(Unable::OneHangs) => {
                let reply = Reply::Unopened([lack(0, "it did not open")].into());
                self.send_to(node, life, 10 * SECOND, 0, Input::Reply(op, reply, None));
            }
            Action::LookAtImages { op, .. } => {
                let lacks = lacks(unable);
                let reply = if lacks.is_empty() { Reply::Done } else { Reply::Unopened(lacks) };
                let after = 2 * MS + self.rng.below(40 * MS);
                self.send_to(node, life, after, 0, Input::Reply(op, reply, None));
            }
            Action::Connect { .. } if unable == Some(Unable::Hang) => {}
            Action::Blocklist { op, .. } if unable == Some(Unable::Fence) => {
                self.refused_fences += 1;
                let reply = Reply::Failed("permission denied".into());
                self.send_to(node, life, 5 * MS, 0, Input::Reply(op, reply, None));
            }
            Action::Connect { op, .. } if unable == Some(Unable::Connect) => {
                let reply = Reply::Failed("permission denied".into());
                self.send_to(node, life, 5 * MS, 0, Input::Reply(op, reply, None));
            }
            Action::OpenImages { op, handle, group } => {
                running.open.insert(group, handle);
                let hangs = if unable == Some(Unable::OneHangs) { 1300 * MS } else { 0 };
                let after = 2 * MS + self.rng.below(40 * MS) + hangs;
                running.lacks.insert(group, lacks(unable));
                self.send_to(node, life, after, 0, Input::Unopened);
                self.send_to(node, life, after, 0, Input::Reply(op, Reply::Done, None));
            }
            Action::Drain { op, handle, group } => {
                if let Some(client) = running.clients.get_mut(&handle) {
                    client.drain = Some((op, group));
                }
                self.finish_drain(node, handle);
            }
            Action::Shutdown { op, handle } => {
                running.open.retain(|_, open| *open != handle);
                running.clients.remove(&handle);
                self.send_to(node, life, local, 0, Input::Reply(op, Reply::Done, None));
            }
            Action::Converge { op } => {
                running.applied = running.engine.configuration().items().clone();
                let broken = running.applied.iter().filter(|(_, item)| item.value["broken"] == true);
                let broken = broken.map(|(key, _)| (key.clone(), "it is broken".to_string())).collect();
                let after = 10 * MS + self.rng.below(200 * MS);
                self.send_to(node, life, after, 0, Input::Reply(op, Reply::Converged(broken), None));
            }
            Action::UseControllerIds { range } => {
                running.range.clone_from(&range);
                return self.on_range(node, range);
            }
            Action::Answer { request, result } => {
                if let Some(command) = running.storing.remove(&request) {
                    let Access::Write(number) = command.access else { return Ok(()) };
                    let handle = running.open.get(&command.block.0).copied();
                    if result.is_ok() {
                        self.reserved.entry(command.block.0).or_default().on_told(number);
                    }
                    self.answer(node, command, result.ok().map(|_| number));
                    handle.into_iter().for_each(|handle| self.finish_drain(node, handle));
                } else if let Some((key, value)) = running.requests.remove(&request) {
                    return self.on_changed(key, value, result.ok());
                }
            }
            Action::ReconnectControl { op } => {
                running.control = nvmf_cluster::Address(format!("10.0.0.1:0/{}", self.numbers + 1));
                running.control_fenced = false;
                self.numbers += 1;
                self.send_to(node, life, 5 * MS, 0, Input::Reply(op, Reply::Done, None));
            }
            Action::Stopped => {
                self.nodes[node].running = None;
                let name = self.nodes[node].name.clone();
                self.ranges.remove(&name);
            }
            Action::Notify { object } => self.notify(node, &object),
            action => self.request(node, life, after, action),
        }
        Ok(())
    }

    /// Some notifications are late, some are lost.
    fn notify(&mut self, from: usize, object: &Object) {
        for node in 0..self.nodes.len() {
            let (life, cut) = (self.nodes[node].life, self.nodes[node].control_cut_until);
            let cut = cut.max(self.nodes[from].control_cut_until);
            if node == from || cut > self.now || self.rng.percent(20) {
                continue;
            }
            let after = if self.rng.percent(10) { self.rng.below(10 * SECOND) } else { self.delay(SECOND) };
            self.send_to(node, life, after, 0, Input::Notified(object.clone()));
        }
    }

    /// Sends a request to the store.
    fn request(&mut self, node: usize, life: u32, after: Time, action: Action) {
        let wall = self.nodes[node].wall(self.now);
        let delay = self.delay(Node::LATE / 2);
        let slow = self.slowness(node);
        let Some(running) = self.nodes[node].running.as_ref() else { return };
        let mut from = From {
            boot: running.boot.clone(),
            address: running.control.clone(),
            fenced: running.control_fenced,
            epoch: None,
            carrier: None,
            wall,
            sent: self.now,
        };
        // The monitors are asked through the new client.
        if matches!(action, Action::Blocklist { .. }) {
            from.fenced = false;
        }
        let mut cut = self.nodes[node].control_cut_until;
        if let Action::Read { via, object, .. } | Action::CompareAndSet { via, object, .. } = &action {
            if let Object::Reservations(group) = object {
                let handle = running.open.get(group).copied();
                let client =
                    |handle: &Handle| running.clients.get(handle).map(|client| client.address.clone());
                from.carrier = handle.as_ref().and_then(client);
            }
            if let Via::Handle(handle) = via {
                let Some(client) = running.clients.get(handle) else { return };
                (from.address, from.epoch) = (client.address.clone(), Some(client.epoch));
                from.carrier = Some(client.address.clone());
                cut = self.nodes[node].data_cut_until;
            }
        }
        let at = self.past(self.now + after + delay + slow, cut);
        self.at(at, Event::Request { node, life, action, from });
    }

    /// A host's command. Where the group is not optimized it is refused, so that the host tries another path.
    fn on_command(&mut self, node: usize, command: Command) {
        let life = self.nodes[node].life;
        let group = command.block.0;
        let clock = self.nodes[node].clock(self.now);
        let is_able = self.nodes[node].unable.is_none_or(|(_, until)| until <= self.now);
        let Some(running) = self.nodes[node].running.as_mut() else { return };
        // What could not be opened is tried again and again.
        if let Some(handle) = running.unopened.get(&group).filter(|_| is_able).copied()
            && running.clients.contains_key(&handle)
        {
            running.unopened.remove(&group);
            running.open.insert(group, handle);
        }
        let optimized = running.shown.get(&group) == Some(&AnaState::OPTIMIZED);
        let Some(handle) = running.open.get(&group).copied().filter(|_| optimized) else {
            return self.answer(node, command, None);
        };
        if command.reservation {
            let Access::Write(number) = command.access else { return self.answer(node, command, None) };
            let request = running.engine.store_reservation(clock, group, "1", Some(&json!(number)));
            running.storing.insert(request, command);
            return;
        }
        self.numbers += 1;
        let id = self.numbers;
        let Some(client) = running.clients.get_mut(&handle) else { return };
        // The target holds a host back while what it sent before, over a connection that is lost, is still under way.
        if command.access != Access::Read && client.in_flight.values().any(|slot| *slot == command.slot) {
            return self.answer(node, command, None);
        }
        client.in_flight.insert(id, command.slot);
        // What it knows by itself it answers by itself, and no OSD refuses that.
        if let (Access::Read, Some(&number)) = (command.access, client.has.get(&command.block))
            && self.rng.percent(50)
        {
            let after = 50 + self.rng.below(MS);
            let result = Some(number);
            return self.send_to(node, life, after, 0, Input::Io { handle, io: id, command, result });
        }
        let io = Io {
            client: client.address.clone(),
            epoch: client.epoch,
            block: command.block,
            access: command.access,
        };
        // Now and then one hangs in a network or a queue, long enough for another owner to be there before it.
        let hanging = if self.plan.moves_on { 10 } else { 1 };
        let late = if !self.calm && self.rng.below(100) < hanging {
            self.rng.below(15 * SECOND)
        } else {
            self.delay(SECOND)
        };
        let cut = self.nodes[node].data_cut_until;
        let at = self.past(self.now + late, cut);
        self.at(at, Event::Io { node, life, handle, id, io, command });
    }

    fn on_io_done(&mut self, node: usize, handle: Handle, io: u64, command: Command, result: Option<u64>) {
        let clock = self.nodes[node].clock(self.now);
        let Some(running) = self.nodes[node].running.as_mut() else { return };
        let mut trusted = self.mistake == Some(Mistake::EverTrusted);
        if let Some(client) = running.clients.get_mut(&handle) {
            client.in_flight.remove(&io);
            client.has.extend(result.map(|number| (command.block, number)));
            trusted |= clock < client.trusted;
        }
        self.finish_drain(node, handle);
        if result.is_none()
            && let Some(running) = self.nodes[node].running.as_mut()
        {
            running.engine.on_fenced(clock, handle);
        }
        self.answer(node, command, result.filter(|_| trusted));
    }

    /// A drain has ended once nothing is in flight, neither I/O nor what hosts want of reservations.
    fn finish_drain(&mut self, node: usize, handle: Handle) {
        let life = self.nodes[node].life;
        let Some(running) = self.nodes[node].running.as_mut() else { return };
        let Some(client) = running.clients.get_mut(&handle) else { return };
        let Some((op, group)) = client.drain else { return };
        if client.in_flight.is_empty() && running.storing.values().all(|command| command.block.0 != group) {
            client.drain = None;
            self.send_to(node, life, 50, 0, Input::Reply(op, Reply::Done, None));
        }
    }

    /// Answers a host.
    fn answer(&mut self, node: usize, command: Command, number: Option<u64>) {
        if self.nodes[node].hosts_cut_until > self.now {
            return;
        }
        let at = self.now + self.delay(50 * MS);
        self.at(at, Event::Answer { slot: command.slot, attempt: command.attempt, node, number });
    }

    pub(crate) fn add_client(&mut self, node: usize, handle: Handle, client: Client) {
        if let Some(running) = self.nodes[node].running.as_mut() {
            running.clients.insert(handle, client);
        }
    }
}

/// Of two images of each group, those that cannot be opened.
fn lacks(unable: Option<Unable>) -> Unopened {
    let count = match unable {
        Some(Unable::Open) => 2,
        Some(Unable::OpenAll) => 1,
        Some(Unable::OneGone) => return [Lack { is_gone: true, ..lack(0, "another disk") }].into(),
        _ => 0,
    };
    (0..count).map(|image| lack(image, "no passphrase")).collect()
}

fn lack(image: u32, reason: &str) -> Lack {
    Lack { namespace: image.to_string(), reason: reason.to_owned(), is_gone: false }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn describe(action: &Action) -> String {
    match action {
        Action::CompareAndSet { object, compare, set, .. } => {
            let from = compare.first().and_then(|(_, value)| value.as_deref()).map_or("nothing".into(), text);
            let to = set.first().map_or_else(String::new, |(key, value)| {
                format!("{key}: {}", value.as_deref().map_or("nothing".into(), text))
            });
            format!("compare and set {object:?}: {from} -> {to}")
        }
        action => format!("{action:?}"),
    }
}
